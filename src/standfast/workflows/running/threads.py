"""Threads for steps that are plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from typing import TYPE_CHECKING, Any, Final, final

from standfast.offload import Lane

if TYPE_CHECKING:
    from collections.abc import Callable

MOST: Final = 32
"""How many plain functions run at a time, by default."""


@final
class Threads:
    """A few threads that run plain functions, each when one is free.

    Attributes:
        queued: How many functions wait for a thread.
    """

    def __init__(self, most: int = MOST) -> None:
        self._free: Final[list[Lane]] = []
        self._all: Final[list[Lane]] = []
        self._permits: Final = asyncio.Semaphore(most)
        self.queued = 0

    async def run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- whatever it returns
        """Run a function in a thread, in the caller's context. A cancelled caller does not wait for its end."""
        self.queued += 1
        try:
            await self._permits.acquire()
        finally:
            self.queued -= 1
        try:
            lane = self._free.pop() if self._free else self._another()
            work = functools.partial(contextvars.copy_context().run, functools.partial(called, function, args, kwargs))
            future = lane.start(work)
            future.add_done_callback(functools.partial(self._ended, lane))
            return await asyncio.shield(future)
        finally:
            self._permits.release()

    @property
    def busy(self) -> int:
        """How many functions are running."""
        return len(self._all) - len(self._free)

    def _another(self) -> Lane:
        lane = Lane(f"step-{len(self._all) + 1}")
        self._all.append(lane)
        return lane

    def _ended(self, lane: Lane, future: asyncio.Future[Any]) -> None:
        self._free.append(lane)
        if not future.cancelled():
            future.exception()  # whoever waited for it has it, or has gone

    def close(self) -> None:
        """Take no more work. A function that still runs keeps its thread; the program does not wait for it."""
        for lane in self._all:
            lane.close(wait=False)


def called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- whatever it returns
    """Call a function in a thread; what it raises can be raised where somebody waits for it."""
    try:
        return function(*args, **kwargs)
    except (StopIteration, GeneratorExit, SystemExit, KeyboardInterrupt) as problem:
        # No future takes the first, a coroutine that waits takes the second for its own end, and the others would end
        # the process of every other run.
        raise RuntimeError(f"the function raised {type(problem).__name__}({problem})") from problem
