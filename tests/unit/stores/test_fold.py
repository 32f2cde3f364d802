"""Folding a batch is a pure function of the records, the time and the riders."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import Instant
from standfast.errors import InvalidChangeError
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Decided, Decision, Delete, Put, Record, Snapshot, Wake
from standfast.stores.backend import ChoiceRider, CommitRider, Rider, UpdateRider
from standfast.stores.fold import Folded, fold, fold_in_order, keys_of
from standfast.stores.memory import CAPABILITIES
from standfast.stores.protocol import Alternative, Append, Empty, MoveFirst, Present, Stamped

if TYPE_CHECKING:
    from collections.abc import Container

    from standfast.stores import Change
    from standfast.stores.protocol import AlternativeChange

A, B = RecordKey("ns", "a"), RecordKey("ns", "b")
NOW = Instant(1_000)


def folded(*riders: Rider, records: tuple[Record, ...] = (), last_version: int = 10) -> Folded:
    """Fold riders over a few records at a fixed time."""
    present = {record.key: record for record in records}
    return fold(riders, at=NOW, last_version=last_version, records=present, limits=CAPABILITIES)


def add_one(key: RecordKey) -> UpdateRider:
    """Count up the number at a key."""

    def decide(seen: Snapshot) -> Decision[int]:
        record = seen.get(key)
        number = 1 if record is None else int(record.value) + 1
        return Decision(number, (Put(key, str(number).encode(), seen.version(key)),))

    return UpdateRider((key,), decide)


def test_each_rider_sees_what_those_before_it_did() -> None:
    """A create and a put on top of it ride together, in order."""
    result = folded(CommitRider((Put(A, b"1"),)), CommitRider((Put(A, b"2", expected=11),)))

    assert [type(outcome) for outcome in result.outcomes] == [Commit, Commit]
    assert result.writes == {A: Record(A, b"2", 12)}


@given(count=st.integers(1, 200))
def test_many_updates_of_one_key_become_one_write(count: int) -> None:
    """However many updates of a hot key ride together, the key is written once, with the last value."""
    result = folded(*[add_one(A)] * count)

    assert [outcome.answer for outcome in result.outcomes if isinstance(outcome, Decided)] == [*range(1, count + 1)]
    assert result.writes == {A: Record(A, str(count).encode(), 10 + count)}


def test_a_lost_guard_writes_nothing_and_shows_every_key_that_lost() -> None:
    """A conflict carries the present record of each key whose guard failed, and only of those."""
    old = Record(A, b"x", 5)
    result = folded(CommitRider((Put(A, b"y", expected=4), Put(B, b"z"), Check(A, 4))), records=(old,))

    assert result.outcomes == (Conflict(NOW, {A: old}),)
    assert result.writes == {}
    assert result.last_version == 10


def test_an_expired_record_is_absent_from_its_instant_on() -> None:
    """Expiry is inclusive: at ``expires_at`` the record is gone, one microsecond earlier it is there."""
    create = CommitRider((Put(A, b"new"),))

    gone = folded(create, records=(Record(A, b"old", 3, Instant(NOW)),))
    still_there = folded(create, records=(Record(A, b"old", 3, Instant(NOW + 1)),))

    assert isinstance(gone.outcomes[0], Commit)
    assert isinstance(still_there.outcomes[0], Conflict)


def test_a_record_put_already_expired_is_absent_to_the_next_rider() -> None:
    """What is put with an expiry in the past is there for nobody."""
    result = folded(CommitRider((Put(A, b"", expires_at=NOW),)), CommitRider((Put(A, b"again"),)))

    assert [type(outcome) for outcome in result.outcomes] == [Commit, Commit]


def test_a_window_is_closed_at_its_start_and_open_at_its_end() -> None:
    """A commit happens when ``after <= at < before``; a missed window names no key."""
    put = (Put(A, b""),)

    assert isinstance(folded(CommitRider(put, after=NOW)).outcomes[0], Commit)
    assert isinstance(folded(CommitRider(put, before=Instant(NOW + 1))).outcomes[0], Commit)
    assert folded(CommitRider(put, after=Instant(NOW + 1))).outcomes == (Conflict(NOW, {}),)
    assert folded(CommitRider(put, before=NOW)).outcomes == (Conflict(NOW, {}),)


def test_a_deleted_key_gets_a_higher_version_when_it_comes_back() -> None:
    """Versions grow across delete and create, so a version can be a fencing token."""
    result = folded(CommitRider((Delete(A, 5),)), CommitRider((Put(A, b"back"),)), records=(Record(A, b"", 5),))

    assert result.writes == {A: Record(A, b"back", 12)}


def test_an_update_that_raises_fails_alone() -> None:
    """The riders before and after it are not touched."""

    def fail(_: Snapshot) -> Decision[None]:
        raise LookupError("mine")

    result = folded(add_one(A), UpdateRider((A,), fail), add_one(A))

    assert isinstance(result.outcomes[1], LookupError)
    assert result.writes == {A: Record(A, b"2", 12)}


def test_a_decision_beyond_its_keys_or_against_what_it_saw_is_refused() -> None:
    """A decide function may change only what it was given, at the versions it saw."""
    stranger = UpdateRider((A,), lambda _: Decision(None, (Put(B, b""),)))
    guesser = UpdateRider((A,), lambda _: Decision(None, (Put(A, b"", expected=9),)))
    careless = UpdateRider((A,), lambda _: None)  # type: ignore[arg-type, return-value] # the mistake under test

    result = folded(stranger, guesser, careless)

    assert [type(outcome) for outcome in result.outcomes] == [InvalidChangeError] * 3
    assert result.writes == {}


def test_a_create_and_a_check_of_the_same_key_see_each_other_in_order() -> None:
    """A check that rides behind the create of its key holds; one that rides before it cannot."""
    create, check = CommitRider((Put(A, b""),)), CommitRider((Check(A, 11), Put(B, b"")))

    assert isinstance(folded(create, check).outcomes[1], Commit)
    assert isinstance(folded(check, create).outcomes[0], Conflict)


def test_a_rider_that_changes_nothing_takes_no_version_but_may_wake() -> None:
    """Looking costs nothing; hints are sent all the same."""
    look = UpdateRider((A,), lambda seen: Decision(seen.version(A), wake=(Wake(B),)))

    result = folded(look)

    assert result.last_version == 10
    assert result.wakes == (Wake(B),)


def test_the_keys_of_a_batch_are_those_of_all_its_riders() -> None:
    """What a backend must read before it folds."""
    assert keys_of([CommitRider((Put(A, b""),)), add_one(B)]) == {A: A, B: B}


def any_rider(chooser: random.Random) -> CommitRider:
    """Return a commit of one to three changes, right or wrong about versions and time."""
    changes: list[Change] = []
    for key in chooser.sample([A, B, RecordKey("ns", "c")], chooser.randint(1, 3)):
        expected, expires_at = chooser.randint(1, 2), chooser.choice([None, NOW, Instant(NOW + 1)])
        put = Put(key, b"new", chooser.randint(0, 2), expires_at)
        kinds: list[Change] = [put, Delete(key, expected), Check(key, expected)]
        changes.append(chooser.choice(kinds))
    edges = [None, Instant(NOW - 1), NOW, Instant(NOW + 1)]
    wake = tuple([Wake(A)] * chooser.randint(0, 1))
    return CommitRider(tuple(changes), chooser.choice(edges), chooser.choice(edges), wake)


def test_one_commit_alone_is_folded_as_one_of_many() -> None:
    """The short way for a lone commit comes to the same as the long one, whatever it finds."""
    for seed in range(500):
        chooser = random.Random(seed)
        present = {
            key: Record(key, b"old", chooser.randint(1, 2), chooser.choice([None, NOW, Instant(NOW + 1)]))
            for key in chooser.sample([A, B], chooser.randint(0, 2))
        }
        rider = any_rider(chooser)

        short = fold((rider,), at=NOW, last_version=5, records=present, limits=CAPABILITIES)

        assert short == fold_in_order((rider,), NOW, 5, present, CAPABILITIES), f"seed {seed}"


QUEUE, INBOXES = RecordKey("ns", "queue"), RecordKey("ns", "inbox")


def some_change(chance: random.Random, key: RecordKey) -> AlternativeChange:
    """Return any change of a key, or of what lies below a prefix; its guard may hold or not."""
    expected, expires_at = chance.choice((0, 3, 4)), chance.choice((None, None, Instant(NOW + 5)))
    changes: tuple[AlternativeChange, ...] = (
        Put(key, b"put", expected, expires_at),
        Stamped(key, b"stamped", expected),
        Delete(key, 3),
        Check(key, 3),
        Present(key),
        Empty(QUEUE),
        Append(QUEUE, b"appended", b"x\x00\x01", stamped=chance.random() < 0.5),
        MoveFirst(QUEUE, key, expected, INBOXES),
    )
    return chance.choice(changes)


def test_one_choice_alone_is_folded_as_one_of_many() -> None:
    """The short way for a batch of one choice comes to the same as the long one, whatever is there."""
    for seed in range(2_000):
        chance = random.Random(seed)
        tickets = [Append(QUEUE, b"", chance.choice((b"", b"p\x00\x01"))).key_of(number) for number in (7, 9)]
        alternatives = tuple(
            Alternative((some_change(chance, A), *([some_change(chance, B)] if chance.random() < 0.5 else [])))
            for _ in range(chance.randint(1, 3))
        )
        below = [Record(key, b"ticket", 2) for key in tickets[: chance.randint(0, 2)]]
        lapses = chance.choice((None, NOW, Instant(NOW + 1)))
        present = {key: Record(key, b"old", 3, lapses) for key in (A, B) if chance.random() < 0.5}

        def look(
            prefix: RecordKey, most: int, without: Container[RecordKey] = (), below: list[Record] = below
        ) -> list[Record]:
            return [each for each in below if each.key.startswith(prefix) and each.key not in without][:most]

        rider = ChoiceRider(alternatives)
        short = fold((rider,), at=NOW, last_version=5, records=present, limits=CAPABILITIES, ranges=look)
        assert short == fold_in_order((rider,), NOW, 5, present, CAPABILITIES, look), f"seed {seed}"
