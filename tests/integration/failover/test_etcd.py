"""A leader of etcd that is cut off from the other members, while its clients still reach it."""

from __future__ import annotations

import asyncio

import pytest

from standfast.errors import OutcomeUnknownError, StoreUnavailableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from standfast.testing.conformance.workflows.ground import eventually
from tests.services import replicated

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(120)]
KEY = RecordKey("space", "a")


async def test_a_leader_that_is_cut_off_neither_takes_nor_shows_anything() -> None:
    """It is one of three: what the other two have decided since, it does not know, and does not hide."""
    with replicated.etcd() as servers:
        old = servers.primary
        others = servers.url_of(*servers.followers)
        behind, ahead = [
            await open_store(f"{url}?timeout=2s&shortest_lease=2s") for url in (servers.url_of(old), others)
        ]
        try:
            first = await behind.commit(Put(KEY, b"first"))
            assert isinstance(first, Commit)
            await asyncio.to_thread(servers.part_members)
            await asyncio.to_thread(servers.take_over)

            second = await ahead.commit(Put(KEY, b"second", first.versions[KEY]))
            assert isinstance(second, Commit)
            with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
                await behind.commit(Put(RecordKey("space", "b"), b""))
            with pytest.raises(StoreUnavailableError):
                await behind.read(KEY)

            await asyncio.to_thread(servers.join_members)

            async def is_back() -> bool:
                try:
                    seen = await behind.read(KEY)
                except StoreUnavailableError:
                    return False
                assert seen.version(KEY) == second.versions[KEY]
                return True

            await eventually(is_back)
        finally:
            await behind.aclose()
            await ahead.aclose()


async def test_a_handle_that_asks_a_leader_that_is_cut_off_goes_on_with_the_others() -> None:
    """What it was asked first for is asked of the next member, and happens once."""
    with replicated.etcd() as servers:
        old = servers.primary
        store = await open_store(f"{servers.url_of(old, *servers.followers)}?timeout=15s&shortest_lease=2s")
        try:
            assert isinstance(await store.commit(Put(KEY, b"first")), Commit)
            await asyncio.to_thread(servers.part_members)
            for number in range(5):
                assert isinstance(await store.commit(Put(RecordKey("space", str(number)), b"")), Commit)
        finally:
            await store.aclose()
