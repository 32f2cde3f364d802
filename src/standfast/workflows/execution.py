"""Executing a claimed run until it has ended, waits for long, or is released; and replaying a copy of one to ask it."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Raw, structs

from standfast.clock import later, seconds_between
from standfast.errors import (
    DeclarationError,
    DecodeError,
    EncodeError,
    RunNotFoundError,
    RunTimedOutError,
    StandfastError,
    StoreError,
    UnknownWorkflowError,
)
from standfast.events import RunConflicts
from standfast.exits import EXITS, failure_of
from standfast.locks.inspect import arguments_of, command_line
from standfast.stores.protocol import Check, Commit, Conflict, Delete, Put
from standfast.trace_context import RunPiece
from standfast.workflows.activation import TRIED_AGAIN, Activation, insist
from standfast.workflows.context import Context
from standfast.workflows.context_locks import due_of
from standfast.workflows.control import ContinueAsNew, RunCancelled, next_id
from standfast.workflows.failures import Failure, describe, is_logged, log_failure, name_of
from standfast.workflows.handover import leave_lines
from standfast.workflows.records import (
    DUES,
    HEADERS,
    READY,
    RUN_STATES,
    RunKeys,
    RunState,
    commit_over,
    events_of,
    find,
    listing,
)
from standfast.workflows.termination import end_by_force

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change
    from standfast.trace_context import RunTrace
    from standfast.workflows.journal import Claim, Journal
    from standfast.workflows.records import HistoryEvent, Status
    from standfast.workflows.runtime import Runtime


# --- driving a claimed run: until it has ended, waits for long, or is handed back ----------------------------------

TRIES: Final = 50
TURNS: Final = 8
"""How many times longer than others a run stays in memory that waits for nothing but its turn in lines.

It is written down, and shown to people, what a run waits for when it leaves the memory: so it must not be long."""

MOST_IN_TURN: Final = 2_000
"""How many runs may stay in memory for that."""

LONG: Final = 200
"""A run with more events than this in its history stays in memory longer: as many times as it has this many.

To load it again takes the longer the more there are. A parent of thousands of children is woken by the end of each, and
would do nothing else but be loaded; so that takes a few percent of the time at the most."""

LONGEST: Final = 40
"""How many times longer it stays at the most."""

SHOWN: Final = 20
"""How many of the things that a run waits for are named."""

MOST_WHY: Final = 300
"""How many characters say why the code of a worker does not fit a run."""

_UNEXPECTED: Final = frozenset({"failed", "timed_out"})
_log: Final = logging.getLogger("standfast.workflows")


async def execute(activation: Activation) -> None:  # noqa: C901 -- each way in which a run ends
    """Run a run's code until it has ended or is unloaded, and write that down."""
    runtime = activation.runtime
    activation.context = Context(activation)
    try:
        if activation.state.cancel is not None and activation.state.claims <= 1 and activation.replay.is_over:
            await _end(activation, "cancelled", None, RunCancelled(activation.state.cancel))
            return
        how, value = await activation.run_code()
        if how == "returned":
            try:
                packed, restored = activation.workflow.signature.result.pack_and_restore(value)
            except EncodeError as problem:
                await _end(activation, "failed", None, problem)
            else:
                activation.restored.append(restored)
                await _end(activation, "completed", packed, None)
        elif isinstance(value, ContinueAsNew):  # which was raised, as all that follow
            await _end(activation, "completed", None, None, continues=value)
        elif isinstance(value, RunCancelled):
            await _end(activation, "timed_out" if value.timed_out else "cancelled", None, value)
        elif how == "raised":
            await _end(activation, "failed", None, value)
        elif (differs := activation.mismatch) is not None:
            why = f"it recorded {differs.recorded}, and the code asks for {differs.asked}"
            await _leave_misfit(activation, "a worker whose code fits its history", why)
        if activation.is_stuck and activation.claim is not None:
            await _quarantine(activation, activation.claim)
    except DecodeError as problem:
        activation.differ("its input", str(problem))
        await _leave_misfit(activation, "a worker whose code takes its input", str(problem))
    except StandfastError:
        activation.abandon()  # the store failed: the run is taken up again from its records
    finally:
        runtime.gone(activation)
        activation.let_go()
        activation.finish()


