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
    NO_DUE,
    OWNERSHIPS,
    READY,
    RUN_STATES,
    WORKERS,
    Due,
    HistoryEvent,
    Ownership,
    RunKeys,
    RunState,
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
    from standfast.workflows.runtime import Runtime
    from standfast.workflows.worker import Worker


# --- taking up runs, and taking over those of workers that died ----------------------------------------------------

PAGE: Final = 500
TRIES: Final = 50


async def claim(runtime: Runtime, run_id: str) -> Activation | None:
    """Take a run up, if it is unfinished, nobody drives it, and its code is here."""
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.state, keys.ready, keys.header)
    runtime.saw(seen.at)
    record, header = seen.get(keys.state), seen.get(keys.header)
    state = None if record is None else RUN_STATES.decode(record.value)
    if record is None or state is None or header is None or state.has_ended:
        runtime.dropped.discard(run_id)
        if state is not None and state.leaving:
            await _release_ended(runtime, run_id)
        await _forget(runtime.space, seen, keys.ready)
        return None
    if state.owner or state.status == "quarantined":
        return await _load_own(runtime, keys, state, record.version, header)
    workflow = runtime.workflows.get((state.workflow, state.version))
    if workflow is None:
        runtime.leave_alone(run_id, state)
        return None
    if runtime.is_mismatched(run_id) or not runtime.suspects.may_take(run_id, state.deaths):
        return None
    shown, loaded = HEADERS.decode(header.value), None
    try:
        claimed = await _claim_in_turn(runtime, keys, shown, state, record, seen)
        if claimed is not None:
            right, taken = claimed
            runtime.emit_moved(run_id, taken, right.fence, state.changed_at, shown.lines)
            loaded = Activation(runtime, keys, workflow, shown, taken, right, await events_of(runtime.space, keys))
    except (CancelledError, StoreError):
        runtime.dropped.add(run_id)  # if it was claimed all the same, nobody here is about to load it
        raise
    finally:
        if loaded is None:
            runtime.clear_suspect(run_id)
    return loaded


async def _release_ended(runtime: Runtime, run_id: str) -> None:
    """Release what a run still holds that was ended by force, by somebody who has died since."""
    from standfast.workflows.messages import find, let_go  # noqa: PLC0415 -- it needs the histories that are read here

    await let_go(runtime, await find(runtime.space, run_id))


async def _claim_in_turn(
    runtime: Runtime, keys: RunKeys, header: Header, state: RunState, record: Record, seen: Snapshot
) -> tuple[Claim, RunState] | None:
    begins = header.begins_at
    if begins is not None and begins == state.until and begins > seen.at and state.cancel is None:
        await _forget(runtime.space, seen, keys.ready)  # whatever the news is, its time has not come
        return None
    lease = await _lease_of(runtime, keys, state) if state.leased else None
    if state.admitted < len(header.lines):
        return await admit(runtime, keys, header, state, record.version, lease)
    if lease is not None:
        await _await_lease(runtime, keys, state, seen, lease)
        return None
    return await _claim(runtime, keys, state, record, seen)


async def _lease_of(runtime: Runtime, keys: RunKeys, state: RunState) -> RunLockInfo | None:
    """Return who holds the run's lock; None: its lease is over, and a claim that finds the life unchanged may go on."""
    return await RunLine(runtime.lines, state.workflow, keys.id, runtime.space.lease).leased()


async def _await_lease(runtime: Runtime, keys: RunKeys, state: RunState, seen: Snapshot, lease: RunLockInfo) -> None:
    """Leave a run to the holder of its lock: note that it is to be told of the release, and look again later."""
    if state.lease_awaited and state.until is not None and state.until > seen.at:
        await _forget(runtime.space, seen, keys.ready)
        return
    waiting = awaiting_lease(state, lease, seen.at)
    over: dict[RecordKey, bytes | None] = {} if state.until is None else {keys.timer(state.until): None}
    if waiting.until is not None:
        over[keys.timer(waiting.until)] = NO_DUE
    changes: list[Change] = [Put(keys.state, RUN_STATES.encode_own(waiting), seen.version(keys.state))]
    if seen.version(keys.ready):
        changes.append(Delete(keys.ready, seen.version(keys.ready)))
    if isinstance(await commit_over(runtime.space, changes, over), Conflict):
        runtime.poll_again(keys.id)  # it may have been released meanwhile
        return
    runtime.emit_moved(keys.id, waiting, 0, state.changed_at)


