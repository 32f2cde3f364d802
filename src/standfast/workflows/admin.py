"""What an operator does to runs: restart, fork and retry them, and find those that should be executed and are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Struct, structs

from standfast.clock import Instant
from standfast.errors import (
    DeclarationError,
    InvalidArgumentError,
    RunNotFoundError,
    StandfastError,
    StoreBusyError,
    UnknownWorkflowError,
    WorkflowAlreadyExistsError,
    WorkflowTypeNotRegisteredForRecoveryError,
)
from standfast.ids import new_id
from standfast.locks.entry import LIMIT
from standfast.locks.inspect import counted
from standfast.stores.protocol import Check, Conflict, Delete, Put
from standfast.workflows.catalog import as_remote, find_declared
from standfast.workflows.fleet import list_workers
from standfast.workflows.limits import waits_until
from standfast.workflows.records import (
    HEADERS,
    NO_DUE,
    ONCES,
    READY,
    RUN_STATES,
    Found,
    Once,
    RunKeys,
    RunState,
    Start,
    commit_over,
    events_of,
    find,
    packed_chunk,
)
from standfast.workflows.replay import chunks_of, cut_at, cut_for_retry, open_children
from standfast.workflows.start import checked_id, start
from standfast.workflows.termination import no_longer_listed
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record
    from standfast.workflows.catalog import RemoteWorkflow, Startable
    from standfast.workflows.definition import Workflow
    from standfast.workflows.records import Header, HistoryEvent, Started
    from standfast.workflows.runtime import Runtime
    from standfast.workflows.worker import Worker


PAGE: Final = 50
TRIES: Final = 50


def code_of(runtime: Runtime, header: Header) -> Workflow[..., Any]:
    """Return the code for a run that is started again: of its version, or of the only version that is here."""
    found = runtime.workflows.get((header.workflow, header.version))
    others = [each for (name, _), each in runtime.workflows.items() if name == header.workflow]
    if found is None and len(others) == 1:
        found = others[0]
    if found is None:
        raise UnknownWorkflowError(header.workflow, tuple(sorted({name for name, _ in runtime.workflows})))
    return found


async def _remote_code(runtime: Runtime, header: Header, *, is_edited: bool) -> RemoteWorkflow:
    """Return what a start needs of a workflow whose code is elsewhere: the same input has the same limits as before."""
    declared = await find_declared(runtime.space, header.workflow, {name for name, _ in runtime.workflows})
    had = {each for worker in await list_workers(runtime.space, limit=PAGE) for each in worker.workflows}
    version = header.version if (header.workflow, header.version) in had else declared.version
    declared = structs.replace(declared, version=version)
    if is_edited:
        return as_remote(declared)
    lines = tuple(structs.replace(line, entry="") for line in header.lines if line.kind == LIMIT)
    return as_remote(declared, lambda _packed: lines)


async def _again(
    runtime: Runtime, run: Found, run_id: str | None, given: Mapping[str, Any] | None = None, *, drive: bool
) -> Start:
    workflow: Startable
    if given is None:
        packed = bytes(run.header.input)
    elif isinstance(given, Mapping) and all(isinstance(name, str) for name in given):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        packed = PLAIN.pack(dict(given))
    else:
        raise InvalidArgumentError("input", "it must have the arguments by name", ascii(given)[:60])
    try:
        workflow = code = code_of(runtime, run.header)
        code.signature.unpack(packed)  # refused here if the code takes other arguments by now
    except UnknownWorkflowError:
        workflow, drive = await _remote_code(runtime, run.header, is_edited=given is not None), False
        packed = packed if given is None else workflow.signature.pack((), given)
    return Start(
        workflow=workflow,
        packed=packed,
        run_id=new_id() if run_id is None else checked_id("run id", run_id),
        tags=run.header.tags,
        forked_from=run.id,
        drive=drive,
        chosen=run_id is not None,
    )


async def restart(
    runtime: Runtime, run_id: str, new_run_id: str | None, given: Mapping[str, Any] | None = None, *, drive: bool
) -> Started:
    """Start a new run with the input of another one, or with another input."""
    asked = await _again(runtime, await find(runtime.space, run_id), new_run_id, given, drive=drive)
    return await start(runtime, asked)


# --- forks --------------------------------------------------------------------------------------------------------


async def fork(runtime: Runtime, run_id: str, step: str, new_run_id: str | None) -> Started:
    """Start a new run that has everything behind it which another one recorded before a step."""
    run = await find(runtime.space, run_id)
    asked = await _again(runtime, run, new_run_id, drive=False)
    events = cut_at(run_id, await events_of(runtime.space, RunKeys(runtime.space, run_id)), step)
    keys = RunKeys(runtime.space, asked.run_id)
    if (seen := await runtime.space.read(keys.state)).get(keys.state) is not None:
        raise WorkflowAlreadyExistsError(
            asked.run_id, RUN_STATES.decode(seen.records[keys.state].value).status, "history"
        )
    reserved = await _reserve(runtime, asked.run_id, run_id)
    # What a fork has left that was not finished goes first.
    while records := (await runtime.space.scan(*keys.history(), limit=_page(runtime))).records:
        await _commit(runtime, keys, reserved, *(Delete(key, record.version) for key, record in records.items()))
    for position, some in chunks_of(events):
        await _commit(runtime, keys, reserved, Put(keys.chunk(position), packed_chunk(some)))
    started = await start(runtime, structs.replace(asked, extra_changes=(Delete(reserved.key, reserved.expected),)))
    if not started.is_new:
        raise WorkflowAlreadyExistsError(asked.run_id, "unknown", "history")
    return started


async def _reserve(runtime: Runtime, new_run_id: str, run_id: str) -> Check:
    """Take an id for a fork that is being written; a process that had taken it before writes nothing any more."""
    key = runtime.space.key("forking", new_run_id)
    answer = await commit_over(runtime.space, (), {key: ONCES.encode_own(Once(run_id))})
    if isinstance(answer, Conflict):
        raise StoreBusyError(f"the run {new_run_id}", "its id could not be reserved")
    return Check(key, answer.versions[key])


async def _commit(runtime: Runtime, keys: RunKeys, reserved: Check, *changes: Change) -> None:
    if isinstance(await runtime.space.commit(reserved, *changes), Conflict):
        raise WorkflowAlreadyExistsError(keys.id, "being forked", "history")


# --- going on -----------------------------------------------------------------------------------------------------


MOST_STOPS: Final = 20
"""How many times a state says that it stood still until an operator let it go on."""


async def retry(runtime: Runtime, run_id: str, step: str | None) -> None:
    """Let a run go on that failed, was cancelled, has timed out or is quarantined. Others are left as they are."""
    runtime.try_again(run_id)
    for _ in range(TRIES):
        run = await find(runtime.space, run_id)
        if run.state.status == "completed" or run.state.purging:
            about = "is being purged" if run.state.purging else "has completed"
            raise DeclarationError(f"retry {run_id!r}", f"it {about}; restart it or fork it")
        if not run.state.has_ended and run.state.status != "quarantined":
            return
        if await _goes_on(runtime, run, step):
            return
    raise StoreBusyError(f"the run {run_id}", f"its state changed {TRIES} times while it was resumed")


async def _goes_on(runtime: Runtime, run: Found, step: str | None) -> bool:
    keys = RunKeys(runtime.space, run.id)
    events = await events_of(runtime.space, keys)
    kept = events
    if run.state.has_ended:
        kept = cut_for_retry(run.id, run.state, events) if step is None else cut_at(run.id, events, step, fork=False)
    for child in open_children(kept):
        await _retry_child(runtime, child)  # first: if one of them is refused, nothing is cut here
    changes = await _rewritten(runtime, keys, run, events, kept)
    if changes is None:
        return False
    header = run.header
    if header.deadline is not None:  # it has as much time again as it had at first
        header = structs.replace(header, deadline=Instant(runtime.now() + header.deadline - header.started_at))
    until = waits_until(header, runtime.now()) if run.state.has_ended and header.lines else None
    now = runtime.now()
    going_on = structs.replace(
        run.state,
        status="pending" if run.header.lines and run.state.has_ended else "running",
        owner="",
        failure=None,
        result=UNSET,
        cancel=None,
        deaths=0,
        died_with=(),
        position=0,
        admitted=0 if run.state.has_ended else run.state.admitted,  # it has left its lines, and has to enter them again
        ticket=None,
        until=until,
        waits_for="a worker",
        changed_at=now,
        misfit_at=None,
        stops=(*run.state.stops, (run.state.changed_at, now))[-MOST_STOPS:],
    )
    put = Put(keys.state, RUN_STATES.encode_own(going_on), run.state_version)
    over: dict[RecordKey, bytes | None] = {keys.ready: READY, **no_longer_listed(runtime.space, run)}
    over |= {} if header is run.header else {keys.header: HEADERS.encode_own(header)}
    over |= {} if until is None else {keys.timer(until): NO_DUE}
    over |= dict.fromkeys(keys.listed(run.state, header)) | keys.listed(going_on, header)
    answer = await commit_over(runtime.space, (put, *changes), over)
    if isinstance(answer, Conflict):
        return False
    runtime.emit_moved(run.id, going_on, 0, run.state, header)
    return True


async def _retry_child(runtime: Runtime, child_id: str) -> None:
    """Let a child go on too that its parent still waits for, unless it has a result, or was purged."""
    try:
        child = await find(runtime.space, child_id)
    except RunNotFoundError:
        return
    if child.state.has_ended and child.state.status != "completed":
        await retry(runtime, child_id, None)


async def _rewritten(
    runtime: Runtime, keys: RunKeys, run: Found, events: Sequence[HistoryEvent], kept: Sequence[HistoryEvent]
) -> tuple[Change, ...] | None:
    """Return the changes that leave a history with what is kept of it; None if the run is not as it was.

    Most of a long end is deleted before, from behind: if this is interrupted, what is left is still a history.
    """
    same = next((n for n, event in enumerate(kept) if event is not events[n]), len(kept))
    records = await _chunks_from(runtime, keys, same)
    last = max((n for n, event in enumerate(events) if any(event is each for each in kept[-1:])), default=-1)
    most = _page(runtime)
    while len(records) > most and _position(records[-1]) > last:
        some = [record for record in records[-most:] if _position(record) > last]
        deletes = (Delete(record.key, record.version) for record in some)
        if isinstance(await runtime.space.commit(Check(keys.state, run.state_version), *deletes), Conflict):
            return None
        del records[-len(some) :]
    if not records:
        return ()
    first = _position(records[0])
    old = {record.key: record.version for record in records}
    puts: list[Change] = []
    for position, some_events in chunks_of(kept[first:]):
        key = keys.chunk(first + position)
        puts.append(Put(key, packed_chunk(some_events), old.pop(key, 0)))
    return (*puts, *(Delete(key, version) for key, version in old.items()))


async def _chunks_from(runtime: Runtime, keys: RunKeys, position: int) -> list[Record]:
    """Return the chunks that hold the event at a position, and all that come after it."""
    start, end = keys.history()
    before = await runtime.space.scan(start, keys.chunk(position).successor(), limit=1, reverse=True)
    start = next(iter(before.records), keys.chunk(position))
    found: list[Record] = []
    while True:
        page = await runtime.space.scan(start, end, limit=PAGE)
        found.extend(page.records.values())
        if page.more is None:
            return found
        start = page.more


def _page(runtime: Runtime) -> int:
    """Return how many records are written together: half of what a commit takes, for there may be as many others."""
    return min(PAGE, runtime.space.at_most(100) // 2)


def _position(record: Record) -> int:
    return int(record.key.parts[-1])


# --- polling runs on demand: what a worker does by itself all the time -----------------------------------------------


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
    """Take a run up now if something of it is due; the worker of this process takes it up once, however often asked."""
    state, is_due = await _state(runtime, run_id)
    if state is None or state.has_ended:
        return Looked(run_id, "ended")
    if worker is None:
        if not is_due:
            return Looked(run_id, "waiting", _wait_of(state))
        await commit_over(runtime.space, (), {RunKeys(runtime.space, run_id).ready: READY})
        return Looked(run_id, "told", "this engine drives nothing; workers that do were notified")
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
        problem = f"it is quarantined: {counted(state.deaths, 'worker')} died with it; find out why, then retry it"
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


async def sweep(runtime: Runtime, worker: Worker | None, limit: int) -> tuple[Looked, ...]:
    """Look at what is due, the longest due first, and then at what is ready."""
    if type(limit) is not int or limit < 1:
        raise DeclarationError("sweep", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
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
        raise DeclarationError("recover_all", f"unknown is {unknown!r:.100}, neither 'leave' nor 'raise'")
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
