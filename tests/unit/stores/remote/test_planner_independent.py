"""Riders that have nothing to do with each other are planned without a fold, and come to the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.stores.protocol import Check, Decision, Delete, Put, Record, Wake
from standfast.stores.remote.planner import RecordCache, plan, plan_independent
from tests.unit.stores.remote.table import CAPABILITIES

if TYPE_CHECKING:
    from standfast.stores.backend import Rider
    from standfast.stores.protocol import Change, Snapshot
    from standfast.stores.remote.planner import WritePlan

KEYS = [RecordKey("n", name) for name in "abcdefgh"]
A, B, C = KEYS[:3]
AT, LATER = Instant(1_000), Instant(1_500)

versions = st.integers(min_value=1, max_value=2)
expiries = st.sampled_from([None, Instant(900), Instant(2_000)])
changes = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), st.binary(max_size=3), st.integers(0, 2), expiries),
    st.builds(Delete, st.sampled_from(KEYS), versions),
    st.builds(Check, st.sampled_from(KEYS), versions),
)
wakes = st.lists(st.builds(Wake, st.sampled_from(KEYS)), max_size=2).map(tuple)


def update(keys: list[RecordKey], text: bytes) -> UpdateRider:
    """An update that puts what is not there and deletes what is; in a window if it was told one."""

    def decide(seen: Snapshot) -> Decision[list[RecordKey]]:
        if text == b"!":
            raise ValueError(text)
        puts = [Put(key, text) for key in keys if key not in seen.records]
        deletes = [Delete(key, record.version) for key, record in seen.records.items()]
        after, before = (Instant(AT - 5), Instant(AT + 7)) if text == b"w" else (None, None)
        return Decision(list(seen.records), (*puts, *deletes) if text else (), after, before, (Wake(A),))

    return UpdateRider(tuple(keys), decide)


def rider(found: list[Change], wake: tuple[Wake, ...]) -> CommitRider:
    """A commit of changes of different keys."""
    return CommitRider(tuple({change.key: change for change in found}.values()), wake=wake)


commits = st.builds(rider, st.lists(changes, min_size=1, max_size=2), wakes)
updates = st.builds(
    update, st.lists(st.sampled_from(KEYS), min_size=1, max_size=2), st.sampled_from([b"", b"x", b"w", b"!"])
)
riders = st.lists(st.one_of(commits, updates), min_size=1, max_size=4).map(tuple)
cache = st.dictionaries(st.sampled_from(KEYS), st.builds(lambda n, ends: (n, ends), versions, expiries))


def of_a_plan(made: Any) -> tuple[object, ...]:
    """What is asked of the server, and what is answered then."""
    asked = list(made.guards.items()), made.puts, made.deletes, made.wakes, made.draws, made.after, made.before
    applied = made.applied(LATER, range(50, 50 + made.draws))
    outcomes = [repr(each) if isinstance(each, Exception) else each for each in applied.outcomes]
    return asked, outcomes, applied.changed, applied.wakes, made.exact, made.unknown, made.confirmed


def apart(*riders: Rider) -> WritePlan | None:
    """Plan some riders without cache."""
    return plan_independent(riders, RecordCache(), AT, CAPABILITIES)


@given(riders=riders, assumed=cache)
def test_it_comes_to_what_the_fold_comes_to(riders: tuple[Rider, ...], assumed: dict[RecordKey, Any]) -> None:
    """To the order of the keys: servers lock in that order."""
    known = RecordCache()
    known.learn({key: Record(key, b"old", *each) for key, each in assumed.items()})

    made = plan_independent(riders, known, AT, CAPABILITIES)

    if made is not None:
        assert of_a_plan(made) == of_a_plan(plan(riders, AT, known, {}, CAPABILITIES))


def test_a_guard_that_all_share_keeps_nobody_from_it() -> None:
    """Claims of one worker are all guarded by its record."""
    made = apart(CommitRider((Check(A, 7), Put(B, b""))), CommitRider((Check(A, 7), Put(C, b""))))

    assert made is not None
    assert made.guards == {A: 7, B: 0, C: 0}


@pytest.mark.parametrize(
    "second",
    [
        CommitRider((Put(A, b""),)),
        CommitRider((Delete(A, 1),)),
        CommitRider((Check(A, 1),)),
        CommitRider((Put(B, b"", 2),)),
        CommitRider((Check(B, 3),)),
        CommitRider((Put(C, b""),), after=AT),
        CommitRider((Put(C, b""),), before=AT),
        UpdateRider((C, B), lambda _: Decision(None)),
    ],
)
def test_whatever_is_not_so_simple_is_folded(second: Rider) -> None:
    """A key that one writes and another names, guards that disagree, a window of time, an update of what is named."""
    assert apart(CommitRider((Put(A, b""), Check(B, 2))), second) is None


def test_an_update_is_decided_at_some_time() -> None:
    """Where none is known the server is asked first."""
    assert plan_independent((update([A], b"x"),), RecordCache(), None, CAPABILITIES) is None
    assert apart(update([A], b"x")) is not None
