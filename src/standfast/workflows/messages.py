"""What is sent to a run from outside: signals, updates, cancellations. All of it is durable when the call returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, structs

from standfast.durations import seconds
from standfast.errors import (
    InvalidWorkflowError,
    RunNotFoundError,
    StoreBusyError,
    UpdateTimeoutError,
    UpdateValidationError,
    WorkflowTerminalError,
)
from standfast.ids import new_id
from standfast.stores.protocol import Commit, Conflict, Delete, Put
from standfast.workflows.control import next_id
from standfast.workflows.failures import restore
from standfast.workflows.inbox import ANSWERS, Answer, Sending
from standfast.workflows.records import HEADERS, READY, RUN_STATES, Header, RunKeys, RunState, commit_over
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Snapshot, Watch
    from standfast.workflows.definition import Workflow
    from standfast.workflows.runtime import Runtime


# --- ending runs whatever their code does, and finding what they have started --------------------------------------

TRIES: Final = 50
DESCENDANTS: Final = 100


class Found(Struct, frozen=True):
    """A run as its records show it."""

    id: str
    header: Header
    state: RunState
    state_version: int


def found_in(seen: Snapshot, keys: RunKeys) -> Found:
    """Return the run that a snapshot of its header and its life shows; refuse if there is none."""
    header, state = seen.get(keys.header), seen.get(keys.state)
    if header is None or state is None:
        raise RunNotFoundError(keys.id)
    return Found(keys.id, HEADERS.decode(header.value), RUN_STATES.decode(state.value), state.version)


async def find(scope: Scope, run_id: str) -> Found:
    """Read a run's header and life."""
    keys = RunKeys(scope, run_id)
    return found_in(await scope.read(keys.header, keys.state), keys)


async def descendants(scope: Scope, run: Found) -> list[Found]:
    """Return every run that a run has started, and those that they have, in the order of their ids."""
    root = run.header.root or run.id
    # Children are named after their parent: its id, a dot, the step. A slash comes right after the dot.
    start, end = scope.key("life", f"{run.id}."), scope.key("life", f"{run.id}/")
    found: list[Found] = []
    while True:
        page = await scope.scan(start, end, limit=scope.at_most(DESCENDANTS))
        names = [key.parts[-1] for key in page.records]
        headers = await scope.read(*(scope.key("run", name) for name in names)) if names else page
        for name, state in zip(names, page.records.values(), strict=True):
            record = headers.get(scope.key("run", name))
            if record is not None and (header := HEADERS.decode(record.value)).root == root:
                found.append(Found(name, header, RUN_STATES.decode(state.value), state.version))
        if page.more is None:
            return found
        start = page.more


async def end_by_force(
    runtime: Runtime, run_id: str, reason: str, *, only: Callable[[RunState], bool] | None = None
) -> RunState:
    """End a run as cancelled, whatever its code does, and everything that it has started.

    Whoever drives it loses the right to: the fence of the run's owner is gone in the same commit.

    Args:
        runtime: The engine.
        run_id: The run.
        reason: Why, in words.
        only: Tells by a run's life whether it is meant; if not it is left as it is.
    """
    run = await find(runtime.space, run_id)
    if only is not None and not only(run.state):
        return run.state
    ended = run.state if run.state.has_ended else await _end(runtime, run, reason, only)
    if not ended.has_ended:
        return ended
    await let_go(runtime, run)
    for child in await descendants(runtime.space, run):
        if not child.state.has_ended:
            await end_by_force(runtime, child.id, f"its parent was cancelled: {reason}")
    return ended


async def _end(runtime: Runtime, run: Found, reason: str, only: Callable[[RunState], bool] | None) -> RunState:
    space, keys = runtime.space, RunKeys(runtime.space, run.id)
    for _ in range(TRIES):
        state = run.state
        if state.has_ended or (only is not None and not only(state)):
            return state
        beside = [keys.own(state.owner)] if state.owner else []
        beside += [keys.timer(state.until)] if state.until is not None else []
        seen = await space.read(keys.state, *beside)
        runtime.saw(seen.at)
        ended = structs.replace(
            state,
            status="cancelled",
            owner="",
            changed_at=seen.at,
            until=None,
            waits_for="",
            cancel=reason,
            admitted=0,
            ticket=None,
            leaving=True,
        )
        changes: list[Change] = [Put(keys.state, RUN_STATES.encode_own(ended), run.state_version)]
        changes += [Delete(key, version) for key in beside if (version := seen.version(key))]
        answer = await commit_over(space, changes, _tell(space, run))
        if not isinstance(answer, Conflict):
            _evict(runtime, run.id)
            runtime.emit_moved(run.id, ended, 0, state.changed_at, run.header.lines)
            return ended
        run = await find(space, run.id)
    raise StoreBusyError(f"the run {run.id}", f"its life changed {TRIES} times while it was to be ended")