async def _claim(
    runtime: Runtime, keys: RunKeys, state: RunState, record: Record, seen: Snapshot
) -> tuple[Claim, RunState] | None:
    worker = await runtime.ensure_presence()
    own = keys.own(worker.presence)
    versions = await runtime.space.read(own, *([keys.timer(state.until)] if state.until is not None else []))
    taken = structs.replace(
        state,
        status="running",
        owner=worker.presence,
        claims=state.claims + 1,
        changed_at=seen.at,
        until=None,
        waits_for="",
        leased=False,
        lease_awaited=False,
    )
    changes: list[Change] = [
        worker.guard,
        Put(keys.state, RUN_STATES.encode_own(taken), record.version),
        Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), versions.version(own)),
    ]
    if seen.version(keys.ready):
        changes.append(Delete(keys.ready, seen.version(keys.ready)))
    if state.until is not None and versions.version(keys.timer(state.until)):
        changes.append(Delete(keys.timer(state.until), versions.version(keys.timer(state.until))))
    answer = await runtime.space.commit(*changes)
    if isinstance(answer, Conflict):
        if worker.guard.key in answer.current:
            runtime.lost_presence()
        return None
    return Claim(own, answer.versions[own], worker.presence, answer.versions[keys.state]), taken


async def _load_own(
    runtime: Runtime, keys: RunKeys, state: RunState, state_version: int, header: Record
) -> Activation | None:
    """Load a run again that this very worker drives, and has dropped because it did not know what was written."""
    worker = runtime.worker
    if worker is None or state.owner != worker.presence:
        runtime.dropped.discard(keys.id)
        return None
    if keys.id in runtime.loaded or runtime.is_mismatched(keys.id):
        return None
    own = keys.own(state.owner)
    seen = await runtime.space.read(own)
    record, workflow = seen.get(own), runtime.workflows.get((state.workflow, state.version))
    if record is None or _is_being_claimed(runtime, keys.id, record, seen.at):
        return None
    if workflow is None:  # it was withdrawn from this worker: others may have it
        freed = structs.replace(state, owner="", changed_at=seen.at, waits_for="a worker")
        given_back = (Delete(own, record.version), Put(keys.state, RUN_STATES.encode_own(freed), state_version))
        await commit_over(runtime.space, given_back, {keys.ready: READY})
        return None
    grant = Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), record.version)
    answer = await runtime.space.commit(worker.guard, Check(keys.state, state_version), grant)
    if isinstance(answer, Conflict):
        return None
    right, events = Claim(own, answer.versions[own], state.owner, state_version), await events_of(runtime.space, keys)
    runtime.dropped.discard(keys.id)
    return Activation(runtime, keys, workflow, HEADERS.decode(header.value), state, right, events)


def _is_being_claimed(runtime: Runtime, run_id: str, own: Record, now: Instant) -> bool:
    """Tell whether somebody here may be about to load a run that is claimed, and only waits for the answer."""
    claimed_at = OWNERSHIPS.decode(own.value).claimed_at
    return run_id not in runtime.dropped and seconds_between(claimed_at, now) < runtime.space.lease


async def events_of(scope: Scope, keys: RunKeys, *, first: int = 0) -> list[HistoryEvent]:
    """Read a run's history, whole or from the beginning of a chunk on."""
    events: list[HistoryEvent] = []
    start, end = keys.history()
    start = keys.chunk(first) if first else start
    while True:
        page = await scope.scan(start, end, limit=PAGE)
        for record in page.records.values():
            events.extend(CHUNKS.decode(record.value).events)
        if page.more is None:
            return events
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


async def reclaim(runtime: Runtime, presence: str, worker: Record) -> None:
    """Make the runs of a dead worker ready for others, and forget the worker."""
    space = runtime.space
    closed = await space.commit(Put(worker.key, WORKERS.encode(WorkerRecord(Instant(0))), worker.version))
    version = worker.version
    if isinstance(closed, Conflict):
        current = closed.current.get(worker.key)
        if current is None:
            return
        version = current.version
    else:
        version = closed.versions[worker.key]
    reclaimed = 0
    start, end = space.key("own", presence).within()
    while True:
        page = await space.scan(start, end, limit=PAGE)
        for record in page.records.values():
            reclaimed += await _release_if_readable(runtime, record)
        if page.more is None:
            break
        start = page.more
    forgotten = await space.commit(Delete(worker.key, version))
    if reclaimed or not isinstance(forgotten, Conflict):  # others may bury it at the same time
        runtime.emit(WorkerDied(at=runtime.clock.wall(), presence=presence, runs=reclaimed))


async def _release_if_readable(runtime: Runtime, own: Record) -> bool:
    try:
        for _ in range(TRIES):
            released = await _release(runtime, own)
            if released is not None:
                return released
    except (DecodeError, FormatTooNewError):
        return False  # one broken record does not keep the others from being taken over
    raise StoreBusyError(f"the run {own.key.parts[-1]}", f"its life changed {TRIES} times while it was taken over")


