"""What a closed store leaves behind: its data, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreClosedError
from standfast.stores import Put
from standfast.stores.sqlite import backend as upkeep
from standfast.stores.sqlite import connection as sharing
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import size

if TYPE_CHECKING:
    from tests.integration.sqlite.conftest import Look


def descriptors() -> dict[int, str]:
    """Return everything that this process has open."""
    found: dict[int, str] = {}
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208 -- numbers, not paths
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115 -- see above
        except OSError:
            continue
    return found


async def use_fully(url: str, cycle: int) -> None:
    """Open a store, use every part of it, and close it."""
    store = await open_store(f"{url}?commits={'thread' if cycle % 2 else 'auto'}")
    async with store.watch(key("watched"), key("also")), store.watch(key("other")):
        await store.commit(Put(key("cycle", cycle), b""))
        await store.read(key("cycle", cycle))
        await store.scan(*key().within(), limit=10)
    if cycle % 3:
        await store.watch(key("left open")).__aenter__()
    await store.aclose()
    await store.aclose()


async def test_closing_leaves_no_descriptor_thread_socket_or_row(
    url: str, path: Path, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After many openings and closings the process and the file are as they were after the first."""
    monkeypatch.setattr(upkeep, "EVERY", 0.0)
    await use_fully(url, 0)
    gc.collect()
    before, threads = descriptors(), set(threading.enumerate())

    for cycle in range(1, size(full=500, quick=20)):
        await use_fully(url, cycle)

    gc.collect()
    assert descriptors() == before
    assert set(threading.enumerate()) == threads
    assert not list(Path(f"{path}-wakes").iterdir())
    assert str(path) not in sharing._files
    assert look()["handles"] == 0


async def test_a_refused_opening_leaves_nothing_open(path: Path, url: str) -> None:
    """What opening has opened before it was refused is closed."""
    path.write_bytes(b"no database" * 1000)
    before, threads = descriptors(), set(threading.enumerate())

    for _ in range(20):
        with pytest.raises(Exception, match="not an SQLite database"):
            await open_store(url)

    assert descriptors() == before
    for thread in set(threading.enumerate()) - threads:  # one that has answered needs a moment to end
        thread.join(5)
    assert set(threading.enumerate()) == threads


async def test_a_closed_store_refuses_everything(url: str) -> None:
    """Nothing works on a closed store, and it says so."""
    store = await open_store(url)
    watch = store.watch(key("waiting"))
    await watch.__aenter__()
    waiting = asyncio.create_task(watch.wait())
    await asyncio.sleep(0)
    await store.aclose()

    with pytest.raises(StoreClosedError):
        await store.read(key("any"))
    with pytest.raises(StoreClosedError):
        await store.commit(Put(key("any"), b""))
    with pytest.raises(StoreClosedError):
        store.watch(key("any"))
    hint = await asyncio.wait_for(waiting, 5)
    assert hint is not None
    assert not hint.complete


async def test_closing_waits_for_commits_that_were_asked_for(url: str) -> None:
    """What was asked for before closing is written, and answered."""
    store = await open_store(url)
    commits = [asyncio.create_task(store.commit(Put(key("asked", n), b""))) for n in range(50)]
    await asyncio.sleep(0)

    await store.aclose()

    assert len(await asyncio.gather(*commits)) == 50
