"""Errors of run locks."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class RunHeldError(StandfastError):
    """Another activation drives this run. Nothing was taken; look at the run's state, or come back later.

    ``expires_at`` says, in microseconds of the store's time, when its lease ends unless it is renewed before; None: it
    was let go while this was found out, so trying again at once may succeed.
    """

    def __init__(self, workflow: str, run_id: str, holder: str, expires_at: int | None) -> None:
        super().__init__(workflow, run_id, holder, expires_at)
        self.workflow, self.run_id, self.holder, self.expires_at = workflow, run_id, holder, expires_at

    def __str__(self) -> str:
        until = "until a moment ago" if self.expires_at is None else f"until {_shown(self.expires_at)}"
        return f"run {self.run_id!r} of {self.workflow!r} is held by {self.holder} {until}"


def _shown(instant: int) -> str:
    from datetime import UTC, datetime  # noqa: PLC0415 -- only whoever prints it needs it

    return datetime.fromtimestamp(instant / 1_000_000, UTC).isoformat(sep=" ", timespec="seconds")
