"""Many connections that join, pass on and free at once: nobody is overlooked, and versions only grow."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import asyncpg
import psycopg
import psycopg.sql
import pytest

import standfast
from standfast.stores.url import open_store
from tests.integration.alternatives.mutex import Line
from tests.sizes import size

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from standfast.space import Space
    from standfast.stores import GroupedStore

    Open = Callable[[], Awaitable[GroupedStore]]

pytestmark = pytest.mark.services

SERVERS = ["postgresql", "redis", "redis7", "sqlite"]


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address where nothing is yet."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    name, server = f"t{uuid.uuid4().hex[:12]}", str(request.getfixturevalue(f"{request.param}_url"))
    if request.param == "postgresql":  # a database of its own: deadlocks are counted by database
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return f"{server.rpartition('/')[0]}/{name}"
    return f"{server}?prefix={name}"


@pytest.fixture
async def open_it(url: str) -> AsyncIterator[Open]:
    """Opens handles, each with connections of its own."""
    async with AsyncExitStack() as opened:

        async def open_one() -> GroupedStore:
            store = await open_store(url)
            opened.push_async_callback(store.aclose)
            return store

        yield open_one


@pytest.mark.parametrize("crowd", [2, 3, 12])
async def test_nobody_who_joins_while_the_line_is_freed_is_overlooked(open_it: Open, crowd: int) -> None:
    """Each gets its turn every time, one at a time, with growing fences, in the order of the tickets."""
    line, rounds = Line("one"), size(full=400, quick=40) // crowd + 10
    stores = [await open_it() for _ in range(crowd)]

    async with asyncio.timeout(120):
        await asyncio.gather(
            *(line.contend(store, f"p{n:02}", rounds, n, crowd=crowd) for n, store in enumerate(stores))
        )

    assert len(line.fences) == crowd * rounds
    assert line.found_free == line.freed
    assert not (await stores[0].scan(*line.tickets.within(), limit=5)).records
    assert (await stores[0].read(line.grant, line.head)).records == {}
    assert line.found_free > 1, "the race that this is about did not come up"


async def test_choices_of_many_lines_share_transactions_and_do_not_wait_in_a_circle(open_it: Open, url: str) -> None:
    """Several tasks of each handle are in several lines at once."""
    lines, rounds = [Line(f"{n}") for n in range(4)], size(full=60, quick=10)
    stores = [await open_it() for _ in range(4)]
    before = await _deadlocks(url)

    async with asyncio.timeout(120):
        await asyncio.gather(
            *(
                line.contend(store, f"p{n}.{m}.{k}", rounds, 100 * n + 10 * m + k)
                for n, store in enumerate(stores)
                for m, line in enumerate(lines)
                for k in range(2)
            )
        )

    assert all(len(line.fences) == 8 * rounds for line in lines)
    assert await _deadlocks(url) == before


@pytest.mark.parametrize(("permits", "tasks"), [(1, 1), (3, 1), (6, 1), (30, 1), (4, 3), (20, 6)])
async def test_slots_are_taken_and_given_back_by_many_at_once(url: str, permits: int, tasks: int) -> None:
    """No more hold than there are permits, each has a fence of its own, and nothing is left; none waits in a circle."""
    rounds, spaces = size(full=60, quick=8), 6
    async with AsyncExitStack() as opened:
        crowd = [await opened.enter_async_context(await standfast.open(url)) for _ in range(spaces)]
        before, holding, fences = await _deadlocks(url), 0, list[int]()

        async def hold(space: Space, number: int) -> None:
            nonlocal holding
            for turn in range(rounds):
                async with space.semaphore("pool", permits=permits).hold() as held:
                    holding += 1
                    assert holding <= permits
                    fences.append(held.fence)
                    if (number + turn) % 3:
                        await asyncio.sleep(0)
                    holding -= 1

        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            for number in range(spaces * tasks):
                group.create_task(hold(crowd[number % spaces], number))
        space = crowd[0]
        left = [await space.scan(*space.key(kind).within(), limit=5) for kind in ("line", "gate", "grant", "queued")]
        deadlocks = await _deadlocks(url)

    assert [list(page.records) for page in left] == [[]] * 4
    assert len(set(fences)) == rounds * spaces * tasks
    assert deadlocks == before


async def _deadlocks(url: str) -> int:
    if not url.startswith("postgresql"):
        return 0
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(await connection.fetchval(query) or 0)
    finally:
        await connection.close()
