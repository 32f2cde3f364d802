"""Whether an event loop keeps turning."""

from __future__ import annotations

import asyncio
from typing import Self, final

from standfast.clock import monotonic


@final
class LoopWatch:
    """Lets the running loop tick every few milliseconds, and notes the longest time between two ticks."""

    def __init__(self, every: float = 0.002) -> None:
        self._every = every
        self._last = monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.longest_gap = 0.0
        self.ticks = 0

    def _tick(self) -> None:
        now = monotonic()
        self.longest_gap = max(self.longest_gap, now - self._last)
        self._last = now
        self.ticks += 1
        self._timer = asyncio.get_running_loop().call_later(self._every, self._tick)

    async def __aenter__(self) -> Self:
        self._last = monotonic()
        self._tick()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._tick()
        assert self._timer is not None
        self._timer.cancel()
