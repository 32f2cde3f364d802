"""The lock of the operating system itself: nothing on one machine hands over faster. Started as a program, it contends.

Needs the standard library only.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from benchmarks._lock_contender import serve_orders

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from benchmarks._lock_contender import Lock


class Blocking:
    """A lock whose calls block: they have the process to themselves, as their authors meant it."""

    def __init__(self, acquire: Callable[[], object], release: Callable[[], object]) -> None:
        self._acquire, self._release = acquire, release

    async def acquire(self) -> None:
        """Wait for it."""
        self._acquire()

    async def release(self) -> None:
        """Let go."""
        self._release()


@asynccontextmanager
async def flock(where: str) -> AsyncIterator[Lock]:
    """Open a file to lock."""
    file = os.open(f"{where}.flock", os.O_RDWR | os.O_CREAT)
    yield Blocking(lambda: fcntl.flock(file, fcntl.LOCK_EX), lambda: fcntl.flock(file, fcntl.LOCK_UN))
    os.close(file)


if __name__ == "__main__":
    serve_orders({"flock": flock})
