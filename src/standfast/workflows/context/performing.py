"""Running a step: once, or again after it raised, and never again once it is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from msgspec import Struct

from standfast.clock import later
from standfast.errors import DecodeError, EncodeError, StepInterruptedError, StepTimeoutError
from standfast.events import StepRecorded, StepRetried
from standfast.workflows.context.current import CURRENT_STEP, CurrentStep, current_step
from standfast.workflows.context.recording import RECORDING, Recording
from standfast.workflows.context.riding import go_on
from standfast.workflows.declaring.definition import INSIDE
from standfast.workflows.running.branches import OVER, Wait
from standfast.workflows.running.control import Unload
from standfast.workflows.storing.failures import describe, restore
from standfast.workflows.storing.records import Mark
from standfast.workflows.storing.values import digest

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.workflows.declaring.definition import Step
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch
    from standfast.workflows.storing.failures import KnownErrors

__all__ = [
    "DID_NOT_HAPPEN",
    "CurrentStep",
    "DidNotHappen",
    "Happened",
    "Performance",
    "current_step",
    "outcome_of",
]

STEP: Final = ("step", "tried", "began", "cancelled", "transaction", "went_on")


class Happened(Struct, frozen=True):
    """The answer of a ``reconcile`` function: the step did happen, and this is its result."""

    result: Any = None


class DidNotHappen(Struct, frozen=True):
    """The answer of a ``reconcile`` function: the step did not happen, so it is run."""


DID_NOT_HAPPEN: Final = DidNotHappen()


@final
class Performance:
    """One step of a run, from its first mark to its last."""

    __slots__ = (
        "_activation",
        "_args",
        "_attempt",
        "_began",
        "_branch",
        "_digest",
        "_id",
        "_kwargs",
        "_recorded",
        "_retry_at",
        "_step",
    )

    def __init__(
        self,
        activation: Activation,
        branch: Branch,
        step: Step[..., Any],
        step_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._activation, self._branch, self._step, self._id = activation, branch, step, step_id
        self._args, self._kwargs = args, kwargs
        self._digest: Final = digest(args, kwargs)
        self._attempt, self._began = 1, False
        self._retry_at: Instant | None = None
        self._recorded: Mark | None = None

    async def result(self) -> Any:  # noqa: ANN401 -- whatever the step returns
        """Return what the step returned, by record or by running it."""
        if not self._activation.is_live(self._branch):
            while (mark := await self._activation.turn(self._branch, STEP, self._id)) is not None:
                self._compare(mark)
                if mark.kind == "step":
                    return self._replayed(mark)
                if mark.kind == "transaction":
                    return await self._resume(mark)
                self._began = mark.kind == "began"
                if mark.kind == "tried":
                    self._attempt, self._retry_at = self._attempt + 1, mark.until
        return await self._perform()

    async def _resume(self, mark: Mark) -> Any:  # noqa: ANN401 -- whatever the step returned
        """Go on after a record that the step itself has written: when the code did so, or now."""
        if await self._activation.turn(self._branch, STEP, self._id) is None:
            go_on(self._activation, self._id)
        return self._replayed(mark)

    def _replayed(self, mark: Mark) -> Any:  # noqa: ANN401 -- whatever the step returned
        try:
            return outcome_of(mark, self._step, self._known)
        except DecodeError as problem:
            if mark.failure is not None:
                raise
            self._activation.differ(f"another type of result of step {self._id!r}", str(problem))
            raise Unload from None

    def _compare(self, mark: Mark) -> None:
        if mark.digest != self._digest and mark.digest and self._digest:
            self._activation.arguments_differ(self._id)

    async def _perform(self) -> Any:  # noqa: ANN401 -- whatever the step returns
        activation, options = self._activation, self._step.options
        while True:
            if self._retry_at is not None:
                await self._wait_for_retry(self._retry_at)
            if options.semantics == "at_most_once" and (settled := await self._begin()) is not None:
                return outcome_of(settled, self._step, self._known)
            journal = activation.journal
            if journal is not None and (journal.is_dirty or journal.is_flushing or journal.holds):
                await activation.flush(self._branch, self._id)  # what was done before is durable before anything else
            await activation.check_may_act()
            if self._branch.cancel is not None:  # it was told while that was written
                activation.raise_cancel(self._branch, self._id)
            value, problem = await self._attempt_it()
            if self._recorded is not None:
                return self._go_on(self._recorded, value)
            mark, restored = self._record(value, problem)
            if mark.failure is None:
                return restored
            if mark.kind == "step":
                raise restore(mark.failure, self._known)
            self._attempt, self._retry_at, self._began = self._attempt + 1, mark.until, False

    def _go_on(self, mark: Mark, value: Any) -> Any:  # noqa: ANN401 -- whatever was recorded
        go_on(self._activation, self._id)
        if self._activation.host.hooks:
            self._tell(mark)
        return value

    async def _wait_for_retry(self, retry_at: Instant) -> None:
        activation, branch = self._activation, self._branch
        if retry_at > activation.host.now():
            wait = Wait(f"attempt {self._attempt} of {self._id}", retry_at)
            result = await activation.wait(branch, wait)
            if result is not OVER:
                activation.raise_cancel(branch, self._id)

    async def _begin(self) -> Mark | None:
        """Note that an at-most-once step begins; if it has begun before, return what became of it."""
        if self._began:
            return await self._reconcile()
        self._note(Mark("began", self._id, self._activation.host.now(), digest=self._digest))
        return None

    def _note(self, mark: Mark) -> Mark:
        self._activation.note(mark)
        return mark

    async def _attempt_it(self) -> tuple[Any, BaseException | None]:
        branch, activation, step = self._branch, self._activation, self._step
        key = activation.effect_key(self._id)
        current = CurrentStep(activation.keys.id, self._id, self._attempt, key, activation.fence)
        recording = Recording(activation, step, self._id, self._digest)
        tokens = CURRENT_STEP.set(current), INSIDE.set(False), RECORDING.set(recording)
        if activation.host.on_attempt is not None:
            activation.host.on_attempt(current)
        how: tuple[Any, BaseException | None]
        branch.is_in_effect, branch.step = True, self._id
        try:
            if step.is_async and step.options.timeout is None:
                how = await step.function(*self._args, **self._kwargs), None
            else:
                how = await self._call_otherwise(step.options.timeout), None
        except (KeyboardInterrupt, SystemExit, Unload):
            recording.drop()
            raise
        except BaseException as problem:  # noqa: BLE001 -- it is how the step ended
            how = None, problem
        finally:
            branch.is_in_effect = False
            CURRENT_STEP.reset(tokens[0])
            INSIDE.reset(tokens[1])
            RECORDING.reset(tokens[2])
        if recording.is_asked:
            how = await self._settle(recording, how)
        else:
            recording.drop()  # a plain function may still run, in its thread
        if branch.is_interrupted:
            branch.is_interrupted = False
            await self._take_interruption(how[1])
        return how

    async def _settle(
        self, recording: Recording, how: tuple[Any, BaseException | None]
    ) -> tuple[Any, BaseException | None]:
        """Find out what became of a record that the step has written itself; if it is there, that counts."""
        if self._branch.is_interrupted:
            await self._calm_down()
        problem = await recording.settle(how[1])
        self._recorded = recording.mark
        return (recording.result, None) if problem is None else (None, problem)

    async def _call_otherwise(self, timeout: float | None) -> Any:  # noqa: ANN401 -- whatever the step returns; it is the step's own limit
        return await (self._call() if timeout is None else self._call_within(timeout))

    async def _call_within(self, timeout: float) -> Any:  # noqa: ANN401 -- whatever the step returns; it is the step's own limit
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._call()
        except TimeoutError as error:
            if limit.expired():
                where = None if error.__cause__ is None else error.__cause__.__traceback__  # the line that it waited in
                raise StepTimeoutError(self._id, timeout).with_traceback(where) from None
            raise

    async def _take_interruption(self, problem: BaseException | None) -> None:
        """Raise why the step was told to stop; unless it ended all the same, and then that counts."""
        if isinstance(problem, asyncio.CancelledError):
            if self._branch.task is not None:
                self._branch.task.uncancel()
            self._stopped()
        await self._calm_down()

    async def _calm_down(self) -> None:
        """Let a cancellation pass that was on its way to the step: it is not for what comes next."""
        if self._branch.task is not None:
            self._branch.task.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def _stopped(self) -> None:
        """Raise why the step was told to stop."""
        if self._activation.is_unloading or self._branch.cancel is None:
            raise Unload
        self._activation.raise_cancel(self._branch, self._id)

    async def _call(self) -> Any:  # noqa: ANN401 -- whatever the step returns
        step = self._step
        if step.is_async:
            return await step.function(*self._args, **self._kwargs)
        result = await self._activation.host.threads.run(step.function, self._args, self._kwargs)
        return await result if inspect.isawaitable(result) else result

    def _record(self, value: Any, problem: BaseException | None) -> tuple[Mark, Any]:  # noqa: ANN401 -- whatever the step returned
        """Note how the step ended; return the mark, and the result as it is read back."""
        activation, restored = self._activation, None
        now = activation.host.now()
        packed = b"null"
        if problem is None:
            try:
                packed, restored = self._step.signature.result.pack_and_restore(value)
            except EncodeError as refused:
                problem = refused
        if problem is not None:
            mark = self._failed(problem, now)
        else:
            mark = Mark("step", self._id, now, msgspec.Raw(packed), digest=self._digest)
        activation.note(mark)
        if activation.host.hooks:
            self._tell(mark)
        return mark, restored

    def _failed(self, problem: BaseException, now: Instant) -> Mark:
        failure = describe(problem, self._known)
        retry = self._step.options.retry
        if self._attempt < retry.attempts and isinstance(problem, retry.on) and not isinstance(problem, EncodeError):
            until = later(now, retry.wait_before(self._attempt + 1))
            return Mark("tried", self._id, now, failure=failure, digest=self._digest, until=until)
        return Mark("step", self._id, now, failure=failure, digest=self._digest)

    @property
    def _known(self) -> KnownErrors:
        return self._activation.host.known_with(self._step.options.raises)

    def _tell(self, mark: Mark) -> None:
        host, run = self._activation.host, self._activation.keys.id
        fence = self._activation.fence
        if mark.kind == "tried" and mark.failure is not None:
            host.emit(
                StepRetried(
                    at=host.clock.wall(), run=run, step=self._id, attempt=self._attempt, error=mark.failure.type
                )
            )
        else:
            host.emit(
                StepRecorded(at=host.clock.wall(), run=run, step=self._id, fence=fence, failed=mark.failure is not None)
            )

    async def _reconcile(self) -> Mark | None:
        """Find out whether an interrupted step happened; None: it did not, so it is run."""
        now, key = self._activation.host.now(), self._activation.effect_key(self._id)
        error, answer = StepInterruptedError(self._id, key), None
        tokens = (
            CURRENT_STEP.set(CurrentStep(self._activation.keys.id, self._id, self._attempt, key)),
            INSIDE.set(False),
        )
        try:
            answer = await self._ask_whether_it_happened()
        except Exception as problem:  # noqa: BLE001 -- whatever it is, nobody knows whether the step happened
            error.__cause__ = problem
        finally:
            CURRENT_STEP.reset(tokens[0])
            INSIDE.reset(tokens[1])
        if isinstance(answer, Happened):
            return self._record(answer.result, None)[0]
        if isinstance(answer, DidNotHappen):
            return None
        return self._note(Mark("step", self._id, now, failure=describe(error, self._known), digest=self._digest))

    async def _ask_whether_it_happened(self) -> object:
        reconcile = self._step.options.reconcile
        if reconcile is None:
            return None
        if inspect.iscoroutinefunction(reconcile):
            return await reconcile(*self._args, **self._kwargs)
        answer = await self._activation.host.threads.run(reconcile, self._args, self._kwargs)
        return await answer if inspect.isawaitable(answer) else answer


def outcome_of(mark: Mark, step: Step[..., Any], known: KnownErrors) -> Any:  # noqa: ANN401 -- whatever the step returned
    """Return what a mark says that a step returned, or raise what it says that it raised."""
    if mark.failure is not None:
        raise restore(mark.failure, known)
    return step.signature.result.unpack(mark.value or b"null")
