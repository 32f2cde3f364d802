"""A cluster: each namespace lies on one node, and is found there when it moves."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from standfast.errors import OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Alternative, Append, Commit, MoveFirst, Present, Put, Stamped
from standfast.stores.redis.scripts import RedisKeys
from standfast.stores.url import open_store
from tests.integration.redis.clusters import SLOTS, address, cluster, unlock

if TYPE_CHECKING:
    from standfast.stores import GroupedStore
    from tests.services.server import Server

pytestmark = pytest.mark.services


def space_on(node: int, prefix: str, nodes: int = 3) -> str:
    """Return a namespace whose slot that node has."""
    for number in range(1_000):
        slot = RedisKeys(RecordKey(f"s{number}"), prefix, 0, one_slot=True).slot
        if SLOTS * node // nodes <= slot < SLOTS * (node + 1) // nodes:
            return f"s{number}"
    raise AssertionError


async def everywhere(servers: list[Server], *command: str | int) -> list[str]:
    """Send a command to all nodes."""
    async with AsyncExitStack() as stack:
        places = [address([server]) for server in servers]
        clients: list[Any] = [await stack.enter_async_context(redis.asyncio.Redis.from_url(each)) for each in places]
        return [(await client.execute_command(*command)).decode() for client in clients]


async def put(store: GroupedStore, *parts: str) -> None:
    """Create a record."""
    assert isinstance(await store.commit(Put(RecordKey(*parts), b"")), Commit)


async def test_a_cluster_serves_each_namespace_from_its_node(prefix: str) -> None:
    """Commits, reads, scans and hints, of namespaces on every node, whichever node is named."""
    async with cluster() as servers, AsyncExitStack() as stack:
        store = await open_store(f"{address(servers[:1])}?prefix={prefix}")
        stack.push_async_callback(store.aclose)
        other = await open_store(f"{address(servers[1:])}?prefix={prefix}")
        stack.push_async_callback(other.aclose)
        for node in range(3):
            name = space_on(node, prefix)
            async with other.watch(RecordKey(name)) as watch:
                await put(store, name, "a")
                assert await watch.wait(10) is not None
            assert list((await other.read(RecordKey(name, "a"))).records) == [RecordKey(name, "a")]
            assert len((await other.scan(*RecordKey(name).within(), limit=5)).records) == 1

        await _follows_a_slot_that_moves(servers, store, prefix)
        await _goes_on_without_a_node(servers, store, prefix)


async def _follows_a_slot_that_moves(servers: list[Server], store: GroupedStore, prefix: str) -> None:
    """While its keys are on their way nothing is written, and when it has moved it is found at once."""
    name = f"{space_on(0, prefix)}-moving"
    while not RedisKeys(RecordKey(name), prefix, 0, one_slot=True).slot < SLOTS // 3:
        name += "-"
    slot = RedisKeys(RecordKey(name), prefix, 0, one_slot=True).slot
    ids = await everywhere(servers, "CLUSTER", "MYID")
    await everywhere(servers[1:2], "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
    await everywhere(servers[:1], "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])

    with pytest.raises(StoreUnavailableError, match="moved"):
        await put(store, name, "while it moves")
    await everywhere(servers[1::-1], "CLUSTER", "SETSLOT", slot, "NODE", ids[1])
    await put(store, name, "when it has moved")

    assert len((await store.scan(*RecordKey(name).within(), limit=5)).records) == 1


async def _goes_on_without_a_node(servers: list[Server], store: GroupedStore, prefix: str) -> None:
    """What the lost node had is unavailable, the rest goes on; and when it is back, so is the rest."""
    servers[2].kill()
    lost = RecordKey(space_on(2, prefix), "b")

    with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
        await store.commit(Put(lost, b""))
    assert len((await store.scan(*RecordKey(space_on(1, prefix)).within(), limit=5)).records) == 1
    servers[2].restart()
    await unlock(servers[2])

    async with asyncio.timeout(20):
        while True:
            try:
                await store.read(lost)
            except StoreUnavailableError:
                continue
            break


async def test_an_attempt_is_closed_on_the_node_of_its_namespace_by_any_handle(prefix: str) -> None:
    """Its name says which node: a handle that never sent it can see to it that it never lands."""
    async with cluster() as servers, AsyncExitStack() as stack:
        store = await open_store(f"{address(servers[:1])}?prefix={prefix}")
        stack.push_async_callback(store.aclose)
        for node in range(3):
            namespace = RecordKey(space_on(node, prefix), "a").namespace.hex()
            assert await store.settle(f"{uuid.uuid4()}.1@{namespace}/0") is None


async def test_a_cluster_makes_choices_where_the_namespace_lies(prefix: str) -> None:
    """On every node, and the one who waits elsewhere is told."""
    async with cluster() as servers, AsyncExitStack() as stack:
        store = await open_store(f"{address(servers[:1])}?prefix={prefix}")
        stack.push_async_callback(store.aclose)
        other = await open_store(f"{address(servers[1:])}?prefix={prefix}")
        stack.push_async_callback(other.aclose)
        for node in range(3):
            key = RecordKey(space_on(node, prefix))
            grant, tickets, inboxes = key.child("grant"), key.child("ticket"), key.child("inbox")
            async with other.watch(inboxes.child("you")) as watch:
                taken: Any = await store.choose(Alternative((Stamped(grant, b"me"),)))
                await other.choose(Alternative((Present(grant), Append(tickets, b"you", RecordKey("you")))))
                passed: Any = await store.choose(Alternative((MoveFirst(tickets, grant, taken.version, inboxes),)))
                async with asyncio.timeout(10):
                    while (heard := await watch.wait()) is None or not heard.moved:
                        pass
                assert heard.moved == (passed.moved,)
