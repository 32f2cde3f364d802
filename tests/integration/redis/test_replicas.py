"""Commits that wait for replicas: answered when those have them, and otherwise of unknown outcome."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

from standfast.errors import OutcomeUnknownError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from tests import services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.redis.conftest import Open
    from tests.services.server import Server

pytestmark = pytest.mark.services

KEY = RecordKey("space", "a")


@asynccontextmanager
async def replica_of(server: Server) -> AsyncIterator[redis.asyncio.Redis]:
    """Start a replica and return a client of it when it is in step."""
    secret, place = server.url.partition("//:")[2].removesuffix("/0").split("@")
    following = ["--replicaof", place.replace(":", " "), "--masterauth", secret]
    async with redis.asyncio.Redis.from_url(server.url, socket_timeout=30) as primary:
        await primary.config_set("repl-diskless-sync-delay", 0)
        with services.private("redis", arguments=following) as replica:
            await primary.set("in-step", 1)
            assert await primary.wait(1, 20_000) == 1
            async with redis.asyncio.Redis.from_url(replica.url) as client:
                yield client


async def test_a_commit_is_answered_when_the_replica_has_it(server: Server, open_it: Open, prefix: str) -> None:
    """At that moment it is there."""
    async with replica_of(server) as replica:
        store = await open_it(replicas=1)

        assert isinstance(await store.commit(Put(KEY, b"1")), Commit)

        assert await replica.hexists(f"{{{prefix}:space}}:records", KEY)


async def test_a_commit_that_no_replica_has_is_unknown_until_one_has(server: Server, open_it: Open) -> None:
    """It is not called written while it could still get lost, and nothing new is written before."""
    store = await open_it(replicas=1, timeout="1s")  # in which the server has written it, also on a busy machine
    with pytest.raises(OutcomeUnknownError, match="replicas") as unknown:
        await store.commit(Put(KEY, b"1"))

    async with replica_of(server):
        settled = await store.settle(unknown.value.attempt)

    assert isinstance(settled, Commit)
