"""Servers that die, freeze and come back: nothing is lost or doubled, and hints arrive again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put

if TYPE_CHECKING:
    import redis.asyncio

    from tests.integration.redis.conftest import Open
    from tests.services.server import Server

pytestmark = pytest.mark.services

KEY = RecordKey("space", "a")


async def test_a_commit_after_a_restart_goes_through(server: Server, open_it: Open) -> None:
    """The old connections are dead; the commit is settled and done, once."""
    store = await open_it()
    await store.commit(Put(KEY, b"1"))
    server.restart()

    assert isinstance(await store.commit(Put(RecordKey("space", "b"), b"2")), Commit)


async def test_a_server_that_is_down_is_unavailable_and_comes_back(server: Server, open_it: Open) -> None:
    """Within the time limit, and with nothing written."""
    store = await open_it(timeout="500ms")
    server.kill()

    with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
        await store.commit(Put(KEY, b"1"))
    server.restart()

    async with asyncio.timeout(10):
        while True:
            try:
                assert (await store.read(KEY)).get(KEY) is None
            except StoreUnavailableError:
                continue
            break


async def test_a_frozen_server_is_given_up_and_what_it_did_is_found_out(server: Server, open_it: Open) -> None:
    """The commit that got no answer is settled when the server goes on, one way or the other."""
    store = await open_it(timeout="200ms", connect_timeout="200ms")
    await store.commit(Put(KEY, b"1"))
    server.stop()
    try:
        with pytest.raises(OutcomeUnknownError) as unknown:
            await store.commit(Put(RecordKey("space", "b"), b"2"))
    finally:
        server.cont()

    async with asyncio.timeout(10):
        while True:
            try:
                settled = await store.settle(unknown.value.attempt)
            except StoreUnavailableError:
                continue
            break
    found = (await store.read(RecordKey("space", "b"))).get(RecordKey("space", "b"))
    assert (settled is None) == (found is None)


async def test_a_cancelled_caller_leaks_no_connection(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """Reads that are given up half-way leave the pool as it was."""
    store = await open_it(pool=2)
    for _ in range(20):
        read = asyncio.create_task(store.scan(*RecordKey("space").within(), limit=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        read.cancel()
        await asyncio.wait({read})

    await asyncio.gather(*(store.scan(*RecordKey("space").within(), limit=1) for _ in range(10)))

    assert len(await admin.client_list()) < 10


async def test_hints_arrive_again_after_a_restart(server: Server, open_it: Open) -> None:
    """The listening connection is opened anew and everybody is told to look."""
    watcher, writer = await open_it(), await open_it()
    async with watcher.watch(KEY) as watch:
        await watch.wait(2)
        server.restart()

        assert await watch.wait(10) is not None
        await writer.commit(Put(KEY, b"1"))
        async with asyncio.timeout(10):
            while KEY not in (hint.about if (hint := await watch.wait()) else ()):
                pass


async def test_a_hint_arrives_at_once(open_it: Open) -> None:
    """It is published with the commit, not found by the slow check."""
    watcher, writer = await open_it(), await open_it()
    await writer.commit(Put(RecordKey("space", "first"), b""))
    async with watcher.watch(KEY) as watch:
        loop = asyncio.get_running_loop()
        while await watch.wait(1.2) is not None:  # the slow check looks once, when it begins
            pass
        for number in range(3):
            version = (await writer.read(KEY)).version(KEY)
            started = loop.time()
            await writer.commit(Put(KEY, b"%d" % number, version))
            hint = await watch.wait(5)

            assert hint is not None
            assert hint.about == {KEY}
            assert loop.time() - started < 0.5
