"""Servers that die, stand still, vanish from the network or have no room: nothing is lost, nobody waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import StandfastError, StoreUnavailableError
from standfast.stores.url import open_store
from tests.integration.faults.conftest import opening, private, start_when_ended
from tests.integration.faults.program import Ledger, insistently
from tests.integration.faults.proxy import proxy_to
from tests.sizes import rounds, size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.stores import Store

pytestmark = [pytest.mark.services, pytest.mark.heavy]

LEASE = {"dynamodb": 10.0}
"""The shortest lease, where a second is not enough."""


@contextlib.asynccontextmanager
async def under_load(url: str, lease: float) -> AsyncGenerator[Ledger]:
    """Count and create without pause, and hand a lock back and forth, until the block is left; then compare."""
    ledger, over = Ledger(), asyncio.Event()
    stores = [await open_store(url) for _ in range(2)]
    spaces = [await sf.open(url, namespace=ledger.namespace, lease=lease) for _ in range(2)]
    handed: list[int] = []

    async def write(store: Store, name: str) -> None:
        number = 0
        while not over.is_set():
            await ledger.create(store, f"{name}-{number}")
            await ledger.count(store)
            number += 1

    async def hold(space: sf.Space) -> None:
        while not over.is_set():
            with contextlib.suppress(StandfastError):  # whatever became of it, it is asked for again
                async with space.mutex("handed").hold(timeout=10):
                    handed.append(id(space))
            await asyncio.sleep(0.01)

    writers = [write(store, str(number)) for number, store in enumerate(stores)]
    tasks = [asyncio.create_task(work) for work in [*writers, *map(hold, spaces)]]
    await _until(lambda: len(handed) > 2 and ledger.counted > 2)
    try:
        yield ledger
        counted, times = ledger.counted, len(handed)
        await _until(lambda: ledger.counted > counted + 4 and len(set(handed[times:])) == 2)
    finally:
        over.set()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for space in spaces:
            await space.aclose()
        for store in stores:
            await store.aclose()
    assert [each for each in done if each is not None] == []
    direct = await open_store(url)
    try:
        await ledger.compare(direct)
    finally:
        await direct.aclose()


async def _until(reached: Callable[[], bool]) -> None:
    """Wait until the load shows what is expected of it, by looking at it now and then."""
    async with asyncio.timeout(45):
        while not reached():  # noqa: ASYNC110 -- what it looks at is counted by those who must not know of it
            await asyncio.sleep(0.01)


@pytest.mark.timeout(600)
async def test_a_server_that_is_killed_and_comes_back_has_everything(
    kind: str, impatient: Callable[[str], str]
) -> None:
    """What was acknowledged is there; whoever waited goes on, with the same handles."""
    with private(kind) as server:
        async with under_load(impatient(opening(server.url)), LEASE.get(kind, 1.0)):
            for _ in rounds(f"killed {kind}", full=10, quick=1):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.restart)


@pytest.mark.timeout(600)
async def test_a_server_that_stands_still_for_a_while_loses_nothing(kind: str, impatient: Callable[[str], str]) -> None:
    """It is asked with a limit, and asked again."""
    with private(kind) as server:
        async with under_load(impatient(opening(server.url)), LEASE.get(kind, 1.0)):
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(size(full=5, quick=3))
            if kind == "pgbouncer":  # 1.18 dies of requests to cancel whose senders have left meanwhile
                start_when_ended(server)
            await asyncio.to_thread(server.cont)


@pytest.mark.timeout(600)
async def test_a_network_that_swallows_everything_is_survived_without_a_busy_loop(
    kind: str, url: str, impatient: Callable[[str], str]
) -> None:
    """Nothing arrives and nobody is told, for ten seconds at full size; meanwhile the process does next to nothing."""
    if kind not in {"postgresql", "redis", "mysql"} and size(full=1, quick=0) == 0:
        pytest.skip("the time for it on all servers is there in make prove")
    async with proxy_to(impatient(url)) as proxy, under_load(proxy.url, LEASE.get(kind, 1.0)):
        proxy.swallow()
        started, used = time.monotonic(), time.process_time()
        await asyncio.sleep(size(full=10, quick=4))
        share = (time.process_time() - used) / (time.monotonic() - started)
        proxy.carry_on()
    assert share < 0.25


async def test_a_server_that_is_not_there_is_said_so_in_time(kind: str, impatient: Callable[[str], str]) -> None:
    """Opening gives up when its time is over, with what to look at, and shows no secret."""
    with private(kind) as server:
        url = impatient(opening(server.url)) + "&connect_timeout=1s"
        await asyncio.to_thread(server.kill)
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailableError) as caught:
                await open_store(url)
        password = url.partition("@")[0].rpartition(":")[2] if "@" in url else ""
        assert not password or password not in f"{caught.value} {caught.value!r}"
        await asyncio.to_thread(server.restart)


async def test_a_server_that_comes_back_is_used_again(kind: str, impatient: Callable[[str], str]) -> None:
    """A handle that has seen it gone needs no new opening."""
    with private(kind) as server:
        store, ledger = await open_store(impatient(opening(server.url))), Ledger()
        await ledger.create(store, "before")
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreUnavailableError):
            await store.read(ledger.key("before"))
        await asyncio.to_thread(server.restart)
        await insistently(lambda: store.read(ledger.key("before")))
        await ledger.create(store, "after")
        await ledger.compare(store)
        await store.aclose()
        assert ledger.key("after") in ledger.created
