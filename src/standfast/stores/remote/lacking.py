"""What a server answers for what it cannot do, written once: a server that lacks something inherits the lack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.errors import UnsuitableStoreError
from standfast.stores.remote.server import Audience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.stores.backend import Outcome, WorkRider
    from standfast.stores.remote.server import Listener, Message


class PushesNothing:
    """A server that sends no hints: those who wait find out by its mark, ``wakes="poll"``."""

    __slots__ = ()

    def listen(self, listener: Listener) -> None:
        """Do nothing: nothing is pushed."""

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Do nothing: nothing is pushed."""

    async def audience(self) -> Audience:
        """Return nobody: nobody can listen."""
        return Audience(0, frozenset())

    async def send(self, messages: Sequence[Message]) -> None:
        """Do nothing: nobody hears it."""


class SeesNoDeaths:
    """A server that tells nobody of a process that died: leases decide, ``sees_process_death=False``."""

    __slots__ = ()

    def lifeline(self) -> str:
        """Return nothing: a lost connection is not a death."""
        return ""

    def is_severed(self, lifeline: str) -> bool:
        """Return False: nobody gave this."""
        del lifeline
        return False


class SharesNoTransaction:
    """A server that takes no work of the caller's along, ``commit_with=False``."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The server as shown to people."""
        raise NotImplementedError

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], None]) -> Outcome:
        """Refuse: see ``capabilities.commit_with``."""
        del rider, handle, number, note
        raise UnsuitableStoreError(self.name, "it cannot share a transaction with your SQL")
