"""The stream of a page: it says that something changed, and carries nothing else."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response

import standfast as sf
from standfast.web.dashboard.live import SharedParts, Watcher
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


async def test_what_many_fetch_after_a_change_is_made_once() -> None:
    """A hundred viewers of one page cost the store what one does."""
    parts, made = SharedParts(), list[int]()

    async def make() -> Response:
        made.append(len(made))
        await asyncio.sleep(0)
        return Response(f"part {made[-1]}")

    answers = await asyncio.gather(*(parts.get("page", 1, make) for _ in range(100)))
    assert {each.body for each in answers} == {b"part 0"}
    assert (await parts.get("page", 1, make)).body == b"part 0"
    assert (await parts.get("other", 1, make)).body == b"part 1"


async def test_a_part_is_made_anew_after_a_change_but_a_dear_one_not_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause between two grows with what it takes to make one."""
    parts, now, loop = SharedParts(), [100.0], asyncio.get_running_loop()
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def make() -> Response:
        now[0] += 0.1
        return Response(str(now[0]))

    first = (await parts.get("page", 1, make)).body
    now[0] += 9.9
    assert (await parts.get("page", 2, make)).body == first
    now[0] += 0.2
    assert (await parts.get("page", 2, make)).body != first


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
        await parts.get("page", 1, make)
    assert (await parts.get("page", 1, make)).body == b"part"


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
