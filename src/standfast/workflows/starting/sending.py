"""What is sent to a run from outside: signals, updates, cancellations. All of it is durable when the call returns."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from standfast.errors import (
    InvalidWorkflowError,
    RunNotFoundError,
    StoreBusyError,
    UpdateTimeoutError,
    WorkflowTerminalError,
)
from standfast.ids import new_id
from standfast.stores.protocol import Commit, Put
from standfast.workflows.operating.forcing import end_by_force
from standfast.workflows.running.continuing import next_id
from standfast.workflows.running.mail import ANSWERS, Answer
from standfast.workflows.starting.posting import Sending, Sent
from standfast.workflows.storing.committing import commit_over
from standfast.workflows.storing.records import LIVES, READY, Life, RunKeys
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Snapshot, Watch
    from standfast.workflows.running.host import Host

LONGEST_ID: Final = 128
LONGEST_NAME: Final = 100
TRIES: Final = 50
LOOK_EVERY: Final = 0.5
"""Seconds between two looks for the answer to an update, if nothing tells earlier."""


def checked_name(what: str, name: str) -> str:
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
        return Sending("signal", checked_name("signal", name), packed)
    return Sending("signal", checked_name("signal", name), packed, checked_id("signal id", signal_id), is_named=True)


async def signal(host: Host, run_id: str, sending: Sending) -> Sent:
    """Put a signal into a run's inbox."""
    return await host.posts.send(run_id, sending)


# --- updates ------------------------------------------------------------------------------------------------------


def update_of(name: str, args: tuple[Any, ...], update_id: str | None) -> Sending:
    """Return a checked update. What cannot be stored is refused here, before anything is written."""
    packed = PLAIN.pack(list(args))
    if update_id is None:
        return Sending("update", checked_name("update", name), packed, new_id())
    return Sending("update", checked_name("update", name), packed, checked_id("update id", update_id), is_named=True)


async def ask(host: Host, run_id: str, update: Sending, timeout: float) -> Answer:
    """Send an update and wait for the answer; raise if the run ends without one, or the time is over first."""
    try:
        async with asyncio.timeout(timeout):
            return await _ask(host, run_id, update)
    except TimeoutError:
        loaded = host.loaded.get(run_id)
        known = () if loaded is None or not loaded.replay.is_over else tuple(sorted(loaded.mail.handlers))
        raise UpdateTimeoutError(run_id, update.name, timeout, known) from None


async def _ask(host: Host, run_id: str, update: Sending) -> Answer:
    if update.is_named:
        while True:  # an answer that was given before holds, whatever has become of the run since
            keys = RunKeys(host.space, run_id)
            seen = await host.space.read(keys.answer(update.id), keys.life)
            if (record := seen.get(keys.answer(update.id))) is not None:
                return ANSWERS.decode(record.value)
            if not life_in(seen, keys).continues:
                break
            run_id = next_id(run_id)
    run_id = (await host.posts.send(run_id, update)).run_id
    while True:
        keys = RunKeys(host.space, run_id)
        async with host.space.watch(keys.answer(update.id), keys.life) as watch:
            answer = await _answer(host, keys, update, watch)
        if answer is not None:
            return answer
        run_id = next_id(run_id)


async def _answer(host: Host, keys: RunKeys, update: Sending, watch: Watch) -> Answer | None:
    """Wait for the answer; None if the run goes on as another one, which has the update then."""
    key = keys.answer(update.id)
    while True:
        seen = await host.space.read(key, keys.life)
        if (record := seen.get(key)) is not None:
            return ANSWERS.decode(record.value)
        life = life_in(seen, keys)
        if life.continues:
            return None
        if life.has_ended:
            raise WorkflowTerminalError(keys.id, life.status)
        await watch.wait(LOOK_EVERY)


# --- lives --------------------------------------------------------------------------------------------------------


def life_in(seen: Snapshot, keys: RunKeys) -> Life:
    """Return the life that a snapshot shows; refuse if there is no such run."""
    record = seen.get(keys.life)
    if record is None:
        raise RunNotFoundError(keys.id)
    return LIVES.decode(record.value)


async def change_life(
    host: Host,
    run_id: str,
    change: Callable[[Life, Instant], Life | None],
    *,
    over: dict[RecordKey, bytes | None] | None = None,
) -> Life:
    """Change a run's life by a pure function that returns the new one, or None to leave it; return how it is then."""
    keys = RunKeys(host.space, run_id)
    seen = await host.space.read(keys.life)
    record = seen.get(keys.life)
    for _ in range(TRIES):
        if record is None:
            raise RunNotFoundError(run_id)
        life = LIVES.decode(record.value)
        changed = change(life, seen.at)
        if changed is None:
            return life
        put = Put(keys.life, LIVES.encode_own(changed), record.version)
        answer = await commit_over(host.space, (put,), over if over is not None else {keys.ready: READY})
        if isinstance(answer, Commit):
            return changed
        record = answer.current.get(keys.life)
    raise StoreBusyError(f"the run {run_id}", f"its life changed {TRIES} times while it was written")


async def cancel(host: Host, run_id: str, reason: str) -> Life:
    """Ask a run to stop. One that has ended is left as it is; one that nobody has begun ends at once."""

    def change(life: Life, _at: Instant) -> Life | None:
        if life.has_ended or life.cancel is not None or is_untouched(life):
            return None
        return structs.replace(life, cancel=reason)

    while True:
        life = await change_life(host, run_id, change)
        if is_untouched(life):  # by now it may not be, and then it is told like any other
            life = await end_by_force(host, run_id, reason, only=is_untouched)
            if not life.has_ended:
                continue
        if not life.continues:
            return life
        run_id = next_id(run_id)


def is_untouched(life: Life) -> bool:
    """Tell whether no code of a run was ever begun; or has killed so many workers that none begins it again."""
    return not life.has_ended and not life.owner and (life.claims == 0 or life.status == "quarantined")
