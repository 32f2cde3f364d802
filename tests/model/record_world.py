"""A small world around a lock in one record: a few that poll by name, late calls with old fences, and damage."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from standfast.clock import MICROSECONDS, Instant
from standfast.locks import lock_record as by_hand
from standfast.locks.lock_record import LockHolder, LockRecord, LockWaiter
from tests.model.line_world import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from standfast.locks.lock_record import LockPosition, Renewal


STALE = -1
"""Stands for every fence of a hold that is over."""


class ByHand(NamedTuple):
    """The functions under test; a mutant has one of them exchanged."""

    try_acquire: Callable[..., tuple[LockRecord, LockPosition]] = by_hand.try_acquire
    renew: Callable[..., tuple[LockRecord, Renewal]] = by_hand.renew
    release: Callable[..., tuple[LockRecord, bool]] = by_hand.release
    withdraw: Callable[..., tuple[LockRecord, bool]] = by_hand.withdraw
    force_release: Callable[..., tuple[LockRecord, bool]] = by_hand.force_release


class RecordWorld(NamedTuple):
    """A slot with its version; and what a checker remembers: the fences that each was given, and the highest of all."""

    record: LockRecord
    permits: int = 1
    version: int = 0
    now: int = 0
    given: tuple[tuple[int, ...], ...] = ()
    top: int = 0
    whole: bool = True
    answer: LockPosition | None = None

    @property
    def at(self) -> Instant:
        """The present."""
        return Instant(self.now * MICROSECONDS)


class RecordModel(NamedTuple):
    """Every step that can be taken around one record."""

    names: tuple[str, ...]
    permits: int = 1
    lease: int = 2
    functions: ByHand = ByHand()

    def start(self) -> RecordWorld:
        """Return the world in which nobody has asked yet."""
        return RecordWorld(by_hand.initial_lock_record(), self.permits, given=((),) * len(self.names))

    def steps(self, world: RecordWorld) -> Iterator[tuple[Step, RecordWorld]]:
        """Yield every step out of ``world``."""
        for number, name in enumerate(self.names):
            yield from self._own_steps(world, number, name)
        yield Step("tick"), world._replace(now=world.now + 1, answer=None)
        for holder in world.record.holders[:1]:
            forced, _ = self.functions.force_release(
                world.record, holder.holder_id, now=world.at, version=world.version
            )
            yield Step("force", holder.holder_id), self._written(world, forced)
        if world.whole:
            yield Step("damage"), self._written(world, LockRecord())._replace(whole=False)

    def _own_steps(self, world: RecordWorld, number: int, name: str) -> Iterator[tuple[Step, RecordWorld]]:
        call, lease, ttl = self.functions, self.lease, self.lease
        now = {"now": world.at, "version": world.version}
        record, place = call.try_acquire(world.record, name, lease=lease, waiter_ttl=ttl, permits=self.permits, **now)
        yield Step("try", name), self._given(self._written(world, record), number, place)
        record, _ = call.renew(world.record, name, lease=lease, permits=self.permits, **now)
        yield Step("renew", name), self._written(world, record)
        for fence in (None, *world.given[number]):
            record, _ = call.release(world.record, name, fence=fence, **now)
            yield Step("release" if fence is None else f"release({fence})", name), self._written(world, record)
        record, _ = call.withdraw(world.record, name, **now)
        yield Step("withdraw", name), self._written(world, record)

    def _written(self, world: RecordWorld, record: LockRecord) -> RecordWorld:
        version = world.version + (record != world.record)
        top = max(world.top, record.fence, *(holder.fence for holder in record.holders), 0)
        return world._replace(record=record, version=version, top=top, answer=None)

    def _given(self, world: RecordWorld, number: int, place: LockPosition) -> RecordWorld:
        known = world.given[number]
        if place.acquired and place.fence not in known:
            known = (*known[-1:], place.fence)
        return world._replace(given=(*world.given[:number], known, *world.given[number + 1 :]), answer=place)


def canonical_record(world: RecordWorld) -> RecordWorld:
    """Return the world that stands for all that differ only in time passed and in how large the fences are."""
    record = world.record
    current = {holder.fence for holder in record.holders}
    rank = {fence: number for number, fence in enumerate(sorted({0, world.top, record.fence, *current}))}
    past = world.now * MICROSECONDS
    holders = tuple(
        LockHolder(each.holder_id, Instant(max(0, each.lease_expires_at - past)), rank[each.fence])
        for each in record.holders
    )
    waiters = tuple(
        LockWaiter(each.holder_id, Instant(max(0, (each.expires_at or 0) - past))) for each in record.waiters
    )
    return world._replace(
        record=LockRecord(holders, waiters, rank[record.fence]),
        version=rank[world.top] + (world.version > world.top),
        now=0,
        given=tuple(_alike(known, current, rank) for known in world.given),
        top=rank[world.top],
        answer=None,
    )


def _alike(known: tuple[int, ...], current: set[int], rank: dict[int, int]) -> tuple[int, ...]:
    """Return the fences that somebody knows: all that nobody holds by are alike, since none comes back."""
    return tuple(sorted({rank[fence] if fence in current else STALE for fence in known}))


# --- what must hold -----------------------------------------------------------------------------------------------


def _grants(record: LockRecord) -> set[tuple[str, int]]:
    return {(holder.holder_id, holder.fence) for holder in record.holders}


def _live(world: RecordWorld) -> tuple[set[tuple[str, int]], list[str]]:
    """Return the grants and the waiters that are alive."""
    holders = {(each.holder_id, each.fence) for each in world.record.holders if each.lease_expires_at > world.at}
    waiters = [each.holder_id for each in world.record.waiters if each.expires_at and each.expires_at > world.at]
    return holders, waiters


def fences_grow(before: RecordWorld, step: Step, after: RecordWorld) -> bool:
    """A new grant has a higher fence than all before it, and turning a holder out moves the fence."""
    new = [fence for _, fence in _grants(after.record) - _grants(before.record)]
    forced = step.kind == "force" and any(name == step.who for name, _ in _live(before)[0])
    return all(fence > before.top for fence in new) and (not forced or after.record.fence > before.top)


def not_more_than_the_permits(_before: RecordWorld, _step: Step, after: RecordWorld) -> bool:
    """In these worlds the permits never change, so there are never more holders."""
    return len(after.record.holders) <= after.permits


def served_in_order(before: RecordWorld, step: Step, after: RecordWorld) -> bool:
    """A new holder passes nobody who is alive; those who stay keep their order, newcomers come last."""
    if step.kind == "tick":
        return before.record == after.record
    waited = _live(before)[1]
    waiting = [each.holder_id for each in after.record.waiters]
    for name, _ in _grants(after.record) - _grants(before.record):
        if waited[: waited.index(name) if name in waited else len(waited)]:
            return False
    kept = [name for name in waited if name in waiting]
    return waiting[: len(kept)] == kept


def nobody_alive_is_turned_out(before: RecordWorld, step: Step, after: RecordWorld) -> bool:
    """Only its own call takes anyone out, and with a fence only that hold; damage is no call."""
    if step.kind == "damage":
        return True
    holders, waiters = _live(before)
    own = {(name, fence) for name, fence in holders if name == step.who and step.kind in ("release", "force")}
    own |= {(name, fence) for name, fence in holders if name == step.who and step.kind == f"release({fence})"}
    left = {step.who} if step.kind in ("release", "withdraw", "force") else set[str]()
    there = {name for name, _ in _grants(after.record)} | {each.holder_id for each in after.record.waiters}
    return holders - own <= _grants(after.record) and set(waiters) - left <= there


def the_dead_fall_together(_before: RecordWorld, step: Step, after: RecordWorld) -> bool:
    """After each call everything in the record is alive."""
    holders, waiters = _live(after)
    whole = len(holders) == len(after.record.holders) and len(waiters) == len(after.record.waiters)
    return step.kind == "tick" or whole


def what_is_over_stays_over(before: RecordWorld, _step: Step, after: RecordWorld) -> bool:
    """A grant whose lease has ended does not come back."""
    over = _grants(before.record) - _live(before._replace(now=after.now))[0]
    return not over & _live(after)[0]


def the_answer_is_true(_before: RecordWorld, step: Step, after: RecordWorld) -> bool:
    """One who is told that it holds does, with that fence; else it is at the place that it was told."""
    if after.answer is None:
        return True
    if after.answer.acquired:
        return (step.who, after.answer.fence) in _grants(after.record) and after.answer.position == -1
    return after.record.waiters[after.answer.position].holder_id == step.who


def a_free_permit_is_given_to_the_front(before: RecordWorld, step: Step, after: RecordWorld) -> bool:
    """Who asks, alone or at the front, while nobody holds, gets the permit."""
    holders, waiters = _live(before)
    first = step.kind == "try" and not holders and waiters[:1] in ([], [step.who])
    return not first or (after.answer is not None and after.answer.acquired)


RECORD_PROPERTIES = {
    each.__name__.replace("_", " "): each
    for each in (
        fences_grow,
        not_more_than_the_permits,
        served_in_order,
        nobody_alive_is_turned_out,
        the_dead_fall_together,
        what_is_over_stays_over,
        the_answer_is_true,
        a_free_permit_is_given_to_the_front,
    )
}
