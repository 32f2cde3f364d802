"""Errors of durable workflows."""

from __future__ import annotations

from standfast.errors._root import StandfastError
from standfast.redaction import mask_message


class WorkflowError(StandfastError):
    """The root of what goes wrong with workflows and their runs."""


class InvalidWorkflowError(WorkflowError, ValueError):
    """A workflow or a step was declared or used in a way that cannot work. Nothing was written; fix the code."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what, self.problem = what, problem

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"


class UnknownWorkflowError(WorkflowError, LookupError):
    """There is no such workflow here. Nothing was written.

    Pass it to ``Engine(workflows=[...])``. To start it by name in a process without its code, open a worker that has it
    first, in the same namespace and tenant; or say ``unknown="start"``, and the run waits for such a worker.
    """

    def __init__(self, name: str, known: tuple[str, ...], where: str = "this engine") -> None:
        super().__init__(name, known, where)
        self.name, self.known, self.where = name, known, where

    def __str__(self) -> str:
        return f"no workflow {self.name!r} in {self.where}; it has {', '.join(self.known) or 'none'}"


class WorkflowMismatchError(WorkflowError, ValueError):
    """The workflow is another one than the engine has under that name. Nothing was started.

    Start the one that the engine was given, or give one of the two another ``name`` or ``version``.
    """

    def __init__(self, name: str, given: str, registered: str) -> None:
        super().__init__(name, given, registered)
        self.name, self.given, self.registered = name, given, registered

    def __str__(self) -> str:
        return f"the workflow {self.name!r} is {self.given}, and the engine has {self.registered} under that name"


class EngineCreateNameMismatchError(WorkflowError, ValueError):
    """A workflow was given to an engine under a name that is not its own. Use the workflow's name as the key."""

    def __init__(self, given: str, name: str) -> None:
        super().__init__(given, name)
        self.given, self.name = given, name

    def __str__(self) -> str:
        return f"the workflow {self.name!r} was given under the name {self.given!r}; the two must be equal"


class WorkflowTypeNotRegisteredForRecoveryError(WorkflowError):
    """There are unfinished runs of workflows that this engine does not have, and it was told to insist on all.

    Nothing was resumed. Add the workflows, or leave the runs to other engines with ``unknown="leave"``.
    """

    def __init__(
        self,
        registered_types: tuple[str, ...],
        missing_types: tuple[str, ...],
        missing_workflow_samples: tuple[str, ...],
        missing_workflow_count: int,
    ) -> None:
        super().__init__(registered_types, missing_types, missing_workflow_samples, missing_workflow_count)
        self.registered_types, self.missing_types = registered_types, missing_types
        self.missing_workflow_samples, self.missing_workflow_count = missing_workflow_samples, missing_workflow_count

    @property
    def samples_truncated(self) -> bool:
        """Whether there are more such runs than samples."""
        return len(self.missing_workflow_samples) < self.missing_workflow_count

    def __str__(self) -> str:
        missing, known = ", ".join(self.missing_types), ", ".join(self.registered_types) or "none"
        return f"{self.missing_workflow_count} unfinished runs need {missing}; this engine has {known}"


class RunNotFoundError(WorkflowError, LookupError):
    """There is no run with that id: it was never started in this namespace and tenant, or it was purged."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"there is no run {self.run_id!r}"


class WorkflowAlreadyExistsError(WorkflowError):
    """There is a run with that id already, and what it was started with is something else. Choose another id."""

    def __init__(self, run_id: str, status: str, difference: str) -> None:
        super().__init__(run_id, status, difference)
        self.run_id, self.status, self.difference = run_id, status, difference

    def __str__(self) -> str:
        return f"the run {self.run_id!r} exists already ({self.status}) with another {self.difference}"


class WorkflowTerminalError(WorkflowError):
    """The run has ended, so it takes no signals, updates or cancellations any more."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status)
        self.run_id, self.status = run_id, status

    def __str__(self) -> str:
        return f"the run {self.run_id!r} has ended ({self.status})"


class RunUnfinishedError(WorkflowError):
    """The run, or one that it started, has not ended, so its records are needed. Wait for its end, or cancel it first."""

    def __init__(self, run_id: str, status: str) -> None:
        super().__init__(run_id, status)
        self.run_id, self.status = run_id, status

    def __str__(self) -> str:
        return f"the run {self.run_id!r} has not ended ({self.status})"


