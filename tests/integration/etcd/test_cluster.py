"""Three members: whichever of them dies, nothing acknowledged is lost, and the same handles go on."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import StoreError
from standfast.stores import Commit, Put
from tests.integration.etcd.clusters import cluster
from tests.integration.etcd.conftest import key, opened
from tests.integration.faults.program import Ledger
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.stores import GroupedStore

pytestmark = [pytest.mark.services, pytest.mark.heavy]

RESUMED_WITHIN = 5.0
"""Seconds. An election takes one to two by default."""


class Pauses:
    """How long nothing was acknowledged."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._last = time.monotonic()

    def note(self) -> None:
        """Note that something was acknowledged."""
        now = time.monotonic()
        self.longest, self._last = max(self.longest, now - self._last), now

    def begin(self) -> None:
        """Count anew."""
        self.longest, self._last = 0.0, time.monotonic()


@asynccontextmanager
async def load(stores: list[GroupedStore], ledger: Ledger, pauses: Pauses) -> AsyncGenerator[None]:
    """Create and count without a pause until the block is left."""
    over = asyncio.Event()

    async def write(store: GroupedStore, name: str) -> None:
        number = 0
        while not over.is_set():
            before = len(ledger.created) + ledger.counted
            await ledger.create(store, f"{name}-{number}")
            await ledger.count(store)
            if len(ledger.created) + ledger.counted > before:
                pauses.note()
            number += 1

    tasks = [asyncio.create_task(write(store, str(number))) for number, store in enumerate(stores)]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*tasks)


async def counted_on(ledger: Ledger, more: int = 20) -> None:
    """Wait until some more was acknowledged."""
    goal = ledger.counted + more
    async with asyncio.timeout(30):
        while ledger.counted < goal:  # noqa: ASYNC110 -- it is counted by those who must not know of it
            await asyncio.sleep(0.01)


@pytest.mark.timeout(300)
async def test_a_leader_that_is_killed_under_load_costs_no_commit() -> None:
    """What was acknowledged is there, once; the pause is that of an election."""
    with cluster() as three:
        ledger, pauses = Ledger(), Pauses()
        async with opened(three.url) as one, opened(three.url) as other, load([one, other], ledger, pauses):
            for _ in rounds("leaders killed", full=10, quick=1):
                await counted_on(ledger)
                leader = three.leader()
                pauses.begin()
                await asyncio.to_thread(leader.kill)
                await counted_on(ledger)
                assert pauses.longest < RESUMED_WITHIN
                await asyncio.to_thread(leader.restart)
        async with opened(three.url) as store:
            await ledger.compare(store)
        assert not ledger.unknown


@pytest.mark.timeout(300)
async def test_a_lock_is_held_across_an_election() -> None:
    """A new leader starts all leases anew: neither its holder nor those who wait notice more than a pause."""
    with cluster() as three:
        async with (
            await sf.open(three.url, namespace="election") as space,
            await sf.open(three.url, namespace="election") as other,
        ):
            async with space.mutex("held").hold() as hold:
                waiting = asyncio.create_task(_fence_of(other))
                await asyncio.to_thread(three.leader().kill)
                await asyncio.sleep(6)  # rule: longer than any lease of a process lasts
                hold.check()
                assert not waiting.done()
            assert await asyncio.wait_for(waiting, 10) > hold.fence


async def _fence_of(space: sf.Space) -> int:
    async with space.mutex("held").hold() as hold:
        return hold.fence


@pytest.mark.timeout(300)
async def test_without_most_members_nothing_is_written_and_it_is_told() -> None:
    """One of three answers no writes; when another one is back, the same handle goes on."""
    with cluster() as three:
        async with opened(f"{three.url}?timeout=2s") as store:
            await store.commit(Put(key("before"), b""))
            for member in three.members[:2]:
                await asyncio.to_thread(member.kill)
            with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
                await store.commit(Put(key("during"), b""))
            # It answers only when there is a leader again.
            await asyncio.to_thread(three.members[0].restart)
            async with asyncio.timeout(20):
                while not await _written(store):
                    pass
            assert key("before") in (await store.read(key("before"))).records


async def _written(store: GroupedStore) -> bool:
    try:
        return isinstance(await store.commit(Put(key("after"), b"")), Commit) or True
    except StoreError:
        return False
