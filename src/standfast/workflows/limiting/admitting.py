"""Taking up runs that have to wait for their turn: only one that holds its places is driven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import structs

from standfast.clock import later
from standfast.locks.driving.leaving_together import Departure, leaving_as_well
from standfast.locks.driving.requests import Along, Leave, Left
from standfast.stores.protocol import Delete, Put
from standfast.workflows.limiting.arriving import Arrival, InLine
from standfast.workflows.limiting.making_room import make_room
from standfast.workflows.limiting.standing import entry_id_of, site_of
from standfast.workflows.limiting.waiting import admitted_life, waiting_life, why_over
from standfast.workflows.running.journal import Claim
from standfast.workflows.storing.records import (
    HEADERS,
    LIVES,
    NO_DUE,
    OWNERSHIPS,
    READY,
    Header,
    Life,
    Ownership,
    RunKeys,
)

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.locks.driving.requests import Answer
    from standfast.locks.runs.run_line import RunLockInfo
    from standfast.stores.protocol import Change, Snapshot, Wake
    from standfast.workflows.limiting.arriving import Place
    from standfast.workflows.limiting.waiting import Ending
    from standfast.workflows.running.host import Attendance, Host


LOOK_AGAIN: Final = 5.0
"""Seconds after which a run that waits for its run lock is looked at again at the latest."""


class MovedError(Exception):
    """The run is not as it was: somebody else has dealt with it. Only raised and caught in here."""


class _GotTurnError(Exception):
    """It was to wait no longer, and has its turn now."""


async def admit(
    host: Host, keys: RunKeys, header: Header, life: Life, version: int, lease: RunLockInfo | None
) -> tuple[Claim, Life] | None:
    """Claim a run that has no place in some of its lines yet, if it can have them now. Otherwise it goes on waiting.

    One that is cancelled or has waited too long ends here, without having run. One that is leased takes its places and
    waits for its run lock.
    """
    if life.collects and life.cancel is None and life.until is not None and life.until > host.now():
        return None
    ending = why_over(header, life, host.now())
    if ending is not None and await end_unstarted(host, keys.id, header, life, version, ending):
        return None
    worker = await host.attend()
    admission = _Admission(host, keys, header, life, version, worker, lease)
    try:
        return await admission.claim()
    except MovedError:
        if not host.may_act():
            host.lost_presence()
        return None


def taken(life: Life, presence: str, at: Instant) -> Life:
    """Return the life of a run that a worker has taken up."""
    return structs.replace(
        life,
        status="running",
        owner=presence,
        claims=life.claims + 1,
        changed_at=at,
        until=None,
        waits_for="",
        collects=False,
        leased=False,
        lease_awaited=False,
    )


def awaiting_lease(life: Life, lease: RunLockInfo, at: Instant) -> Life:
    """Return the life of a run that could be driven but for its run lock; its release makes the run ready.

    It is looked at again when the lease ends, and before that now and then: its holder may die or be evicted.
    """
    until = min(lease.expires_at, later(at, LOOK_AGAIN))
    return structs.replace(
        life, until=until, waits_for=f"its run lock, held by {lease.holder:.200}", lease_awaited=True
    )


def taking(keys: RunKeys, worker: Attendance, before: Life, after: Life, seen: Snapshot) -> list[Change]:
    """Return the changes with which a worker takes up a run; ``seen`` shows all that they touch."""
    own = keys.own(worker.presence)
    return [
        worker.guard,
        Put(keys.life, LIVES.encode_own(after), seen.version(keys.life)),
        Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), seen.version(own)),
        *_gone(seen, keys.ready),
        *([] if before.until is None else _gone(seen, keys.timer(before.until))),
    ]


def _gone(seen: Snapshot, key: RecordKey) -> list[Change]:
    return [Delete(key, version)] if (version := seen.version(key)) else []


@final
class _Admission:
    """One try to claim a run that waits."""

    def __init__(
        self,
        host: Host,
        keys: RunKeys,
        header: Header,
        life: Life,
        version: int,
        worker: Attendance,
        lease: RunLockInfo | None,
    ) -> None:
        self._host, self._keys, self._header, self._before, self._version = host, keys, header, life, version
        self._worker, self._lease = worker, lease
        self._leased = None if lease is None else awaiting_lease(life, lease, host.now())
        self._own: Final = keys.own(worker.presence)
        self._after = life

    async def claim(self) -> tuple[Claim, Life] | None:
        """Take the places that are left, and the run if these are all."""
        life, lines = self._before, self._header.lines
        arrival = Arrival(self._host, self._keys.id, lines, admitted=life.admitted, ticket=life.ticket)
        answered = await arrival.take_places(self._named(), self._write)
        self._host.saw(answered.sight.at)
        place, versions = arrival.place, answered.sight.versions
        if isinstance(place, InLine) and place.standing.on_limit == "cancel_running":
            await make_room(self._host, self._keys.id, place.standing, place.waiting.ticket)
        if self._leased is not None and self._after.lease_awaited:
            self._host.emit_moved(self._keys.id, self._after, 0, life.changed_at, lines)
        if not self._after.owner:
            return None
        right = Claim(self._own, versions[self._own], self._worker.presence, versions[self._keys.life])
        return right, self._after

    def _named(self) -> list[RecordKey]:
        keys, life = self._keys, self._before
        begins = self._header.begins_at
        leased_until = None if self._leased is None else self._leased.until
        timers = [keys.timer(at) for at in {life.until, begins, leased_until} if at is not None]
        return [keys.life, keys.ready, self._own, self._worker.guard.key, *timers]

    def _write(self, place: Place, seen: Snapshot) -> list[Change]:
        keys, life, worker = self._keys, self._before, self._worker
        if seen.version(keys.life) != self._version or seen.version(worker.guard.key) != worker.guard.expected:
            raise MovedError
        if isinstance(place, InLine):
            return self._wait(place, seen)
        admitted = admitted_life(life, len(self._header.lines))
        begins = self._header.begins_at
        if begins is not None and begins > seen.at and life.cancel is None:
            self._after = structs.replace(admitted, until=begins, waits_for="the time of its start")
            put = Put(keys.timer(begins), NO_DUE, seen.version(keys.timer(begins)))
            return [put, *self._rewritten(seen), *_gone(seen, keys.ready)]
        if self._leased is not None:
            return self._await_lease(self._leased, seen)
        self._after = taken(admitted, worker.presence, seen.at)
        return taking(keys, worker, life, self._after, seen)

    def _await_lease(self, leased: Life, seen: Snapshot) -> list[Change]:
        """Take the places, and be driven when the run lock is free."""
        keys, before = self._keys, self._before
        self._after = admitted_life(leased, len(self._header.lines))
        changes = [*self._rewritten(seen), *_gone(seen, keys.ready)]
        if leased.until is not None and leased.until != before.until:
            timer = keys.timer(leased.until)
            changes += [] if before.until is None else _gone(seen, keys.timer(before.until))
            changes.append(Put(timer, NO_DUE, seen.version(timer)))
        return changes

    def _wait(self, place: InLine, seen: Snapshot) -> list[Change]:
        """Go on waiting: whoever grants the place makes the run ready again."""
        life, keys = self._before, self._keys
        changes = _gone(seen, keys.ready)
        if (life.admitted, life.ticket) == (place.admitted, place.waiting.ticket):
            self._after = life
            return changes
        until = life.until
        if life.collects and until is not None:  # its own time has come: from now on it waits for its turn
            changes += _gone(seen, keys.timer(until))
            until = None
        self._after = waiting_life(life, place, seen.at, until)  # however many lines there are
        return [*changes, *self._rewritten(seen)]

    def _rewritten(self, seen: Snapshot) -> list[Change]:
        return [Put(self._keys.life, LIVES.encode_own(self._after), seen.version(self._keys.life))]


# --- runs that end before they began --------------------------------------------------------------------------------


async def end_unstarted(host: Host, run_id: str, header: Header, life: Life, version: int, ending: Ending) -> bool:
    """End a run that waits in a line, and leave its lines, in one commit; False: it is not as it was.

    With ``ending.only_waiting`` it does not end if it has its turn by now.
    """
    keys = RunKeys(host.space, run_id)
    standing = header.lines[life.admitted]
    departures = [_departure(host, run_id, header, at) for at in range(life.admitted)]
    along = _unstarted(keys, header, life, version, ending, host)
    leave = Leave(
        entry_id_of(run_id, standing),
        ticket=life.ticket,
        only_waiting=ending.only_waiting,
        along=leaving_as_well(departures, along),
    )
    try:
        answered = await host.lines.line(standing.address).driver.do(leave, site_of(standing))
    except (MovedError, _GotTurnError):
        return False
    host.saw(answered.sight.at)
    for each in departures:
        if each.is_cut_off:
            await host.lines.look_after(each.line)
    host.emit_moved(run_id, _ended(life, ending, answered.sight.at), 0, life.changed_at, header.lines)
    return True


def _departure(host: Host, run_id: str, header: Header, at: int) -> Departure:
    standing = header.lines[at]
    leave = Leave(entry_id_of(run_id, standing))
    return Departure(host.space, host.lines.line(standing.address), [leave], site_of(standing))


def _ended(life: Life, ending: Ending, at: Instant) -> Life:
    return structs.replace(
        life,
        status=ending.status,
        changed_at=at,
        until=None,
        waits_for="",
        admitted=0,
        ticket=None,
        cancel=ending.reason,
    )


def _unstarted(keys: RunKeys, header: Header, life: Life, version: int, ending: Ending, host: Host) -> Along:
    parent = RunKeys(host.space, header.parent).ready if header.parent else None
    timer = None if life.until is None else keys.timer(life.until)

    def decide(answer: Answer, seen: Snapshot) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
        if seen.version(keys.life) != version:
            raise MovedError
        if ending.only_waiting and isinstance(answer, Left) and answer.was_holding:
            raise _GotTurnError
        put = Put(keys.life, LIVES.encode_own(_ended(life, ending, seen.at)), version)
        changes = [put, *_gone(seen, keys.ready), *([] if timer is None else _gone(seen, timer))]
        if parent is not None:
            changes.append(Put(parent, READY, seen.version(parent)))
        return tuple(changes), ()

    named = (keys.life, keys.ready, timer, parent)
    return Along(tuple(key for key in named if key is not None), decide)


async def end_if_unstarted(host: Host, run_id: str, ending: Ending) -> bool:
    """End a run that waits for its turn, whatever it is to be; False: it does not wait in a line."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.header, keys.life)
    header, record = seen.get(keys.header), seen.get(keys.life)
    if header is None or record is None:
        return False
    shown, life = HEADERS.decode(header.value), LIVES.decode(record.value)
    if life.has_ended or life.owner or life.admitted >= len(shown.lines):
        return False
    return await end_unstarted(host, run_id, shown, life, record.version, ending)
