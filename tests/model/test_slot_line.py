"""Every interleaving of the commits on a line with slots, and wrong commits to show that it would be noticed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from standfast.testing.explorer import Exploration, explore
from tests.model.slot_world import Guards, SlotModel, World, canonical
from tests.sizes import size

if TYPE_CHECKING:
    from collections.abc import Callable

    Property = Callable[[World, str, World], bool]


def new_grants(before: World, after: World) -> list[int]:
    """Return who holds since this step."""
    return [each.who for each in after.line.slots if each is not None and each not in before.line.slots]


def while_one_waits_all_is_held(_before: World, _step: str, after: World) -> bool:
    """Under the gate a ticket means that there is no free slot: so whoever leaves sees it."""
    line = after.line
    return not (line.gate and line.tickets) or None not in line.slots[: line.permits]


def the_first_that_fits_holds(model: SlotModel, _before: World, _step: str, after: World) -> bool:
    """No waiter is left behind for whom there are permits."""
    line = after.line
    return not line.tickets or model.held(line) + model.weight(line.tickets[0].who) > line.permits


def no_permit_is_given_twice(model: SlotModel, before: World, _step: str, after: World) -> bool:
    """Who is granted something fits besides all others that hold."""
    return not new_grants(before, after) or model.held(after.line) <= after.line.permits


def who_was_told_holds(_before: World, _step: str, after: World) -> bool:
    """A process that lives, was told that it holds and was not evicted, has its grant."""
    return all(
        (grant := after.line.slots[each.slot]) is not None and (grant.who, grant.fence) == (number, each.fence)
        for number, each in enumerate(after.processes)
        if each.is_up and not each.is_evicted and each.phase == "holds"
    )


def first_come_first_served(before: World, _step: str, after: World) -> bool:
    """No ticket is granted while an earlier one stays, and none that has no ticket passes one."""
    granted, stay = new_grants(before, after), [each for each in before.line.tickets if each in after.line.tickets]
    numbers = [each.number for each in before.line.tickets if each.who in granted]
    fresh = [who for who in granted if all(each.who != who for each in before.line.tickets)]
    return all(each.number > number for number in numbers for each in stay) and not (fresh and stay)


def the_head_goes_with_the_last(_before: World, _step: str, after: World) -> bool:
    """There is a head as long as one holds, and no longer; and no gate without a head."""
    line = after.line
    return bool(line.head) == any(line.slots) and (bool(line.head) or not (line.gate or line.tickets))


def fences_grow(before: World, _step: str, after: World) -> bool:
    """A new grant has a larger version than everything that there is."""
    fences = [each.fence for each in after.line.slots if each is not None and each not in before.line.slots]
    return all(fence > before.last_version for fence in fences)


def search(model: SlotModel) -> Exploration:
    """Explore a model."""
    properties: dict[str, Property] = {
        each.__name__: each
        for each in (while_one_waits_all_is_held, who_was_told_holds, first_come_first_served, fences_grow)
    }
    properties["the_head_goes_with_the_last"] = the_head_goes_with_the_last
    properties["the_first_that_fits_holds"] = partial(the_first_that_fits_holds, model)
    properties["no_permit_is_given_twice"] = partial(no_permit_is_given_twice, model)
    return explore(model.start(), model.steps, properties, canonical=canonical, most_states=3_000_000)


WORLDS = {
    "three for two permits": SlotModel((1, 1, 1), 2),
    "three for one permit": SlotModel((1, 1, 1), 1),
    "one is evicted": SlotModel((1, 1), 1, turns=2, evictions=1),
    "one wants two": SlotModel((1, 1, 2), 2),
    "a permit is taken away": SlotModel((1,) * size(full=3, quick=2), 2, resizes=1),
}

MUTANTS = {
    "joins without looking whether all is held": (Guards(joins_if_full=False), "three for two permits"),
    "takes a slot without a gate": (Guards(takes_under_gate=False), "one wants two"),
    "frees without looking for tickets": (Guards(frees_if_empty=False), "three for two permits"),
    "frees alone though it is the last one": (Guards(frees_if_another=False), "three for two permits"),
    "moves the last ticket": (Guards(moves_first=False), "three for one permit"),
    "hands over without a gate": (Guards(hands_over_if_open=False), "one wants two"),
    "takes the head along while others hold": (Guards(last_if_alone=False), "three for two permits"),
    "does not close the gate": (Guards(closes=False), "a permit is taken away"),
    "closes the gate but not the head": (Guards(closes_head=False), "one wants two"),
    "does not look at the head without a gate": (Guards(closed_by_head=False), "one wants two"),
    "frees without looking for another that holds": (Guards(leaves_another=False), "three for two permits"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("world", WORLDS)
def test_no_interleaving_of_commits_breaks_a_line_with_slots(world: str) -> None:
    """Whichever alternative comes too late, whatever happens after a look, and whoever dies."""
    found = search(WORLDS[world])
    print(f"{world}: {found}")
    assert found.complete, found


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_commit_that_looks_at_too_little_is_found_out(mutant: str) -> None:
    """Each guard is needed: without it some interleaving breaks a property."""
    guards, world = MUTANTS[mutant]
    found = search(WORLDS[world]._replace(guards=guards))
    assert found.violation, found
    print(f"{mutant}: after {found.states:,} states, {found.violation}")
