"""The operations of a context that need no module of their own: time, chance, signals, predicates, patches."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.clock import Instant, later
from standfast.errors import SignalTimeoutError
from standfast.exits import FAILURES, failure_of
from standfast.workflows.control import Unload
from standfast.workflows.failures import describe, restore
from standfast.workflows.inbox import LoadedItem
from standfast.workflows.records import HistoryEvent
from standfast.workflows.replay import OVER, Wait, is_due
from standfast.workflows.steps import ask
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.workflows.activation import Activation
    from standfast.workflows.replay import Branch


SLEEP: Final = ("sleep", "slept", "cancelled")
SIGNAL: Final = ("signal", "waits", "cancelled")
UNTIL: Final = ("until", "waits", "cancelled")


async def now(activation: Activation, branch: Branch) -> Instant:
    """Return the time, the same when it is replayed."""
    operation = branch.next_id("now")
    event = await activation.turn(branch, ("now", "cancelled"), operation)
    if event is None:
        event = HistoryEvent("now", operation, activation.runtime.now())
        activation.note(event)
    return event.at


async def chance(activation: Activation, branch: Branch, name: str) -> random.Random:
    """Return a generator that makes the same numbers when it is replayed."""
    operation = branch.next_id(name)
    event = await activation.turn(branch, (name, "cancelled"), operation)
    if event is None:
        seed = uuid.uuid4().int
        event = HistoryEvent(name, operation, activation.runtime.now(), msgspec.Raw(PLAIN.pack(str(seed))))
        activation.note(event)
    return random.Random(int(PLAIN.unpack(event.value or b'"0"')))  # noqa: S311 -- repeatable on purpose


async def sleep_until(activation: Activation, branch: Branch, until: Callable[[Instant], Instant]) -> None:
    """Sleep until an instant; ``until`` tells it from the time at which the sleep begins."""
    operation = branch.next_id("sleep")
    event = await activation.turn(branch, SLEEP, operation)
    if event is None:
        begins = activation.runtime.now()
        event = HistoryEvent("sleep", operation, begins, until=until(begins))
        activation.note(event)
    wakes_at = event.until if event.until is not None else event.at
    if await activation.turn(branch, SLEEP, operation) is None:
        if wakes_at > activation.runtime.now():
            await _waited(activation, branch, operation, Wait("its sleep", wakes_at))
        activation.note(HistoryEvent("slept", operation, activation.runtime.now()))


async def wait_signal(activation: Activation, branch: Branch, name: str, timeout: float | None) -> Any:  # noqa: ANN401 -- whatever was sent
    """Take the oldest signal of a name, waiting for one; raise when the time is over."""
    operation = branch.next_id(f"signal:{name}")
    event = await activation.turn(branch, SIGNAL, operation)
    until: Instant | None = None
    if event is None and timeout is not None and await ask(activation, activation.inbox.find(name)) is None:
        begins = activation.runtime.now()
        event = HistoryEvent("waits", operation, begins, until=later(begins, timeout))
        activation.note(event)
    if event is not None and event.kind == "waits":
        until = event.until
        event = await activation.turn(branch, SIGNAL, operation)
    if event is None:
        loaded = await ask(activation, activation.inbox.find(name))
        if loaded is None and (until is None or until > activation.runtime.now()):
            found = await _waited(activation, branch, operation, Wait(f"the signal {name!r}", until, signal=name))
            loaded = found if isinstance(found, LoadedItem) else None
        if loaded is None:
            event = HistoryEvent("signal", operation, activation.runtime.now(), until=until)
            activation.note(event)
        else:
            item, now = loaded.item, activation.runtime.now()
            event = HistoryEvent("signal", operation, now, item.value, due=item.sent_at, link=item.trace)
            activation.note(event, activation.inbox.take(loaded))
            await activation.inbox.write_if_much()
    if event.until is not None:  # the time was over
        raise SignalTimeoutError(name, timeout or 0.0)
    return PLAIN.unpack(event.value or b"null")


async def wait_until(
    activation: Activation, branch: Branch, predicate: Callable[[], object], timeout: float | None
) -> bool:
    """Wait until a predicate of the run's variables is true; False when the time is over first."""
    operation = branch.next_id("until")
    event = await activation.turn(branch, UNTIL, operation)
    until: Instant | None = None
    if event is None and timeout is not None and not is_due(predicate):
        begins = activation.runtime.now()
        event = HistoryEvent("waits", operation, begins, until=later(begins, timeout))
        activation.note(event)
    if event is not None and event.kind == "waits":
        until = event.until
        event = await activation.turn(branch, UNTIL, operation)
    if event is None:
        ended: object = None
        while not is_due(predicate) and ended is not OVER:  # it wins if the time is over at the same moment
            ended = await _waited(activation, branch, operation, Wait("a predicate", until, predicate=predicate))
        now = activation.runtime.now()
        try:
            held = b"true" if predicate() else b"false"
        except FAILURES as raised:  # it is how the wait ended, and is raised there again
            failure = describe(failure_of(raised), activation.runtime.known)
            event = HistoryEvent("until", operation, now, failure=failure)
        else:
            event = HistoryEvent("until", operation, now, msgspec.Raw(held))
        activation.note(event)
    if event.failure is not None:
        raise restore(event.failure, activation.runtime.known)
    return bytes(event.value or b"") == b"true"


async def patched(activation: Activation, branch: Branch, name: str) -> bool:
    """Return True if a run began, or got this far, after a change of its code."""
    operation = branch.placed(f"patch:{name}")
    if operation in activation.patches:
        return activation.patches[operation]
    if activation.replay.has(operation):
        event = await activation.turn(branch, ("patch",), operation)
        is_new = event is not None
    else:
        is_new = activation.replay.is_live(branch.path)
        if is_new:
            await activation.turn(branch, ("patch", "cancelled"), operation)
            activation.note(HistoryEvent("patch", operation, activation.runtime.now()))
    activation.patches[operation] = is_new
    return is_new


async def _waited(activation: Activation, branch: Branch, operation: str, wait: Wait) -> object:
    result = await activation.wait(branch, wait)
    if branch.cancel is not None:
        if isinstance(result, LoadedItem):
            activation.inbox.give_back(result)
        activation.raise_cancel(branch, operation)
    if activation.is_unloading:
        raise Unload
    return OVER if result is OVER else result
