"""Taking up runs, and taking over those of workers that died.

A worker is a presence with a record of its own. Every claim is guarded by that record, so a worker that was taken for
dead claims nothing more: whoever notices its death overwrites the record first, and then collects its runs.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from standfast.clock import Instant, seconds_between
from standfast.errors import DecodeError, FormatTooNewError, StoreBusyError, StoreError
from standfast.events import RunQuarantined, WorkerDied
from standfast.locks.driving.presence import PRESENCES
from standfast.locks.driving.removing import remove
from standfast.locks.driving.setback import end_of
from standfast.locks.runs.run_line import RunLine
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.limiting.admitting import admit, awaiting_lease
from standfast.workflows.running.activation import Activation
from standfast.workflows.running.journal import Claim
from standfast.workflows.storing.committing import commit_over
from standfast.workflows.storing.records import (
    CHUNKS,
    HEADERS,
    LIVES,
    NO_DUE,
    OWNERSHIPS,
    READY,
    WORKERS,
    Life,
    Mark,
    Ownership,
    RunKeys,
    Worker,
)

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.runs.run_line import RunLockInfo
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Commit, Record, Snapshot
    from standfast.workflows.running.host import Host
    from standfast.workflows.storing.records import Header

PAGE: Final = 500
TRIES: Final = 50


async def claim(host: Host, run_id: str) -> Activation | None:
    """Take a run up, if it is unfinished, nobody drives it, and its code is here."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.life, keys.ready, keys.header)
    host.saw(seen.at)
    record, header = seen.get(keys.life), seen.get(keys.header)
    life = None if record is None else LIVES.decode(record.value)
    if record is None or life is None or header is None or life.has_ended:
        host.dropped.discard(run_id)
        if life is not None and life.leaving:
            await _let_go(host, run_id)
        await _forget(host.space, seen, keys.ready)
        return None
    if life.owner or life.status == "quarantined":
        return await _load_own(host, keys, life, record.version, header)
    workflow = host.workflows.get((life.workflow, life.version))
    if workflow is None:
        host.leave_alone(run_id, life)
        return None
    if host.is_mismatched(run_id) or not host.suspects.may_take(run_id, life.deaths):
        return None
    shown, loaded = HEADERS.decode(header.value), None
    try:
        claimed = await _claim_in_turn(host, keys, shown, life, record, seen)
        if claimed is not None:
            right, taken = claimed
            host.emit_moved(run_id, taken, right.fence, life.changed_at, shown.lines)
            loaded = Activation(host, keys, workflow, shown, taken, right, await marks_of(host.space, keys))
    except (CancelledError, StoreError):
        host.dropped.add(run_id)  # if it was claimed all the same, nobody here is about to load it
        raise
    finally:
        if loaded is None:
            host.absolve(run_id)
    return loaded


async def _let_go(host: Host, run_id: str) -> None:
    """Release what a run still holds that was ended by force, by somebody who has died since."""
    from standfast.workflows.operating.forcing import find, let_go  # noqa: PLC0415 -- it needs the histories that are read here

    await let_go(host, await find(host.space, run_id))


async def _claim_in_turn(
    host: Host, keys: RunKeys, header: Header, life: Life, record: Record, seen: Snapshot
) -> tuple[Claim, Life] | None:
    begins = header.begins_at
    if begins is not None and begins == life.until and begins > seen.at and life.cancel is None:
        await _forget(host.space, seen, keys.ready)  # whatever the news is, its time has not come
        return None
    lease = await _lease_of(host, keys, life) if life.leased else None
    if life.admitted < len(header.lines):
        return await admit(host, keys, header, life, record.version, lease)
    if lease is not None:
        await _await_lease(host, keys, life, seen, lease)
        return None
    return await _claim(host, keys, life, record, seen)


async def _lease_of(host: Host, keys: RunKeys, life: Life) -> RunLockInfo | None:
    """Return who holds the run's lock; None: its lease is over, and a claim that finds the life unchanged may go on."""
    return await RunLine(host.lines, life.workflow, keys.id, host.space.lease).leased()


