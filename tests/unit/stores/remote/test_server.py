"""What a server is asked to do, and the time that a handle decides by: never before a moment that it was shown."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import ABSENT, Decision, Put, Record, Snapshot
from standfast.stores.remote import open_remote
from standfast.stores.remote.planner import RecordCache
from standfast.stores.remote.server import Intent
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.stores.remote.server import WriteRefused, Written

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


def test_an_intent_says_which_of_its_guards_do_not_hold() -> None:
    """With what is there instead: another version, nothing, or a record where none was expected."""
    held, moved, gone, made, absent = (RecordKey("n", name) for name in ("held", "moved", "gone", "made", "absent"))
    records = {key: Record(key, b"", 7) for key in (held, moved, made)}
    guards = {held: 7, moved: 6, gone: 5, made: ABSENT, absent: ABSENT}

    lost = Intent("handle", 1, guards, (), (), 0).lost(Snapshot(Instant(1), records))

    assert lost == {moved: records[moved], gone: None, made: records[made]}


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