async def _release(runtime: Runtime, own: Record) -> bool | None:
    """Make one run of a dead worker ready; one that has killed several is quarantined.

    False: somebody else did it. None: the run has changed meanwhile, perhaps because it was cancelled; look again.
    """
    keys = RunKeys(runtime.space, OWNERSHIPS.decode(own.value).run)
    seen = await runtime.space.read(keys.state)
    record = seen.get(keys.state)
    if record is None:
        return _is_done(own, await runtime.space.commit(Delete(own.key, own.version)))
    state = RUN_STATES.decode(record.value)
    freed = await _freed(runtime, keys, state, seen.at)
    changes = (Check(keys.state, record.version), Delete(own.key, own.version))
    if state.has_ended or state.owner != own.key.parts[-2]:
        return _is_done(own, await runtime.space.commit(*changes))
    is_poison = freed.status == "quarantined"
    over: dict[RecordKey, Any] = dict.fromkeys(await _listings(runtime, keys) if is_poison else (keys.ready,), READY)
    put = Put(keys.state, RUN_STATES.encode_own(freed), record.version)
    released = _is_done(own, await commit_over(runtime.space, (put, Delete(own.key, own.version)), over))
    if released and is_poison:
        runtime.emit(RunQuarantined(at=runtime.clock.wall(), run=keys.id, workflow=state.workflow, deaths=freed.deaths))
    return released


async def _listings(runtime: Runtime, keys: RunKeys) -> list[RecordKey]:
    """Return where a run is listed that is quarantined."""
    header = (await runtime.space.read(keys.header)).get(keys.header)
    return [] if header is None else keys.quarantined(HEADERS.decode(header.value).tags)


def _is_done(own: Record, answer: Commit | Conflict) -> bool | None:
    if not isinstance(answer, Conflict):
        return True
    return False if own.key in answer.current else None


async def _freed(runtime: Runtime, keys: RunKeys, state: RunState, at: Instant) -> RunState:
    start, end = keys.history()
    page = await runtime.space.scan(start, end, limit=1, reverse=True)
    position = next((int(key.parts[-1]) + 1 for key in page.records), 0)
    deaths = state.deaths + 1 if position <= state.position else 1
    if deaths >= runtime.most_deaths:
        about = f"somebody to retry it: {deaths} workers in a row died with it"
        return structs.replace(
            state, status="quarantined", owner="", deaths=deaths, position=position, changed_at=at, waits_for=about
        )
    return structs.replace(state, owner="", deaths=deaths, position=position, changed_at=at, waits_for="a worker")


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


async def reap_line(runtime: Runtime, address: tuple[str, ...]) -> Instant | None:
    """Let those fall in a line who are over; return when to look again, None: nobody there falls by time."""
    next_end = await LineEntries(runtime.lines).reap(address)
    if next_end is None:
        return None
    soon = later(runtime.now(), SEES_DEATH_AFTER)
    if any(runtime.lines.line(address).lifelines.values()):
        next_end = min(next_end, soon)
    return max(next_end, later(runtime.now(), EVERY))


async def reap_waited_line(runtime: Runtime, keys: RunKeys, state: Record, timer: Record) -> None:
    """Look after the line that a timer names, and set the timer anew."""
    due = DUES.decode(timer.value)
    look_at = await reap_line(runtime, due.look_at)
    until = min((at for at in (look_at, due.then) if at is not None), default=None)
    waits = structs.replace(RUN_STATES.decode(state.value), until=until)
    changes: list[Change] = [
        Put(keys.state, RUN_STATES.encode_own(waits), state.version),
        Delete(timer.key, timer.version),
    ]
    if until is not None:
        again = keys.timer(until)
        expected = (await runtime.space.read(again)).version(again)
        changes.append(Put(again, DUES.encode(due if until == look_at else Due()), expected))
    # If it is refused, the run was taken up or somebody else has looked: then that one has set the timer.
    await runtime.space.commit(*changes)


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


async def poll_run(runtime: Runtime, worker: Worker | None, run_id: str) -> Looked:
    """Take a run up now if something of it is due; the worker of this process takes it up once, whoever asks."""
    state, is_due = await _state(runtime, run_id)
    if state is None or state.has_ended:
        return Looked(run_id, "ended")
    if worker is None:
        return await _tell(runtime, run_id, state, is_due=is_due)
    if is_due:
        await worker.poll_run(run_id)
    return await _outcome(runtime, run_id)


