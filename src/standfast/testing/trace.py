"""What a simulated loop did, in a form that is equal when two runs were equal."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from typing import Any, Final, final

REMEMBERED: Final = 20


@final
class Trace:
    """The steps of a simulated loop: when each ran, in virtual time, and what it was.

    Two runs that took the same steps have the same ``digest``. Names of functions and numbers of tasks go into it,
    never identities or hashes, so it can be compared between processes.
    """

    __slots__ = ("_digest", "_last", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self._digest: Final = hashlib.blake2b(digest_size=16)
        self._last: Final[deque[str]] = deque(maxlen=REMEMBERED)

    def add(self, at: float, what: str) -> None:
        """Note that ``what`` runs at virtual time ``at``."""
        step = f"{at:.6f} {what}"
        self.steps += 1
        self._last.append(step)
        self._digest.update(f"{step}\n".encode())

    @property
    def digest(self) -> str:
        """A digest of every step so far."""
        return self._digest.hexdigest()

    @property
    def last(self) -> tuple[str, ...]:
        """The last few steps, oldest first."""
        return tuple(self._last)


def name_of(work: object) -> str:
    """Return the name of a callback or coroutine, the same in every run."""
    while isinstance(work, functools.partial):
        work = work.func
    name: Any = getattr(work, "__qualname__", None)
    return name if isinstance(name, str) else type(work).__qualname__
