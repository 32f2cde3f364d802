"""The stream of a page: it says that something changed, and carries nothing else."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from starlette.responses import Response

import standfast as sf
from standfast.locks.survey import read_lines
from standfast.web.dashboard import screens
from standfast.web.dashboard.live import SharedParts, Watcher
from standfast.workflows.lanes import one_look, parts_below
from tests.unit.web.dashboard.opened import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.locks.survey import LinePage
    from standfast.web.dashboard import Dashboard


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


async def test_what_many_fetch_after_a_change_is_made_once() -> None:
    """A hundred viewers of one page cost the store what one does."""
    parts, made = SharedParts(), list[int]()

    async def make() -> Response:
        made.append(len(made))
        await asyncio.sleep(0)
        return Response(f"part {made[-1]}")

    answers = await asyncio.gather(*(parts.get("page", lambda: 1, make) for _ in range(100)))
    assert {each.body for each in answers} == {b"part 0"}
    assert (await parts.get("page", lambda: 1, make)).body == b"part 0"
    assert (await parts.get("other", lambda: 1, make)).body == b"part 1"


async def test_after_a_change_all_that_ask_wait_for_one_part_that_is_newer_than_their_question() -> None:
    """Two parts of a page are not begun within a pause, and what is shown is never older than the change."""
    parts, changes, begun = SharedParts(), [1], list[float]()
    loop = asyncio.get_running_loop()

    async def make() -> Response:
        begun.append(loop.time())
        return Response(f"after {changes[0]}")

    assert (await parts.get("page", lambda: changes[0], make, 0.05)).body == b"after 1"
    changes[0] = 2
    asked = [asyncio.ensure_future(parts.get("page", lambda: changes[0], make, 0.05)) for _ in range(10)]
    await asyncio.sleep(0)
    changes[0] = 3  # it is not begun yet, so it shows this one too
    asked.append(asyncio.ensure_future(parts.get("page", lambda: changes[0], make, 0.05)))
    assert {each.body for each in await asyncio.gather(*asked)} == {b"after 3"}
    assert len(begun) == 2
    assert begun[1] - begun[0] >= 0.05


@asynccontextmanager
async def served(dashboard: Dashboard) -> AsyncIterator[str]:
    """Serve a dashboard on a port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(dashboard, log_level="warning", lifespan="off"))
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            dashboard.drain()
            server.should_exit = True
            await serving


async def follow(http: httpx.AsyncClient, page: str, shown: dict[str, asyncio.Event]) -> None:
    """Do what our script does: fetch a page whenever the stream says so; note which texts were shown."""
    async with http.stream("GET", "/live", timeout=None) as stream:
        async for line in stream.aiter_lines():
            if line == "event: changed":
                part = (await http.get(page, headers={"standfast-part": "main"})).text
                for text in [text for text in shown if text in part]:
                    shown[text].set()


async def test_a_page_that_takes_long_shows_a_change_within_two_seconds_while_all_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a real stream. What takes long to make, as on a slow machine, is not shown for longer because of that."""

    async def slow(*args: Any, **options: Any) -> LinePage:
        await asyncio.sleep(0.2)
        return await read_lines(*args, **options)

    monkeypatch.setattr(screens, "read_lines", slow)
    names = [f"marked-{number}" for number in range(3)]
    loop, shown = asyncio.get_running_loop(), {name: asyncio.Event() for name in names}
    async with opened() as made, served(made.dashboard) as address, httpx.AsyncClient(base_url=address) as http:
        space = made.engine.space

        async def change() -> None:
            while True:
                async with space.mutex("churn").hold():
                    await asyncio.sleep(0.01)

        tasks = [asyncio.ensure_future(each) for each in (change(), follow(http, "/lines", shown))]
        try:
            async with asyncio.timeout(20), AsyncExitStack() as held:
                for name in names:
                    await held.enter_async_context(space.mutex(name).hold())
                    taken = loop.time()
                    await shown[name].wait()
                    assert loop.time() - taken < 2.5
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_page_asks_once_which_lanes_there_are() -> None:
    """Though it makes many lists and counts of them."""
    async with opened() as made:
        space = made.engine.space
        assert await parts_below(space, space.key("runs", "pending")) == []
        with one_look():
            before = await parts_below(space, space.key("runs", "pending"))
            await made.engine.start("posting", 1, id="later", delay="1 hour")
            assert await parts_below(space, space.key("runs", "pending")) is before
        assert await parts_below(space, space.key("runs", "pending")) == ["posting"]


async def test_a_part_that_could_not_be_made_is_not_kept() -> None:
    """All that waited for it are told, and the next one tries again."""
    parts = SharedParts()
    answers: list[Response | ValueError] = [ValueError("no"), Response("part")]

    async def make() -> Response:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(ValueError, match="no"):
        await parts.get("page", lambda: 1, make)
    assert (await parts.get("page", lambda: 1, make)).body == b"part"


async def test_a_viewer_is_never_given_the_part_of_one_who_may_more() -> None:
    """What is shared depends on the page, the tenant and the rights; a page that is opened is always read anew."""
    async with opened() as made:
        await made.engine.start("posting", {"customer": "Ada"}, id="r1")
        watcher = made.dashboard.watchers.setdefault(made.engine.space, Watcher(made.engine.space))
        watcher.wake()
        query, part = {"id": "r1", "values": "shown"}, {"standfast-part": "main"}
        assert "Ada" in (await made.http.get("/run", params=query, headers=part)).text
        made.level = "read"
        assert "Ada" not in (await made.http.get("/run", params=query, headers=part)).text
        made.who = sf.Principal("acme", "eve")
        assert (await made.http.get("/run", params=query, headers=part)).status_code == 404
        made.who, made.level = sf.Principal("default", "ann"), "all"
        shown = await made.http.get("/runs", headers=part)
        await made.engine.start("posting", {"customer": "Ada"}, id="r2")
        assert (await made.http.get("/runs", headers=part)).text == shown.text
        assert "id=r2" in (await made.get("runs")).text
