"""What a process has seen of a server, so that it notices when acknowledged data is gone.

A restart without the last writes, a replica that was promoted before it had them, a restored backup, a flush: the
server says nothing. But the last version of a namespace is then lower than one that was seen, or the server has
counted fewer attempts of a handle than it has acknowledged. Scripts compare both before they do anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import monotonic
from standfast.errors import StoreRewoundError

if TYPE_CHECKING:
    from standfast.stores.redis.names import Names

REMEMBERED_FOR: Final = 86_400.0
"""Attempts are removed from a server after a week; what was acknowledged a day ago is not insisted on any more."""


@final
class Seen:
    """Shared by all handles that came from one; it may be used from several threads."""

    __slots__ = ("_acknowledged", "_problem", "_store", "_versions")

    def __init__(self, store: str) -> None:
        self._store: Final = store
        self._versions: Final[dict[bytes, int]] = {}
        self._acknowledged: Final[dict[tuple[bytes, str], tuple[int, float]]] = {}
        self._problem = ""

    def version(self, names: Names) -> int:
        """Return the last version that was seen of a namespace; raises if something is known to be gone."""
        if self._problem:
            raise StoreRewoundError(self._store, self._problem)
        return self._versions.get(names.namespace, 0)

    def note(self, names: Names, version: int) -> None:
        """Take notice of the last version of a namespace."""
        if version > self._versions.get(names.namespace, 0):
            self._versions[names.namespace] = version

    def acknowledged(self, names: Names, handle: str) -> int:
        """Return the last attempt of a handle that the server must have counted; 0 if there is none."""
        number, at = self._acknowledged.get((names.attempts, handle), (0, 0.0))
        return number if number and monotonic() - at < REMEMBERED_FOR else 0

    def acknowledge(self, names: Names, handle: str, number: int) -> None:
        """Take notice of an attempt that the server has counted."""
        self._acknowledged[names.attempts, handle] = (number, monotonic())

    def forget(self, names: Names, handle: str) -> None:
        """Forget a handle that is being closed."""
        self._acknowledged.pop((names.attempts, handle), None)

    def rewound(self, names: Names, version: int) -> StoreRewoundError:
        """Return the error for data that is gone; from now on every call raises it."""
        seen = self._versions.get(names.namespace, 0)
        self._problem = (
            f"acknowledged data is missing in {names.head!r}: version {seen} was seen and the server is at {version}"
        )
        return StoreRewoundError(self._store, self._problem)
