"""Taking up runs, and taking over those of workers that died.

A worker is a presence with a record of its own. Every claim is guarded by that record, so a worker that was taken for
dead claims nothing more: whoever notices its death overwrites the record first, and then collects its runs.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct, structs

from standfast.clock import Instant, later, seconds_between
from standfast.errors import (
    DecodeError,
    FormatTooNewError,
    InvalidWorkflowError,
    StandfastError,
    StoreBusyError,
    StoreError,
    WorkflowTypeNotRegisteredForRecoveryError,
)
from standfast.events import RunQuarantined, WorkerDied
from standfast.locks.entry import LineEntries
from standfast.locks.heartbeat import PRESENCES, end_of, remove
from standfast.locks.run_locks import RunLine
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.activation import Activation
from standfast.workflows.admission import admit, awaiting_lease
from standfast.workflows.journal import Claim
from standfast.workflows.records import (
    CHUNKS,
    DUES,
    HEADERS,
    LIVES,
    NO_DUE,
    OWNERSHIPS,
    READY,
    WORKERS,
    Due,
    Life,
    Mark,
    Ownership,
    RunKeys,
    WorkerRecord,
    commit_over,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.keys import RecordKey
    from standfast.locks.run_locks import RunLockInfo
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Commit, Record, Snapshot
    from standfast.workflows.records import Header
    from standfast.workflows.runtime import Host
    from standfast.workflows.worker import Worker


# --- taking up runs, and taking over those of workers that died ----------------------------------------------------

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
    from standfast.workflows.messages import find, let_go  # noqa: PLC0415 -- it needs the histories that are read here

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
            elif scope.store.is_dead(presence.lifeline):
                await remove(scope.store, key)
                dead.append(name)
            else:
                lifelines[name] = presence.lifeline
                await end_of(scope.store, record, presence, seen.at)
    return dead, lifelines


async def bury(host: Host, presence: str, worker: Record) -> None:
    """Make the runs of a dead worker ready for others, and forget the worker."""
    space = host.space
    closed = await space.commit(Put(worker.key, WORKERS.encode(WorkerRecord(Instant(0))), worker.version))
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


# --- looking after the line in which an unloaded run waits, without loading the run --------------------------------
#
# While a run waits behind a process, or behind a hold that ends by itself, somebody has to let those fall who are over.
# The run's record in the timer index says when, and where.

EVERY: Final = 1.0
"""Seconds between two looks at the same line for the same run, at the least."""

SEES_DEATH_AFTER: Final = 5.0
"""Seconds after which a look finds that a process in front has died, where the store can see that."""


def due_of(activation: Activation, until: Instant) -> Due:
    """Return what is due at the next instant at which something of a run is: perhaps only a look at one line."""
    instants = [(wait.until, wait.line) for wait in activation.waits if wait.until is not None]
    if activation.header.deadline is not None:
        instants.append((activation.header.deadline, ()))
    lines = {line for at, line in instants if at == until}
    if len(lines) != 1 or () in lines:
        return Due()
    return Due(look_at=lines.pop(), then=min((at for at, _ in instants if at > until), default=None))


async def look_at_line(host: Host, address: tuple[str, ...]) -> Instant | None:
    """Let those fall in a line who are over; return when to look again, None: nobody there falls by time."""
    next_end = await LineEntries(host.lines).reap(address)
    if next_end is None:
        return None
    soon = later(host.now(), SEES_DEATH_AFTER)
    if any(host.lines.line(address).lifelines.values()):
        next_end = min(next_end, soon)
    return max(next_end, later(host.now(), EVERY))


async def look_after(host: Host, keys: RunKeys, life: Record, timer: Record) -> None:
    """Look after the line that a timer names, and set the timer anew."""
    due = DUES.decode(timer.value)
    look_at = await look_at_line(host, due.look_at)
    until = min((at for at in (look_at, due.then) if at is not None), default=None)
    waits = structs.replace(LIVES.decode(life.value), until=until)
    changes: list[Change] = [Put(keys.life, LIVES.encode_own(waits), life.version), Delete(timer.key, timer.version)]
    if until is not None:
        again = keys.timer(until)
        expected = (await host.space.read(again)).version(again)
        changes.append(Put(again, DUES.encode(due if until == look_at else Due()), expected))
    # If it is refused, the run was taken up or somebody else has looked: then that one has set the timer.
    await host.space.commit(*changes)


# --- looking for runs that can go on, on demand: what a worker does by itself all the time -------------------------

SWEEP_PAGE: Final = 200
MOST_SAMPLES: Final = 20

How: TypeAlias = Literal["taken", "held", "told", "left", "waiting", "ended", "failed"]


class Looked(Struct, frozen=True):
    """What became of a look at a run.

    Attributes:
        run_id: The run.
        how: ``taken``: this engine drives it now. ``held``: another one does, or a run lock holds it. ``told``: this
            engine drives none, so the others were told. ``left``: its code is not here, does not fit, or it is
            quarantined. ``waiting``: nothing is due. ``ended``: it has ended. ``failed``: it could not be looked at.
        problem: Why it was not taken up, in words: who drives it, what is not here, what it waits for, what went wrong.
    """

    run_id: str
    how: How
    problem: str = ""


class Recovered(Struct, frozen=True):
    """What a recovery has found: the unfinished runs, and those of them whose workflow is not here."""

    found: tuple[str, ...]
    left: tuple[str, ...]


async def look_at(host: Host, worker: Worker | None, run_id: str) -> Looked:
    """Take a run up now if something of it is due; the worker of this process takes it up once, whoever asks."""
    life, is_due = await _state(host, run_id)
    if life is None or life.has_ended:
        return Looked(run_id, "ended")
    if worker is None:
        return await _tell(host, run_id, life, is_due=is_due)
    if is_due:
        await worker.look_at(run_id)
    return await _outcome(host, run_id)


async def _state(host: Host, run_id: str) -> tuple[Life | None, bool]:
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.life, keys.ready)
    host.saw(seen.at)
    record = seen.get(keys.life)
    if record is None:
        return None, False
    life = LIVES.decode(record.value)
    due = life.until is not None and life.until <= seen.at
    return life, due or bool(seen.version(keys.ready))


async def _tell(host: Host, run_id: str, life: Life, *, is_due: bool) -> Looked:
    if not is_due:
        return Looked(run_id, "waiting", _wait_of(life))
    await commit_over(host.space, (), {RunKeys(host.space, run_id).ready: READY})
    return Looked(run_id, "told", "this engine drives nothing; workers that do were told")


async def _outcome(host: Host, run_id: str) -> Looked:
    life, is_due = await _state(host, run_id)
    if life is None or life.has_ended:
        return Looked(run_id, "ended")
    if life.owner:
        is_own = host.worker is not None and life.owner == host.worker.presence
        return Looked(run_id, "taken") if is_own else Looked(run_id, "held", f"the worker {life.owner} drives it")
    if life.lease_awaited:
        return Looked(run_id, "held", "a run lock holds it")
    if life.status == "quarantined":
        problem = f"it is quarantined: {life.deaths} workers died with it; find out why, then retry it"
    elif (life.workflow, life.version) not in host.workflows:
        problem = f"the workflow {_type(life.workflow, life.version)!r} is not here; start a worker that has it"
    elif host.is_mismatched(run_id):
        problem = "the code here does not fit its history; see RunCodeDiffers, and bring the old code back"
    elif not is_due:
        return Looked(run_id, "waiting", _wait_of(life))
    elif not host.has_room():
        problem = "this worker has no room for another run, or is stopping; it stays due"
    else:
        problem = "another worker, or the store, was in the way just now; it stays due"
    return Looked(run_id, "left", problem)


def _wait_of(life: Life) -> str:
    return f"it waits for {life.waits_for}" if life.waits_for else "nothing of it is due"


# --- all that is due ----------------------------------------------------------------------------------------------


async def sweep(host: Host, worker: Worker | None, limit: int) -> tuple[Looked, ...]:
    """Look at what is due, the longest due first, and then at what is ready."""
    if type(limit) is not int or limit < 1:
        raise InvalidWorkflowError("sweep", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
    looked: dict[str, Looked] = {}
    async for run_id in _candidates(host):
        if len(looked) == limit:
            break
        if run_id not in looked:
            looked[run_id] = await look_safely(host, worker, run_id)
    return tuple(looked.values())


async def look_safely(host: Host, worker: Worker | None, run_id: str) -> Looked:
    """Look at a run; a problem with it is part of the answer, so that it does not keep others from being looked at."""
    try:
        return await look_at(host, worker, run_id)
    except StandfastError as problem:
        return Looked(run_id, "failed", f"{type(problem).__name__}: {problem}")


async def _candidates(host: Host) -> AsyncIterator[str]:
    space = host.space
    async for record, at in _records(space, *space.key("timer").within()):
        due_at, name = record.key.parts[-2:]
        if Instant(int(due_at)) > at:
            break
        if name.startswith("@"):  # a schedule
            continue
        if not (await space.read(space.key("life", name))).records:
            await space.commit(Delete(record.key, record.version))  # of a run that is gone
            continue
        yield name
    async for record, _ in _records(space, *space.key("ready").within()):
        yield record.key.parts[-1]


async def _records(scope: Scope, start: RecordKey, end: RecordKey) -> AsyncIterator[tuple[Record, Instant]]:
    while True:
        page = await scope.scan(start, end, limit=SWEEP_PAGE)
        for record in page.records.values():
            yield record, page.at
        if page.more is None:
            return
        start = page.more


# --- all that is unfinished ---------------------------------------------------------------------------------------


async def recover(host: Host, *, insist: bool) -> Recovered:
    """Find the unfinished runs; refuse, or tell of each, if the code of some is not here. Nothing is resumed."""
    found: list[str] = []
    missing: dict[str, Life] = {}
    async for record, at in _records(host.space, *host.space.key("life").within()):
        host.saw(at)
        life = LIVES.decode(record.value)
        if not life.has_ended:
            found.append(record.key.parts[-1])
            if (life.workflow, life.version) not in host.workflows:
                missing[found[-1]] = life
    if missing and insist:
        raise WorkflowTypeNotRegisteredForRecoveryError(
            tuple(sorted({_type(*each) for each in host.workflows})),
            tuple(sorted({_type(life.workflow, life.version) for life in missing.values()})),
            tuple(missing)[:MOST_SAMPLES],
            len(missing),
        )
    for run_id, life in missing.items():
        host.leave_alone(run_id, life)
    return Recovered(tuple(found), tuple(missing))


def _type(name: str, version: str) -> str:
    return f"{name} {version}" if version else name
