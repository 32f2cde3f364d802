"""How a run that has no result tells so to whoever asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from standfast.errors import RunCancelledError, RunFailedError, RunTimedOutError
from standfast.workflows.storing.failures import restore
from standfast.workflows.storing.trace import add_trace

if TYPE_CHECKING:
    from standfast.workflows.storing.failures import Failure, KnownErrors


def raise_ending(
    run_id: str,
    status: str,
    failure: Failure | None,
    known: KnownErrors,
    reason: str | None = None,
    timeout: float | None = None,
) -> NoReturn:
    """Raise what stands for a run that failed, was cancelled, or timed out."""
    if (stopped := stop_of(run_id, status, reason, timeout)) is not None:
        raise stopped
    if failure is None:
        raise RunFailedError(run_id, "no reason was recorded")
    failed = RunFailedError(run_id, f"{failure.type}: {failure.message}")
    add_trace(failed, failure.trace)
    raise failed from restore(failure, known)


def stop_of(
    run_id: str, status: str, reason: str | None, timeout: float | None
) -> RunCancelledError | RunTimedOutError | None:
    """Return what stands for a run that was stopped; None: it was not."""
    if status == "cancelled":
        return RunCancelledError(run_id, reason or "no reason was given")
    return RunTimedOutError(run_id, timeout or 0.0) if status == "timed_out" else None
