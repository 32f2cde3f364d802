"""Cancellation: either nothing was written, or the caller learns what was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.stores import Commit, Decided, Put, verdict_of
from standfast.testing.conformance.ground import SOON, Ground, create, increment, value_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey

TICKS = range(12)


async def cancel_after(ticks: int, work: Coroutine[Any, Any, Any]) -> Any:
    """Start ``work``, let it run for some ticks, cancel it, and return its answer or what the cancellation carries."""
    task = asyncio.create_task(work)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    return await truth_of(task)


async def truth_of(task: asyncio.Task[Any]) -> Any:
    """Return the answer of a task, or the verdict that its cancellation carries."""
    try:
        return await task  # not through gather, which makes a cancellation of its own without the verdict
    except asyncio.CancelledError as cancelled:
        return verdict_of(cancelled)


class CancellationCases(Ground):
    """A caller that is cancelled before, during and after its commit."""

    @pytest.mark.parametrize("ticks", TICKS)
    async def test_a_cancelled_commit_tells_the_truth(self, store: Store, key: MakeKey, ticks: int) -> None:
        """It carries its verdict if it was written; without one nothing was, and nothing will be."""
        verdict = await cancel_after(ticks, store.commit(Put(key("a"), b"value")))

        await create(store, key("after"))  # whatever was under way is over by now
        record = (await store.read(key("a"))).get(key("a"))
        if isinstance(verdict, Commit):
            assert record is not None
            assert record.version == verdict.versions[key("a")]
        else:
            assert (verdict, record) == (None, None)

    @pytest.mark.parametrize("ticks", TICKS)
    async def test_a_cancelled_update_tells_the_truth(self, store: Store, key: MakeKey, ticks: int) -> None:
        """Also if others on the same key travel with it."""
        others = [asyncio.create_task(store.update([key("a")], increment(key("a")))) for _ in range(3)]
        verdict = await cancel_after(ticks, store.update([key("a")], increment(key("a"))))
        await asyncio.gather(*others)

        expected = 4 if isinstance(verdict, Decided) else 3
        assert await value_of(store, key("a")) == b"%d" % expected

    async def test_a_commit_that_is_cancelled_at_once_is_withdrawn(self, store: Store, key: MakeKey) -> None:
        """Before it begins, nothing is written."""
        assert await cancel_after(0, store.commit(Put(key("a"), b""))) is None
        await create(store, key("after"))
        assert await value_of(store, key("a")) is None

    @pytest.mark.parametrize("ticks", range(6))
    async def test_a_cancellation_does_not_touch_the_neighbours(self, store: Store, key: MakeKey, ticks: int) -> None:
        """Of twenty commits every second is cancelled; the others happen, and each cancelled one tells the truth."""
        tasks = [asyncio.create_task(store.commit(Put(key(f"{n:02}"), b""))) for n in range(20)]
        for _ in range(ticks):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()

        verdicts = [await truth_of(task) for task in tasks]

        await create(store, key("after"))
        present = (await store.scan(*key().within(), limit=100)).records
        assert [isinstance(each, Commit) for each in verdicts] == [key(f"{n:02}") in present for n in range(20)]
        assert all(isinstance(each, Commit) for each in verdicts[1::2])

    @pytest.mark.parametrize("ticks", [1, 2, 3])
    async def test_a_second_cancellation_does_not_hide_the_verdict(
        self, store: Store, key: MakeKey, ticks: int
    ) -> None:
        """However often a caller is cancelled, it ends with the truth."""
        task = asyncio.create_task(store.commit(Put(key("a"), b"")))
        for _ in range(ticks):
            await asyncio.sleep(0)
            task.cancel()

        verdict = await truth_of(task)

        await create(store, key("after"))
        assert isinstance(verdict, Commit) == (await value_of(store, key("a")) is not None)

    async def test_a_timeout_is_a_cancellation(self, store: Store, key: MakeKey) -> None:
        """A commit under asyncio.timeout ends in time, and the handle goes on."""
        try:
            async with asyncio.timeout(0):
                await store.commit(Put(key("a"), b""))
        except TimeoutError:
            pass

        await create(store, key("after"))

    @pytest.mark.parametrize("ticks", range(4))
    async def test_a_cancelled_read_leaves_the_store_usable(self, store: Store, key: MakeKey, ticks: int) -> None:
        """Reading is harmless to stop."""
        await create(store, key("a"), b"value")
        await cancel_after(ticks, store.read(key("a")))
        await cancel_after(ticks, store.scan(*key().within(), limit=10))

        assert await value_of(store, key("a")) == b"value"

    async def test_a_cancelled_wait_loses_no_hint(self, store: Store, key: MakeKey) -> None:
        """Whoever gives up waiting may wait again on the same watch."""
        if store.capabilities.wakes == "poll":
            pytest.skip("this store sends no hints")
        async with store.watch(key("a")) as watch:
            await cancel_after(3, watch.wait())
            await create(store, key("a"))
            assert await watch.wait(SOON) is not None
