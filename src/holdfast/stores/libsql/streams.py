"""Streams that are open on a server: each is a database connection there, and making one costs a third of a call."""

from __future__ import annotations

import asyncio
from typing import Final, final

USED_WITHIN: Final = 7.0
"""After how many idle seconds a stream is no longer used. Servers close it after ten."""


@final
class Streams:
    """The batons of idle streams, the last used one first."""

    __slots__ = ("_idle", "_loop", "_most", "keep")

    def __init__(self, most: int) -> None:
        self._most: Final = most
        self._loop: Final = asyncio.get_running_loop()
        self._idle: Final[list[tuple[float, str]]] = []
        self.keep = True
        """Whether streams are left open at all."""

    def take(self) -> str | None:
        """Take a stream for one call; None if there is none, and then the call opens one."""
        while self._idle:
            idle_since, baton = self._idle.pop()
            if self._loop.time() - idle_since < USED_WITHIN:
                return baton
            self._idle.clear()  # the others have been idle for longer
        return None

    def put(self, baton: str | None, base_url: str | None) -> None:
        """Give a stream back.

        Where there are several servers behind one address, a stream is tied to one of them, at an address of its
        own. Then none is kept: every call goes to the address that was given.
        """
        if base_url:
            self.keep = False
            self._idle.clear()
        elif baton is not None and len(self._idle) < self._most:
            self._idle.append((self._loop.time(), baton))

    def clear(self) -> None:
        """Forget all streams."""
        self._idle.clear()
