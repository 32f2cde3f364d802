"""Deadlocks: owners that wait for each other, so that none of them would ever go on.

There is one search, :func:`shortest_cycle`, and there are several suppliers of its edges: the lines in a store, here,
and the requests that wait in one process (:mod:`standfast.flows.deadlock`).

In the store, an owner that holds something and waits for something else leaves a marker that says where it waits. From
there the holders of each line lead on to the next owners. An owner that does not wait goes on and releases some time.
What is then still in the way decides: of three permits one that becomes free is enough for one that needs one, but a
writer needs all readers gone. The dead count for nothing: they fall, though it may take a while.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import OutcomeUnknownError, StoreError
from standfast.keys import RecordKey
from standfast.locks.heartbeat import PRESENCES
from standfast.locks.inspect import holders_of, waiters_of
from standfast.locks.line import Entry, Holder, OfPresence, Rules
from standfast.locks.line_records import HEADS, MARKERS, WAITERS, LineKeys, Marker, is_slotted, marker_key, presences_of
from standfast.locks.mutex_line import SLOT, is_mutex
from standfast.stores.protocol import Check, Commit, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

    from standfast.locks.line import Waiter
    from standfast.locks.line_records import Head
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record


T = TypeVar("T")

PATIENCE: Final = 0.1
"""Seconds for which one of a cycle waits for another one, that came at the same instant, to give way."""

GIVEN: Final = 5
"""How many times as long one waits for another that seems to have come later: it is most likely giving way."""

MOST_OWNERS: Final = 100
"""How many owners are followed. A longer chain is not looked at any further: it is taken for no cycle."""

MOST_READ: Final = 100
"""The most records that are read at once. Of a longer line only those at the front are looked at."""


class BlockedOwner(Struct, frozen=True):
    """One owner in a cycle: what it waits for, since when."""

    owner: str
    key: str
    ticket: int
    entered_at: Instant
    entry: str
    marker: RecordKey
    version: int


def shortest_cycle(start: T, blockers: Callable[[T], Iterable[T]]) -> list[T]:
    """Return the shortest cycle through ``start``, which comes first; nothing if none leads back to it.

    ``blockers`` supplies the edges: what a node that waits, waits for; nothing if it does not wait.
    """
    paths, seen = deque([[start]]), {start}
    while paths:
        path = paths.popleft()
        for blocker in blockers(path[-1]):
            if blocker == start:
                return path
            if blocker not in seen:
                seen.add(blocker)
                paths.append([*path, blocker])
    return []


async def find_cycle(scope: Scope, owner: str) -> tuple[BlockedOwner, ...]:
    """Return the owners that wait for each other, beginning with ``owner``; nothing if it can still go on.

    What is seen is read piece by piece, so it is looked at twice: only what is the same both times is a cycle.
    """
    found = await _LineWaits(scope).run(owner)
    return found if found and found == await _LineWaits(scope).run(owner) else ()


async def cycle_to_break(
    scope: Scope, owner: str, entry_id: str, still_waits: Callable[[], Awaitable[bool]]
) -> tuple[BlockedOwner, ...]:
    """Return the cycle in which an entry has to give way; nothing if it may wait.

    Of all in a cycle, the one that closed it gives way: the one taken for the last. Over a network none can be sure of
    that, and the last may have looked before the cycle was closed. So the others wait for it, the earlier the longer,
    and the one that still finds the same cycle then gives way instead. ``still_waits`` takes a while, for the others to
    find out. While the store does not answer, none is refused.
    """
    try:
        cycle = await find_cycle(scope, owner)
        if not cycle:
            return ()
        mine = next((link for link in cycle if link.entry == entry_id), cycle[0])
        later = [link for link in cycle if (link.entered_at, link.entry) > (mine.entered_at, mine.entry)]
        looks = len(later) * (1 if later and later[0].entered_at == mine.entered_at else GIVEN)
        for _ in range(looks):
            if not await still_waits() or await find_cycle(scope, owner) != cycle:
                return ()
        return cycle  # noqa: TRY300 -- what is below is about the store alone
    except StoreError:
        return ()


async def give_way(scope: Scope, cycle: tuple[BlockedOwner, ...], entry_id: str, *, survives: bool = False) -> bool:
    """Take an entry out of a cycle; False if another one has given way meanwhile, or the cycle is another one.

    One commit deletes the entry's marker and checks the markers of the others, so of two that give way at once only one
    succeeds, however slow either of them is. The entry must leave its line after that: its wait is no longer seen. One
    that ``survives`` its process keeps its marker, with a new version, so that it is still seen if the process dies.
    """
    mine = next((link for link in cycle if link.entry == entry_id), None)
    if mine is None:  # its owner waits in several lines, and is in the cycle because of another one
        return True
    others = [link for link in cycle if link is not mine][: scope.at_most(MOST_OWNERS) - 1]
    checks = [Check(link.marker, link.version) for link in others]
    try:
        mark: Change = Delete(mine.marker, mine.version)
        if survives:
            record = (await scope.read(mine.marker)).get(mine.marker)
            if record is None:
                return False
            mark = Put(mine.marker, record.value, mine.version, record.expires_at)
        return isinstance(await scope.commit(mark, *checks), Commit)
    except OutcomeUnknownError:  # the marker may be gone, and then no other would see the cycle
        return True
    except StoreError:
        return False


def describe_cycle(cycle: tuple[BlockedOwner, ...]) -> tuple[str, ...]:
    """Return a cycle as text: which owner waits for what."""
    return tuple(f"{link.owner} waits for {link.key}" for link in cycle)


class _LineWait(Struct, frozen=True):
    """What an owner waits for: the holders that live, and the living who stand before it, itself the last."""

    rules: Rules
    holders: tuple[Holder, ...]
    queue: tuple[Entry, ...]

    def blockers(self, stuck: Collection[str]) -> tuple[str, ...]:
        """Return the owners because of whom it never ends, if those in ``stuck`` go on holding for ever."""
        staying = tuple(holder for holder in self.holders if holder.entry.owner in stuck)
        if all(self.rules.admit(staying, entry) for entry in self.queue):
            return ()
        return tuple(dict.fromkeys(holder.entry.owner for holder in staying))


@final
class _LineWaits:
    """The waits in the lines of a store, as one walk along them finds them."""

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope
        self._blocked: Final[dict[str, BlockedOwner]] = {}

    async def run(self, start: str) -> tuple[BlockedOwner, ...]:
        waits: dict[str, _LineWait] = {}
        seen, pending = {start}, deque([start])
        while pending and len(waits) < MOST_OWNERS:
            owner = pending.popleft()
            wait = await self._wait_of(owner)
            if wait is not None:
                waits[owner] = wait
                fresh = dict.fromkeys(each.entry.owner for each in wait.holders if each.entry.owner not in seen)
                seen.update(fresh)
                pending.extend(fresh)
        stuck = _stuck(waits)
        return tuple(self._blocked[owner] for owner in shortest_cycle(start, lambda owner: stuck.get(owner, ())))

    async def _wait_of(self, owner: str) -> _LineWait | None:
        """Return what ``owner`` waits for; None, if it does not wait at all."""
        page = await self._scope.scan(*self._scope.key("waiting", owner).within(), limit=10)
        for record in page.records.values():
            marker = MARKERS.decode(record.value)
            found = await self._look(LineKeys(self._scope, marker.address), marker, record)
            if found is not None:
                return found
        return None

    async def _look(self, keys: LineKeys, marker: Marker, stored: Record) -> _LineWait | None:
        seen = await self._scope.read(keys.head, keys.grant(SLOT))
        record = seen.get(keys.head)
        if record is None:
            return None
        head, holders = HEADS.decode(record.value), await holders_of(self._scope, keys, seen)
        waiters = await self._queue(keys, head, marker)
        if not waiters:
            return None
        waiter, queue = waiters[-1], tuple(each.entry for each in waiters)
        alive = await self._alive(keys, (*queue, *(holder.entry for holder in holders)))
        if waiter.entry.id not in alive:
            return None
        owner, since = waiter.entry.owner, waiter.entry.entered_at
        place = marker_key(self._scope, owner, marker.entry)
        self._blocked[owner] = BlockedOwner(
            owner, keys.name, waiter.ticket, since, waiter.entry.id, place, stored.version
        )
        holders = tuple(holder for holder in holders if holder.entry.id in alive)
        return _LineWait(head.rules, holders, tuple(entry for entry in queue if entry.id in alive))

    async def _queue(self, keys: LineKeys, head: Head, marker: Marker) -> tuple[Waiter, ...]:
        """Return the entries before a waiter, as far as they are looked at, and itself the last; or nothing."""
        found: list[Waiter] = []
        if not is_mutex(head) and not is_slotted(head):  # then the marker says where it stands
            start, own = keys.ticket(min(head.front, marker.ticket)), keys.ticket(marker.ticket)
            record = (await self._scope.read(own)).get(own)
            waiter = None if record is None else WAITERS.decode(record.value)
            if waiter is None or waiter.entry.id != marker.entry:
                return ()
            page = await self._scope.scan(start, own, limit=MOST_READ) if start != own else None
            in_front = () if page is None else page.records.values()
            return (*[WAITERS.decode(each.value) for each in in_front], waiter)
        async for waiter in waiters_of(self._scope, keys, head):
            if waiter.entry.id == marker.entry:
                return (*found[:MOST_READ], waiter)
            found.append(waiter)
        return ()

    async def _alive(self, keys: LineKeys, entries: tuple[Entry, ...]) -> frozenset[str]:
        """Return the ids of those that still count: the dead have not fallen yet, and keep none for long."""
        names = sorted(presences_of(entries))
        present: set[str] = set()
        most = self._scope.at_most(MOST_READ)
        for start in range(0, len(names), most):
            some = {name: keys.presence(name) for name in names[start : start + most]}
            seen = await self._scope.read(*some.values())
            for name, key in some.items():
                record = seen.get(key)
                if record is not None and not self._scope.store.is_dead(PRESENCES.decode(record.value).liveness_token):
                    present.add(name)
        return frozenset(
            entry.id
            for entry in entries
            if not isinstance(entry.anchor, OfPresence) or entry.anchor.presence in present
        )


def _stuck(waits: Mapping[str, _LineWait]) -> dict[str, tuple[str, ...]]:
    """Return the owners that wait for ever, and because of whom: one that can go on is taken out, until none can."""
    stuck: Collection[str] = waits
    while True:
        found = {owner: waits[owner].blockers(stuck) for owner in stuck}
        left = {owner: blockers for owner, blockers in found.items() if blockers}
        if len(left) == len(stuck):
            return left
        stuck = left