class EngineNotOpenError(WorkflowError, RuntimeError):
    """The engine is not open: not yet, or not any more. Use it in ``async with engine``, or ``await engine.open()``."""

    def __init__(self, what: str = "the engine", fix: str = "use it in async with, or await engine.open()") -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix

    def __str__(self) -> str:
        return f"{self.what} is not open; {self.fix}"


class StartOrSignalConflictError(WorkflowTerminalError):
    """The run to signal has ended, and a new one with its id was not wanted."""


class IdempotencyKeyPurgedError(WorkflowError):
    """The run that this idempotency key stands for was purged: it ran, and its result is gone. Use another key."""

    def __init__(self, key: str, run_id: str) -> None:
        super().__init__(key, run_id)
        self.key, self.run_id = key, run_id

    def __str__(self) -> str:
        return f"the idempotency key {self.key!r} belongs to the run {self.run_id!r}, which was purged"


class RunFailedError(WorkflowError):
    """The run failed. What its code raised is the ``__cause__``; ``failure`` tells it in words."""

    def __init__(self, run_id: str, failure: str) -> None:
        super().__init__(run_id, failure)
        self.run_id, self.failure = run_id, failure

    def __str__(self) -> str:
        return f"the run {self.run_id!r} failed: {self.failure}"


class RunCancelledError(WorkflowError):
    """The run was cancelled, so it has no result."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(run_id, reason)
        self.run_id, self.reason = run_id, reason

    def __str__(self) -> str:
        return f"the run {self.run_id!r} was cancelled: {self.reason}"


class RunTimedOutError(WorkflowError, TimeoutError):
    """The run did not end within its workflow's ``timeout``, and was stopped.

    ``seconds`` is that time-out; 0 where the workflow's code is not known.
    """

    def __init__(self, run_id: str, seconds: float) -> None:
        super().__init__(run_id, seconds)
        self.run_id, self.seconds = run_id, seconds

    def __str__(self) -> str:
        within = f"within {self.seconds:g} s" if self.seconds else "in time"
        return f"the run {self.run_id!r} did not end {within}"


class ResultTimeoutError(WorkflowError, TimeoutError):
    """The run had not ended when the caller stopped waiting. It goes on; ask again later."""

    def __init__(self, run_id: str, seconds: float, status: str) -> None:
        super().__init__(run_id, seconds, status)
        self.run_id, self.seconds, self.status = run_id, seconds, status

    def __str__(self) -> str:
        return f"the run {self.run_id!r} has not ended after {self.seconds:g} s; it is {self.status}"


class NondeterminismError(WorkflowError):
    """The code does something else than what is recorded. The run is left as it is, for a worker with its code.

    Bring the old code back for old runs: give the changed workflow a new ``version``, or ask ``ctx.patched("id")``
    where it changed.
    """

    def __init__(self, run_id: str, recorded: str, asked: str) -> None:
        super().__init__(run_id, recorded, asked)
        self.run_id, self.recorded, self.asked = run_id, recorded, asked

    def __str__(self) -> str:
        return f"the run {self.run_id!r} recorded {self.recorded}, and its code now asks for {self.asked}"


class DuplicateStepIdError(WorkflowError, ValueError):
    """An explicit step id was used twice in one run. Give each its own, or leave ids to Standfast."""

    code = "duplicate-step-id"

    def __init__(self, step_id: str) -> None:
        super().__init__(step_id)
        self.step_id = step_id

    def __str__(self) -> str:
        return f"the step id {self.step_id!r} was used already in this run"


class StepCalledDirectlyError(WorkflowError, TypeError):
    """A step was called like a function inside a workflow, so it would not be recorded. Use ``ctx.step(fn, ...)``."""

    def __init__(self, step: str) -> None:
        super().__init__(step)
        self.step = step

    def __str__(self) -> str:
        return f"{self.step}(...) inside a workflow is not recorded; write await ctx.step({self.step}, ...)"


class ForeignTaskError(WorkflowError, RuntimeError):
    """An operation of a context was asked for by a task that the context did not start, so its order is not known.

    Use ``ctx.gather`` in place of ``asyncio.gather``, ``asyncio.wait`` and ``TaskGroup``.
    """

    def __init__(self, run_id: str, operation: str) -> None:
        super().__init__(run_id, operation)
        self.run_id, self.operation = run_id, operation

    def __str__(self) -> str:
        return (
            f"{self.operation} of the run {self.run_id!r} was asked for in a task that its context did not start; "
            "use ctx.gather(...) or ctx.race(...)"
        )


class StepInterruptedError(WorkflowError):
    """An at-most-once step began and its worker died, so it may or may not have happened. It is not run again.

    Find out whether it happened, or give the step a ``reconcile`` function that does.
    """

    def __init__(self, step_id: str, idempotency_key: str) -> None:
        super().__init__(step_id, idempotency_key)
        self.step_id, self.idempotency_key = step_id, idempotency_key

    def __str__(self) -> str:
        return f"the step {self.step_id!r} began and was interrupted; it may have happened ({self.idempotency_key})"


class StepNotRecordedError(WorkflowError):
    """A step's record could not go into the step's own transaction, or that transaction was not committed.

    Raised by ``current_step().record_with``: let it pass, so that your transaction is rolled back. As the outcome of a
    step: the step is taken for one that did nothing, and is tried again as its ``retry`` says.
    """

    def __init__(self, step_id: str, problem: str) -> None:
        super().__init__(step_id, problem)
        self.step_id, self.problem = step_id, problem

    def __str__(self) -> str:
        return f"the step {self.step_id!r} was not recorded: {self.problem}"


class StepFailedError(WorkflowError):
    """What a step or a workflow raised, told in words, because its type is not one that may be made from stored data.

    ``error_type`` is the type's full name, ``message`` its text with secrets masked, ``trace`` where it was raised. To get the
    real type back from then on, declare it: ``@sf.step(raises=[CardDeclinedError])``. What is not JSON-shaped in its
    arguments and attributes is left out.
    """

    def __init__(self, error_type: str, message: str, trace: str = "") -> None:
        message = mask_message(message)
        super().__init__(error_type, message, trace)
        self.error_type, self.message, self.trace = error_type, message, trace

    def __str__(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class WrongArgumentsError(WorkflowError, TypeError):
    """A workflow was given arguments that its function does not take. Nothing was started; fix the call."""

    def __init__(self, function: str, problem: str) -> None:
        super().__init__(function, problem)
        self.function, self.problem = function, problem

    def __str__(self) -> str:
        return f"{self.function}() cannot be called like this: {self.problem}"


class StepTimeoutError(WorkflowError, TimeoutError):
    """A step took longer than its ``timeout`` and was cancelled. It may have happened in part."""

    def __init__(self, step_id: str, seconds: float) -> None:
        super().__init__(step_id, seconds)
        self.step_id, self.seconds = step_id, seconds

    def __str__(self) -> str:
        return f"the step {self.step_id!r} took longer than {self.seconds:g} s"


class SignalTimeoutError(WorkflowError, TimeoutError):
    """The signal did not come in time. Catch it where the workflow waits, or give ``default=`` to get that instead."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(name, seconds)
        self.name, self.seconds = name, seconds

    def __str__(self) -> str:
        return f"no signal {self.name!r} came within {self.seconds:g} s"


