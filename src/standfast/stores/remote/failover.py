"""Failover as a client sees it: which server is the primary, and whether it has what was acknowledged.

A server that takes over says nothing of what it lacks, and one that was replaced may come back and take writes again.
So every connection, when it is opened, asks the server who it is (its :class:`ServerEpoch`) and how far it has counted
the attempts of this process's handles. All connections of a store then belong to one server, and an acknowledged commit
that is gone is noticed by the process that it was acknowledged to. Nothing of this is on the way of a commit.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import monotonic
from standfast.errors import StoreError, StoreRewoundError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REMEMBERED_FOR: Final = 86_400.0
"""Attempts are removed from a server after a week; what was acknowledged a day ago is not insisted on any more."""

_ACCEPT: Final = (
    "look at the server; to go on with what is there, run standfast accept-loss, which moves every fence beyond what"
    " was seen, and start the processes anew"
)


class ServerEpoch(Struct, frozen=True):
    """Which server this is, and in which epoch of its data.

    Attributes:
        server: What tells it from others; the same for all that replicate one another, where ``number`` is known.
        number: Grows with each promotion; 0 if the server does not count them.
        place: Its address, for people.
    """

    server: str = ""
    number: int = 0
    place: str = ""

    def __str__(self) -> str:
        if self.number:
            return f"{self.place} (epoch {self.number})"
        return f"{self.place} ({self.server})" if self.server else self.place  # one address may lead to several


@final
class PrimaryTracker:
    """What the handles that came from one know of their server. It may be used from several threads.

    Attributes:
        moves: Grows when another server, or another epoch of it, has taken over. A connection that was opened before
            belongs to the old one, and is to be closed.
    """

    __slots__ = ("_acknowledged", "_left", "_listeners", "_lock", "_problem", "_store", "epoch", "moves")

    def __init__(self, store: str) -> None:
        self._store: Final = store
        self._lock: Final = threading.Lock()
        self._acknowledged: Final[dict[str, tuple[int, float]]] = {}
        self._left: Final[set[str]] = set()
        self._listeners: tuple[Callable[[], None], ...] = ()
        self._problem = ""
        self.epoch: ServerEpoch | None = None
        self.moves = 0

    # --- what was acknowledged -------------------------------------------------------------------------------

    def acknowledge(self, handle: str, number: int) -> None:
        """Take notice of an attempt that the server has counted, durably."""
        self._acknowledged[handle] = (number, monotonic())

    def forget(self, handle: str) -> None:
        """Forget a handle that is being closed."""
        self._acknowledged.pop(handle, None)

    def expected(self) -> dict[str, int]:
        """Return the last attempt of each handle that the server must have counted."""
        since = monotonic() - REMEMBERED_FOR
        return {handle: number for handle, (number, at) in tuple(self._acknowledged.items()) if at > since}

    @property
    def is_rewound(self) -> bool:
        """Whether something acknowledged is known to be gone: :meth:`check` raises."""
        return bool(self._problem)

    def check(self) -> None:
        """Raise if something acknowledged is known to be gone."""
        if self._problem:
            raise StoreRewoundError(self._store, self._problem)

    # --- which server ----------------------------------------------------------------------------------------

    def meet(self, epoch: ServerEpoch, expected: Mapping[str, int], counted: Mapping[str, int]) -> int:
        """Take notice of the server that a connection leads to; return :attr:`moves` for the connection to keep.

        Args:
            epoch: What the server says of itself.
            expected: What was acknowledged before the server was asked.
            counted: How far the server has counted the attempts of those handles.

        Raises:
            StoreUnavailableError: It was replaced by another one; this connection is of no use.
            StoreRewoundError: It lacks commits that were acknowledged; from now on every call raises it.
        """
        missing = sum(counted.get(handle, 0) < number for handle, number in expected.items())
        with self._lock:
            self.check()
            known = self.epoch
            if known is not None and known.server == epoch.server and epoch.number < known.number:
                raise self._replaced(epoch, known)
            if missing and known is not None and (epoch.server in self._left and epoch.server != known.server):
                raise self._replaced(epoch, known)
            if missing:
                was = f", which took over from {known}" if known is not None and known != epoch else ""
                self._problem = f"{epoch}{was} lacks commits that were acknowledged to this process; {_ACCEPT}"
                listeners: tuple[Callable[[], None], ...] = self._listeners
            elif known is None or (known.server, known.number) != (epoch.server, epoch.number):
                if known is not None:
                    self._left.add(known.server)
                    self.moves += 1
                self.epoch = epoch
                listeners = self._listeners if known is not None else ()
            else:
                listeners = ()
            moves = self.moves
        for tell in listeners:
            tell()
        self.check()
        return moves

    def _replaced(self, epoch: ServerEpoch, known: ServerEpoch) -> StoreError:
        return StoreUnavailableError(
            self._store, f"{epoch} was replaced by {known} and must not be used any more; stop it, or let it follow"
        )

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener``, on any thread, when another server has taken over or a loss is known; return its end."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return end
