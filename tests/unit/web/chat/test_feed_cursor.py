"""How far a client has read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import InvalidInputError
from standfast.web.chat.feed import LONGEST, FeedCursor

STEPS = st.lists(st.tuples(st.sampled_from(["tell", "hear", "end"]), st.integers(1, 30), st.integers(1, 9)))


def after(steps: list[tuple[str, int, int]]) -> FeedCursor:
    """Return what was read after some steps: an answer is heard or ends only if its message was told."""
    seen = FeedCursor(0)
    for kind, message, event in steps:
        if kind == "tell":
            seen.tell(message)
        elif message <= seen.last and not seen.is_over(message):
            seen.note(message, event)
            if kind == "end":
                seen.end(message)
    return seen


@given(STEPS)
def test_what_was_read_is_the_same_after_it_was_written_and_read(steps: list[tuple[str, int, int]]) -> None:
    """A client that comes back stands where it was."""
    seen = after(steps)
    again = FeedCursor.read(str(seen))
    assert str(again) == str(seen)
    for message in range(1, 32):
        assert again.is_over(message) == seen.is_over(message)
        assert again.after(message) == seen.after(message)


@given(STEPS)
def test_an_answer_is_over_exactly_if_its_end_was_read(steps: list[tuple[str, int, int]]) -> None:
    """Ranges that were merged hold no more and no less than what ended."""
    seen, ended, last = FeedCursor(0), set[int](), 0
    for kind, message, _ in steps:
        if kind == "tell":
            seen.tell(message)
            last = max(last, message)
        elif kind == "end" and message <= last:
            seen.end(message)
            ended.add(message)
    assert {message for message in range(1, 32) if seen.is_over(message)} == ended


def test_answers_that_end_in_order_keep_it_short() -> None:
    """However long the conversation, the place to continue from is not."""
    seen = FeedCursor(1000)
    for message in range(1001, 2001):
        seen.tell(message)
        seen.end(message)
    assert str(seen) == "2000-2000"


def test_nothing_stands_for_the_beginning() -> None:
    """A client that comes for the first time has read nothing."""
    assert str(FeedCursor.read("")) == "0-0"


@pytest.mark.parametrize(
    "text",
    ["1", "1:2", "a-b", "1-2,", "1-2,3", "1-2;3-4", "-1-2", "1-2,9:x", "1" * 16 + "-1", "1-2" + ",3-3" * LONGEST],
)
def test_what_was_not_given_out_is_refused(text: str) -> None:
    """It comes from a client, so it is checked; the error does not repeat it."""
    with pytest.raises(InvalidInputError) as caught:
        FeedCursor.read(text)
    assert text not in str(caught.value)


def test_a_range_that_a_client_made_up_costs_nothing() -> None:
    """A huge range is two numbers, and is not counted through."""
    seen = FeedCursor.read("0-5,7-999999999999999")
    assert seen.is_over(123_456_789)
    assert not seen.is_over(6)