def _tell(scope: Scope, run: Found) -> dict[RecordKey, bytes | None]:
    """Return the flags to set: for its parent, for whoever drives it to stop soon, and to see that it lets go."""
    over: dict[RecordKey, bytes | None] = {RunKeys(scope, run.id).ready: READY, **no_longer_listed(scope, run)}
    if run.header.parent:
        over[RunKeys(scope, run.header.parent).ready] = READY
    return over


def no_longer_listed(scope: Scope, run: Found) -> dict[RecordKey, bytes | None]:
    """Return what is deleted when a run is quarantined no longer."""
    return (
        dict.fromkeys(RunKeys(scope, run.id).quarantined(run.header.tags)) if run.state.status == "quarantined" else {}
    )


def _evict(runtime: Runtime, run_id: str) -> None:
    loaded = runtime.loaded.get(run_id)
    if loaded is not None and loaded.claim is not None:
        loaded.evict()


async def let_go(runtime: Runtime, run: Found) -> None:
    """Release everything that an ended run may still hold: places in lines, and locks. Doing it twice is harmless."""
    from standfast.workflows.context_locks import release_all  # noqa: PLC0415 -- it needs claims, which need this
    from standfast.workflows.handover import leave_all  # noqa: PLC0415 -- starts need this to cancel

    await release_all(runtime, run.id)
    await leave_all(runtime, run.id, run.header)
    await _has_left(runtime, run.id)


async def clear_states(runtime: Runtime, run: Found) -> None:
    """Delete the states that only a run, or the runs that it has started, could see."""
    from standfast.workflows.context_state import clear_execution, clear_run  # noqa: PLC0415 -- contexts need children, which need this

    await clear_run(runtime, run.id)
    if not run.header.root:
        await clear_execution(runtime, run.id)


async def _has_left(runtime: Runtime, run_id: str) -> None:
    keys = RunKeys(runtime.space, run_id)
    for _ in range(TRIES):
        run = await find(runtime.space, run_id)
        if not run.state.leaving:
            return
        left = RUN_STATES.encode_own(structs.replace(run.state, leaving=False))
        if not isinstance(await runtime.space.commit(Put(keys.state, left, run.state_version)), Conflict):
            return


# --- what is sent to a run from outside: signals, updates, cancellations. All of it is durable when the call
# returns ---

LONGEST_ID: Final = 128
LONGEST_NAME: Final = 100
LOOK_EVERY: Final = 0.5
"""Seconds between two looks for the answer to an update, if nothing tells earlier."""


def checked_message_name(what: str, name: str) -> str:
    """Return the name of a signal, an update or a query; refuse what cannot be one."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = f"a name must be 1 to {LONGEST_NAME} printable characters"
        raise InvalidWorkflowError(f"{what} {name!r:.120}", problem)
    return name


def checked_id(what: str, text: str) -> str:
    """Return the id of a signal or an update as it is; refuse what cannot be one."""
    if not isinstance(text, str) or not 0 < len(_utf8(text)) <= LONGEST_ID:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidWorkflowError(f"{what} {text!r:.140}", f"it must be 1 to {LONGEST_ID} bytes of UTF-8")
    return text


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return b""


def signal_of(name: str, value: object, signal_id: str | None) -> Sending:
    """Return a checked signal. What cannot be stored is refused here, before anything is written."""
    packed = PLAIN.pack(value)
    if signal_id is None:
        return Sending("signal", checked_message_name("signal", name), packed)
    return Sending(
        "signal", checked_message_name("signal", name), packed, checked_id("signal id", signal_id), is_named=True
    )


# --- updates ------------------------------------------------------------------------------------------------------


def update_of(name: str, args: tuple[Any, ...], update_id: str | None) -> Sending:
    """Return a checked update. What cannot be stored is refused here, before anything is written."""
    packed = PLAIN.pack(list(args))
    if update_id is None:
        return Sending("update", checked_message_name("update", name), packed, new_id())
    return Sending(
        "update", checked_message_name("update", name), packed, checked_id("update id", update_id), is_named=True
    )


async def update(
    runtime: Runtime,
    run_id: str,
    name: str,
    args: tuple[Any, ...],
    timeout: Duration,
    update_id: str | None,
    *,
    workflow: Workflow[..., Any] | None = None,
) -> Any:  # noqa: ANN401 -- whatever the run answers
    """Send an update, and return the run's answer or raise it."""
    limit = seconds(timeout, what="timeout")
    answer = await ask(runtime, run_id, update_of(name, args, update_id), limit)
    if answer.how == "refused":
        raise UpdateValidationError(run_id, name, answer.problem)
    if answer.failure is not None:
        state = (await find(runtime.space, run_id)).state
        code = workflow or runtime.workflows.get((state.workflow, state.version))
        raise restore(answer.failure, runtime.known_with(() if code is None else code.raises))
    return PLAIN.unpack(answer.value or b"null")


