"""Other people's locks for one event loop, measured in an environment of their own."""

from __future__ import annotations

import asyncio
from time import process_time_ns
from typing import TYPE_CHECKING

import aiorwlock
import anyio

from benchmarks.harness import serve

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

TIMES = 20_000


async def pairs(lock: AbstractAsyncContextManager[object]) -> float:
    """Return the nanoseconds of one acquire and release."""
    started = process_time_ns()
    for _ in range(TIMES):
        async with lock:
            pass
    return (process_time_ns() - started) / TIMES


async def anyio_lock() -> float:
    """Measure a lock that yields to the loop on every acquire, as it does by default."""
    return await pairs(anyio.Lock())


async def anyio_fast_lock() -> float:
    """Measure a lock that does not yield when it is free."""
    return await pairs(anyio.Lock(fast_acquire=True))


async def reader() -> float:
    """Measure the reading side of a lock for readers and writers."""
    return await pairs(aiorwlock.RWLock().reader)


if __name__ == "__main__":
    serve(
        {
            "anyio.Lock": lambda: asyncio.run(anyio_lock()),
            "anyio.Lock, fast": lambda: asyncio.run(anyio_fast_lock()),
            "aiorwlock reader": lambda: asyncio.run(reader()),
        }
    )
