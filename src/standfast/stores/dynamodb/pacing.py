"""How often to look where nothing is pushed: soon after something was written here, more and more seldom after that."""

from __future__ import annotations

from typing import Final, final

from standfast.clock import monotonic

FIRST: Final = 0.1
GROWS: Final = 1.5
LONGEST: Final = 2.0
"""Seconds between two looks: the first, by what factor that grows, and the most."""


@final
class Pace:
    """A number that changes whenever it is time to look. It costs nothing: what a look costs is what is looked at."""

    __slots__ = ("_looks", "_next", "_pause")

    def __init__(self) -> None:
        self._looks, self._pause, self._next = 0, FIRST, 0.0

    def mark(self) -> int:
        """Return how often it has been time to look."""
        now = monotonic()
        if now >= self._next:
            self._looks += 1
            self._next = now + self._pause
            self._pause = min(self._pause * GROWS, LONGEST)
        return self._looks

    def hasten(self) -> None:
        """Look soon: something was written, and others may answer to it."""
        self._pause = FIRST
        self._next = min(self._next, monotonic() + FIRST)
