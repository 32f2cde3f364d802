"""A store's clock that was set back: a presence that ends too far ahead is brought back to its lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import Instant, later
from standfast.keys import RecordKey
from standfast.locks.heartbeat import PRESENCES, PresenceRecord, end_of
from standfast.stores import Commit, Put
from standfast.stores.memory import open_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.stores import Record, Store

KEY: Final = RecordKey("n", "presence")
PRESENCE: Final = PresenceRecord(1, "host", "program", 30.0)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    """A store with nothing in it."""
    opened = open_memory()
    yield opened
    await opened.aclose()


async def made(store: Store, seconds: float) -> tuple[Record, Instant]:
    """Make a presence that ends in so many seconds; return it, and what time it is."""
    now = (await store.read(KEY)).at
    await store.commit(Put(KEY, PRESENCES.encode(PRESENCE), expires_at=later(now, seconds)))
    seen = await store.read(KEY)
    return seen.records[KEY], seen.at


async def test_an_end_that_no_lease_can_have_is_brought_back(store: Store) -> None:
    """It lies an hour ahead: from now on the presence lasts for one lease, unless its process renews it."""
    record, now = await made(store, 3630)

    assert await end_of(store, record, PRESENCE, now) == later(now, 30)
    assert (await store.read(KEY)).records[KEY].expires_at == later(now, 30)


@pytest.mark.parametrize("seconds", [1, 30, 59])
async def test_an_end_within_reach_is_left_alone(store: Store, seconds: float) -> None:
    """Looking costs no write, also where servers that take turns differ by less than a lease."""
    record, now = await made(store, seconds)

    assert await end_of(store, record, PRESENCE, now) == record.expires_at
    assert (await store.read(KEY)).records[KEY] == record


async def test_a_presence_that_was_renewed_meanwhile_is_left_alone(store: Store) -> None:
    """What it says by now counts, not what was read before."""
    record, now = await made(store, 3630)
    renewed = await store.commit(Put(KEY, record.value, record.version, expires_at=later(now, 29)))

    assert isinstance(renewed, Commit)
    await end_of(store, record, PRESENCE, now)

    assert (await store.read(KEY)).records[KEY].version == renewed.versions[KEY]
