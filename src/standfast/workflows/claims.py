"""Claiming runs, and reclaiming those of workers that died.

A worker is a presence with a record of its own. Every claim is guarded by that record, so a worker that was taken for
dead claims nothing more: the worker that notices its death overwrites the record first, and then reclaims its runs.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from standfast.clock import Instant, seconds_between
from standfast.errors import (
    DecodeError,
    FormatTooNewError,
    StoreBusyError,
    StoreError,
)
from standfast.events import RunQuarantined, WorkerDied
from standfast.locks.heartbeat import PRESENCES, end_of, remove
from standfast.locks.run_locks import RunLine
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.activation import Activation
from standfast.workflows.admission import admit, awaiting_lease
from standfast.workflows.fleet import about_key
from standfast.workflows.journal import Claim
from standfast.workflows.records import (
    HEADERS,
    NO_DUE,
    OWNERSHIPS,
    READY,
    RUN_STATES,
    WORKERS,
    Ownership,
    RunKeys,
    RunState,
    WorkerRecord,
    commit_over,
    deletion_of,
    events_of,
    find,
    listing,
    outlived_key,
)
from standfast.workflows.termination import let_go, no_longer_listed

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.run_locks import RunLockInfo
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Commit, Record, Snapshot
    from standfast.workflows.records import Header
    from standfast.workflows.runtime import Runtime


# --- taking up runs, and taking over those of workers that died ----------------------------------------------------

PAGE: Final = 500
TRIES: Final = 50


async def claim(runtime: Runtime, run_id: str) -> Activation | None:
    """Take a run up, if it is unfinished, no worker drives it, and its code is here."""
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.state, keys.ready, keys.header, keys.counter)
    runtime.saw(seen.at)
    record, header = seen.get(keys.state), seen.get(keys.header)
    state = None if record is None else RUN_STATES.decode(record.value)
    if record is None or state is None or header is None or state.has_ended:
        runtime.dropped.discard(run_id)
        if state is not None and state.leaving:
            # It was ended by force, by a process that has died before it released what the run held.
            await let_go(runtime, await find(runtime.space, run_id))
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
            runtime.emit_moved(run_id, taken, right.fence, state, shown)
            has_no_history = not state.claims and not shown.forked_from
            events = [] if has_no_history else await events_of(runtime.space, keys)
            loaded = Activation(runtime, keys, workflow, shown, taken, right, events)
    except (CancelledError, StoreError):
        runtime.dropped.add(run_id)  # if it was claimed all the same, no task here is about to load it
        raise
    finally:
        if loaded is None:
            runtime.clear_suspect(run_id)
    return loaded


async def _claim_in_turn(
    runtime: Runtime, keys: RunKeys, header: Header, state: RunState, record: Record, seen: Snapshot
) -> tuple[Claim, RunState] | None:
    begins = header.begins_at
    if begins is not None and begins == state.until and begins > seen.at and state.cancel is None:
        await _forget(runtime.space, seen, keys.ready)  # whatever the news is, its time has not come
        return None
    # None: the lease is over, and a claim that finds the life unchanged may go on.
    lease = (
        await RunLine(runtime.lines, state.workflow, keys.id, runtime.space.lease).leased() if state.leased else None
    )
    if state.admitted < len(header.lines):
        return await admit(runtime, keys, header, state, record.version, lease)
    if lease is not None:
        await _await_lease(runtime, keys, state, seen, lease)
        return None
    return await _claim(runtime, keys, header, state, record, seen)


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
    runtime.emit_moved(keys.id, waiting, 0, state)


async def _claim(
    runtime: Runtime, keys: RunKeys, header: Header, state: RunState, record: Record, seen: Snapshot
) -> tuple[Claim, RunState] | None:
    worker = await runtime.ensure_presence()
    own, gone = keys.own(worker.presence), list(keys.listed(state, header))
    if state.until is not None:
        gone.append(keys.timer(state.until))
    versions = await runtime.space.read(own, *gone)
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
        orphaned_at=None,
    )
    changes: list[Change] = [
        worker.guard,
        Put(keys.state, RUN_STATES.encode_own(taken), record.version),
        Put(own, OWNERSHIPS.encode_own(Ownership(keys.id, seen.at)), versions.version(own)),
    ]
    if seen.version(keys.ready):
        changes.append(Delete(keys.ready, seen.version(keys.ready)))
    answer = await runtime.space.commit(*changes, *deletion_of(versions, *gone))
    if isinstance(answer, Conflict):
        if worker.guard.key in answer.current:
            runtime.lost_presence()
        return None
    # A sender writes the ready flag, too, which was deleted as it was seen beside the empty inbox.
    has_no_messages = bool(seen.version(keys.ready)) and not seen.version(keys.counter) and state.cancel is None
    is_first = has_no_messages and not (state.claims or header.forked_from or header.mail_from)
    right = Claim(own, answer.versions[own], worker.presence, answer.versions[keys.state], is_first=is_first)
    return right, taken


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
        listed = listing(keys, freed, HEADERS.decode(header.value))
        given_back: tuple[Change, ...] = (
            Delete(own, record.version),
            Put(keys.state, RUN_STATES.encode_own(freed), state_version),
            *listed,
        )
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
    """Return True if a task here may be about to load a run that is claimed, and only waits for the answer."""
    claimed_at = OWNERSHIPS.decode(own.value).claimed_at
    return run_id not in runtime.dropped and seconds_between(claimed_at, now) < runtime.space.lease


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
    """Return which presences are gone, and the liveness tokens of those that are not."""
    dead: list[str] = []
    tokens: dict[str, str] = {}
    page = scope.at_most(100)
    for first in range(0, len(names), page):
        keys = {name: presence_key(scope, name) for name in names[first : first + page]}
        seen = await scope.read(*keys.values())
        for name, key in keys.items():
            record = seen.get(key)
            presence = None if record is None else PRESENCES.decode(record.value)
            if record is None or presence is None:
                dead.append(name)
            elif scope.store.is_dead(presence.liveness_token):
                await remove(scope.store, key)
                dead.append(name)
            else:
                tokens[name] = presence.liveness_token
                await end_of(scope.store, record, presence, seen.at)
    return dead, tokens


async def reclaim(runtime: Runtime, presence: str, worker: Record) -> None:
    """Make the runs of a dead worker ready for others, and forget the worker."""
    space = runtime.space
    is_retired = _is_retired(worker)
    ended = WORKERS.encode(WorkerRecord(Instant(0), is_retired))
    closed = await space.commit(Put(worker.key, ended, worker.version))
    version = worker.version
    if isinstance(closed, Conflict):
        current = closed.current.get(worker.key)
        if current is None:
            return
        version, is_retired = current.version, _is_retired(current)
    else:
        version = closed.versions[worker.key]
    lived_on = bool((await space.read(outlived_key(space, presence))).records)
    is_innocent, reclaimed = is_retired or lived_on, 0
    start, end = space.key("own", presence).within()
    while True:
        page = await space.scan(start, end, limit=PAGE)
        for record in page.records.values():
            reclaimed += await _release_if_readable(runtime, record, is_innocent=is_innocent)
        if page.more is None:
            break
        start = page.more
    forgotten = await commit_over(space, (Delete(worker.key, version),), {about_key(space, presence): None})
    # Others may find it at the same time; and one that had no runs is only news for a hook.
    if reclaimed or (runtime.hooks and not isinstance(forgotten, Conflict)):
        runtime.emit(WorkerDied(at=runtime.clock.wall(), presence=presence, runs=reclaimed))


def _is_retired(worker: Record) -> bool:
    try:
        return WORKERS.decode(worker.value).is_retired
    except (DecodeError, FormatTooNewError):
        return False  # its runs are taken over all the same


async def _release_if_readable(runtime: Runtime, own: Record, *, is_innocent: bool) -> bool:
    try:
        for _ in range(TRIES):
            released = await _release(runtime, own, is_innocent=is_innocent)
            if released is not None:
                return released
    except (DecodeError, FormatTooNewError):
        return False  # one broken record does not keep the others from being taken over
    raise StoreBusyError(f"the run {own.key.parts[-1]}", f"its life changed {TRIES} times while it was taken over")


async def _release(runtime: Runtime, own: Record, *, is_innocent: bool) -> bool | None:
    """Make one run of a dead worker ready; one that has killed several is quarantined.

    False: another process did it. None: the run has changed meanwhile, perhaps because it was cancelled; look again.
    """
    keys = RunKeys(runtime.space, OWNERSHIPS.decode(own.value).run)
    seen = await runtime.space.read(keys.state, keys.header)
    record, header = seen.get(keys.state), seen.get(keys.header)
    if record is None:
        return _is_done(own, await runtime.space.commit(Delete(own.key, own.version)))
    state = RUN_STATES.decode(record.value)
    if state.has_ended or state.owner != own.key.parts[-2]:
        changes = (Check(keys.state, record.version), Delete(own.key, own.version))
        return _is_done(own, await runtime.space.commit(*changes))
    freed = await _freed(runtime, keys, state, seen.at, is_innocent=is_innocent)
    is_poison = freed.status == "quarantined"
    known = None if header is None else HEADERS.decode(header.value)
    tags = () if known is None else known.tags
    over: dict[RecordKey, Any] = dict.fromkeys(keys.quarantined(tags) if is_poison else (keys.ready,), READY)
    put = Put(keys.state, RUN_STATES.encode_own(freed), record.version)
    moved: tuple[Change, ...] = (put, Delete(own.key, own.version), *listing(keys, freed, known))
    released = _is_done(own, await commit_over(runtime.space, moved, over))
    if released and is_poison:
        runtime.emit(RunQuarantined(at=runtime.clock.wall(), run=keys.id, workflow=state.workflow, deaths=freed.deaths))
    return released


def _is_done(own: Record, answer: Commit | Conflict) -> bool | None:
    if not isinstance(answer, Conflict):
        return True
    return False if own.key in answer.current else None


async def _freed(runtime: Runtime, keys: RunKeys, state: RunState, at: Instant, *, is_innocent: bool) -> RunState:
    start, end = keys.history()
    page = await runtime.space.scan(start, end, limit=1, reverse=True)
    position = next((int(key.parts[-1]) + 1 for key in page.records), 0)
    died_with, deaths = await _deaths(runtime.space, state) if position <= state.position else ((), 0)
    if not is_innocent:
        died_with, deaths = (*died_with, state.owner)[-MOST_NAMED:], deaths + 1
    if deaths >= runtime.most_deaths:
        about = f"an operator to retry it: {deaths} workers in a row died with it"
        return structs.replace(
            state,
            status="quarantined",
            owner="",
            deaths=deaths,
            died_with=died_with,
            position=position,
            changed_at=at,
            waits_for=about,
            misfit_at=None,
        )
    return structs.replace(
        state,
        owner="",
        deaths=deaths,
        died_with=died_with,
        position=position,
        changed_at=at,
        waits_for=_waits_for(runtime, deaths),
        orphaned_at=at,
        misfit_at=None,
    )


def _waits_for(runtime: Runtime, deaths: int) -> str:
    is_suspect = deaths >= runtime.suspects.from_deaths
    alone = f" that drives no other such run: {deaths} workers in a row died with it" if is_suspect else ""
    return f"a worker{alone}"


# --- those that were only taken for dead --------------------------------------------------------------------------
#
# A death and a process that is cut off look alike: its presence lapses, and others take over its runs. But a process
# that was cut off comes back. It says so, and what was counted against its runs is not counted any more.

MOST_NAMED: Final = 20
"""How many of the workers that died with a run are named. It is quarantined after five, if nothing else was said."""


async def _deaths(scope: Scope, state: RunState) -> tuple[tuple[str, ...], int]:
    """Return the workers that died with a run, as far as they are named, and how many did."""
    if not state.died_with:
        return (), state.deaths
    keys = {name: outlived_key(scope, name) for name in state.died_with}
    seen = await scope.read(*keys.values())
    died = tuple(name for name, key in keys.items() if seen.get(key) is None)
    return died, max(len(died), state.deaths - len(state.died_with) + len(died))


async def take_back_deaths(runtime: Runtime) -> None:
    """Let go on what was quarantined for presences that this process has outlived, which :func:`tell_outlived` told.

    A presence is looked at until all that was driven under it is in other hands: no death is counted for it after that.
    """
    space, page = runtime.space, runtime.space.at_most(100)
    for presence, run_ids in tuple(runtime.outlived.items()):
        keys = {run_id: RunKeys(space, run_id).state for run_id in tuple(run_ids)[:page]}
        seen = (await space.read(*keys.values())).records if keys else {}
        for run_id, key in keys.items():
            record = seen.get(key)
            state = None if record is None else RUN_STATES.decode(record.value)
            if state is not None and state.owner == presence:
                continue
            run_ids.discard(run_id)
            if state is not None and state.status == "quarantined" and presence in state.died_with:
                await _leaves_quarantine(runtime, run_id)
        if not run_ids:
            runtime.outlived.pop(presence, None)


async def _leaves_quarantine(runtime: Runtime, run_id: str) -> None:
    """Make a run ready that is quarantined for a worker that lives; it stays there if enough others have died."""
    run = await find(runtime.space, run_id)
    keys, state = RunKeys(runtime.space, run_id), run.state
    died_with, deaths = await _deaths(runtime.space, state)
    if state.status != "quarantined" or deaths >= runtime.most_deaths:
        return
    free = structs.replace(
        state,
        status="running",
        deaths=deaths,
        died_with=died_with,
        changed_at=runtime.now(),
        waits_for=_waits_for(runtime, deaths),
        orphaned_at=runtime.now(),
    )
    over: dict[RecordKey, bytes | None] = {keys.ready: READY, **no_longer_listed(runtime.space, run)}
    over |= dict.fromkeys(keys.listed(state, run.header)) | keys.listed(free, run.header)
    put = Put(keys.state, RUN_STATES.encode_own(free), run.state_version)
    if not isinstance(await commit_over(runtime.space, (put,), over), Conflict):  # else an operator was quicker
        runtime.emit_moved(run_id, free, 0, state, run.header)
