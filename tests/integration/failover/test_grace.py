"""An outage of the server: for how long a holder may be without its session is a setting, told by its token."""

from __future__ import annotations

import asyncio

import pytest

import standfast as sf
from standfast.errors import InvalidUrlError, LeaseLostError
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests import services
from tests.integration.faults.program import insistently

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(60)]

OUTAGE = 2.5


@pytest.mark.parametrize("kind", ["postgresql", "redis", "mysql"])
async def test_a_holder_survives_an_outage_that_is_shorter_than_its_grace(kind: str) -> None:
    """With a lease that is longer still: it holds the lock afterwards, and another process did not get it."""
    with services.private(kind) as server:
        url = f"{server.url}?timeout=1s&grace=15s"
        async with await sf.open(url, lease=30) as space, await sf.open(url, lease=30) as other:
            async with space.mutex("a").hold() as hold:
                waiting = asyncio.create_task(take(other))
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(OUTAGE)
                await asyncio.to_thread(server.restart)

                async def write() -> None:
                    assert isinstance(await space.commit(hold.guard, Put(space.key("b"), b"")), Commit)

                await insistently(write)
                assert not waiting.done()
            fence = await waiting
            assert fence > hold.fence


async def test_without_the_setting_the_same_outage_costs_the_lock() -> None:
    """After a second the holder stops, whatever its lease is: others may take it for dead."""
    with services.private("postgresql") as server:
        async with await sf.open(f"{server.url}?timeout=1s", lease=30) as space:

            async def hold() -> None:
                async with space.mutex("a").hold():
                    await asyncio.to_thread(server.kill)
                    await asyncio.sleep(OUTAGE)

            with pytest.raises(LeaseLostError):
                await hold()
            await asyncio.to_thread(server.restart)


@pytest.mark.parametrize("grace", ["1s", "0", "2h", "soon"])
async def test_a_grace_that_is_too_short_or_too_long_is_refused(grace: str) -> None:
    """Below the shortest, a process could not prove in time that it lives."""
    with pytest.raises(InvalidUrlError, match="grace is a duration"):
        await open_store(f"postgresql://localhost/a?grace={grace}")


async def take(space: sf.Space) -> int:
    """Take the lock, however long that takes, and return its fence."""
    while True:
        try:
            async with space.mutex("a").hold() as hold:
                return hold.fence
        except sf.errors.StoreError:
            await asyncio.sleep(0.05)