async def _end(  # noqa: C901 -- one commit, and what depends on its answer
    activation: Activation,
    status: Status,
    result: bytes | None,
    problem: BaseException | None,
    *,
    continues: ContinueAsNew | None = None,
) -> None:
    """Write how the run ended: everything that was left to write, its result, and what it held, in one commit."""
    runtime, state = activation.runtime, activation.state
    if not activation.inbox_poll.stop_at_once():
        await activation.inbox_poll.stop()
    ended = structs.replace(
        state,
        status=status,
        owner="",
        changed_at=runtime.now(),
        until=None,
        waits_for="",
        misfit_at=None,
        result=UNSET if result is None else Raw(result),
        failure=None if problem is None else describe(problem, runtime.known_with(activation.workflow.raises)),
        cancel=problem.reason if isinstance(problem, RunCancelled) else state.cancel,
        continues=continues is not None,
    )
    over: dict[RecordKey, bytes | None] = {}
    parent = None if activation.header.lines else parent_here(activation)
    if activation.header.parent and parent is None:
        over[RunKeys(runtime.space, activation.header.parent).ready] = READY
    activation.is_ending = True
    if parent is not None:
        parent.awaited += 1
    try:
        answer = await _commit_state(activation, ended, over, continues, parent)
    except BaseException:
        if parent is not None:  # it may have been written, and then nothing in the store tells the parent
            parent.awaited -= 1
            parent.abandon()
        raise
    if parent is not None:
        parent.awaited -= 1
        if isinstance(answer, Conflict):
            parent.notify()  # it may have been written before, by a commit whose answer was lost
        else:
            parent.child_ended(activation.keys.id, ended)
        parent.note_idleness()
    activation.unload()
    if not isinstance(answer, Conflict):
        activation.ended = ended
        if runtime.tells_moves:
            runtime.emit_moved(
                activation.keys.id, ended, activation.fence, state, activation.header, position=_position(activation)
            )
        if continues is not None and runtime.hooks:
            following = RunState("pending", state.workflow, state.version, ended.changed_at, waits_for="a worker")
            header = structs.replace(activation.header, started_at=ended.changed_at)
            runtime.emit_moved(next_id(activation.keys.id), following, 0, None, header)
        if status in _UNEXPECTED and ended.failure is not None and not is_logged(problem):
            _log_end(activation, ended.failure, timed_out=status == "timed_out")


def parent_here(activation: Activation) -> Activation | None:
    """Return the run that waits for this one, if it is driven here: then it is told, and need not be made to look.

    It is not unloaded before it was told, and should another worker drive it by then, the commit that ends this run is
    refused, and the parent is made to look all the same.
    """
    parent = activation.runtime.loaded.get(activation.header.parent)
    if parent is None or parent.claim is None or parent.is_unloading or parent.is_stopping:
        return None
    return parent


def _log_end(activation: Activation, failure: Failure, *, timed_out: bool) -> None:
    run, name = activation.keys.id, activation.workflow.name
    if timed_out:  # told by what stopped it, which the run itself sees as a cancellation
        text = f"it did not end within {activation.workflow.timeout or 0.0:g} s"
        failure = Failure(name_of(RunTimedOutError), text, trace=failure.trace)
    log_failure(_log, f"the {activation.workflow.runs_are} {run!r} of {name}", failure, run=run, workflow=name)