async def _await_lease(host: Host, keys: RunKeys, life: Life, seen: Snapshot, lease: RunLockInfo) -> None:
    """Leave a run to the holder of its lock: note that it is to be told of the release, and look again later."""
    if life.lease_awaited and life.until is not None and life.until > seen.at:
        await _forget(host.space, seen, keys.ready)
        return
    waiting = awaiting_lease(life, lease, seen.at)
    over: dict[RecordKey, bytes | None] = {} if life.until is None else {keys.timer(life.until): None}
    if waiting.until is not None:
        over[keys.timer(waiting.until)] = NO_DUE
    changes: list[Change] = [Put(keys.life, LIVES.encode_own(waiting), seen.version(keys.life))]
    if seen.version(keys.ready):
        changes.append(Delete(keys.ready, seen.version(keys.ready)))
    if isinstance(await commit_over(host.space, changes, over), Conflict):
        host.look_again(keys.id)  # it may have been released meanwhile
        return
    host.emit_moved(keys.id, waiting, 0, life.changed_at)


async def _claim(host: Host, keys: RunKeys, life: Life, record: Record, seen: Snapshot) -> tuple[Claim, Life] | None:
    worker = await host.attend()
    own = keys.own(worker.presence)
    versions = await host.space.read(own, *([keys.timer(life.until)] if life.until is not None else []))
    taken = structs.replace(
        life,
        status="running",
        owner=worker.presence,
        claims=life.claims + 1,
        changed_at=seen.at,
        until=None,
        waits_for="",
        leased=False,
        lease_awaited=False,
    )
    changes: list[Change] = [
        worker.guard,
        Put(keys.life, LIVES.encode_own(taken), record.version),
        Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), versions.version(own)),
    ]
    if seen.version(keys.ready):
        changes.append(Delete(keys.ready, seen.version(keys.ready)))
    if life.until is not None and versions.version(keys.timer(life.until)):
        changes.append(Delete(keys.timer(life.until), versions.version(keys.timer(life.until))))
    answer = await host.space.commit(*changes)
    if isinstance(answer, Conflict):
        if worker.guard.key in answer.current:
            host.lost_presence()
        return None
    return Claim(own, answer.versions[own], worker.presence, answer.versions[keys.life]), taken


async def _load_own(host: Host, keys: RunKeys, life: Life, life_version: int, header: Record) -> Activation | None:
    """Load a run again that this very worker drives, and has dropped because it did not know what was written."""
    worker = host.worker
    if worker is None or life.owner != worker.presence:
        host.dropped.discard(keys.id)
        return None
    if keys.id in host.loaded or host.is_mismatched(keys.id):
        return None
    own = keys.own(life.owner)
    seen = await host.space.read(own)
    record, workflow = seen.get(own), host.workflows.get((life.workflow, life.version))
    if record is None or _is_being_claimed(host, keys.id, record, seen.at):
        return None
    if workflow is None:  # it was withdrawn from this worker: others may have it
        freed = structs.replace(life, owner="", changed_at=seen.at, waits_for="a worker")
        given_back = (Delete(own, record.version), Put(keys.life, LIVES.encode_own(freed), life_version))
        await commit_over(host.space, given_back, {keys.ready: READY})
        return None
    grant = Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), record.version)
    answer = await host.space.commit(worker.guard, Check(keys.life, life_version), grant)
    if isinstance(answer, Conflict):
        return None
    right, marks = Claim(own, answer.versions[own], life.owner, life_version), await marks_of(host.space, keys)
    host.dropped.discard(keys.id)
    return Activation(host, keys, workflow, HEADERS.decode(header.value), life, right, marks)


def _is_being_claimed(host: Host, run_id: str, own: Record, now: Instant) -> bool:
    """Tell whether somebody here may be about to load a run that is claimed, and only waits for the answer."""
    claimed_at = OWNERSHIPS.decode(own.value).claimed_at
    return run_id not in host.dropped and seconds_between(claimed_at, now) < host.space.lease


async def marks_of(scope: Scope, keys: RunKeys, *, first: int = 0) -> list[Mark]:
    """Read a run's history, whole or from the beginning of a chunk on."""
    marks: list[Mark] = []
    start, end = keys.history()
    start = keys.chunk(first) if first else start
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        for record in page.records.values():
            marks.extend(CHUNKS.decode(record.value).marks)
        if page.more is None:
            return marks
        start = page.more


async def _forget(scope: Scope, seen: Snapshot, key: RecordKey) -> None:
    if seen.version(key):
        await scope.commit(Delete(key, seen.version(key)))


# --- the dead -----------------------------------------------------------------------------------------------------


async def workers_of(scope: Scope) -> dict[str, Record]:
    """Return the presences that drive runs, or did."""
    start, end = scope.key("worker").within()
    found: dict[str, Record] = {}
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        found.update({key.parts[-1]: record for key, record in page.records.items()})
        if page.more is None:
            return found
        start = page.more


def presence_key(scope: Scope, name: str) -> RecordKey:
    """Return where a presence lies."""
    opening, _, number = name.partition(".")
    return scope.key("presence", opening, number)


