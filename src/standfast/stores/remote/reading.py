"""Reads that are asked for while another one is under way travel together, in one round trip."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.stores.group import own_copy
from standfast.stores.protocol import Snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Batching

    Read = Callable[[Sequence[RecordKey]], Awaitable[Snapshot]]
    Asked = tuple[Sequence[RecordKey], asyncio.Future[Snapshot]]


@final
class ReadGroup:
    """Reads of one handle, on one event loop."""

    __slots__ = ("_asked", "_batching", "_loop", "_read", "_task")

    def __init__(self, read: Read, batching: Batching) -> None:
        self._read, self._batching = read, batching
        self._loop: Final = asyncio.get_running_loop()
        self._asked: list[Asked] = []
        self._task: asyncio.Task[None] | None = None

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot, perhaps together with what others ask for."""
        if self._task is None:
            self._task = self._loop.create_task(self._travel())
        answer: asyncio.Future[Snapshot] = self._loop.create_future()
        self._asked.append((keys, answer))
        return await answer

    async def _travel(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, []
                for some in self._packed([each for each in asked if not each[1].done()]):
                    await self._read_together(some)
        finally:
            self._task = None

    def _packed(self, asked: list[Asked]) -> list[list[Asked]]:
        packs: list[_Pack] = []
        latest: dict[bytes, _Pack] = {}
        for each in asked:
            namespace = b"" if self._batching.spans_namespaces else each[0][0].namespace
            pack = latest.get(namespace)
            if pack is None or pack.size_with(each[0]) > self._batching.max_reads:
                pack = latest[namespace] = _Pack()
                packs.append(pack)
            pack.asked.append(each)
            pack.keys.update(each[0])
        return [pack.asked for pack in packs]

    async def _read_together(self, asked: list[Asked]) -> None:
        keys = list({key: None for each in asked for key in each[0]})
        try:
            seen = await self._read(keys)
        except asyncio.CancelledError:
            for _, answer in asked:
                answer.cancel()
            raise
        except Exception as problem:  # noqa: BLE001 -- each of them gets it
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(own_copy(problem))
            return
        for wanted, answer in asked:
            if not answer.done():
                found = {key: record for key in wanted if (record := seen.get(key)) is not None}
                answer.set_result(Snapshot(seen.at, found))

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait({self._task})


class _Pack:
    """Calls that travel together, and the keys that they name."""

    __slots__ = ("asked", "keys")

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.keys: set[RecordKey] = set()

    def size_with(self, more: Sequence[RecordKey]) -> int:
        return len(self.keys) + sum(key not in self.keys for key in more)