async def _state(runtime: Runtime, run_id: str) -> tuple[RunState | None, bool]:
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.state, keys.ready)
    runtime.saw(seen.at)
    record = seen.get(keys.state)
    if record is None:
        return None, False
    state = RUN_STATES.decode(record.value)
    due = state.until is not None and state.until <= seen.at
    return state, due or bool(seen.version(keys.ready))


async def _tell(runtime: Runtime, run_id: str, state: RunState, *, is_due: bool) -> Looked:
    if not is_due:
        return Looked(run_id, "waiting", _wait_of(state))
    await commit_over(runtime.space, (), {RunKeys(runtime.space, run_id).ready: READY})
    return Looked(run_id, "told", "this engine drives nothing; workers that do were told")


async def _outcome(runtime: Runtime, run_id: str) -> Looked:
    state, is_due = await _state(runtime, run_id)
    if state is None or state.has_ended:
        return Looked(run_id, "ended")
    if state.owner:
        is_own = runtime.worker is not None and state.owner == runtime.worker.presence
        return Looked(run_id, "taken") if is_own else Looked(run_id, "held", f"the worker {state.owner} drives it")
    if state.lease_awaited:
        return Looked(run_id, "held", "a run lock holds it")
    if state.status == "quarantined":
        problem = f"it is quarantined: {state.deaths} workers died with it; find out why, then retry it"
    elif (state.workflow, state.version) not in runtime.workflows:
        problem = f"the workflow {_type(state.workflow, state.version)!r} is not here; start a worker that has it"
    elif runtime.is_mismatched(run_id):
        problem = "the code here does not fit its history; see RunCodeDiffers, and bring the old code back"
    elif not is_due:
        return Looked(run_id, "waiting", _wait_of(state))
    elif not runtime.has_room():
        problem = "this worker has no room for another run, or is stopping; it stays due"
    else:
        problem = "another worker, or the store, was in the way just now; it stays due"
    return Looked(run_id, "left", problem)


def _wait_of(state: RunState) -> str:
    return f"it waits for {state.waits_for}" if state.waits_for else "nothing of it is due"


# --- all that is due ----------------------------------------------------------------------------------------------


async def sweep(runtime: Runtime, worker: Worker | None, limit: int) -> tuple[Looked, ...]:
    """Look at what is due, the longest due first, and then at what is ready."""
    if type(limit) is not int or limit < 1:
        raise InvalidWorkflowError("sweep", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
    looked: dict[str, Looked] = {}
    async for run_id in _candidates(runtime):
        if len(looked) == limit:
            break
        if run_id not in looked:
            looked[run_id] = await poll_run_safely(runtime, worker, run_id)
    return tuple(looked.values())


async def poll_run_safely(runtime: Runtime, worker: Worker | None, run_id: str) -> Looked:
    """Look at a run; a problem with it is part of the answer, so that it does not keep others from being looked at."""
    try:
        return await poll_run(runtime, worker, run_id)
    except StandfastError as problem:
        return Looked(run_id, "failed", f"{type(problem).__name__}: {problem}")


async def _candidates(runtime: Runtime) -> AsyncIterator[str]:
    space = runtime.space
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


async def recover(runtime: Runtime, *, insist: bool) -> Recovered:
    """Find the unfinished runs; refuse, or tell of each, if the code of some is not here. Nothing is resumed."""
    found: list[str] = []
    missing: dict[str, RunState] = {}
    async for record, at in _records(runtime.space, *runtime.space.key("life").within()):
        runtime.saw(at)
        state = RUN_STATES.decode(record.value)
        if not state.has_ended:
            found.append(record.key.parts[-1])
            if (state.workflow, state.version) not in runtime.workflows:
                missing[found[-1]] = state
    if missing and insist:
        raise WorkflowTypeNotRegisteredForRecoveryError(
            tuple(sorted({_type(*each) for each in runtime.workflows})),
            tuple(sorted({_type(state.workflow, state.version) for state in missing.values()})),
            tuple(missing)[:MOST_SAMPLES],
            len(missing),
        )
    for run_id, state in missing.items():
        runtime.leave_alone(run_id, state)
    return Recovered(tuple(found), tuple(missing))


async def recover_all(runtime: Runtime, worker: Worker | None, unknown: object) -> Recovered:
    """Find the unfinished runs, and poll those whose code is here."""
    if unknown not in ("leave", "raise"):
        raise InvalidWorkflowError("recover_all", f"unknown is {unknown!r:.100}, neither 'leave' nor 'raise'")
    recovered = await recover(runtime, insist=unknown == "raise")
    if worker is not None:
        await worker.reclaim_dead()
    left = set(recovered.left)
    for run_id in recovered.found:
        if run_id not in left:
            await poll_run_safely(runtime, worker, run_id)
    return recovered


def _type(name: str, version: str) -> str:
    return f"{name} {version}" if version else name