async def suspend(activation: Activation) -> None:
    """Write that a run waits, and take it out of memory."""
    runtime, state = activation.runtime, activation.state
    if (
        not activation.is_idle
        or activation.inbox_poll.is_polling
        or activation.inbox_poll.is_waiting
        or activation.is_unloading
    ):
        return
    until, waits = activation.due_at(), activation.waits
    # Of many things that it waits for, the first: it is stored each time that the run waits.
    more = f", and {len(waits) - SHOWN:,} more" if len(waits) > SHOWN else ""
    about = ", ".join(wait.what for wait in waits[:SHOWN]) + more
    waiting = structs.replace(
        state,
        status="suspended",
        owner="",
        until=until,
        waits_for=about,
        changed_at=runtime.now(),
        position=_position(activation),
        misfit_at=None,
    )
    activation.is_unloading = True  # from here on nothing wakes it but a new claim
    over: dict[RecordKey, bytes | None] = {}
    if until is not None:
        over[activation.keys.timer(until)] = DUES.encode(due_of(activation, until))
    activation.is_handed_back = True
    try:
        await _commit_state(activation, waiting, over)
    except StoreError:
        activation.abandon()
        raise
    finally:
        activation.unload()
    runtime.emit_moved(activation.keys.id, waiting, 0, state, activation.header)


async def _leave_misfit(activation: Activation, about: str, why: str) -> None:
    """Hand a run back whose code here does not fit it, with why, and leave it alone for a while.

    Another worker may have the code that fits. If none has, it is a person's to decide, and how long it has been so is
    counted from the first worker that tried.
    """
    await release(activation, f"{about} ({why:.{MOST_WHY}})", is_misfit=True)
    activation.runtime.leave_mismatched(activation.keys.id)


async def release(activation: Activation, about: str, *, is_misfit: bool = False) -> None:
    """Hand a run back: any worker may drive it."""
    state = activation.state
    now = activation.runtime.now()
    freed = structs.replace(
        state,
        status="running",
        owner="",
        waits_for=about,
        changed_at=now,
        position=_position(activation),
        misfit_at=(state.misfit_at or now) if is_misfit else None,
    )
    activation.is_unloading = activation.is_handed_back = True
    try:
        answer = await _commit_state(activation, freed, {activation.keys.ready: READY})
    except StandfastError:
        return  # its worker's presence ends soon, and then it is found
    finally:
        activation.unload()
    if not isinstance(answer, Conflict):
        activation.runtime.emit_moved(activation.keys.id, freed, 0, state, activation.header)


def _commit_state(
    activation: Activation,
    state: RunState,
    over: Mapping[RecordKey, bytes | None],
    continues: ContinueAsNew | None = None,
    parent: Activation | None = None,
) -> Coroutine[Any, Any, object]:
    """Write a run's next state together with everything that is not written yet; then tell of it as a trace."""
    if activation.trace is None or activation.journal is None:
        return _write_state(activation, state, over, continues, parent)
    return _commit_traced(activation, activation.trace, activation.journal, state, over, continues, parent)


async def _commit_traced(
    activation: Activation,
    trace: RunTrace,
    journal: Journal,
    state: RunState,
    over: Mapping[RecordKey, bytes | None],
    continues: ContinueAsNew | None,
    parent: Activation | None,
) -> object:
    if journal.is_flushing:
        await journal.settled()
    state = structs.replace(state, traced=journal.position, pieces=state.pieces + 1)
    answer = await _write_state(activation, state, over, continues, parent)
    if not isinstance(answer, Conflict):
        history: Sequence[HistoryEvent] = tuple(activation.noted or ())  # as it is now: it is told a moment later
        try:
            if len(history) != state.traced:  # what was committed together with other records was not noted
                history = tuple(await events_of(activation.runtime.space, activation.keys))
            _trace_piece(activation, trace, state, history)
        except StandfastError:
            pass  # which has no bearing on the run
    return answer


def _trace_piece(activation: Activation, trace: RunTrace, state: RunState, history: Sequence[HistoryEvent]) -> None:
    """Tell what was done with the run since its last piece was told, by this worker and by those that died with it."""
    tracing, header, before = activation.runtime.tracing, activation.header, activation.state
    if tracing is None:
        return
    tracing.end_piece(
        RunPiece(
            trace,
            activation.keys.id,
            header.workflow,
            header.version,
            state.status,
            "" if state.failure is None else state.failure.type,
            header.schedule,
            header.nominal_at,
            header.started_at,
            before.changed_at,
            state.changed_at,
            before.owner,
            activation.fence,
            history,
            before.pieces,
            before.traced,
        )
    )


