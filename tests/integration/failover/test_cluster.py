"""A Valkey cluster of three and three that loses a primary."""

from __future__ import annotations

import asyncio

import pytest

from standfast.errors import OutcomeUnknownError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests.integration.faults.program import insistently
from tests.services import replicated
from tests.services.relay import port_of

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(90)]


async def test_a_primary_without_a_replica_acknowledges_nothing_unless_that_was_asked_for() -> None:
    """With replicas=1 the error names the node; other namespaces go on, and so does this one when a replica is back."""
    with replicated.cluster() as servers:
        servers.aim("lost")
        other = other_namespace(servers)
        store = await open_store(f"{servers.url}?replicas=1&timeout=2s")
        elsewhere = await store.another()
        careless = await open_store(f"{servers.url}?timeout=2s")
        try:
            await store.commit(Put(RecordKey("lost", "a"), b"1"))
            old = servers.primary
            await asyncio.to_thread(old.kill)
            await asyncio.to_thread(servers.take_over)
            await insistently(lambda: store.read(RecordKey("lost", "a")))

            place = f"127.0.0.1:{port_of(servers.primary.url)}"
            with pytest.raises(OutcomeUnknownError, match=f"0 of 1 replicas have acknowledged a write to {place}"):
                await store.commit(Put(RecordKey("lost", "b"), b"2"))
            assert isinstance(await elsewhere.commit(Put(RecordKey(other, "a"), b"")), Commit)
            await insistently(lambda: careless.commit(Put(RecordKey("lost", "c"), b"3")))

            await asyncio.to_thread(old.restart)
            await insistently(lambda: store.commit(Put(RecordKey("lost", "d"), b"4")))
            assert len((await store.scan(*RecordKey("lost").within(), limit=5)).records) == 4
        finally:
            for each in (store, elsewhere, careless):
                await each.aclose()


async def test_a_cluster_is_opened_by_any_of_its_nodes() -> None:
    """Also by replicas alone: after a failover the nodes that the URL names first may be just that."""
    with replicated.cluster() as servers:
        replicas = servers.url.split(",")[3:]
        user = servers.url.partition("@")[0]
        store = await open_store(f"{user}@{','.join(replicas)}?replicas=1")
        try:
            assert isinstance(await store.commit(Put(RecordKey("a", "b"), b"")), Commit)
            assert not store.capabilities.failover_loss
        finally:
            await store.aclose()


def other_namespace(servers: replicated.ClusterGroup) -> str:
    """Return a namespace that lies on another node than the one that is aimed at."""
    aimed = servers.primary
    for name in map(str, range(100)):
        servers.aim(name)
        if servers.primary is not aimed:
            servers.aim("lost")
            return name
    raise AssertionError
