"""Every interleaving of the commits on a mutex's records, and wrong commits to show that it would be noticed."""

from __future__ import annotations

import pytest

from standfast.testing.explorer import Exploration, explore
from tests.model.mutex_world import Guards, MutexModel, World, canonical
from tests.sizes import size

HOLDING = ("holds", "frees", "has looked")


def a_waiter_is_never_overlooked(_before: World, _step: str, after: World) -> bool:
    """While there is a ticket the mutex is held, so that whoever leaves it sees the ticket."""
    return after.head or not after.tickets


def head_and_grant_go_together(_before: World, _step: str, after: World) -> bool:
    """The head says that there is a grant."""
    return after.head == (after.grant is not None)


def one_holds(_before: World, _step: str, after: World) -> bool:
    """A process that lives, was told that it holds and was not evicted, has the grant: two of them cannot."""
    return all(
        after.grant is not None and (after.grant.who, after.grant.fence) == (number, each.fence)
        for number, each in enumerate(after.processes)
        if each.is_up and not each.is_evicted and each.phase in HOLDING
    )


def first_come_first_served(before: World, _step: str, after: World) -> bool:
    """No ticket is moved while an earlier one of a process that lives stays."""
    gone = [each for each in before.tickets if each not in after.tickets]
    moved = [each for each in gone if after.grant != before.grant and after.grant is not None]
    moved = [each for each in moved if after.grant is not None and each.who == after.grant.who]
    return all(
        each.number > ticket.number for ticket in moved for each in after.tickets if after.processes[each.who].is_up
    )


def a_newcomer_passes_no_ticket(before: World, _step: str, after: World) -> bool:
    """A process that does not wait is granted only what none of the living waits for."""
    if after.grant in (None, before.grant) or after.grant is None:
        return True
    waited = any(each.who == after.grant.who for each in before.tickets)
    return waited or not any(before.processes[each.who].is_up for each in before.tickets)


def only_one_that_asks_is_granted(before: World, _step: str, after: World) -> bool:
    """A grant goes to a process that waits, or that takes it for itself."""
    asking = ("enters", "waits", "has seen it over")
    return after.grant in (None, before.grant) or before.processes[after.grant.who].phase in asking


def fences_grow(before: World, _step: str, after: World) -> bool:
    """A new grant has a larger version than everything that there is."""
    return after.grant in (None, before.grant) or (after.grant is not None and after.grant.fence > before.last_version)


PROPERTIES = {
    each.__name__: each
    for each in (
        a_waiter_is_never_overlooked,
        head_and_grant_go_together,
        one_holds,
        first_come_first_served,
        a_newcomer_passes_no_ticket,
        only_one_that_asks_is_granted,
        fences_grow,
    )
}

MUTANTS = {
    "joins without looking whether it is held": Guards(joins_if_held=False),
    "frees without looking for tickets": Guards(frees_if_empty=False),
    "moves the last ticket": Guards(moves_first=False),
    "leaves without looking at the grant": Guards(checks_grant=False),
    "takes over without looking for tickets": Guards(takes_over_if_empty=False),
    "hands over to a known one that has gone": Guards(known_if_there=False),
}


def search(processes: int, turns: int, guards: Guards = Guards(), ends: int = 1) -> Exploration:  # noqa: B008 -- it is a value
    """Explore so many processes that each enter so often, while so many holds end by their time."""
    model = MutexModel(processes, turns, guards, ends)
    return explore(model.start(), model.steps, PROPERTIES, canonical=canonical, most_states=3_000_000)


@pytest.mark.heavy
@pytest.mark.parametrize(("processes", "turns"), [(2, 2), (2, 3), (3, size(full=2, quick=1))])
def test_no_interleaving_of_commits_breaks_a_mutex(processes: int, turns: int) -> None:
    """Whichever of two alternatives comes too late, whatever happens after a read, and whoever dies."""
    found = search(processes, turns, ends=1 if processes == 2 else size(full=1, quick=0))
    print(f"{processes} processes, {turns} turns: {found}")
    assert found.complete, found


@pytest.mark.heavy
def test_newcomers_and_waiters_share_holds_that_are_over() -> None:
    """A hold ends by its time while others come, wait, look and die."""
    found = search(size(full=3, quick=2), 1, ends=size(full=2, quick=1))
    assert found.complete, found


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_commit_that_looks_at_too_little_is_found_out(mutant: str) -> None:
    """Each guard is needed: without it some interleaving breaks a property."""
    found = search(3, 1, MUTANTS[mutant])
    assert found.violation, found
    print(f"{mutant}: after {found.states:,} states, {found.violation}")