async def _write_state(  # noqa: C901 -- one loop, which finds out what was in its way
    activation: Activation,
    state: RunState,
    over: Mapping[RecordKey, bytes | None],
    continues: ContinueAsNew | None = None,
    parent: Activation | None = None,
) -> object:
    """Write a run's next state together with everything that is not written yet, and give up the owner's grant.

    With ``parent`` it is written only if that run is driven here; if it is not, the parent is made to look.
    """
    claim, space, keys, journal = activation.claim, activation.runtime.space, activation.keys, activation.journal
    if journal is not None and journal.is_flushing:
        await journal.settled()  # else it would be written a second time, and that is refused
    if claim is None or journal is None or activation.is_evicted:
        return Conflict(activation.runtime.now(), {})
    if journal.needs_preparation:
        await journal.prepare()
    last = journal.rest()
    if state.has_ended and activation.header.lines and not state.continues:
        return await insist(activation, lambda: leave_lines(activation, state, last, over))
    version: int | None = claim.state_version
    right = None if parent is None else parent.claim
    listed = listing(keys, state, activation.header)
    for _ in range(TRIES):
        extra = () if continues is None else continued(activation, continues, state.cancel)
        changes = (
            Delete(claim.key, claim.fence),
            Put(keys.state, RUN_STATES.encode_own(state), version or 0),
            *listed,
            *last,
            *extra,
            *(() if right is None else (Check(right.key, right.fence),)),
        )
        try:
            # No key is checked again, but those of a next run: all others are shorter than that of the grant.
            commit = space.commit_at_once if continues is None else space.commit
            sent: Any = commit_over(space, changes, over) if over else commit(*changes)
            answer: Commit | Conflict = sent if type(sent) is Commit else await sent
        except TRIED_AGAIN as problem:
            answer = await insist(activation, partial(commit_over, space, changes, over), problem)
        if not isinstance(answer, Conflict):
            activation.runtime.saw(answer.at)
            return answer
        if right is not None and right.key in answer.current:  # the parent is not driven here any more
            over, right = {**over, RunKeys(space, activation.header.parent).ready: READY}, None
            if len(answer.current) == 1:
                continue
        if claim.key in answer.current or keys.state not in answer.current:
            activation.drop(answer)
            return answer
        record = answer.current[keys.state]
        if record is None:
            activation.evict()
            return answer
        version = record.version
        state = structs.replace(state, cancel=state.cancel or RUN_STATES.decode(record.value).cancel)
    activation.abandon()
    return Conflict(activation.runtime.now(), {})


async def _quarantine(activation: Activation, claim: Claim) -> None:
    """Leave a run to an operator whose records are refused again and again; one that is to be cancelled ends."""
    runtime, keys = activation.runtime, activation.keys
    run = await find(runtime.space, keys.id)
    if run.state.cancel is not None:
        await end_by_force(runtime, run.id, run.state.cancel)
        return
    about = "an operator, to retry or cancel it: its records were refused several times in a row"
    parked = structs.replace(run.state, status="quarantined", owner="", changed_at=runtime.now(), waits_for=about)
    changes: tuple[Change, ...] = (
        Delete(claim.key, claim.fence),
        Put(keys.state, RUN_STATES.encode_own(parked), run.state_version),
        *listing(keys, parked, run.header),
    )
    listed = dict.fromkeys(keys.quarantined(run.header.tags), READY)
    if isinstance(await commit_over(runtime.space, changes, listed), Conflict):
        return  # it was cancelled, or another worker drives it: it is looked at again
    position = _position(activation)
    show, retry, cancel = (command_line("runs", verb, *arguments_of(keys.id)) for verb in ("show", "retry", "cancel"))
    todo = f"{show}, then {retry} or {cancel}"
    runtime.emit(
        RunConflicts(at=runtime.clock.wall(), run=keys.id, workflow=run.state.workflow, position=position, todo=todo)
    )
    runtime.emit_moved(keys.id, parked, 0, run.state, run.header)


