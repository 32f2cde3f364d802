"""Patience with a server that is not there: each failed connection makes the next one wait longer."""

from __future__ import annotations

import asyncio
import random
from typing import Final, final

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0


@final
class Patience:
    """How long to wait before the next try to connect. Nobody waits longer than ``most`` seconds."""

    __slots__ = ("_loop", "_most", "_next_at", "_pause", "_random")

    def __init__(self, most: float) -> None:
        self._most: Final = most
        self._loop: Final = asyncio.get_running_loop()
        self._random: Final = random.Random()  # noqa: S311 -- spreads out who comes back when
        self._pause = 0.0
        self._next_at = 0.0

    async def wait(self) -> None:
        """Return when it is time to try."""
        if self._pause:
            seconds = self._next_at - self._loop.time()
            if seconds > 0:
                await asyncio.sleep(min(seconds, self._most))

    def grow(self) -> None:
        """Take notice that no connection could be made."""
        self._pause = min(LONGEST_PAUSE, self._pause * 2 or FIRST_PAUSE)
        self._next_at = self._loop.time() + self._random.uniform(self._pause / 2, self._pause)

    def reset(self) -> None:
        """Take notice that the server is there."""
        self._pause = 0.0
