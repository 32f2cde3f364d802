"""A cluster of three Valkey servers."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import redis.asyncio

from tests import services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.services.server import Server

NODES = 3
SLOTS = 16_384


@asynccontextmanager
async def cluster() -> AsyncIterator[list[Server]]:
    """Start three nodes with a third of the slots each, and return them when they agree."""
    async with AsyncExitStack() as stack:
        servers = [stack.enter_context(services.private("redis", arguments=_arguments())) for _ in range(NODES)]
        clients: list[Any] = [
            await stack.enter_async_context(redis.asyncio.Redis.from_url(each.url)) for each in servers
        ]
        for number, client in enumerate(clients):
            first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
            await client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            await client.config_set("cluster-require-full-coverage", "no")
        bus = await clients[0].config_get("cluster-port")
        for client in clients[1:]:
            await client.execute_command("CLUSTER", "MEET", "127.0.0.1", _port(servers[0]), bus["cluster-port"])
        await _until_all_agree(clients)
        for server in servers:
            await unlock(server)
        yield servers


async def unlock(server: Server) -> None:
    """Take the password away: each server was started with one of its own, and a cluster's URL has one for all."""
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.config_set("requirepass", "")


def address(servers: list[Server]) -> str:
    """Return a URL that names all nodes."""
    return f"redis://{','.join(f'127.0.0.1:{_port(each)}' for each in servers)}"


def _port(server: Server) -> int:
    return int(server.url.rpartition(":")[2].partition("/")[0])


def _arguments() -> list[str]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        bus = unused.getsockname()[1]
    return ["--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "2000"]


async def _until_all_agree(clients: list[Any]) -> None:
    async with asyncio.timeout(20):
        while True:
            told = [await client.execute_command("CLUSTER", "INFO") for client in clients]
            if all(f"cluster_known_nodes:{NODES}" in str(each) and "cluster_state:ok" in str(each) for each in told):
                return
            await asyncio.sleep(0.05)
