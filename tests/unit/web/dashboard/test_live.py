"""The stream of a page: it says that something changed, and carries nothing else."""

from __future__ import annotations

import asyncio

import standfast as sf
from standfast.web.dashboard.live import Watcher
from tests.unit.web.dashboard.opened import opened


async def test_one_watch_serves_all_streams_of_a_tenant_and_ends_with_the_last() -> None:
    """However many look, the store is watched once."""
    async with sf.open("memory://") as space:
        watcher = Watcher(space)
        async with watcher.look(), watcher.look():
            first = watcher._task
            assert first is not None
            waiting = asyncio.gather(watcher.change(), watcher.change())
            await asyncio.sleep(0)
            watcher.wake()
            await waiting
        assert watcher._task is None
        await asyncio.wait([first])
        assert first.cancelled()


async def test_streams_end_when_the_dashboard_closes() -> None:
    """A server that stops is not held up by open pages."""
    async with opened() as made:
        reading = asyncio.ensure_future(made.get("live"))  # the client reads to the end of the stream
        while not any(each.looking for each in made.dashboard.watchers.values()):  # noqa: ASYNC110 -- no event tells of it
            await asyncio.sleep(0)
        made.dashboard.drain()
        answer = await asyncio.wait_for(reading, 10)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert set(answer.text.split("\n\n")) <= {"retry: 3000", "event: changed\ndata: 1", ""}
