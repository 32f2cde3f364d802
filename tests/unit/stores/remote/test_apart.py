"""Commits that have nothing to do with each other are planned without a fold, and come to the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import Instant
from holdfast.keys import RecordKey
from holdfast.stores.backend import CommitRider, UpdateRider
from holdfast.stores.protocol import Check, Decision, Delete, Put, Wake
from holdfast.stores.remote.apart import plan_apart
from holdfast.stores.remote.believing import Beliefs
from holdfast.stores.remote.planning import plan
from tests.unit.stores.remote.table import CAPABILITIES

if TYPE_CHECKING:
    from holdfast.stores.backend import Rider
    from holdfast.stores.protocol import Change

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


def rider(found: list[Change], wake: tuple[Wake, ...]) -> CommitRider:
    """A commit of changes of different keys."""
    return CommitRider(tuple({change.key: change for change in found}.values()), wake=wake)


riders = st.lists(st.builds(rider, st.lists(changes, min_size=1, max_size=2), wakes), min_size=1, max_size=4)


def of_a_plan(made: Any) -> tuple[object, ...]:
    """What is asked of the server, and what is answered then."""
    asked = list(made.guards.items()), made.puts, made.deletes, made.wakes, made.draws, made.after, made.before
    return asked, made.applied(LATER, range(50, 50 + made.draws)), made.exact, made.unknown, made.confirmed


@given(riders=riders)
def test_it_comes_to_what_the_fold_comes_to(riders: list[Rider]) -> None:
    """To the order of the keys: servers lock in that order."""
    made = plan_apart(tuple(riders))

    if made is not None:
        folded = plan(tuple(riders), AT, Beliefs(), {}, CAPABILITIES)
        assert of_a_plan(made) == of_a_plan(folded)


def test_a_guard_that_all_share_keeps_nobody_from_it() -> None:
    """Claims of one worker are all guarded by its record."""
    made = plan_apart((CommitRider((Check(A, 7), Put(B, b""))), CommitRider((Check(A, 7), Put(C, b"")))))

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
        UpdateRider((C,), lambda _: Decision(None)),
    ],
)
def test_whatever_is_not_so_simple_is_folded(second: Rider) -> None:
    """A key that one writes and another names, guards that disagree, a window of time, an update."""
    assert plan_apart((CommitRider((Put(A, b""), Check(B, 2))), second)) is None
