"""Upgrades and restarts: a failover in the middle of a schema upgrade, and workers that are replaced one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING

import psycopg
import pytest

import standfast as sf
from standfast.errors import StoreError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.postgresql.statements import migrations
from standfast.stores.url import open_store
from tests.integration.faults.program import insistently
from tests.services import replicated

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from standfast.stores import GroupedStore
    from tests.services.replicated import Group

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(90)]


@pytest.mark.parametrize("make", [replicated.postgresql, replicated.mariadb], ids=["postgresql", "mariadb"])
async def test_a_failover_in_the_middle_of_a_schema_upgrade_leaves_nothing_half_done(
    make: Callable[[], AbstractContextManager[Group]],
) -> None:
    """The upgrade waits for a replica that lacks it when the primary is lost; the next one who opens does it anew."""
    with make() as servers:
        servers.lag()
        upgrade = asyncio.create_task(open_store(f"{servers.url}?timeout=5s"))
        await asyncio.to_thread(replicated.until, lambda: is_upgrading(servers), "the upgrade has begun")
        servers.primary.kill()
        servers.part()
        await asyncio.to_thread(servers.promote, servers.members[1])
        with contextlib.suppress(StoreError):
            await (await upgrade).aclose()

        opened: list[GroupedStore] = []

        async def open_it() -> None:
            opened.append(await open_store(f"{servers.url}?timeout=5s"))

        await insistently(open_it)
        try:
            assert isinstance(await opened[0].commit(Put(RecordKey("space", "a"), b"")), Commit)
            if servers.url.startswith("postgresql"):
                with psycopg.connect(servers.primary.url) as connection:
                    found = connection.execute("select number from standfast.migrations order by number").fetchall()
                assert [row[0] for row in found] == [number for number, _ in migrations("x")]
        finally:
            await opened[0].aclose()


def is_upgrading(servers: Group) -> bool:
    """Return True if the primary has begun to make the tables, of which the replica has none."""
    if servers.url.startswith("postgresql"):
        with psycopg.connect(servers.primary.url, autocommit=True) as connection:
            asked = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' or query ilike '%create table%'"
            row = connection.execute(f"{asked} and pid <> pg_backend_pid()").fetchone()
        return row is not None and row[0] > 0
    asked = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE 'CREATE TABLE%'"
    return bool(replicated.sql(servers.primary.url, asked)[0][0])


async def test_workers_that_are_replaced_one_after_the_other_lose_no_run(redis_url: str) -> None:
    """As a rolling update does it: each leaves in good order when the next one is there."""
    effects: Counter[str] = Counter()

    @sf.step(semantics="at_most_once")
    async def once(name: str) -> None:
        effects[name] += 1
        await asyncio.sleep(0.01)

    @sf.workflow
    async def rolled(ctx: sf.Context, name: str) -> str:
        await ctx.step(once, f"{name} first")
        await ctx.sleep("20ms")
        await ctx.step(once, f"{name} last")
        return name

    def worker() -> sf.Engine:
        return sf.Engine(redis_url, workflows=[rolled], namespace="rolled", lease="5s")

    async with sf.Engine(redis_url, workflows=[rolled], namespace="rolled", drive=False) as client:
        runs = [await client.start(rolled, f"run-{number}") for number in range(60)]
        async with contextlib.AsyncExitStack() as stack:
            current = [await stack.enter_async_context(worker()) for _ in range(2)]
            for _ in range(6):
                following = await stack.enter_async_context(worker())
                await current.pop(0).aclose()
                current.append(following)
                runs.append(await client.start(rolled, f"run-{len(runs)}"))
            results = [await run.result(timeout="60s") for run in runs]

    assert results == [f"run-{number}" for number in range(len(runs))]
    assert set(effects.values()) == {1}
    assert len(effects) == 2 * len(runs)
