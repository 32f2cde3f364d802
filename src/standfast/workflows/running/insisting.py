"""Writing although the store fails for a while, so that what steps did is not lost and done again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from standfast.clock import later
from standfast.errors import OutcomeUnknownError, StoreBusyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.workflows.running.activation import Activation

T = TypeVar("T")

AGAIN_AFTER: Final = 0.05
"""Seconds between two tries."""


async def insist(activation: Activation, write: Callable[[], Awaitable[T]]) -> T:
    """Write for a run; try again if the store fails, for as long as this process is taken for alive.

    ``write`` must be refused if it was written before, as everything is that adds to a history.
    """
    host, claim = activation.host, activation.claim
    gives_up_at = later(host.clock.elapsed(), host.space.lease)
    while True:
        try:
            return await write()
        except (OutcomeUnknownError, StoreBusyError, StoreUnavailableError):
            may_go_on = claim is not None and host.may_act(claim.presence) and host.clock.elapsed() < gives_up_at
            if activation.is_unloading or not may_go_on:
                raise
        await asyncio.sleep(AGAIN_AFTER)