async def find_dead(scope: Scope, names: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return which presences are gone, and the lifelines of those that are not."""
    dead: list[str] = []
    lifelines: dict[str, str] = {}
    page = scope.at_most(100)
    for first in range(0, len(names), page):
        keys = {name: presence_key(scope, name) for name in names[first : first + page]}
        seen = await scope.read(*keys.values())
        for name, key in keys.items():
            record = seen.get(key)
            presence = None if record is None else PRESENCES.decode(record.value)
            if record is None or presence is None:
                dead.append(name)
            elif scope.store.is_severed(presence.lifeline):
                await remove(scope.store, key)
                dead.append(name)
            else:
                lifelines[name] = presence.lifeline
                await end_of(scope.store, record, presence, seen.at)
    return dead, lifelines


async def bury(host: Host, presence: str, worker: Record) -> None:
    """Make the runs of a dead worker ready for others, and forget the worker."""
    space = host.space
    closed = await space.commit(Put(worker.key, WORKERS.encode(Worker(Instant(0))), worker.version))
    version = worker.version
    if isinstance(closed, Conflict):
        current = closed.current.get(worker.key)
        if current is None:
            return
        version = current.version
    else:
        version = closed.versions[worker.key]
    buried = 0
    start, end = space.key("own", presence).within()
    while True:
        page = await space.scan(start, end, limit=PAGE)
        for record in page.records.values():
            buried += await _release_if_readable(host, record)
        if page.more is None:
            break
        start = page.more
    forgotten = await space.commit(Delete(worker.key, version))
    if buried or not isinstance(forgotten, Conflict):  # others may bury it at the same time
        host.emit(WorkerDied(at=host.clock.wall(), presence=presence, runs=buried))


async def _release_if_readable(host: Host, own: Record) -> bool:
    try:
        for _ in range(TRIES):
            released = await _release(host, own)
            if released is not None:
                return released
    except (DecodeError, FormatTooNewError):
        return False  # one broken record does not keep the others from being taken over
    raise StoreBusyError(f"the run {own.key.parts[-1]}", f"its life changed {TRIES} times while it was taken over")


async def _release(host: Host, own: Record) -> bool | None:
    """Make one run of a dead worker ready; one that has killed several is quarantined.

    False: somebody else did it. None: the run has changed meanwhile, perhaps because it was cancelled; look again.
    """
    keys = RunKeys(host.space, OWNERSHIPS.decode(own.value).run)
    seen = await host.space.read(keys.life)
    record = seen.get(keys.life)
    if record is None:
        return _is_done(own, await host.space.commit(Delete(own.key, own.version)))
    life = LIVES.decode(record.value)
    freed = await _freed(host, keys, life, seen.at)
    changes = (Check(keys.life, record.version), Delete(own.key, own.version))
    if life.has_ended or life.owner != own.key.parts[-2]:
        return _is_done(own, await host.space.commit(*changes))
    is_poison = freed.status == "quarantined"
    over: dict[RecordKey, Any] = dict.fromkeys(await _listings(host, keys) if is_poison else (keys.ready,), READY)
    put = Put(keys.life, LIVES.encode_own(freed), record.version)
    released = _is_done(own, await commit_over(host.space, (put, Delete(own.key, own.version)), over))
    if released and is_poison:
        host.emit(RunQuarantined(at=host.clock.wall(), run=keys.id, workflow=life.workflow, deaths=freed.deaths))
    return released


async def _listings(host: Host, keys: RunKeys) -> list[RecordKey]:
    """Return where a run is listed that is quarantined."""
    header = (await host.space.read(keys.header)).get(keys.header)
    return [] if header is None else keys.quarantined(HEADERS.decode(header.value).tags)


def _is_done(own: Record, answer: Commit | Conflict) -> bool | None:
    if not isinstance(answer, Conflict):
        return True
    return False if own.key in answer.current else None


async def _freed(host: Host, keys: RunKeys, life: Life, at: Instant) -> Life:
    start, end = keys.history()
    page = await host.space.scan(start, end, limit=1, reverse=True)
    position = next((int(key.parts[-1]) + 1 for key in page.records), 0)
    deaths = life.deaths + 1 if position <= life.position else 1
    if deaths >= host.most_deaths:
        about = f"somebody to retry it: {deaths} workers in a row died with it"
        return structs.replace(
            life, status="quarantined", owner="", deaths=deaths, position=position, changed_at=at, waits_for=about
        )
    return structs.replace(life, owner="", deaths=deaths, position=position, changed_at=at, waits_for="a worker")
