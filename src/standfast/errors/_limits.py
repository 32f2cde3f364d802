"""Errors of start limits: there is no room, or it cannot be told what a run counts for."""

from __future__ import annotations

from standfast.errors._workflows import WorkflowError
from standfast.redaction import mask_message


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

    def __init__(
        self,
        workflow_type: str,
        partition_key: str,
        limit: int,
        holder: str = "",
        since: int = 0,
        holder_is_run: bool = True,  # noqa: FBT001, FBT002 -- pickled errors are restored by position
        waiting: int = 0,
    ) -> None:
        super().__init__(workflow_type, partition_key, limit, holder, since, holder_is_run, waiting)
        self.workflow_type, self.partition_key, self.limit = workflow_type, partition_key, limit
        self.holder, self.since, self.holder_is_run, self.waiting = holder, since, holder_is_run, waiting

    def __str__(self) -> str:
        return f"{self.workflow_type!r} is limited to {self.limit} unfinished runs of {self.partition_key!r}"


class LimitKeyError(WorkflowError):
    """The ``key`` function of a limit failed, so it is not known what the run would count for. Nothing was started.

    What it raised is the ``__cause__``.
    """

    def __init__(self, workflow: str, problem: str) -> None:
        problem = mask_message(problem)
        super().__init__(workflow, problem)
        self.workflow, self.problem = workflow, problem

    def __str__(self) -> str:
        return f"the key of a limit of {self.workflow!r} cannot be told: {self.problem}"


class LimitKeyTypeError(LimitKeyError, TypeError):
    """The ``key`` function of a limit returned something else than text. Nothing was started; let it return a str."""
