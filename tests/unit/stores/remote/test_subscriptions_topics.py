"""Topics: a commit sends to those who listen, and to nobody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.keys import RecordKey
from standfast.stores.protocol import Wake
from standfast.stores.remote.server import Audience
from standfast.stores.remote.subscriptions import (
    LONGEST_MESSAGE,
    MOST_WAKES,
    SIBLINGS,
    Interests,
    KnownTopics,
    decode_message,
    encode_message,
)

LIFE = RecordKey("n", "t", "life")


def addressing(*topics: bytes) -> KnownTopics:
    """What a committer knows when these topics are listened to."""
    made = KnownTopics()
    made.learn(Audience(1, frozenset(topics)))
    return made


def test_a_handle_listens_to_what_its_watches_want() -> None:
    """A new prefix needs a new topic; what a topic covers already does not."""
    interests = Interests()

    assert interests.want([LIFE.child("run-1")])
    assert not interests.want([LIFE.child("run-1"), LIFE.child("run-1", "x")])
    assert interests.topics == {LIFE.child("run-1")}


def test_many_topics_below_one_key_become_one() -> None:
    """Whoever awaits one run after another tells the server so a few times, not a thousand times."""
    interests = Interests()
    needed = sum(interests.want([LIFE.child(f"run-{number}")]) for number in range(1_000))

    assert needed == SIBLINGS + 1
    assert LIFE in interests.topics


def test_a_topic_is_not_widened_beyond_a_kind() -> None:
    """Nobody listens to all there is because of a few watches."""
    interests = Interests()
    for kind in ("ready", "timer", "worker", "life", "own"):
        interests.want([RecordKey("n", "t", kind)])

    assert len(interests.topics) == 5


def test_topics_that_nobody_wants_are_dropped_in_time() -> None:
    """They stay until the handle tidies up, so that the next watch costs nothing."""
    interests = Interests()
    interests.want([LIFE])
    interests.let_go([LIFE])

    assert not interests.want([LIFE])
    interests.let_go([LIFE])
    assert interests.tidy()
    assert interests.topics == frozenset()


def test_only_what_is_listened_to_is_sent() -> None:
    """A commit that nobody waits for sends nothing."""
    assert addressing().messages([LIFE], [Wake(LIFE)], "me") == ()
    assert addressing(RecordKey("n", "t", "ready")).messages([LIFE.child("run-1")], [], "me") == ()


def test_a_topic_hears_of_the_keys_below_it() -> None:
    """One message a topic, whatever the number of keys."""
    (message,) = addressing(LIFE).messages([LIFE.child("1"), LIFE.child("2")], [Wake(LIFE, LIFE.child("3"))], "me")

    assert message.topic == LIFE
    origin, hints = decode_message(message.data)
    assert origin == "me"
    assert hints == (Wake(LIFE.child("1")), Wake(LIFE.child("2")), Wake(LIFE, LIFE.child("3")))


def test_a_key_with_a_longer_name_is_not_below_a_topic() -> None:
    """A topic ends where a part ends."""
    topic = RecordKey("n", "t", "life", "run-1")

    assert addressing(topic).messages([RecordKey("n", "t", "life", "run-12")], [], "me") == ()


def test_what_was_not_known_in_time_is_found_out() -> None:
    """The topics that a newer list adds are those to send to once more."""
    made = addressing(LIFE)

    assert made.learn(Audience(2, frozenset({LIFE, b"new"}))) == {b"new"}
    assert made.messages([LIFE], [], "me", among=frozenset({b"new"})) == ()


@pytest.mark.parametrize("keys", [[LIFE.child(str(n)) for n in range(MOST_WAKES + 1)], [RecordKey("x" * 900)] * 10])
def test_too_much_to_tell_apart_says_to_look_at_everything(keys: list[RecordKey]) -> None:
    """A message fits into what servers take."""
    data = encode_message("me", [Wake(key) for key in keys])

    assert len(data) <= LONGEST_MESSAGE
    assert decode_message(data) == ("me", None)


@given(st.binary(max_size=200))
def test_what_cannot_be_read_says_to_look_at_everything(data: bytes) -> None:
    """Whoever can send to a server can send nonsense."""
    _, hints = decode_message(data)

    assert hints is None or all(isinstance(hint, Wake) for hint in hints)
