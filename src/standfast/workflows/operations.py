"""The operations of a context that need no module of their own: time, chance, signals, predicates, patches."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.clock import MICROSECONDS, Instant, later
from standfast.errors import SignalTimeoutError
from standfast.workflows.control import Unload
from standfast.workflows.failures import describe, restore
from standfast.workflows.inbox import Letter
from standfast.workflows.records import Mark
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
    mark = await activation.turn(branch, ("now", "cancelled"), operation)
    if mark is None:
        mark = Mark("now", operation, activation.host.now())
        activation.note(mark)
    return mark.at


async def chance(activation: Activation, branch: Branch, name: str) -> random.Random:
    """Return a generator that makes the same numbers when it is replayed."""
    operation = branch.next_id(name)
    mark = await activation.turn(branch, (name, "cancelled"), operation)
    if mark is None:
        seed = uuid.uuid4().int
        mark = Mark(name, operation, activation.host.now(), msgspec.Raw(PLAIN.pack(str(seed))))
        activation.note(mark)
    return random.Random(int(PLAIN.unpack(mark.value or b'"0"')))  # noqa: S311 -- repeatable on purpose


async def sleep_until(activation: Activation, branch: Branch, until: Callable[[Instant], Instant]) -> None:
    """Sleep until an instant; ``until`` tells it from the time at which the sleep begins."""
    operation = branch.next_id("sleep")
    mark = await activation.turn(branch, SLEEP, operation)
    if mark is None:
        begins = activation.host.now()
        mark = Mark("sleep", operation, begins, until=until(begins))
        activation.note(mark)
    wakes_at = mark.until if mark.until is not None else mark.at
    if await activation.turn(branch, SLEEP, operation) is None:
        if wakes_at > activation.host.now():
            await _waited(activation, branch, operation, Wait("its sleep", wakes_at))
        activation.note(Mark("slept", operation, activation.host.now()))


async def wait_signal(activation: Activation, branch: Branch, name: str, timeout: float | None) -> Any:  # noqa: ANN401 -- whatever was sent
    """Take the oldest signal of a name, waiting for one; raise when the time is over."""
    operation = branch.next_id(f"signal:{name}")
    mark = await activation.turn(branch, SIGNAL, operation)
    until: Instant | None = None
    if mark is None and timeout is not None and await ask(activation, activation.mail.find(name)) is None:
        begins = activation.host.now()
        mark = Mark("waits", operation, begins, until=later(begins, timeout))
        activation.note(mark)
    if mark is not None and mark.kind == "waits":
        until = mark.until
        mark = await activation.turn(branch, SIGNAL, operation)
    if mark is None:
        mark = await _take_signal(activation, branch, operation, name, until)
    if mark.until is not None:  # the time was over
        raise SignalTimeoutError(name, timeout or 0.0)
    return PLAIN.unpack(mark.value or b"null")


async def _take_signal(
    activation: Activation, branch: Branch, operation: str, name: str, until: Instant | None
) -> Mark:
    letter = await ask(activation, activation.mail.find(name))
    if letter is None and (until is None or until > activation.host.now()):

        async def look(wait: Wait) -> None:
            await activation.mail.look_for(name, wait)

        found = await _waited(activation, branch, operation, Wait(f"the signal {name!r}", until, look))
        letter = found if isinstance(found, Letter) else None
    if letter is None:
        mark = Mark("signal", operation, activation.host.now(), until=until)
        activation.note(mark)
    else:
        mark = Mark("signal", operation, activation.host.now(), letter.item.value)
        activation.note(mark, activation.mail.take(letter))
        await activation.mail.write_if_much()
    return mark


async def wait_until(
    activation: Activation, branch: Branch, predicate: Callable[[], object], timeout: float | None
) -> bool:
    """Wait until a predicate of the run's variables is true; False when the time is over first."""
    operation = branch.next_id("until")
    mark = await activation.turn(branch, UNTIL, operation)
    until: Instant | None = None
    if mark is None and timeout is not None and not is_due(predicate):
        begins = activation.host.now()
        mark = Mark("waits", operation, begins, until=later(begins, timeout))
        activation.note(mark)
    if mark is not None and mark.kind == "waits":
        until = mark.until
        mark = await activation.turn(branch, UNTIL, operation)
    if mark is None:
        ended: object = None
        while not is_due(predicate) and ended is not OVER:  # it wins if the time is over at the same moment
            ended = await _waited(activation, branch, operation, Wait("a predicate", until, predicate=predicate))
        mark = _seen(activation, operation, predicate)
        activation.note(mark)
    if mark.failure is not None:
        raise restore(mark.failure, activation.host.known)
    return bytes(mark.value or b"") == b"true"


def _seen(activation: Activation, operation: str, predicate: Callable[[], object]) -> Mark:
    now = activation.host.now()
    try:
        held = bool(predicate())
    except Exception as problem:  # noqa: BLE001 -- it is how the wait ended, and is raised there again
        return Mark("until", operation, now, failure=describe(problem, activation.host.known))
    return Mark("until", operation, now, msgspec.Raw(b"true" if held else b"false"))


async def patched(activation: Activation, branch: Branch, name: str) -> bool:
    """Tell whether a run began, or got this far, after a change of its code."""
    operation = branch.placed(f"patch:{name}")
    if operation in activation.patches:
        return activation.patches[operation]
    if activation.replay.has(operation):
        mark = await activation.turn(branch, ("patch",), operation)
        is_new = mark is not None
    else:
        is_new = activation.replay.is_live(branch.path)
        if is_new:
            await activation.turn(branch, ("patch", "cancelled"), operation)
            activation.note(Mark("patch", operation, activation.host.now()))
    activation.patches[operation] = is_new
    return is_new


async def _waited(activation: Activation, branch: Branch, operation: str, wait: Wait) -> object:
    result = await activation.wait(branch, wait)
    if branch.cancel is not None:
        if isinstance(result, Letter):
            activation.mail.give_back(result)
        activation.raise_cancel(branch, operation)
    if activation.is_unloading:
        raise Unload
    return OVER if result is OVER else result


def as_seconds(instant: Instant) -> float:
    """Return an instant as seconds since the epoch."""
    return instant / MICROSECONDS
