"""How a run that has no result tells so to whoever asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from holdfast.errors import RunCancelledError, RunFailedError, RunTimedOutError
from holdfast.workflows.storing.failures import restore

if TYPE_CHECKING:
    from holdfast.workflows.storing.failures import Failure, KnownErrors


def raise_ending(run_id: str, status: str, failure: Failure | None, known: KnownErrors, reason: str = "") -> NoReturn:
    """Raise what stands for a run that failed, was cancelled, or timed out."""
    if status == "cancelled":
        raise RunCancelledError(run_id, reason or "no reason was given")
    if status == "timed_out":
        raise RunTimedOutError(run_id, 0.0)
    if failure is None:
        raise RunFailedError(run_id, "no reason was recorded")
    raise RunFailedError(run_id, f"{failure.type}: {failure.message}") from restore(failure, known)
