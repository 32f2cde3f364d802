"""Starting runs that need a place in lines: place and run in one commit."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Final, final

from msgspec import structs

from standfast.errors import StoreBusyError, StoreError, WorkflowConcurrencyLimitExceededError
from standfast.locks.algebra.entries import OfRun
from standfast.locks.algebra.line import Line
from standfast.locks.driving.records import HEADS
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.limiting.arriving import JOIN_ALIKE, Admitted, Arrival, Full, InLine
from standfast.workflows.limiting.making_room import make_room
from standfast.workflows.limiting.standing import entry_id_of
from standfast.workflows.limiting.waiting import admitted_life, count_waiting, waiting_life, waits_until
from standfast.workflows.running.activation import Activation
from standfast.workflows.running.journal import Claim
from standfast.workflows.starting.creating import Started, after_gone, creation, find_there, first_life, header_of
from standfast.workflows.storing.records import HEADERS, OWNERSHIPS, READY, Ownership, RunKeys

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.driving.driver import Answered
    from standfast.stores.protocol import Change, Record, Snapshot
    from standfast.workflows.limiting.arriving import Place
    from standfast.workflows.running.host import Attendance, Host
    from standfast.workflows.starting.creating import Start
    from standfast.workflows.storing.records import Life, Standing

TRIES: Final = 20


async def start_in_lines(host: Host, asked: Start, standings: tuple[Standing, ...]) -> Started:
    """Start a run that needs a place in lines."""
    room_for: dict[tuple[str, ...], int] = {}
    above = await _above(host, asked.parent)
    for _ in range(TRIES):
        worker = await host.attend() if asked.drive and not asked.delay else None
        starting = _Starting(host, asked, standings, worker, room_for, above)
        try:
            return await starting.start()
        except _FoundError as there:
            is_header = there.key == RunKeys(host.space, asked.run_id).header
            if is_header and (anew := after_gone(asked, there.record)) is not None:
                asked = anew
                continue
            met = await find_there(host, asked, Conflict(host.now(), {there.key: there.record}))
            if met is not None:
                return met
        except _WorkerLostError:
            host.lost_presence()
        except _FullError as refused:
            joined = refused.joined()
            if joined is not None:
                return Started(joined, is_new=False)
            if refused.full.standing.on_limit != JOIN_ALIKE:
                raise _refusal(asked, refused.full) from None
            standings = tuple([_waiting(each) for each in standings])
        except _QueueFullError as refused:
            await _look_closer(host, asked, refused.place, room_for)
    raise StoreBusyError("a run", f"it could not be started in {TRIES} tries")


def _waiting(standing: Standing) -> Standing:
    """Return a standing that waits where there was nobody to join."""
    return structs.replace(standing, on_limit="queue") if standing.on_limit == JOIN_ALIKE else standing


def _refusal(asked: Start, full: Full) -> WorkflowConcurrencyLimitExceededError:
    name, label, limit = asked.workflow.name, full.standing.label, full.line.rules.permits or full.standing.permits
    if not full.line.holders:
        return WorkflowConcurrencyLimitExceededError(name, label, limit)
    first = full.line.holders[0]
    is_run = isinstance(first.entry.anchor, OfRun)
    return WorkflowConcurrencyLimitExceededError(name, label, limit, first.entry.owner, first.granted_at, is_run)


async def _above(host: Host, run_id: str) -> frozenset[str]:
    """Return under which ids those stand in lines who wait for a child: its parent, and theirs."""
    found: set[str] = set()
    while run_id:
        key = RunKeys(host.space, run_id).header
        record = (await host.space.read(key)).get(key)
        if record is None:
            break
        header = HEADERS.decode(record.value)
        found.update(entry_id_of(run_id, standing) for standing in header.lines)
        run_id = header.parent
    return frozenset(found)


async def _look_closer(host: Host, asked: Start, place: InLine, room_for: dict[tuple[str, ...], int]) -> None:
    """Count those who wait one by one: from afar, those who left the line before their turn count as well."""
    standing = place.standing
    most, address = standing.most_waiting or 0, standing.address
    waiting = await count_waiting(host, address, most)
    left = most - waiting
    if left <= 0:
        raise WorkflowConcurrencyLimitExceededError(
            asked.workflow.name, standing.label, standing.permits, waiting=waiting
        ) from None
    room_for[address] = place.waiting.place + left


class _FoundError(Exception):
    """There is such a run already, or such an idempotency key."""

    def __init__(self, key: RecordKey, record: Record | None) -> None:
        super().__init__(key)
        self.key, self.record = key, record


class _WorkerLostError(Exception):
    """This worker is taken for dead."""


class _FullError(Exception):
    """A line is full, and the run does not wait."""

    def __init__(self, full: Full) -> None:
        super().__init__(full)
        self.full = full

    def joined(self) -> str | None:
        """Return the run to join, if that is what to do: the oldest, or the oldest of which the same is said."""
        standing, line = self.full.standing, self.full.line
        if standing.on_limit == JOIN_ALIKE:
            entries = [*(holder.entry for holder in line.holders), *(waiter.entry for waiter in line.waiters)]
            return next((entry.owner for entry in entries if entry.note == standing.note), None)
        return line.holders[0].entry.id if standing.on_limit == "join" and line.holders else None


class _QueueFullError(Exception):
    """As many as may wait seem to wait already."""

    def __init__(self, place: InLine) -> None:
        super().__init__(place)
        self.place = place


@final
class _Starting:
    """One try to start a run."""

    def __init__(
        self,
        host: Host,
        asked: Start,
        standings: tuple[Standing, ...],
        worker: Attendance | None,
        room_for: dict[tuple[str, ...], int],
        above: frozenset[str],
    ) -> None:
        self._host, self._asked, self._standings, self._worker = host, asked, standings, worker
        self._room_for, self._above = room_for, above
        self._keys: Final = RunKeys(host.space, asked.run_id)
        self._own: Final = None if worker is None else self._keys.own(worker.presence)
        self._once: Final = host.space.key("once", asked.idempotency_key) if asked.idempotency_key else None
        self._arrival: Final = Arrival(host, asked.run_id, standings, is_start=True)
        self._at: Final = host.now()
        self._header: Final = header_of(asked, self._at, standings)
        self._life: Life | None = None

    async def start(self) -> Started:
        """Take the places, and create the run where it stands then."""
        try:
            answered = await self._arrival.take_places(self._named(), self._write)
        except (CancelledError, StoreError):
            self._host.dropped.add(self._keys.id)  # if it was written all the same, nobody here is about to load it
            raise
        self._host.saw(answered.sight.at)
        place, life = self._arrival.place, self._life
        if life is not None:
            self._host.emit_moved(self._keys.id, life, 0, self._at, self._standings)
            self._take(answered, life)
        if isinstance(place, InLine) and place.standing.on_limit == "cancel_running":
            await make_room(self._host, self._keys.id, place.standing, place.waiting.ticket)
        return Started(self._keys.id, is_new=True)

    def _take(self, answered: Answered, life: Life) -> None:
        if self._worker is not None and self._own is not None and life.owner:
            versions = answered.sight.versions
            right = Claim(
                self._own, versions[self._own], self._worker.presence, versions[self._keys.life], is_first=True
            )
            self._host.take(Activation(self._host, self._keys, self._asked.workflow, self._header, life, right, ()))

    def _named(self) -> list[RecordKey]:
        ends = {self._header.begins_at, waits_until(self._header, self._at)}
        keys = [self._keys.header, self._keys.life, self._keys.ready]
        keys += [self._keys.timer(each) for each in ends if each is not None]
        keys += [change.key for change in self._asked.alongside]
        keys += [] if self._once is None else [self._once]
        return keys if self._worker is None or self._own is None else [*keys, self._own, self._worker.guard.key]

    # --- what is committed ---------------------------------------------------------------------------------------

    def _write(self, place: Place, seen: Snapshot) -> list[Change]:
        """Return the changes that create the run; raise if it is not to be created."""
        self._check_is_new(seen)
        if isinstance(place, Full):
            raise _FullError(place)
        if isinstance(place, InLine):
            self._check_may_wait(place, seen)
        life = self._life = self._first_life(place)
        changes = creation(self._host, self._asked, self._at, life, self._standings)
        changes = [change for change in changes if change.key != self._keys.ready]
        if self._is_ready(place, life):
            changes.append(Put(self._keys.ready, READY, seen.version(self._keys.ready)))
        if self._worker is not None and self._own is not None and life.owner:
            ownership = OWNERSHIPS.encode_own(Ownership(self._keys.id, seen.at))
            changes += self._worker.guard, Put(self._own, ownership, seen.version(self._own))
        return [*changes, *self._asked.alongside]

    def _check_is_new(self, seen: Snapshot) -> None:
        for key, expected in ((self._once, 0), (self._keys.header, self._asked.over)):
            if key is not None and seen.version(key) != expected:
                raise _FoundError(key, seen.get(key))
        for change in self._asked.alongside:
            if seen.version(change.key) != change.expected:
                raise _FoundError(change.key, seen.get(change.key))
        if self._worker is not None and seen.version(self._worker.guard.key) != self._worker.guard.expected:
            raise _WorkerLostError

    def _check_may_wait(self, place: InLine, seen: Snapshot) -> None:
        standing = place.standing
        most = self._room_for.get(standing.address, standing.most_waiting)
        if most is not None and place.waiting.place >= most:
            raise _QueueFullError(place)
        if self._above:
            self._check_parents_do_not_hold(standing, seen)

    def _check_parents_do_not_hold(self, standing: Standing, seen: Snapshot) -> None:
        """Refuse to wait for ever in a line that only runs hold which wait for this one."""
        record = seen.get(self._host.lines.line(standing.address).driver.keys.head)
        head = None if record is None else HEADS.decode(record.value)
        if head is not None and {each.entry.id for each in head.holders} <= self._above:
            raise _FullError(Full(standing, Line(head.rules)))

    def _first_life(self, place: Place) -> Life:
        presence = self._worker.presence if self._worker is not None and isinstance(place, Admitted) else ""
        life = first_life(self._asked, self._at, presence)
        if isinstance(place, InLine):
            return waiting_life(life, place, self._at, waits_until(self._header, self._at))
        return admitted_life(life, len(self._standings))

    def _is_ready(self, place: Place, life: Life) -> bool:
        if isinstance(place, InLine):  # should this process die, another one makes room
            return place.standing.on_limit == "cancel_running"
        return not life.owner and life.until is None
