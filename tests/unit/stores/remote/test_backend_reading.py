"""Reads that are asked for while another is under way travel together."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.errors import StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores.backend import Batching
from standfast.stores.protocol import Record, Snapshot
from standfast.stores.remote.backend import ReadGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

KEYS = [RecordKey("n", str(number)) for number in range(3_000)]


class Reads:
    """A server's reads, noted down."""

    def __init__(self) -> None:
        self.trips: list[int] = []
        self.problem: Exception | None = None

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Find a record at every key."""
        self.trips.append(len(keys))
        await asyncio.sleep(0)
        if self.problem is not None:
            raise self.problem
        return Snapshot(Instant(1), {key: Record(key, b"", 1) for key in keys})


async def test_reads_of_one_moment_are_one_round_trip() -> None:
    """Each gets what it asked for, and no more."""
    reads = Reads()
    group = ReadGroup(reads.read, Batching())

    found = await asyncio.gather(*(group.read(KEYS[n : n + 2]) for n in range(50)))

    assert reads.trips == [51]
    assert [list(each.records) for each in found] == [KEYS[n : n + 2] for n in range(50)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
async def test_reads_are_answered_where_tasks_begin_at_once() -> None:
    """An eager task that reads may be over before it is known; the next one reads all the same."""
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory"))  # noqa: B009 -- not in the oldest Python
    reads = Reads()
    group = ReadGroup(reads.read, Batching())

    async with asyncio.timeout(10):
        for key in KEYS[:3]:
            assert list((await group.read([key])).records) == [key]


async def test_a_round_trip_is_not_longer_than_a_server_likes() -> None:
    """Very many keys take several."""
    reads = Reads()
    group = ReadGroup(reads.read, Batching())

    await asyncio.gather(*(group.read(KEYS[n : n + 100]) for n in range(0, 3_000, 100)))

    assert max(reads.trips) <= 1_000
    assert sum(reads.trips) == 3_000


async def test_no_round_trip_has_more_keys_than_a_server_takes() -> None:
    """However the calls of one moment fit together, none is torn apart and no trip is too long."""
    reads = Reads()
    group = ReadGroup(reads.read, Batching(max_reads=100))

    await asyncio.gather(*(group.read(KEYS[n : n + 60]) for n in range(0, 600, 60)), group.read(KEYS[:99]))

    assert max(reads.trips) <= 100
    assert min(reads.trips) >= 60


async def test_namespaces_are_read_apart_where_they_live_apart() -> None:
    """On a cluster each is on a server of its own."""
    reads = Reads()
    group = ReadGroup(reads.read, Batching(spans_namespaces=False))

    await asyncio.gather(*(group.read([RecordKey(name, "a")]) for name in ("x", "y", "x")))

    assert reads.trips == [1, 1]


async def test_each_reader_gets_its_own_error() -> None:
    """What is raised in one task does not collect the tracebacks of others."""
    reads = Reads()
    reads.problem = StoreUnavailableError("table://", "gone")
    group = ReadGroup(reads.read, Batching())

    answers = await asyncio.gather(*(group.read(KEYS[:1]) for _ in range(3)), return_exceptions=True)

    assert [type(each) for each in answers] == [StoreUnavailableError] * 3
    assert len({id(each) for each in answers}) == 3


async def test_a_cancelled_reader_leaves_the_others() -> None:
    """And the group serves on."""
    group = ReadGroup(Reads().read, Batching())
    first, second = (asyncio.create_task(group.read(KEYS[:1])) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()

    assert len((await second).records) == 1
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len((await group.read(KEYS[:2])).records) == 2
    await group.drain()
