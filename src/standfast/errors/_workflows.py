"""Errors of workflows: their runs, steps, limits and schedules."""

from __future__ import annotations

from standfast.errors._root import StandfastError
from standfast.redaction import mask_message


class WorkflowError(StandfastError):
    """The root of what goes wrong with workflows and their runs."""


class UnknownWorkflowError(WorkflowError, LookupError):
    """There is no such workflow here. Nothing was written.

    Pass it to ``Engine(workflows=[...])``. To start it by name in a process without its code, open a worker that has it
    first, in the same namespace and tenant; or say ``unknown="start"``, and the run waits for such a worker.
    """

    name: str
    known: tuple[str, ...]
    where: str = "this engine"
    template = "no workflow {name!r} in {where}; it has {known}"


class EngineCreateNameMismatchError(WorkflowError, ValueError):
    """A workflow was given to an engine under a name that is not its own. Use the workflow's name as the key."""

    given: str
    name: str
    template = "the workflow {name!r} was given under the name {given!r}; the two must be equal"


class WorkflowTypeNotRegisteredForRecoveryError(WorkflowError):
    """There are unfinished runs of workflows that this engine does not have, and it was asked to have all of them.

    Nothing was resumed. Add the workflows, or leave the runs to other engines with ``unknown="leave"``.
    """

    registered_types: tuple[str, ...]
    missing_types: tuple[str, ...]
    missing_workflow_samples: tuple[str, ...]
    missing_workflow_count: int

    @property
    def samples_truncated(self) -> bool:
        """Whether there are more such runs than samples."""
        return len(self.missing_workflow_samples) < self.missing_workflow_count

    def _text(self) -> str:
        missing, known = ", ".join(self.missing_types), ", ".join(self.registered_types) or "none"
        return f"there are unfinished runs ({self.missing_workflow_count}) of {missing}; this engine has {known}"


class RunNotFoundError(WorkflowError, LookupError):
    """There is no run with that id: it was never started in this namespace and tenant, or it was purged."""

    run_id: str
    template = "there is no run {run_id!r}"


class WorkflowAlreadyExistsError(WorkflowError):
    """There is a run with that id already, and what it was started with is something else. Choose another id."""

    run_id: str
    status: str
    difference: str
    template = "the run {run_id!r} exists already ({status}) with another {difference}"


class WorkflowTerminalError(WorkflowError):
    """The run has ended, so it takes no signals, updates or cancellations any more."""

    run_id: str
    status: str
    template = "the run {run_id!r} has ended ({status})"


class RunUnfinishedError(WorkflowError):
    """The run, or one that it started, has not ended, so its records are needed. Wait for its end, or cancel it first."""

    run_id: str
    status: str
    template = "the run {run_id!r} has not ended ({status})"


class EngineNotOpenError(WorkflowError, RuntimeError):
    """The engine is not open: not yet, or not any more. Use it in ``async with engine``, or ``await engine.open()``."""

    what: str = "the engine"
    fix: str = "use it in async with, or await engine.open()"
    template = "{what} is not open; {fix}"


class StartOrSignalConflictError(WorkflowTerminalError):
    """The run to signal has ended, and a new one with its id was not wanted."""


class IdempotencyKeyPurgedError(WorkflowError):
    """The run that this idempotency key stands for was purged: it ran, and its result is gone. Use another key."""

    key: str
    run_id: str
    template = "the idempotency key {key!r} belongs to the run {run_id!r}, which was purged"


class RunFailedError(WorkflowError):
    """The run failed. What its code raised is the ``__cause__``; ``failure`` describes it."""

    run_id: str
    failure: str
    template = "the run {run_id!r} failed: {failure}"


class RunCancelledError(WorkflowError):
    """The run was cancelled, so it has no result."""

    run_id: str
    reason: str
    template = "the run {run_id!r} was cancelled: {reason}"


class RunTimedOutError(WorkflowError, TimeoutError):
    """The run did not end within its workflow's ``timeout``, and was stopped.

    ``seconds`` is that time-out; 0 where the workflow's code is not known.
    """

    run_id: str
    seconds: float

    def _text(self) -> str:
        within = f"within {self.seconds:g} s" if self.seconds else "in time"
        return f"the run {self.run_id!r} did not end {within}"


class ResultTimeoutError(WorkflowError, TimeoutError):
    """The run had not ended when the caller stopped waiting. It still runs; ask again later."""

    run_id: str
    seconds: float
    status: str
    template = "the run {run_id!r} has not ended after {seconds:g} s; it is {status}"


class NondeterminismError(WorkflowError):
    """The code does something else than what is recorded. The run is left as it is, for a worker with its code.

    Bring the old code back for old runs: give the changed workflow a new ``version``, or ask ``ctx.patched("id")``
    where it changed.
    """

    run_id: str
    recorded: str
    asked: str
    template = "the run {run_id!r} recorded {recorded}, and its code now asks for {asked}"


class DuplicateStepIdError(WorkflowError, ValueError):
    """An explicit step id was used twice in one run. Give each its own, or leave ids to Standfast."""

    code = "duplicate-step-id"
    step_id: str
    template = "the step id {step_id!r} was used already in this run"


