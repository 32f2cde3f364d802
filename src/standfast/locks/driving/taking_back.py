"""Taking back a cancellation: a task that was cancelled to leave a block does not stay cancelled because of it."""

from __future__ import annotations

import asyncio
from typing import Any


async def take_back(
    task: asyncio.Task[Any], cancelling: int, error: BaseException | None
) -> asyncio.CancelledError | None:
    """Undo one's own cancellation of the running task; return it if somebody else has cancelled the task, too.

    Args:
        task: The task that runs now.
        cancelling: How many cancellations it had when its block began.
        error: What the block ended with.
    """
    cancelled = error if isinstance(error, asyncio.CancelledError) else None
    if cancelled is None:  # it is delivered at the next await, which must not be a part of giving back
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as delivered:
            cancelled = delivered
    return cancelled if task.uncancel() > cancelling else None
