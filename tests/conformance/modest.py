"""A store that can do as little as any server: it is slow, sends no hints, and takes small values and few changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from holdfast.stores.memory import Memory, MemoryBackend
from holdfast.stores.protocol import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.keys import RecordKey
    from holdfast.stores.backend import Applied, Batch, Ear
    from holdfast.stores.protocol import Snapshot, Wake

MODEST: Final = Capabilities(
    backend="modest",
    atomic=True,
    durable=False,
    reach="network",
    wakes="poll",
    max_changes=25,
    max_value_bytes=100_000,
    shortest_lease=0.2,
)

ROUND_TRIP: Final = 0.0005
"""Seconds that every call takes."""


@final
class ModestBackend:
    """The store in memory as seen from afar."""

    def __init__(self, memory: Memory, capabilities: Capabilities = MODEST) -> None:
        self._memory, self._backend, self.capabilities = memory, MemoryBackend(memory), capabilities
        self.name: Final = "modest://"

    def apply_now(self, batch: Batch) -> Applied | None:
        """Nothing is done at once."""

    async def apply(self, batch: Batch) -> Applied:
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

    def listen(self, _prefixes: tuple[RecordKey, ...], _ear: Ear) -> Callable[[], None]:
        """Hear nothing."""
        return lambda: None

    def ring(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Tell nobody."""

    async def another(self) -> ModestBackend:
        """Open another handle."""
        await asyncio.sleep(ROUND_TRIP)
        return ModestBackend(self._memory, self.capabilities)

    def lifeline(self) -> str:
        """Nobody sees a process die."""
        return ""

    def is_severed(self, lifeline: str) -> bool:  # noqa: ARG002 -- nothing is known of anybody
        """Nobody sees a process die."""
        return False

    async def aclose(self) -> None:
        """Let go."""