class UpdateTimeoutError(WorkflowError, TimeoutError):
    """The run did not answer an update in time. It may still do so; the update stays in its inbox.

    ``known`` tells which updates its code answers, empty if that is not known here: perhaps the name is wrong.
    """

    def __init__(self, run_id: str, name: str, seconds: float, known: tuple[str, ...] = ()) -> None:
        super().__init__(run_id, name, seconds, known)
        self.run_id, self.name, self.seconds, self.known = run_id, name, seconds, known

    def __str__(self) -> str:
        told = f"the run {self.run_id!r} did not answer the update {self.name!r} within {self.seconds:g} s"
        if not self.known or self.name in self.known:
            return told
        return f"{told}; it answers {', '.join(self.known)} at the moment"


class UpdateValidationError(WorkflowError, ValueError):
    """The run refused an update before accepting it. Nothing was changed."""

    def __init__(self, run_id: str, name: str, problem: str) -> None:
        super().__init__(run_id, name, problem)
        self.run_id, self.name, self.problem = run_id, name, problem

    def __str__(self) -> str:
        return f"the run {self.run_id!r} refused the update {self.name!r}: {self.problem}"


class SessionStateValidationError(WorkflowError, ValueError):
    """A session state was given a key or a value that is not allowed. Nothing was changed.

    A session state is small and private to its run. What is larger, or is to be seen by others, belongs into
    ``ctx.state.run(key)``.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    def __str__(self) -> str:
        return f"the session state {self.key!r} cannot be set: {self.problem}"
