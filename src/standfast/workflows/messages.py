"""What is sent to a run from outside: signals, updates, cancellations. All of it is durable when the call returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from standfast.durations import seconds
from standfast.errors import (
    DeclarationError,
    RunNotFoundError,
    StoreBusyError,
    UpdateTimeoutError,
    UpdateValidationError,
)
from standfast.ids import new_id
from standfast.stores.protocol import Commit, Put
from standfast.workflows.control import next_id
from standfast.workflows.failures import restore
from standfast.workflows.inbox import ANSWERS, Answer, Sending
from standfast.workflows.records import (
    READY,
    RUN_STATES,
    RunKeys,
    RunState,
    commit_over,
    find,
    state_in,
)
from standfast.workflows.termination import end_by_force
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.workflows.definition import Workflow
    from standfast.workflows.runtime import Runtime


TRIES: Final = 50
LONGEST_ID: Final = 128
LONGEST_NAME: Final = 100


def checked_message_name(what: str, name: str) -> str:
    """Return the name of a signal, an update or a query; refuse what cannot be one."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        problem = f"a name must be 1 to {LONGEST_NAME} printable characters"
        raise DeclarationError(f"{what} {name!r:.120}", problem)
    return name


def checked_id(what: str, text: str) -> str:
    """Return the id of a signal or an update as it is; refuse what cannot be one."""
    if not isinstance(text, str) or not 0 < len(_utf8(text)) <= LONGEST_ID:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise DeclarationError(f"{what} {text!r:.140}", f"it must be 1 to {LONGEST_ID} bytes of UTF-8")
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
    answer = await ask(runtime, run_id, runtime.linked(update_of(name, args, update_id)), limit)
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
        answer = await runtime.answers.of(run_id, update.id)
        if answer is not None:
            return answer
        run_id = next_id(run_id)


# --- cancellations ------------------------------------------------------------------------------------------------


async def change_state(
    runtime: Runtime, run_id: str, change: Callable[[RunState, Instant], RunState | None]
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
        answer = await commit_over(runtime.space, (put,), {keys.ready: READY})
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
    """Return True if no code of a run was ever begun, or it has killed too many workers to be begun again."""
    return not state.has_ended and not state.owner and (state.claims == 0 or state.status == "quarantined")