def _position(activation: Activation) -> int:
    return 0 if activation.journal is None else activation.journal.position


def is_resting(activation: Activation, linger: float) -> bool:
    """Return True if a run has waited long enough to be unloaded, and is not about to go on."""
    runtime = activation.runtime
    since = runtime.idle.get(activation)
    rested = 0.0 if since is None else seconds_between(since, runtime.clock.elapsed())
    if since is None or rested < linger:
        return False
    if len(runtime.idle) <= MOST_IN_TURN:
        if rested < linger * min(LONGEST, _position(activation) // LONG):
            return False
        if rested < linger * TURNS and all(wait.is_turn for wait in activation.waits):
            return False
    due = activation.due_at()
    return due is None or seconds_between(runtime.now(), due) > linger


# --- A copy of a run to look at: its history is replayed, and nothing is done or recorded --------------------------


async def copy_of(runtime: Runtime, run_id: str) -> Activation:
    """Replay a run's history as far as it goes; raise if its code does not fit it."""
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.header, keys.state)
    header, state = seen.get(keys.header), seen.get(keys.state)
    if header is None or state is None:
        raise RunNotFoundError(run_id)
    lived = RUN_STATES.decode(state.value)
    workflow = runtime.workflows.get((lived.workflow, lived.version))
    if workflow is None:
        raise UnknownWorkflowError(lived.workflow, tuple(sorted({name for name, _ in runtime.workflows})))
    events = await events_of(runtime.space, keys)
    copy = Activation(runtime, keys, workflow, HEADERS.decode(header.value), lived, None, events)
    copy.context = Context(copy)
    await copy.run_code()
    if copy.mismatch is not None:
        raise copy.mismatch
    return copy


async def query(runtime: Runtime, run_id: str, name: str, args: tuple[Any, ...]) -> Any:  # noqa: ANN401 -- whatever the run answers
    """Ask the code of a run something; one that is not in memory, or not replayed yet, is replayed for it."""
    while (await find(runtime.space, run_id)).state.continues:
        run_id = next_id(run_id)
    loaded = runtime.loaded.get(run_id)
    if loaded is None or not loaded.branches or not loaded.replay.is_over:
        loaded = await copy_of(runtime, run_id)
    handler = loaded.inbox.queries.get(name)
    if handler is None:
        known = ", ".join(sorted(loaded.inbox.queries)) or "none"
        raise DeclarationError(f"query {name!r:.100}", f"the run answers {known}; declare it with ctx.on_query")
    try:
        return handler(*args)
    except EXITS as raised:
        raise failure_of(raised) from raised


def continued(activation: Activation, goes_on: ContinueAsNew, cancel: str | None) -> tuple[Change, ...]:
    """Return the changes that create the next run of the chain. A cancellation that came too late is for that run."""
    runtime, old = activation.runtime, activation.header
    now = runtime.now()
    keys = RunKeys(runtime.space, next_id(activation.keys.id))
    deadline = None
    if activation.workflow.timeout is not None:
        deadline = later(now, activation.workflow.timeout)
    header = structs.replace(
        old,
        input=msgspec.Raw(goes_on.packed),
        started_at=now,
        deadline=deadline,
        continued_from=activation.keys.id,
        mail_from=activation.inbox.left_in(),
        idempotency_key="",
        begins_at=None,
        lines=tuple([structs.replace(each, entry=each.entry or activation.keys.id) for each in old.lines]),
    )
    state = RunState(
        "pending",
        old.workflow,
        old.version,
        now,
        waits_for="a worker",
        admitted=len(old.lines),
        cancel=None if activation.cancel_is_raised else cancel,
    )
    return (
        Put(keys.header, HEADERS.encode(header)),
        Put(keys.state, RUN_STATES.encode(state)),
        Put(keys.ready, READY),
        *listing(keys, state, header),
    )
