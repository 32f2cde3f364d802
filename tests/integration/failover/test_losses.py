"""Set-ups that may lose commits are named when they are opened, and a loss can be accepted."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import standfast as sf
from standfast.errors import StoreRewoundError
from standfast.events import StoreNotDurable
from standfast.stores.url import open_store
from tests.integration.cli.programs import answer
from tests.integration.faults.program import insistently
from tests.services import replicated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractContextManager

    from standfast.events import Event
    from standfast.stores import GroupedStore
    from tests.services.replicated import Group

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(60)]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[tuple[GroupedStore, list[str]]]:
    """Open a store; also return what was told of what it may lose."""
    told: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, StoreNotDurable):
            told.append(event.problem)

    store = await open_store(url, hooks=[hear])
    try:
        yield store, told
    finally:
        await store.aclose()


@pytest.mark.parametrize(
    ("make", "options", "setting"),
    [
        (lambda: replicated.postgresql(synchronous=False), "", "synchronous_standby_names"),
        (replicated.postgresql, "", ""),
        (replicated.valkey, "", "?replicas=2"),
        (replicated.valkey, "?replicas=1", "waits for 1: "),
        (replicated.valkey, "?replicas=2", ""),
        (lambda: replicated.mariadb(semi_sync=False), "", "rpl_semi_sync_master_enabled"),
        (replicated.mariadb, "", ""),
        (replicated.mongodb, "", ""),
    ],
    ids=["asynchronous", "synchronous", "valkey", "replicas=1", "replicas=2", "mariadb", "semi-synchronous", "mongodb"],
)
async def test_what_a_failover_may_lose_is_named_when_a_store_is_opened(
    make: Callable[[], AbstractContextManager[Group]], options: str, setting: str
) -> None:
    """In words, with the setting that prevents it; nothing is said where nothing can get lost."""
    with make() as servers:
        async with opened(f"{servers.url}{options}") as (store, told):
            assert store.capabilities.failover_loss == "".join(told)
            assert setting in store.capabilities.failover_loss
            assert bool(told) == bool(setting)


@pytest.mark.filterwarnings("ignore::standfast.stores.redis.NotDurableWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: replicated.postgresql(synchronous=False),
        replicated.valkey,
        lambda: replicated.mariadb(semi_sync=False),
    ],
    ids=["postgresql", "valkey", "mariadb"],
)
async def test_an_accepted_loss_moves_fences_beyond_what_was_seen(
    make: Callable[[], AbstractContextManager[Group]],
) -> None:
    """Also of a lock whose last holders are among what was lost; then processes take part again."""
    with make() as servers:
        space = await sf.open(f"{servers.url}?timeout=2s", lease=5)

        async def take() -> int:
            async with space.mutex("a").hold() as hold:
                return hold.fence

        # in tasks of their own: a release may be among what is lost, and then this task would seem to hold it
        first = await asyncio.create_task(take())
        servers.lag()
        highest = max([await asyncio.create_task(take()) for _ in range(20)])
        servers.primary.kill()
        servers.part()
        await asyncio.to_thread(servers.promote, servers.members[-1])
        with pytest.raises(StoreRewoundError):
            await insistently(lambda: space.read(space.key("a")))
        await space.aclose()

        code, said = await asyncio.to_thread(answer, servers.url, "accept-loss", "--yes", "--json")

        assert code == 0
        above = json.loads(said)["above"]
        async with await sf.open(f"{servers.url}?timeout=2s", lease=5) as again, again.mutex("a").hold() as hold:
            assert hold.fence > above > highest > first


async def test_a_user_without_rights_opens_a_replicated_server() -> None:
    """What it may not see of replication is not needed."""
    with replicated.postgresql(synchronous=False) as servers:
        store = await open_store(servers.url)
        await store.aclose()
        with psycopg.connect(servers.primary.url, autocommit=True) as connection:
            connection.execute("create role app login password 'app'")
            grant: Any = "select standfast.grant_to('app')"
            connection.execute(grant)
        plain = servers.url.partition("//")[2].partition("@")[2]
        async with opened(f"postgresql://app:app@{plain}?migrate=false") as (opened_store, told):
            assert "synchronous_standby_names" in opened_store.capabilities.failover_loss
            assert told
