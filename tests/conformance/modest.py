"""A store that can do as little as any server: it is slow, sends no hints, and takes small values and few changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.protocol import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, RiderBatch, Subscriber
    from standfast.stores.protocol import Record, Snapshot, Wake

MODEST: Final = Capabilities(
    backend="modest",
    atomic=True,
    durable=False,
    reach="network",
    wakes="poll",
    max_changes=25,
    max_value_bytes=100_000,
    max_commit_bytes=320_000,
    shortest_lease=0.2,
)

ROUND_TRIP: Final = 0.0005
"""Seconds that every call takes."""


POLL_EVERY: Final = 0.05
"""Seconds until somebody who listens finds out that something has happened."""


@final
class _LateSubscriber:
    """Hears as one who polls does: late, and only that there is something to look at."""

    def __init__(self, subscriber: Subscriber) -> None:
        self._subscriber, self._loop, self._is_told = subscriber, asyncio.get_running_loop(), False

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:  # noqa: ARG002 -- a poll does not tell
        """Pass it on at the next poll."""
        if not self._is_told:
            self._is_told = True
            self._loop.call_later(POLL_EVERY, self._pass_on)

    def _pass_on(self) -> None:
        self._is_told = False
        self._subscriber.notify(None)


@final
class ModestBackend:
    """The store in memory as seen from afar."""

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory, self._backend = memory, MemoryBackend(memory)
        self.name: Final = "modest://"

    @property
    def capabilities(self) -> Capabilities:
        """Those of its memory."""
        return self._memory.capabilities

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Nothing is done at once."""

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch, and let the answer be on its way for a while."""
        await asyncio.sleep(ROUND_TRIP)
        applied = await self._backend.apply(batch)
        await asyncio.sleep(0)
        return applied

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        await asyncio.sleep(ROUND_TRIP)
        return await self._backend.settle(attempt)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records."""
        await asyncio.sleep(ROUND_TRIP)
        return await self._backend.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page."""
        await asyncio.sleep(ROUND_TRIP)
        return await self._backend.scan(start, end, limit=limit, reverse=reverse)

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Find out a while later that something has happened, but not what."""
        return self._backend.subscribe(prefixes, _LateSubscriber(subscriber))

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send hints, which arrive late."""
        self._backend.notify(changed, wakes)

    async def another(self) -> ModestBackend:
        """Open another handle."""
        await asyncio.sleep(ROUND_TRIP)
        return ModestBackend(self._memory)

    def liveness_token(self) -> str:
        """Nobody sees a process die."""
        return ""

    def is_dead(self, token: str) -> bool:  # noqa: ARG002 -- nothing is known of anybody
        """Nobody sees a process die."""
        return False

    async def aclose(self) -> None:
        """Let go."""
