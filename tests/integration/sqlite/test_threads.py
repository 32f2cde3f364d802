"""Several event loops in several threads of one process, each with a handle of its own on the same file."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from standfast.errors import UsageError
from standfast.stores import Conflict, Put
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.count import increment_folded, plus_one
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import size

if TYPE_CHECKING:
    from standfast.stores import Record, Store
    from tests.integration.sqlite.conftest import Look, Open

COUNTERS = 4


async def increment_guarded(store: Store, counter: int) -> None:
    """Increment a counter by guarded commits until one wins."""
    name = key("guarded", counter)
    record: Record | None = (await store.read(name)).get(name)
    while isinstance(verdict := await store.commit(plus_one(name, record)), Conflict):
        record = verdict.current[name]


async def count(url: str, seed: int, increments: int, ready: threading.Barrier) -> int:
    """Count on a loop and a handle of this thread's own."""
    store = await open_store(url)
    chooser = random.Random(seed)
    ready.wait()
    for _ in range(increments):
        await increment_guarded(store, chooser.randrange(COUNTERS))
        await increment_folded(store, key("folded"))
    await store.aclose()
    return increments


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["auto", "thread", "loop"])
def test_no_update_is_lost_between_threads(url: str, look: Look, mode: str) -> None:
    """Counters that several loops in one process increment end at exactly the number of acknowledged increments."""
    threads, increments = 4, size(full=5_000, quick=200)
    ready = threading.Barrier(threads)
    with ThreadPoolExecutor(threads) as pool:
        shares = [
            pool.submit(asyncio.run, count(f"{url}?commits={mode}", n, increments, ready)) for n in range(threads)
        ]
        acknowledged = sum(share.result() for share in shares)

    records = look()["records"]
    assert int(records["test/folded"][1]) == acknowledged
    assert sum(int(value) for name, (_, value) in records.items() if name.startswith("test/guarded/")) == acknowledged


async def test_a_hint_crosses_from_loop_to_loop(url: str, opened: Open) -> None:
    """A commit on a loop in another thread is heard here at once, naming the key."""
    store = await opened(url)

    async def commit_elsewhere() -> None:
        other = await open_store(url)
        await other.commit(Put(key("hint", "far"), b""))
        await other.aclose()

    async with store.watch(key("hint")) as watch:
        await asyncio.to_thread(asyncio.run, commit_elsewhere())
        hint = await watch.wait(5)

    assert hint is not None
    assert hint.about == {key("hint", "far")}


async def test_a_handle_cannot_be_used_from_another_loop(url: str, opened: Open) -> None:
    """A store belongs to its loop; another one is told so, and nothing is written."""
    store = await opened(url)

    with pytest.raises(UsageError, match="event loop"):
        await asyncio.to_thread(asyncio.run, store.commit(Put(key("wrong"), b"")))

    assert not (await store.read(key("wrong"))).records


async def test_one_handle_closing_leaves_the_others_alone(url: str, opened: Open) -> None:
    """Handles of one process on one file come and go without harm to those that stay."""
    staying = await opened(url)
    for number in range(10):
        passing = await opened(url)
        await passing.commit(Put(key("passing", number), b""))
        await passing.aclose()
        await staying.commit(Put(key("staying", number), b""))

    assert len((await staying.scan(*key().within(), limit=100)).records) == 20
