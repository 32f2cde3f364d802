"""The time that a handle decides by: never before a moment that it has been shown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Decision, Put
from standfast.stores.remote import open_remote
from standfast.stores.remote.planner import RecordCache
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores import Snapshot
    from standfast.stores.remote.server import Intent, WriteRefused, Written

KEY = RecordKey("n", "k")


class Sluggish(TableServer):
    """A table whose answers are on their way for a while, until it is told otherwise."""

    is_slow = True

    async def _linger(self) -> None:
        if self.is_slow:
            await asyncio.sleep(0.02)

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Answer late."""
        answer = await super().write(intent)
        await self._linger()
        return answer

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Answer late."""
        answer = await super().read(keys)
        await self._linger()
        return answer


async def test_an_update_does_not_decide_before_what_was_read() -> None:
    """Who has read that a lease is over does not decide, in the next call, that it is not."""
    server = Sluggish(Table())
    store = open_remote(server)

    def put(seen: Snapshot) -> Decision[None]:
        return Decision(None, (Put(KEY, b"", seen.version(KEY)),))

    await store.update([KEY], put)
    server.is_slow = False
    read = await store.read(KEY)
    decided = await store.update([KEY], lambda seen: Decision(seen.at))
    await store.aclose()

    assert decided.answer >= read.at


def test_a_late_answer_does_not_set_the_time_back() -> None:
    """It says what the time was when it left."""
    cache = RecordCache()
    cache.learn_time(Instant(1_000_000_000))
    cache.learn_time(Instant(999_990_000))

    now = cache.now()
    assert now is not None
    assert now >= 1_000_000_000


def test_a_clock_that_was_set_back_is_believed() -> None:
    """Nothing is decided far ahead of the server's own time."""
    cache = RecordCache()
    cache.learn_time(Instant(5_000_000_000))
    cache.learn_time(Instant(1_000_000_000))

    now = cache.now()
    assert now is not None
    assert now < 2_000_000_000
