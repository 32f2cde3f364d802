"""The task that has a turn: it is cancelled once when it is to stop, and does not stay cancelled because of it."""

from __future__ import annotations

import asyncio
from typing import Any, final

from msgspec import Struct

from standfast.errors import RequestCancelledError, RequestInterruptedError, RequestSupersededError
from standfast.flows.arbiters.protocol import SUPERSEDED_BY, Stop
from standfast.locks.driving.taking_back import take_back


@final
class Body(Struct, eq=False):
    """The task of one ``async with`` block of an arbiter; :func:`this_body` returns that of the task which asks."""

    _task: asyncio.Task[Any] | None
    _cancelling: int = 0
    _is_spared: bool = False
    was_cancelled: bool = False

    def cancel(self) -> None:
        """Cancel it, once, unless it is spared."""
        if self._task is not None and not self._is_spared and not self.was_cancelled:
            self.was_cancelled = True
            self._task.cancel()

    @property
    def is_to_end(self) -> bool:
        """Whether somebody has cancelled the task. If not, a cancellation that it raises is its own, and nobody's."""
        return self._task is not None and self._task.cancelling() > self._cancelling

    def spare(self) -> None:
        """Let nothing cancel it here from now on: its work is done, and only its place is still to be given back."""
        self._is_spared = True

    async def take_back(self, error: BaseException | None) -> asyncio.CancelledError | None:
        """Undo the cancellation that began here; return it if somebody else has cancelled the task, too."""
        self._is_spared = True
        if not self.was_cancelled or self._task is None:
            return None
        self.was_cancelled = False
        return await take_back(self._task, self._cancelling, error)


def this_body() -> Body:
    """Return the body of the task that runs."""
    task = asyncio.current_task()
    return Body(None) if task is None else Body(task, task.cancelling())


def ending_of(
    request_id: str, stop: Stop | None
) -> RequestSupersededError | RequestCancelledError | RequestInterruptedError:
    """Return what a request ends with whose turn is over before it has finished; no stop: its turn was lost."""
    if stop is None:
        return RequestInterruptedError(request_id)
    if stop.by:
        return RequestSupersededError(request_id, stop.by)
    return RequestCancelledError(request_id, stop.reason, stop.cancelled_by)


def is_cancellation(error: BaseException | None) -> bool:
    """Tell whether a block was left because its task was cancelled."""
    return isinstance(error, asyncio.CancelledError)


def reason_of(stop: Stop) -> str:
    """Return the reason with which a run is cancelled."""
    return f"{SUPERSEDED_BY}{stop.by}" if stop.by else stop.reason