async def ask(runtime: Runtime, run_id: str, update: Sending, timeout: float) -> Answer:
    """Send an update and wait for the answer; raise if the run ends without one, or the time is over first."""
    try:
        async with asyncio.timeout(timeout):
            return await _ask(runtime, run_id, update)
    except TimeoutError:
        loaded = runtime.loaded.get(run_id)
        known = () if loaded is None or not loaded.replay.is_over else tuple(sorted(loaded.inbox.handlers))
        raise UpdateTimeoutError(run_id, update.name, timeout, known) from None


async def _ask(runtime: Runtime, run_id: str, update: Sending) -> Answer:
    if update.is_named:
        while True:  # an answer that was given before holds, whatever has become of the run since
            keys = RunKeys(runtime.space, run_id)
            seen = await runtime.space.read(keys.answer(update.id), keys.state)
            if (record := seen.get(keys.answer(update.id))) is not None:
                return ANSWERS.decode(record.value)
            if not state_in(seen, keys).continues:
                break
            run_id = next_id(run_id)
    run_id = (await runtime.inboxes.send(run_id, update)).run_id
    while True:
        keys = RunKeys(runtime.space, run_id)
        async with runtime.space.watch(keys.answer(update.id), keys.state) as watch:
            answer = await _answer(runtime, keys, update, watch)
        if answer is not None:
            return answer
        run_id = next_id(run_id)


async def _answer(runtime: Runtime, keys: RunKeys, update: Sending, watch: Watch) -> Answer | None:
    """Wait for the answer; None if the run goes on as another one, which has the update then."""
    key = keys.answer(update.id)
    while True:
        seen = await runtime.space.read(key, keys.state)
        if (record := seen.get(key)) is not None:
            return ANSWERS.decode(record.value)
        state = state_in(seen, keys)
        if state.continues:
            return None
        if state.has_ended:
            raise WorkflowTerminalError(keys.id, state.status)
        await watch.wait(LOOK_EVERY)


# --- lives --------------------------------------------------------------------------------------------------------


def state_in(seen: Snapshot, keys: RunKeys) -> RunState:
    """Return the life that a snapshot shows; refuse if there is no such run."""
    record = seen.get(keys.state)
    if record is None:
        raise RunNotFoundError(keys.id)
    return RUN_STATES.decode(record.value)


async def change_state(
    runtime: Runtime,
    run_id: str,
    change: Callable[[RunState, Instant], RunState | None],
    *,
    over: dict[RecordKey, bytes | None] | None = None,
) -> RunState:
    """Change a run's life by a pure function that returns the new one, or None to leave it; return how it is then."""
    keys = RunKeys(runtime.space, run_id)
    seen = await runtime.space.read(keys.state)
    record = seen.get(keys.state)
    for _ in range(TRIES):
        if record is None:
            raise RunNotFoundError(run_id)
        state = RUN_STATES.decode(record.value)
        changed = change(state, seen.at)
        if changed is None:
            return state
        put = Put(keys.state, RUN_STATES.encode_own(changed), record.version)
        answer = await commit_over(runtime.space, (put,), over if over is not None else {keys.ready: READY})
        if isinstance(answer, Commit):
            return changed
        record = answer.current.get(keys.state)
    raise StoreBusyError(f"the run {run_id}", f"its life changed {TRIES} times while it was written")


async def cancel(runtime: Runtime, run_id: str, reason: str, *, force: bool = False) -> RunState:
    """Ask a run to stop. One that has ended is left as it is; one that no worker has begun ends at once.

    With ``force`` it ends whatever its code does, see :func:`end_by_force`.
    """
    if force:
        return await end_by_force(runtime, run_id, reason)

    def change(state: RunState, _at: Instant) -> RunState | None:
        if state.has_ended or state.cancel is not None or is_untouched(state):
            return None
        return structs.replace(state, cancel=reason)

    while True:
        state = await change_state(runtime, run_id, change)
        if is_untouched(state):  # by now it may not be, and then it is told like any other
            state = await end_by_force(runtime, run_id, reason, only=is_untouched)
            if not state.has_ended:
                continue
        if not state.continues:
            return state
        run_id = next_id(run_id)


def is_untouched(state: RunState) -> bool:
    """Tell whether no code of a run was ever begun; or has killed so many workers that none begins it again."""
    return not state.has_ended and not state.owner and (state.claims == 0 or state.status == "quarantined")
