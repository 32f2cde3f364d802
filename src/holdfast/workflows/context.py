"""The context: what a workflow's code does to the world, and what is recorded of it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, final, overload
from uuid import UUID

from holdfast.clock import MICROSECONDS, Instant, later
from holdfast.durations import seconds
from holdfast.errors import ForeignTaskError, InvalidWorkflowError, SignalTimeoutError
from holdfast.workflows import operations
from holdfast.workflows.branches import CURRENT
from holdfast.workflows.children import child
from holdfast.workflows.continuing import ContinueAsNew
from holdfast.workflows.definition import Step, Workflow, as_step
from holdfast.workflows.mail import Handler
from holdfast.workflows.parallel import gather, race
from holdfast.workflows.performing import Performance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from random import Random

    from holdfast.durations import Duration
    from holdfast.workflows.activation import Activation
    from holdfast.workflows.branches import Branch

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_MISSING: Any = object()


@final
class Context:
    """What a workflow gets as its first argument. Every effect goes through it, and is recorded."""

    __slots__ = ("_activation",)

    def __init__(self, activation: Activation) -> None:
        self._activation = activation

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._activation.keys.id

    @property
    def workflow(self) -> str:
        """The name of this run's workflow."""
        return self._activation.workflow.name

    @property
    def is_replaying(self) -> bool:
        """Whether what is done now was done before, and is only replayed. For logs, and nothing else."""
        return not self._activation.replay.is_over

    def idempotency_key(self, step_id: str) -> str:
        """Return the key that stands for one step of this run, each time that it is tried."""
        return f"{self._activation.keys.id}:{step_id}"

    def _branch(self, operation: str) -> Branch:
        branch = CURRENT.get()
        if branch is None or branch.task is not _current_task() or branch not in self._activation.branches:
            raise ForeignTaskError(self._activation.keys.id, operation)
        return branch

    # --- steps ---------------------------------------------------------------------------------------------------

    @overload
    async def step(self, step: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, step: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, step: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, step: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, step: str, /, *args: Any, **kwargs: Any) -> Any: ...  # noqa: ANN401 -- a registered step may take and return anything
    async def step(self, step: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once and record what came of it; when the run is replayed, return the record.

        ``ctx.step(charge, order)`` has the id ``charge``, the second one ``charge#2``. With an id in front,
        ``ctx.step("charge-card", charge, order)``, it has that. A registered step can be named instead:
        ``ctx.step("charge", order)``.

        Args:
            step: The function, or a step id followed by the function, or the name of a registered step.
            args: What the function is called with. It is not stored.
            kwargs: Likewise.
        """
        branch = self._branch("ctx.step")
        if isinstance(step, str):
            if args and callable(args[0]):
                found, args = as_step(args[0]), args[1:]
                return await self._perform(branch, found, branch.explicit_id(step), args, kwargs)
            step = self._registered(step)
        found = as_step(step)
        return await self._perform(branch, found, branch.next_id(found.name), args, kwargs)

    run = step

    def _registered(self, name: str) -> Step[..., Any]:
        found = self._activation.host.steps.get(name)
        if found is None:
            known = ", ".join(sorted(self._activation.host.steps)) or "none"
            raise InvalidWorkflowError(f"step {name!r:.120}", f"it is not registered in this engine, which has {known}")
        return found

    def _perform(
        self, branch: Branch, step: Step[..., Any], step_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        return Performance(self._activation, branch, step, step_id, args, kwargs).result()

    # --- time and chance -----------------------------------------------------------------------------------------

    async def sleep(self, duration: Duration) -> None:
        """Sleep, for however long: the run costs nothing meanwhile, and crashes do not make it longer."""
        length = seconds(duration, what="sleep")
        await operations.sleep_until(self._activation, self._branch("ctx.sleep"), lambda now: later(now, length))

    async def sleep_until(self, when: datetime) -> None:
        """Sleep until a point in time, which must have a time zone. One that has passed is over at once."""
        if when.tzinfo is None:
            raise InvalidWorkflowError("ctx.sleep_until", f"{when!r} has no time zone; add tzinfo=timezone.utc")
        instant = Instant(round(when.timestamp() * MICROSECONDS))
        await operations.sleep_until(self._activation, self._branch("ctx.sleep_until"), lambda _: instant)

    async def now(self) -> datetime:
        """Return the time, which is the same when the run is replayed."""
        at = await operations.now(self._activation, self._branch("ctx.now"))
        return datetime.fromtimestamp(at / MICROSECONDS, UTC)

    async def random(self) -> Random:
        """Return a generator of random numbers that makes the same ones when the run is replayed."""
        return await operations.chance(self._activation, self._branch("ctx.random"), "random")

    async def uuid(self) -> UUID:
        """Return a new UUID, which is the same when the run is replayed."""
        chance = await operations.chance(self._activation, self._branch("ctx.uuid"), "uuid")
        return UUID(int=chance.getrandbits(128), version=4)

    # --- news from outside ---------------------------------------------------------------------------------------

    async def wait_signal(self, name: str, *, timeout: Duration | None = None, default: Any = _MISSING) -> Any:  # noqa: ANN401 -- whatever was sent
        """Take the oldest signal of a name that was sent to this run, waiting for one if there is none.

        Args:
            name: Which signal.
            timeout: How long to wait at most. Then :class:`~holdfast.errors.SignalTimeoutError` is raised.
            default: What to return then, instead of raising.
        """
        branch = self._branch("ctx.wait_signal")
        limit = None if timeout is None else seconds(timeout, what="timeout")
        try:
            return await operations.wait_signal(self._activation, branch, name, limit)
        except SignalTimeoutError:
            if default is _MISSING:
                raise
            return default

    async def wait_until(self, predicate: Callable[[], object], *, timeout: Duration | None = None) -> bool:
        """Wait until a predicate of this run's own variables is true, which updates change. False: the time is over."""
        branch = self._branch("ctx.wait_until")
        limit = None if timeout is None else seconds(timeout, what="timeout")
        return await operations.wait_until(self._activation, branch, predicate, limit)

    def on_update(self, name: str, handler: Callable[..., Any], *, validate: Callable[..., Any] | None = None) -> None:
        """Answer updates of a name from now on.

        Args:
            name: Which updates.
            handler: A plain function of what was sent. It may change this run's variables; what it returns is the
                answer. It must do nothing else: it is called again when the run is replayed.
            validate: Called before; if it raises, the update is refused and nothing is recorded.
        """
        self._branch("ctx.on_update")
        self._activation.mail.handlers[name] = Handler(handler, validate)
        self._activation.poke()

    def on_query(self, name: str, handler: Callable[..., Any]) -> None:
        """Answer queries of a name from now on: a plain function that looks at this run's variables."""
        self._activation.mail.queries[name] = handler

    # --- several things at a time --------------------------------------------------------------------------------

    async def gather(self, *works: Coroutine[Any, Any, Any], return_exceptions: bool = False) -> list[Any]:
        """Run coroutines side by side and return their results in the order given.

        The first that raises cancels the others; with ``return_exceptions`` all run to their end.
        """
        branch = self._branch("ctx.gather")
        return await gather(self._activation, branch, works, return_exceptions=return_exceptions)

    async def race(self, *works: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
        """Run coroutines side by side until one has ended; return which, and its result. The others are cancelled."""
        return await race(self._activation, self._branch("ctx.race"), works)

    async def child(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another workflow as a child of this run, and return what it returns."""
        result: R = await child(self._activation, self._branch("ctx.child"), workflow, args, kwargs)
        return result

    # --- the code over time --------------------------------------------------------------------------------------

    async def patched(self, name: str) -> bool:
        """Tell whether this run got here with the changed code: False for runs that did before the change.

        >>> if await ctx.patched("check-fraud"):
        ...     await ctx.step(check_fraud, order)
        """
        return await operations.patched(self._activation, self._branch("ctx.patched"), name)

    async def continue_as_new(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- what the workflow takes
        """End this run and go on as a new one with these arguments and an empty history. It does not return."""
        branch = self._branch("ctx.continue_as_new")
        if branch.path:
            raise InvalidWorkflowError("ctx.continue_as_new", "it belongs to the main branch, not into gather or race")
        packed = self._activation.workflow.signature.pack(args, kwargs)
        raise ContinueAsNew(packed)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # in a thread that has no event loop
        return None
