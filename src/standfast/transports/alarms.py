"""One timer for many waits of the same length: most of them are over long before it rings."""

from __future__ import annotations

import asyncio
from threading import get_ident
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class Alarm:
    """Calls back after so many seconds, unless it is told not to.

    A timer of the event loop for each request would cost more than all else that is done to read one.

    Args:
        seconds: How long everybody waits.
    """

    __slots__ = ("_due", "_loop", "_seconds", "_thread", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds: Final = seconds
        self._due: Final[dict[Callable[[], object], float]] = {}  # in the order in which they are due
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None

    def set(self, ring: Callable[[], object]) -> Callable[[], object]:
        """Call ``ring`` when the time is up; return what turns it off."""
        loop = self._loop
        # A thread runs one loop at a time; to ask which takes a call of the system before Python 3.12.
        if loop is None or self._thread != get_ident() or not loop.is_running():
            loop = asyncio.get_running_loop()
            if self._loop is not None and self._due and not self._loop.is_closed():
                return loop.call_later(self._seconds, ring).cancel  # it belongs to a loop in another thread
            self._loop, self._thread, self._timer = loop, get_ident(), None
            self._due.clear()
        self._due[ring] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._ring, loop)
        return lambda: self._due.pop(ring, None)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:
            return
        self._timer, now = None, loop.time()
        for ring, due in tuple(self._due.items()):
            if due > now:
                self._timer = loop.call_at(due, self._ring, loop)
                return
            if self._due.pop(ring, None) is not None:
                ring()
