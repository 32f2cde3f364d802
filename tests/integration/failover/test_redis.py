"""Valkey that fails over: what was acknowledged is there or missed aloud, and nothing else counts as lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from standfast.errors import OutcomeUnknownError, StandfastError, StoreRewoundError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from tests.integration.faults.program import insistently
from tests.services import replicated
from tests.services.relay import port_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from standfast.stores import GroupedStore
    from tests.services.replicated import Group
    from tests.services.server import Server

pytestmark = [pytest.mark.services, pytest.mark.heavy]

KEY = RecordKey("space", "a")


@pytest.fixture
def servers() -> Iterator[Group]:
    """A primary with two replicas."""
    with replicated.valkey() as servers:
        yield servers


@asynccontextmanager
async def opened(url: str, **options: object) -> AsyncIterator[GroupedStore]:
    """Open a store with some options and close it."""
    store = await open_store(f"{url}?{'&'.join(f'{name}={value}' for name, value in options.items())}")
    try:
        yield store
    finally:
        await store.aclose()


@pytest.mark.filterwarnings("ignore::standfast.stores.redis.NotDurableWarning")
async def test_a_loss_is_noticed_although_a_commit_was_in_flight(servers: Group) -> None:
    """Settling that commit counts the handle's attempts on, and must not thereby hide those that are gone."""
    async with opened(servers.url, timeout="1s") as store:
        await store.commit(Put(KEY, b"1"))
        await asyncio.to_thread(replicated.until, lambda: has_all(servers), "the replicas have the first commit")
        servers.lag()
        assert isinstance(await store.commit(Put(RecordKey("space", "b"), b"2")), Commit)
        servers.primary.stop()
        with pytest.raises(OutcomeUnknownError) as unknown:
            await store.commit(Put(RecordKey("space", "c"), b"3"))
        servers.part()
        servers.promote(servers.members[1])
        async with opened(servers.url) as other:  # versions are higher than all that were seen
            await insistently(lambda: other.commit(Put(RecordKey("space", "d"), b"4")))

        with pytest.raises(StoreRewoundError):
            await store.settle(unknown.value.attempt)
        with pytest.raises(StoreRewoundError):
            await store.commit(Put(RecordKey("space", "e"), b"5"))


async def test_what_no_replica_had_and_nobody_was_promised_is_no_loss(servers: Group) -> None:
    """With replicas=1 an unanswered commit, and a reader who saw it, do not make the failover look like a loss."""
    async with opened(servers.url, replicas=1, timeout="1s") as store, opened(servers.url, replicas=1) as reader:
        assert isinstance(await store.commit(Put(KEY, b"1")), Commit)
        servers.lag()
        with pytest.raises(OutcomeUnknownError):
            await store.commit(Put(RecordKey("space", "b"), b"2"))
        assert (await reader.read(RecordKey("space", "b"))).get(RecordKey("space", "b")) is not None
        servers.primary.kill()
        servers.part()
        servers.promote(best(servers))
        await asyncio.to_thread(follow, servers)

        await insistently(lambda: store.read(KEY))
        await insistently(lambda: store.commit(Put(RecordKey("space", "c"), b"3")))
        await insistently(lambda: reader.read(KEY))


async def test_a_commit_that_replicas_have_is_there_after_the_failover(servers: Group) -> None:
    """All of them, with the same handle, which goes on by itself."""
    async with opened(servers.url, replicas=1, timeout="1s") as store:
        keys = [RecordKey("space", str(number)) for number in range(50)]
        for key in keys:
            assert isinstance(await store.commit(Put(key, b"")), Commit)
        servers.primary.kill()
        servers.promote(best(servers))
        await asyncio.to_thread(follow, servers)

        await insistently(lambda: store.read(KEY))
        assert set((await store.read(*keys)).records) == set(keys)
        await insistently(lambda: store.commit(Put(KEY, b"on")))


async def test_a_replica_is_not_read_from(servers: Group) -> None:
    """After a failover the address may stand for a server that follows: it is refused, and named."""
    async with opened(servers.url, timeout="1s") as store:
        await store.commit(Put(KEY, b"1"))
        replica = servers.members[1]
        assert servers.entry is not None
        servers.entry.point_at(port_of(replica.url))

        with pytest.raises(StandfastError, match=f"127.0.0.1:{servers.entry.port} is a replica") as refused:
            await store.read(KEY)
        assert isinstance(refused.value, StoreUnavailableError)

        servers.entry.point_at(port_of(servers.primary.url))
        await insistently(lambda: store.read(KEY))


def has_all(servers: Group) -> bool:
    """Return True if both replicas have what the primary has written."""
    return bool(replicated.valkey_ask(servers.primary.url, "WAIT", 2, 1000) == 2)


def best(servers: Group) -> Server:
    """Return the replica that has most."""
    return max(servers.members[1:], key=replicated.valkey_offset)


def follow(servers: Group) -> None:
    """Let the remaining replica follow the new primary."""
    other = next(each for each in servers.members[1:] if each is not servers.primary)
    replicated.valkey_follow(other, servers.primary)