class StepInterruptedError(WorkflowError):
    """An at-most-once step began and its worker died, so it may or may not have happened. It is not run again.

    Find out whether it happened, or give the step a ``reconcile`` function that does.
    """

    step_id: str
    idempotency_key: str
    template = "the step {step_id!r} began and was interrupted; it may have happened ({idempotency_key})"


class StepNotRecordedError(WorkflowError):
    """A step's record could not go into the step's own transaction, or that transaction was not committed.

    Raised by ``current_step().record_with``: let it pass, so that your transaction is rolled back. As the outcome of a
    step: the step is taken for one that did nothing, and is tried again as its ``retry`` says.
    """

    step_id: str
    problem: str
    template = "the step {step_id!r} was not recorded: {problem}"


class StepFailedError(WorkflowError):
    """What a step or a workflow raised, described in words: its type is not one that may be made from stored data.

    ``error_type`` is the type's full name, ``message`` its text with secrets masked, ``trace`` where it was raised. To get the
    real type back from then on, declare it: ``@sf.step(raises=[CardDeclinedError])``. What is not JSON-shaped in its
    arguments and attributes is left out.
    """

    masks = (("message", mask_message),)
    error_type: str
    message: str
    trace: str = ""

    def _text(self) -> str:
        return f"{self.error_type}: {self.message}" if self.message else self.error_type


class WrongArgumentsError(WorkflowError, TypeError):
    """A workflow was given arguments that its function does not take. Nothing was started; fix the call."""

    function: str
    problem: str
    template = "{function} cannot be called like this: {problem}"


class StepTimeoutError(WorkflowError, TimeoutError):
    """A step took longer than its ``timeout`` and was cancelled. It may have happened in part."""

    step_id: str
    seconds: float
    template = "the step {step_id!r} took longer than {seconds:g} s"


class StepProcessError(WorkflowError):
    """The process of a step that is declared with ``process=True`` died before it answered. It may have happened in part.

    It counts as an attempt that failed. If the system had no memory left, give the machine more or the step less to do.
    """

    step_id: str
    how: str
    template = "the process of the step {step_id!r} {how}"


class SignalTimeoutError(WorkflowError, TimeoutError):
    """The signal did not come in time. Catch it where the workflow waits, or give ``default=`` to get that instead."""

    name: str
    seconds: float
    template = "no signal {name!r} came within {seconds:g} s"


class UpdateTimeoutError(WorkflowError, TimeoutError):
    """The run did not answer an update in time. It may still do so; the update stays in its inbox.

    ``known`` lists which updates its code answers, empty if that is not known here: perhaps the name is wrong.
    """

    run_id: str
    name: str
    seconds: float
    known: tuple[str, ...] = ()

    def _text(self) -> str:
        told = f"the run {self.run_id!r} did not answer the update {self.name!r} within {self.seconds:g} s"
        if not self.known or self.name in self.known:
            return told
        return f"{told}; it answers {', '.join(self.known)} at the moment"


class UpdateValidationError(WorkflowError, ValueError):
    """The run refused an update before accepting it. Nothing was changed."""

    run_id: str
    name: str
    problem: str
    template = "the run {run_id!r} refused the update {name!r}: {problem}"


class SessionStateValidationError(WorkflowError, ValueError):
    """A session state was given a key or a value that is not allowed. Nothing was changed.

    A session state is small and private to its run. What is larger, or is to be seen by others, belongs into
    ``ctx.state.run(key)``.
    """

    key: str
    problem: str
    template = "the session state {key!r} cannot be set: {problem}"


class WorkflowConcurrencyLimitExceededError(WorkflowError):
    """As many runs as the limit allows are unfinished. Nothing was started and nothing was written.

    Start it again when one has ended, or let starts wait: ``sf.Limit(..., on_limit="queue")``.

    Attributes:
        holder: Who has a place in the line, if it was seen: the one that has had it for longest.
        since: Since when, by the store's time.
        holder_is_run: Whether that is a run.
        waiting: How many wait, if that is why.
    """

    code = "WorkflowConcurrencyLimitExceededError"
    workflow_type: str
    partition_key: str
    limit: int
    holder: str = ""
    since: int = 0
    holder_is_run: bool = True
    waiting: int = 0
    template = "{workflow_type!r} has as many unfinished runs of {partition_key!r} as the limit allows: {limit}"


class LimitKeyError(WorkflowError):
    """The ``key`` function of a limit failed, so it is not known what the run would count for. Nothing was started.

    What it raised is the ``__cause__``.
    """

    masks = (("problem", mask_message),)
    workflow: str
    problem: str
    template = "the key of a limit of {workflow!r} cannot be computed: {problem}"


class ScheduleExistsError(WorkflowError):
    """There is a schedule with that id, and it was not changed.

    Choose another id, or say what to do about it: ``create(..., exists="keep")`` or ``exists="replace"``.
    """

    schedule_id: str
    template = "there is a schedule {schedule_id!r} already"


class ScheduleNotFoundError(WorkflowError, LookupError):
    """There is no schedule with that id: it was never made in this namespace and tenant, or it was deleted."""

    schedule_id: str
    template = "there is no schedule {schedule_id!r}"
