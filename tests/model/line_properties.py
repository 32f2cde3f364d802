"""What every step of a line must keep, whoever takes it."""

from __future__ import annotations

from standfast.locks.line import OUT_OF_SIGHT, Rules
from tests.model.line_world import Step, World, ids, new_grants


def shares_as_allowed(before: World, _step: Step, after: World) -> bool:
    """Whoever gets a permit fits beside everyone who holds, by mode and by weight; nobody has a slot twice.

    A step that changes the permits may grant first, by the old ones.
    """
    holders = after.line.holders
    modes = {each.entry.mode for each in holders}
    alone = len(holders) == 1 or not modes & set(after.line.rules.alone)
    fits = (
        len(modes) <= 1 and alone and sum(each.entry.weight for each in holders) <= max(before.permits, after.permits)
    )
    slots = {each.entry.id if each.slot == OUT_OF_SIGHT else each.slot for each in holders}
    apart = len(slots) == len({each.entry.id for each in holders}) == len(holders)
    return apart and (fits or not new_grants(before.line, after.line))


def fences_grow(before: World, _step: Step, after: World) -> bool:
    """Each grant has a higher fence than all grants of its slot before."""
    last, now = dict(before.fences), dict(after.fences)
    return all(now[each.slot] > last.get(each.slot, 0) for each in new_grants(before.line, after.line))


def served_in_order(before: World, _step: Step, after: World) -> bool:
    """Nobody is granted while one who came earlier, and is alive, still waits; places are kept."""
    still = [entry_id for entry_id in before.arrived if entry_id in after.arrived]
    survivors = {each.entry.id for each in before.line.waiters if after.alive(each.entry)}
    for holder in new_grants(before.line, after.line):
        waited = before.arrived.index(holder.entry.id) if holder.entry.id in before.arrived else len(before.arrived)
        if survivors & set(before.arrived[:waited]) & set(still):
            return False
    return tuple(each.entry.id for each in after.line.waiters) == after.arrived


def nobody_alive_is_turned_out(before: World, step: Step, after: World) -> bool:
    """Only leaving, force, death and having no chance take anyone out, and nobody is there twice or unasked."""
    if step.kind in ("crash", "tick"):
        return before.line == after.line
    goes = step.who if step.kind in ("leave", "force") else ""
    entries = [each.entry for each in before.line.holders]
    entries += [each.entry for each in before.line.waiters if each.entry.weight <= after.permits]
    stays = {entry.id for entry in entries if after.alive(entry)} - {goes}
    there = ids(after.line)
    asked = {step.who} if step.kind in ("enter", "again") else set[str]()
    return stays <= set(there) and len(there) == len(set(there)) and set(there) <= {*ids(before.line), *asked}


def no_permit_is_lost(_before: World, step: Step, after: World) -> bool:
    """After a step, whoever is alive at the front, fits, and is to be woken or has just asked, holds."""
    if step.kind in ("crash", "tick", "list the dead"):
        return True
    first = next((each.entry for each in after.line.waiters if after.alive(each.entry)), None)
    has_asked = first is not None and first.id == step.who and step.kind in ("enter", "again")
    if first is None or not (first.woken or has_asked):
        return True
    holders = [each for each in after.line.holders if after.alive(each.entry)]
    return not Rules(after.permits, after.line.rules.alone).admit(holders, first)


def nobody_waits_in_vain(_before: World, step: Step, after: World) -> bool:
    """After a step nobody is at the front who could not hold even alone."""
    front = after.line.waiters[:1]
    return step.kind in ("crash", "tick", "list the dead") or all(each.entry.weight <= after.permits for each in front)


def the_dead_fall_together(_before: World, step: Step, after: World) -> bool:
    """After a step nobody holds who is dead, nor waits in front of one who is alive."""
    if step.kind in ("crash", "tick", "list the dead"):
        return True
    waiters = after.line.waiters
    blocked = waiters and not after.alive(waiters[0].entry) and any(after.alive(each.entry) for each in waiters)
    return not blocked and all(after.alive(each.entry) for each in after.line.holders)


def what_is_over_stays_over(before: World, _step: Step, after: World) -> bool:
    """A grant whose time was up does not come back; the same entry may only get a new one."""
    over = {(each.entry.id, each.granted_at) for each in before.line.holders if not after.alive(each.entry)}
    back = {(each.entry.id, each.granted_at) for each in after.line.holders if after.alive(each.entry)}
    return not over & back


PROPERTIES = {
    each.__name__.replace("_", " "): each
    for each in (
        shares_as_allowed,
        fences_grow,
        served_in_order,
        nobody_alive_is_turned_out,
        no_permit_is_lost,
        nobody_waits_in_vain,
        the_dead_fall_together,
        what_is_over_stays_over,
    )
}
