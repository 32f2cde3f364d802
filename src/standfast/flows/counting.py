"""Waiting for a count that goes on for others."""

from __future__ import annotations

import asyncio

from standfast.errors import ArbiterUnavailableError


async def result_of(counting: asyncio.Task[None]) -> None:
    """Wait for a count that goes on whoever is cancelled meanwhile."""
    await asyncio.wait({counting})
    if counting.cancelled():
        raise ArbiterUnavailableError("this server is closing")
    counting.result()
