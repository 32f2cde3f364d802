"""The context: what a workflow's code does to the world, and what is recorded of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, final, overload
from uuid import UUID

from standfast.clock import MICROSECONDS, Instant, later
from standfast.durations import seconds
from standfast.errors import DeclarationError, EncodeError, SignalTimeoutError, UsageError
from standfast.locks.locks import checked_mode
from standfast.logs import FieldsLogger
from standfast.workflows import operations
from standfast.workflows.context_locks import ContextLock, lock_request
from standfast.workflows.context_state import ContextRateLimiter, ContextState
from standfast.workflows.control import ContinueAsNew
from standfast.workflows.definition import CURRENT_STEP, Step, Workflow, as_step
from standfast.workflows.inbox import Handler
from standfast.workflows.messages import checked_message_name
from standfast.workflows.parallel import BARE, child, gather, race
from standfast.workflows.replay import CURRENT
from standfast.workflows.steps import StepExecution, step_fields
from standfast.workflows.transactions import RecordedScope, transaction
from standfast.workflows.values import PLAIN, digest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable
    from random import Random

    from standfast.durations import Duration
    from standfast.keys import Key
    from standfast.log_hook import Fact
    from standfast.workflows.activation import Activation
    from standfast.workflows.replay import Branch


# --- what a run says about its progress: the last word of it, for people and dashboards ----------------------------

LARGEST: Final = 64 * 1024


def set_progress(activation: Activation, value: object) -> None:
    """Write the progress with the next commit. While the run is replayed, what it said then was written then."""
    packed = PLAIN.pack(value)
    if len(packed) > LARGEST:
        raise EncodeError(f"the progress takes {len(packed):,} bytes, at most {LARGEST:,} are allowed")
    journal = activation.journal
    if journal is None or activation.is_unloading or not activation.replay.is_over:
        return
    journal.set_progress(packed)
    activation.runtime.dirty.add(activation)


# --- the context: what a workflow's code does to the world, and what is recorded of it -----------------------------

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

_MISSING: Any = object()


class ArgumentsDoNotFitTheStep:
    """What a type checker finds when a step with an id is given arguments that it does not take: never returned."""


@final
class Context:
    """What a workflow gets as its first argument. Every effect goes through it, and is recorded."""

    __slots__ = ("_activation", "_log", "_state")

    def __init__(self, activation: Activation) -> None:
        self._activation = activation
        self._log: FieldsLogger | None = None
        self._state: ContextState | None = None

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._activation.keys.id

    @property
    def workflow(self) -> str:
        """The name of this run's workflow."""
        return self._activation.workflow.name

    @property
    def scheduled_at(self) -> datetime | None:
        """The time that the schedule named which started this run, however late that was; None: no tick did."""
        at = self._activation.header.nominal_at
        return None if at is None else datetime.fromtimestamp(at / MICROSECONDS, UTC)

    @property
    def is_replaying(self) -> bool:
        """Whether what is done now was done before, and is only replayed. For logs, and nothing else."""
        return not self._activation.replay.is_over

    @property
    def log(self) -> FieldsLogger:
        """A logger for the code of this run, with the name of its module; it writes nothing while that is replayed.

            ctx.log.info("reserved %d items", count)

        It has the methods of ``logging.Logger``. Its records have ``run``, ``workflow`` and ``fence`` in
        ``record.standfast``, ``branch`` in a branch of ``ctx.gather``, and ``step`` and ``attempt`` in a step.
        """
        if self._log is None:
            logger = logging.getLogger(self._activation.workflow.function.__module__)
            self._log = FieldsLogger(logger, self._log_fields, self._is_repeating)
        return self._log

    def _log_fields(self) -> dict[str, Fact]:
        activation, branch = self._activation, CURRENT.get()
        fields: dict[str, Fact] = {"run": activation.keys.id, "workflow": activation.workflow.name}
        if branch is not None and branch.path:
            fields["branch"] = branch.path
        return fields | {"fence": activation.fence} | step_fields()

    def _is_repeating(self) -> bool:
        return CURRENT_STEP.get() is None and self._activation.is_repeating

    def idempotency_key(self, step_id: str) -> str:
        """Return the key that stands for one step of this run, each time that it is tried.

        It is that of the step with this id in the branch that asks, as :func:`standfast.current_step` has it there; or
        of any branch, with the branch's path in front, as :attr:`~standfast.CurrentStep.step_id` tells it.
        """
        branch = CURRENT.get()
        is_placed = branch is None or "/" in step_id or not self._activation.header.incarnation
        return self._activation.effect_key(step_id if branch is None or is_placed else branch.placed(step_id))

    def _branch(self, operation: str) -> Branch:
        branch = CURRENT.get()
        try:
            task = asyncio.current_task()
        except RuntimeError:  # in a thread that has no event loop
            task = None
        if branch is None or branch.task is not task or branch not in self._activation.branches:
            raise UsageError(
                f"{operation} of the run {self._activation.keys.id!r}",
                "was called in a task that its context did not start",
                "use ctx.gather(...) or ctx.race(...)",
            )
        if branch.is_in_effect and operation != "ctx.set_progress":
            raise DeclarationError(operation, "a step cannot use the context; do this in the workflow, around it")
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
    def step(
        self,
        step: str,
        function: Callable[..., Any],
        /,
        *args: Any,  # noqa: ANN401 -- whatever does not fit
        **kwargs: Any,  # noqa: ANN401 -- likewise
    ) -> ArgumentsDoNotFitTheStep: ...
    @overload
    async def step(self, step: str, /, *args: Any, **kwargs: Any) -> Any: ...  # noqa: ANN401 -- a registered step may take and return anything
    async def step(  # type: ignore[misc]  # pyright: ignore[reportInconsistentOverload] -- never what does not fit
        self, step: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
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
            if args and (callable(args[0]) or asyncio.iscoroutine(args[0])):
                found, args = as_step(args[0]), args[1:]  # pyright: ignore[reportArgumentType] -- it refuses coroutines
                return await self._execute(branch, found, branch.explicit_id(step), args, kwargs)
            step = self._registered(step)
        found = as_step(step)
        return await self._execute(branch, found, branch.next_id(found.name), args, kwargs)

    run = step

    def _registered(self, name: str) -> Step[..., Any]:
        found = self._activation.runtime.steps.get(name)
        if found is None:
            known = ", ".join(sorted(self._activation.runtime.steps)) or "none"
            raise DeclarationError(f"step {name!r:.120}", f"it is not registered in this engine, which has {known}")
        return found

    def _execute(
        self, branch: Branch, step: Step[..., Any], step_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        return StepExecution(self._activation, branch, step, step_id, args, kwargs, digest(args, kwargs)).result()

    # --- time and chance -----------------------------------------------------------------------------------------

    async def sleep(self, duration: Duration) -> None:
        """Sleep, for however long: the run costs nothing meanwhile, and crashes do not make it longer."""
        length = seconds(duration, what="sleep")
        await operations.sleep_until(self._activation, self._branch("ctx.sleep"), lambda now: later(now, length))

    async def sleep_until(self, when: datetime) -> None:
        """Sleep until a point in time, which must have a time zone. One that has passed is over at once."""
        if not isinstance(when, datetime):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise DeclarationError("ctx.sleep_until", f"{when!r:.100} is no datetime")
        if when.tzinfo is None:
            raise DeclarationError("ctx.sleep_until", f"{when!r} has no time zone; add tzinfo=timezone.utc")
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
            timeout: How long to wait at most. Then :class:`~standfast.errors.SignalTimeoutError` is raised.
            default: What to return then, instead of raising.
        """
        branch = self._branch("ctx.wait_signal")
        checked_message_name("signal", name)
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
        _check_handler("update", name, handler)
        if validate is not None:
            _check_handler("update", name, validate)
        self._activation.inbox.handlers[name] = Handler(handler, validate)
        self._activation.notify()

    def on_query(self, name: str, handler: Callable[..., Any]) -> None:
        """Answer queries of a name from now on: a plain function that looks at this run's variables."""
        _check_handler("query", name, handler)
        self._activation.inbox.queries[name] = handler

    # --- several things at a time --------------------------------------------------------------------------------

    async def gather(self, *works: Coroutine[Any, Any, Any], return_exceptions: bool = False) -> list[Any]:
        """Run coroutines side by side and return their results in the order given.

        The first that raises cancels the others; with ``return_exceptions`` all run to their end.
        """
        branch, todo = self._branch("ctx.gather"), list(works)
        del works  # what has ended is not kept until all have
        return await gather(self._activation, branch, todo, return_exceptions=return_exceptions)

    async def race(self, *works: Coroutine[Any, Any, Any]) -> tuple[int, Any]:
        """Run coroutines side by side until one has ended; return which, and its result. The others are cancelled."""
        return await race(self._activation, self._branch("ctx.race"), list(works))

    async def child(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run another workflow as a child of this run, and return what it returns."""
        result: R = await child(self._activation, self._branch("ctx.child"), workflow, args, kwargs)
        return result

    # --- locks and states ----------------------------------------------------------------------------------------

    def mutex(
        self, key: Key | str, *, timeout: Duration | None = None, max_hold: Duration | None = None, note: str = ""
    ) -> ContextLock:
        """Hold a mutex for the length of an ``async with`` block, however long the run sleeps in it.

        It is the one that ``space.mutex(key)`` gives to processes: the same key, the same line. It is held by the run,
        not by the process that drives it: crashes and restarts change nothing.

            async with ctx.mutex(f"stock:{sku}", max_hold="1 day") as hold:
                await ctx.step(reserve, sku, fence=hold.fence)

        Args:
            key: What is locked.
            timeout: How long to wait at most; by default for as long as it takes.
            max_hold: After how long it is taken away, however alive the run is.
            note: A few words for people who look at the line.

        Raises:
            HoldTimeoutError: On entering: it did not become free in time.
            WaitCycleError: On entering: the run or process that holds it waits for this run.
            ReentryError: On entering: this run holds it already, or its parent does, which waits for its end.
            WithdrawnError: On entering: an operator took the run out of the line.
            LeaseLostError: At the next operation, or on leaving: it was released by force, or ``max_hold`` is over.
        """
        lock = self._activation.runtime.space.mutex(key)
        return ContextLock(
            self._activation, self._branch, lock_request(lock, "mutex", timeout=timeout, max_hold=max_hold, note=note)
        )

    def semaphore(
        self,
        key: Key | str,
        *,
        permits: int,
        weight: int = 1,
        timeout: Duration | None = None,
        max_hold: Duration | None = None,
        note: str = "",
    ) -> ContextLock:
        """Hold ``weight`` of the ``permits`` of a semaphore for the length of a block; see :meth:`mutex`."""
        lock = self._activation.runtime.space.semaphore(key, permits=permits)
        request = lock_request(lock, "semaphore", timeout=timeout, max_hold=max_hold, note=note, weight=weight)
        return ContextLock(self._activation, self._branch, request)

    def mode_lock(
        self,
        key: Key | str,
        mode: str,
        *,
        modes: Iterable[str] = (),
        alone: Iterable[str] = (),
        timeout: Duration | None = None,
        max_hold: Duration | None = None,
        note: str = "",
    ) -> ContextLock:
        """Hold a mode lock in ``mode`` for the length of a block; see :meth:`mutex` and ``space.mode_lock``."""
        lock = self._activation.runtime.space.mode_lock(key, modes=modes, alone=alone)
        known = checked_mode(lock, mode)
        request = lock_request(lock, "mode_lock", timeout=timeout, max_hold=max_hold, note=note, mode=known)
        return ContextLock(self._activation, self._branch, request)

    def rate_limiter(
        self, key: Key | str, *, interval: Duration, capacity: int = 1, follow: bool = False
    ) -> ContextRateLimiter:
        """Return the rate limiter of ``key``, as ``space.rate_limiter`` does: ``async with`` it, or ``acquire``."""
        return ContextRateLimiter(
            self._activation, self._branch, key, interval=interval, capacity=capacity, follow=follow
        )

    @property
    def state(self) -> ContextState:
        """The states that this run can use: ``await ctx.state.workflow("visits", type=int).increment()``."""
        if self._state is None:
            activation = self._activation
            scope = RecordedScope(activation, self._branch, "state")
            root = activation.header.root or activation.keys.id
            self._state = ContextState(scope, activation.workflow.name, root, activation.keys.id)
        return self._state

    @overload
    async def transaction(
        self, function: Callable[..., Awaitable[R]], /, *args: Any, id: str | None = ..., timeout: Duration = ..., **kw: Any  # noqa: ANN401, E501 -- what the function takes; one line, as below
    ) -> R: ...  # fmt: skip
    @overload
    async def transaction(
        self, function: Callable[..., R], /, *args: Any, id: str | None = ..., timeout: Duration = ..., **kw: Any  # noqa: ANN401 -- what the function takes
    ) -> R: ...  # fmt: skip
    async def transaction(
        self, function: Callable[..., Any], /, *args: Any, id: str | None = None, timeout: Duration = 5.0, **kw: Any  # noqa: A002 -- the word that users know
    ) -> Any:  # fmt: skip
        """Run SQL on tables of your own in the store's database, exactly once.

        What it writes and the record that it was done are one transaction: both happen, or neither. If it raises,
        everything is undone, and that it raised is recorded.

            def book(sql: SqlWork, order: str) -> int:
                return sql.execute("INSERT INTO orders(name) VALUES (?) RETURNING id", (order,))[0][0]
            number = await ctx.transaction(book, "order-7")

        Args:
            function: It gets the connection first, which is good for its length only. On SQLite it is a plain function;
                on a server it may be async, and the methods of the connection are.
            args: What it gets besides. It is not stored.
            id: Its step id; by default the function's name.
            timeout: How long it may take.
            kw: As ``args``.

        Raises:
            UnsuitableStoreError: The store has no SQL to share a transaction with.
        """
        step: Step[..., Any] = as_step(function)
        branch = self._branch("ctx.transaction")
        operation = branch.next_id(step.name) if id is None else branch.explicit_id(id)
        limit = seconds(timeout, what="timeout")
        return await transaction(self._activation, branch, step, operation, args, kw, limit)

    def set_progress(self, value: object) -> None:
        """Say how far the run is, in JSON-shaped data. Others see the last word of it in ``RunInfo.progress``.

        It is written soon, and at the latest when the run waits or ends.
        """
        self._branch("ctx.set_progress")
        set_progress(self._activation, value)

    # --- the code over time --------------------------------------------------------------------------------------

    async def patched(self, name: str) -> bool:
        """Return True if this run got here with the changed code, False if it did so before the change.

            if await ctx.patched("check-fraud"):
                await ctx.step(check_fraud, order)

        A run gets the same answer each time that it is replayed.
        """
        return await operations.patched(self._activation, self._branch("ctx.patched"), name)

    async def continue_as_new(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 -- what the workflow takes
        """End this run and go on as a new one with these arguments and an empty history. It does not return."""
        branch = self._branch("ctx.continue_as_new")
        if branch.path:
            raise DeclarationError("ctx.continue_as_new", "it belongs to the main branch, not into gather or race")
        packed = self._activation.workflow.signature.pack(args, kwargs)
        raise ContinueAsNew(packed)


_OPERATIONS: Final = (Context.step, Context.child, Context.sleep, Context.sleep_until, Context.wait_signal)
BARE.update({each.__code__: each is Context.child for each in _OPERATIONS})


def _check_handler(what: str, name: str, handler: Callable[..., Any]) -> None:
    checked_message_name(what, name)
    if not callable(handler) or inspect.iscoroutinefunction(handler):
        problem = "it is answered by a plain function, which changes or returns variables; the run's code does the rest"
        raise DeclarationError(f"{what} {name!r}", problem)
