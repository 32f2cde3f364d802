"""Shares: whoever takes all that can be had leaves others theirs."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import TooManyRequestsError
from standfast.flows.shares import Shares, is_spent, sharer_of

NAMES = st.sampled_from("abc")


def fill(shares: Shares, group: str, member: str) -> int:
    """Take all that one gets; return how many."""
    taken = 0
    with suppress(TooManyRequestsError):
        while True:
            shares.enter(group, member)
            taken += 1
    return taken


@pytest.mark.parametrize(("most", "one"), [(1, 1), (2, 1), (3, 1), (4, 2), (10, 4), (60, 20), (1_000, 334)])
def test_one_that_is_alone_gets_a_third(most: int, one: int) -> None:
    """And never less than one."""
    assert fill(Shares(most, "things"), "acme", "ann") == one


@pytest.mark.parametrize("most", [10, 100, 1_000])
def test_a_group_gets_half_however_many_members_it_has(most: int) -> None:
    """Its own next member is told that its group has its share; another group gets some."""
    shares = Shares(most, "things")
    for number in range(most):
        fill(shares, "acme", f"user {number}")
    assert shares.open == most // 2
    with pytest.raises(TooManyRequestsError, match="things of the tenant"):
        shares.enter("acme", "late")
    assert fill(shares, "other", "bob") >= most // 10


@given(st.integers(2, 60), st.lists(st.tuples(NAMES, NAMES, st.booleans()), max_size=200))
def test_whoever_has_none_finds_a_place_while_others_take_all_they_get(
    most: int, steps: list[tuple[str, str, bool]]
) -> None:
    """Whatever came and went before: each group leaves half of what it found. Nothing stays of those who left."""
    shares, here = Shares(most, "things"), Counter[tuple[str, str]]()
    for group, member, enters in steps:
        if enters:
            with suppress(TooManyRequestsError):
                shares.enter(group, member)
                here[group, member] += 1
        elif here[group, member]:
            shares.leave(group, member)
            here[group, member] -= 1
        assert shares.open == here.total() <= most
        groups = {name for (name, _), number in here.items() if number}
        if most > 2 ** len(groups):
            with shares.of("newcomer", "ann"):
                pass
    for who in list(here.elements()):
        shares.leave(*who)
    assert (shares.open, shares._groups) == (0, {})


@pytest.mark.parametrize(
    ("own", "left", "spent"), [(0, 0, True), (0, 1, False), (1, 1, True), (1, 2, False), (3, 9, False)]
)
def test_who_has_some_gets_one_more_while_as_many_are_left(own: int, left: int, *, spent: bool) -> None:
    """And who has none, while there is any."""
    assert is_spent(own, left) is spent


def test_no_user_is_counted_as_webhooks_or_schedules() -> None:
    """Whatever its name is."""
    assert sharer_of("webhook", "http") == "webhook"
    assert len({sharer_of("ann", each) for each in ("webhook", "schedule", "http")}) == 3
