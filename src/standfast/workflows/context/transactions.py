"""Effects that happen exactly once: they live in the store's own database, in one transaction with their record."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

from msgspec import Raw

from standfast.errors import DecodeError, EncodeError, InvalidWorkflowError, UnsuitableStoreError, WorkTimeoutError
from standfast.stores.protocol import Conflict
from standfast.workflows.context.performing import outcome_of
from standfast.workflows.context.riding import LARGEST, RideRefusedError, go_on, known, ride
from standfast.workflows.running.control import Unload
from standfast.workflows.running.threads import called
from standfast.workflows.storing.failures import describe
from standfast.workflows.storing.records import Mark

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.stores.protocol import Change
    from standfast.workflows.context.riding import Ride
    from standfast.workflows.declaring.definition import Step
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch

TRANSACTION: Final = ("transaction", "went_on", "cancelled")


async def transaction(
    activation: Activation,
    branch: Branch,
    step: Step[..., Any],
    operation: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seconds: float,
) -> Any:  # noqa: ANN401 -- whatever the function returns
    """Run a function on the store's own connection, and record what came of it in the same transaction."""
    _check(activation, step)
    mark = await activation.turn(branch, TRANSACTION, operation)
    if mark is not None and mark.failure is None and await activation.turn(branch, TRANSACTION, operation) is None:
        go_on(activation, operation)
    if mark is None:
        mark = await _perform(activation, branch, step, operation, args, kwargs, seconds)
    try:
        return outcome_of(mark, step, activation.host.known_with(step.options.raises))
    except DecodeError as problem:
        if mark.failure is not None:
            raise
        activation.differ(f"another type of result of transaction {operation!r}", str(problem))
        raise Unload from None


def _check(activation: Activation, step: Step[..., Any]) -> None:
    capabilities = activation.host.space.store.capabilities
    if not capabilities.commit_with:
        raise UnsuitableStoreError(
            capabilities.backend, "it has no SQL to share a transaction with; use ctx.step, or sqlite:// or another one"
        )
    if capabilities.reach != "network" and inspect.iscoroutinefunction(step.function):
        raise InvalidWorkflowError(
            f"ctx.transaction({step.name})", "on this store it takes a plain function: its file is locked meanwhile"
        )


async def _perform(
    activation: Activation,
    branch: Branch,
    step: Step[..., Any],
    operation: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    seconds: float,
) -> Mark:
    now = activation.host.now()
    raised: list[BaseException] = []
    marks: list[Mark] = []
    rides: list[Ride] = []

    def work(connection: Any) -> Any:  # noqa: ANN401 -- whatever the store has
        answer = _remembering(raised, lambda: called(step.function, (connection, *args), kwargs))
        return _awaited(answer, raised) if inspect.isawaitable(answer) else answer

    def record(answer: object) -> Sequence[Change]:
        packed = _remembering(raised, lambda: _packed(step, operation, answer))
        marks[:] = [Mark("transaction", operation, now, Raw(packed))]
        return rides[-1].written(marks[0])

    async def send(riding: Ride) -> None:
        rides.append(riding)
        space, others = activation.host.space, riding.others()
        answer = await space.commit_with(work, *others, before=riding.before, timeout=seconds, and_then=record)
        if isinstance(answer, Conflict):
            raise RideRefusedError(answer)
        riding.versions = known(answer)

    try:
        await ride(activation, branch, operation, _keeping(send, raised))
    except _FailedError:
        failure = describe(raised[-1], activation.host.known_with(step.options.raises))
        mark = Mark("transaction", operation, now, failure=failure)
        activation.note(mark)
        return mark
    go_on(activation, operation)
    return marks[0]


class _FailedError(Exception):
    """The function raised, or took too long: everything was undone, and that is its outcome."""


def _keeping(send: Callable[[Ride], Any], raised: list[BaseException]) -> Callable[[Ride], Any]:
    """Tell what the function raised from what the store did."""

    async def sending(riding: Ride) -> None:
        raised.clear()
        try:
            await send(riding)
        except WorkTimeoutError as problem:
            raised.append(problem)
            raise _FailedError from problem
        except Exception as problem:
            if not raised or raised[-1] not in (problem, problem.__cause__):
                raise
            raise _FailedError from problem

    return sending


def _remembering(raised: list[BaseException], call: Callable[[], Any]) -> Any:  # noqa: ANN401 -- whatever it returns
    try:
        return call()
    except BaseException as problem:
        raised.append(problem)
        raise


async def _awaited(answer: Awaitable[Any], raised: list[BaseException]) -> Any:  # noqa: ANN401 -- whatever it returns
    try:
        return await answer
    except asyncio.CancelledError:  # whoever cancels it is not the function
        raise
    except BaseException as problem:
        raised.append(problem)
        raise


def _packed(step: Step[..., Any], operation: str, answer: object) -> bytes:
    packed = step.signature.result.pack(answer)
    if len(packed) > LARGEST:
        raise EncodeError(f"the result of {operation} takes {len(packed):,} bytes, at most {LARGEST:,} are allowed")
    return packed
