"""MariaDB that fails over: semi-synchronous replication loses nothing, and what is gone is missed aloud."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreRewoundError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.liveness import liveness_of
from standfast.stores.url import open_store
from tests.integration.faults.program import insistently
from tests.services import replicated
from tests.services.relay import port_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.stores import GroupedStore

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(60)]

KEY = RecordKey("space", "a")


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncGenerator[GroupedStore]:
    """Open a store and close it."""
    store = await open_store(f"{url}?timeout=2s")
    try:
        yield store
    finally:
        await store.aclose()


async def test_semi_synchronous_replication_loses_no_acknowledged_commit() -> None:
    """The primary is killed; the handle goes on with the new one, which has everything."""
    with replicated.mariadb() as servers:
        async with opened(servers.url) as store:
            keys = [RecordKey("space", str(number)) for number in range(50)]
            for key in keys:
                assert isinstance(await store.commit(Put(key, b"")), Commit)
            await asyncio.to_thread(servers.primary.kill)
            await asyncio.to_thread(servers.promote, servers.members[1])

            await insistently(lambda: store.commit(Put(KEY, b"on")))
            assert set((await store.read(*keys)).records) == set(keys)


async def test_an_acknowledged_commit_that_a_replica_lacks_is_missed_aloud() -> None:
    """By every handle that came from the one; who opens the store anew goes on."""
    with replicated.mariadb(semi_sync=False) as servers:
        async with opened(servers.url) as store:
            other = await store.another()
            await store.commit(Put(KEY, b"1"))
            replica = servers.members[1].url
            written = await asyncio.to_thread(replicated.sql, servers.primary.url, "SELECT @@gtid_binlog_pos")
            wait = f"SELECT MASTER_GTID_WAIT('{written[0][0]}', 20)"
            assert await asyncio.to_thread(replicated.sql, replica, wait) == [(0,)]
            servers.lag()
            assert isinstance(await store.commit(Put(RecordKey("space", "b"), b"2")), Commit)
            servers.primary.kill()
            servers.part()
            await asyncio.to_thread(servers.promote, servers.members[1])

            with pytest.raises(StoreRewoundError, match="lacks commits that were acknowledged"):
                await insistently(lambda: store.read(KEY))
            with pytest.raises(StoreRewoundError):
                await other.commit(Put(RecordKey("space", "c"), b"3"))
            await other.aclose()
        async with opened(servers.url) as anew:
            assert isinstance(await anew.commit(Put(RecordKey("space", "c"), b"3")), Commit)


async def test_a_primary_that_was_replaced_and_comes_back_is_not_used() -> None:
    """It lacks what its successor acknowledged: that is no loss, but the wrong server."""
    with replicated.mariadb(semi_sync=False) as servers:
        async with opened(servers.url) as store:
            await store.commit(Put(KEY, b"1"))
            old, port = servers.primary, port_of(servers.primary.url)
            written = await asyncio.to_thread(replicated.sql, old.url, "SELECT @@gtid_binlog_pos")
            wait = f"SELECT MASTER_GTID_WAIT('{written[0][0]}', 20)"
            assert await asyncio.to_thread(replicated.sql, servers.members[1].url, wait) == [(0,)]
            await asyncio.to_thread(servers.promote, servers.members[1])
            await insistently(lambda: store.commit(Put(RecordKey("space", "b"), b"2")))
            assert servers.entry is not None
            servers.entry.point_at(port)

            with pytest.raises(StoreUnavailableError, match="was replaced by"):
                await store.commit(Put(RecordKey("space", "c"), b"3"))

            servers.entry.point_at(port_of(servers.primary.url))
            await insistently(lambda: store.commit(Put(RecordKey("space", "c"), b"3")))


async def test_a_url_that_names_all_hosts_finds_the_one_that_takes_writes() -> None:
    """When it is opened, whichever comes first, and after a failover."""
    with replicated.mariadb() as servers:
        first, second = [f"127.0.0.1:{port_of(each.url)}" for each in servers.members]
        url = servers.primary.url.replace(first, f"{second},{first}")
        async with opened(url) as store:
            await store.commit(Put(KEY, b"1"))
            await asyncio.to_thread(servers.primary.kill)
            await asyncio.to_thread(servers.promote, servers.members[1])

            await insistently(lambda: store.commit(Put(RecordKey("space", "b"), b"2")))
            assert KEY in (await store.read(KEY)).records


async def test_deaths_are_seen_at_the_new_primary() -> None:
    """A named lock belongs to one server: after a failover the process has one at the new primary."""
    with replicated.mariadb() as servers:
        async with opened(servers.url) as store:
            before = store.liveness_token()
            proof = liveness_of(before)
            assert proof is not None
            assert await proof.until_attached(5)
            await asyncio.to_thread(servers.primary.kill)
            await asyncio.to_thread(servers.promote, servers.members[1])
            await insistently(lambda: store.commit(Put(KEY, b"on")))

            after = store.liveness_token()

            assert after != before
            proof = liveness_of(after)
            assert proof is not None
            assert await proof.until_attached(5)
