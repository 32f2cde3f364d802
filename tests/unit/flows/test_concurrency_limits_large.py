"""Limits of actions that more requests hold than a line lists: they are counted, and fall with their process."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import TooManyRequestsError
from standfast.flows.concurrency_limits import SharedPermits
from standfast.ids import new_id
from standfast.locks.entry import LIMIT
from standfast.locks.inspect import explain
from standfast.locks.survey import read_lines
from tests.fork_server import forked_exec
from tests.sizes import size

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.flows.concurrency_limits import Permit

SOON = 60.0
MANY = size(full=1_000, quick=120)

ADDRESS = (LIMIT, "room", "name")

PROGRAM = f"""
import asyncio, sys
import standfast as sf
from standfast.flows.concurrency_limits import SharedPermits

async def main():
    async with sf.open(sys.argv[1]) as space:
        permits = SharedPermits(space, {ADDRESS!r}, "the limit", {MANY}, "f.work", lambda: None)
        await asyncio.gather(*(permits.take(0) for _ in range(int(sys.argv[2]))))
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a new store that several spaces can share."""
    return f"memory://{new_id()}" if request.param == "memory" else f"sqlite:///{tmp_path}/store.db"


def permits_of(space: sf.Space, most: int = MANY) -> SharedPermits:
    """Return the permits of one limit, as one process has them."""
    return SharedPermits(space, ADDRESS, "the limit", most, "f.work", lambda: None)


async def taken(permits: SharedPermits, count: int) -> list[Permit]:
    """Take some permits at once."""
    async with asyncio.timeout(SOON):
        return await asyncio.gather(*(permits.take(0) for _ in range(count)))


async def holding(space: sf.Space) -> int:
    """Count those that hold the limit."""
    return sum(each.holders for each in (await read_lines(space, LIMIT, "room")).lines)


async def until_none_holds(space: sf.Space) -> None:
    """Wait until none holds the limit, and no record of one is left."""
    async with asyncio.timeout(SOON):
        while (await space.scan(*space.key("held").within(), limit=1)).records or await holding(space):  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0.01)


async def given_back(permits: SharedPermits, some: list[Permit]) -> None:
    """Give permits back, and wait until that is done."""
    for each in some:
        permits.give_back(each)
    await permits.aclose()


async def test_very_many_requests_run_at_a_time_under_a_limit(url: str) -> None:
    """More than one record could list: all of them run, one more is refused, and nothing is left."""
    flow, may_end, begun = sf.Flow("f"), asyncio.Event(), list[str]()

    @flow.action(limits=sf.Limit(MANY, on_limit="reject", name="room"))
    async def work(request: sf.Request) -> str:
        begun.append(request.id)
        await may_end.wait()
        return request.id

    async with sf.Dispatcher(url, [flow], arbiter="shared") as server:
        call = sf.Call(flow="f", action="work")
        handles = await asyncio.gather(*(server.dispatch(call) for _ in range(MANY)))
        with pytest.raises(TooManyRequestsError):
            await server.dispatch(call)
        assert len(begun) == MANY
        assert await holding(server.engine.space) == MANY
        may_end.set()
        assert [await each.result(timeout=SOON) for each in handles] == [each.id for each in handles]
        await until_none_holds(server.engine.space)


async def test_a_limit_in_memory_may_be_as_large() -> None:
    """The sole server needs no line."""
    flow = sf.Flow("f")

    @flow.action(limits=sf.Limit(100_000))
    async def work(_request: sf.Request) -> str:
        return "done"

    async with sf.Dispatcher("memory://", [flow], arbiter="local") as server:
        assert await (await server.dispatch(sf.Call(flow="f", action="work"))).result(timeout=SOON) == "done"


async def test_the_permits_of_a_killed_process_come_back(tmp_path: Path) -> None:
    """All at once, as soon as the store sees that it died; no more than the limit run, and no record is left."""
    url, theirs = f"sqlite:///{tmp_path / 'store.db'}", MANY * 6 // 10
    child = await forked_exec(sys.executable, "-c", PROGRAM, url, str(theirs), stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        async with asyncio.timeout(SOON):
            assert await child.stdout.readline() == b"ready\n"
        async with sf.open(url, lease="30s") as space:
            permits = permits_of(space)
            own = await taken(permits, MANY - theirs)
            waiting = [asyncio.ensure_future(permits.take(0)) for _ in range(theirs // 2)]
            async with asyncio.timeout(SOON):
                while (await explain(space, ADDRESS)).waiting < theirs // 2:  # noqa: ASYNC110 -- another task enters
                    await asyncio.sleep(0)
            assert await holding(space) == MANY
            assert not any(each.done() for each in waiting)
            child.kill()
            async with asyncio.timeout(20):  # by its lease it would be 30 seconds
                own += await asyncio.gather(*waiting)
            assert await holding(space) == len(own)
            await given_back(permits, own)
            await until_none_holds(space)
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_two_processes_share_a_large_limit(url: str) -> None:
    """Each gets what the other gives back, in the order in which they asked."""
    async with sf.open(url) as one, sf.open(url) as other:
        first, second = permits_of(one, 40), permits_of(other, 40)
        held = await taken(first, 40)
        waiting = [asyncio.ensure_future(second.take(0)) for _ in range(30)]
        async with asyncio.timeout(SOON):
            while (await explain(one, ADDRESS)).waiting < 30:  # noqa: ASYNC110 -- another task enters
                await asyncio.sleep(0)
        await given_back(first, held[10:])
        async with asyncio.timeout(SOON):
            got = await asyncio.gather(*waiting)
        told = await explain(one, ADDRESS)
        assert (told.holding, told.waiting) == (40, 0)
        await given_back(first, held[:10])
        await given_back(second, got)
        assert await holding(one) == 0


async def test_a_request_that_is_only_counted_is_evicted_by_an_operator(url: str) -> None:
    """Its process is told, its place goes to the next, and giving it back takes none of another."""
    async with sf.open(url) as one, sf.open(url) as other:
        permits = permits_of(one, 12)
        held = await taken(permits, 12)
        last = held[-1]
        assert last is not None
        assert last._hold is not None
        told = await explain(other, ADDRESS)
        entry = next(each for each in told.holders if each.fence == last._hold.fence and each.slot is None)
        assert await other._lines.evict(ADDRESS, permits._spec, entry.entry)
        async with asyncio.timeout(SOON):
            await last._hold.lost.wait()
        assert await holding(one) == 11
        await given_back(permits, [last])
        assert await holding(one) == 11
        await given_back(permits, held[:-1])
        assert await holding(one) == 0


async def test_durable_runs_and_requests_are_counted_in_one_line(url: str) -> None:
    """Both have their place in the same limit, whichever of them is listed."""
    flow, may_end, begun = sf.Flow("f"), asyncio.Event(), list[str]()
    room = sf.Limit(24, name="room", ttl=None)

    @flow.action(limits=room)
    async def quick(request: sf.Request) -> None:
        begun.append(request.id)
        await may_end.wait()

    @flow.action(limits=room, durable=True)
    async def lasting(request: sf.Request) -> None:
        begun.append(request.id)
        await may_end.wait()

    async with sf.Dispatcher(url, [flow], arbiter="shared") as server:
        handles = []
        for number in range(30):
            call = sf.Call(flow="f", action=("quick", "lasting")[number % 2])
            handles.append(await server.dispatch(call))
        async with asyncio.timeout(SOON):
            while len(begun) < 24:  # noqa: ASYNC110 -- nothing tells of it
                await asyncio.sleep(0)
        told = await explain(server.engine.space, ADDRESS)
        assert told.holding == len(begun) == 24
        may_end.set()
        for each in handles:
            await each.result(timeout=SOON)
        await until_none_holds(server.engine.space)
    assert len(set(begun)) == 30
