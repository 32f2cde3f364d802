"""Streams that are open on a server: each is a database connection there, and making one costs a third of a call.

A server has few of them, 128 by default. So a stream is left open only in a row of calls that follow close upon each
other; whoever calls now and then, as those do who wait, opens and closes one with every call.
"""

from __future__ import annotations

import asyncio
from typing import Final, final

CLOSE_UPON: Final = 0.02
"""Within how many seconds after the last call the next one belongs to the same row."""

ROW: Final = 5
"""The call of a row from which on streams are left open."""

MOST: Final = 2
"""How many streams are left open: one for commits, one for reads."""

USED_WITHIN: Final = 7.0
"""After how many idle seconds a stream is no longer used. Servers close it after ten."""


@final
class Streams:
    """The batons of idle streams, the last used one first."""

    __slots__ = ("_idle", "_last_at", "_loop", "_row", "_tied")

    def __init__(self) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._idle: Final[list[tuple[float, str]]] = []
        self._last_at = 0.0
        self._row = 0
        self._tied = False

    def is_left_open(self) -> bool:
        """Tell whether the call that begins now is to leave its stream open."""
        self._row = self._row + 1 if self._loop.time() - self._last_at < CLOSE_UPON else 1
        return self._row >= ROW and not self._tied

    def take(self) -> str | None:
        """Take a stream for one call; None if there is none, and then the call opens one."""
        while self._idle:
            idle_since, baton = self._idle.pop()
            if self._loop.time() - idle_since < USED_WITHIN:
                return baton
            self._idle.clear()  # the others have been idle for longer
        return None

    def put(self, baton: str | None, base_url: str | None) -> None:
        """Take notice that a call has ended, and take back the stream that it left open, if it did.

        Where there are several servers behind one address, a stream is tied to one of them, at an address of its
        own. Then none is left open: every call goes to the address that was given.
        """
        self._last_at = now = self._loop.time()
        if base_url:
            self._tied = True
            self._idle.clear()
        elif baton is not None and len(self._idle) < MOST:
            self._idle.append((now, baton))

    def clear(self) -> None:
        """Forget all streams."""
        self._idle.clear()
