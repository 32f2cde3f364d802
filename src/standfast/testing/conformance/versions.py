"""Versions: they only grow, so that one can serve as a fencing token."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from standfast.clock import later
from standfast.stores import Delete, Put
from standfast.stores.protocol import MAX_VERSION
from standfast.testing.conformance.ground import (
    MOMENT,
    Ground,
    another,
    committed,
    create,
    increment,
    now,
    reach,
    refused,
)

if TYPE_CHECKING:
    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother
    from standfast.testing.simulation import VirtualClock


class VersionCases(Ground):
    """The versions of one key, whatever happens to it."""

    async def test_versions_grow_with_every_put(self, store: Store, key: MakeKey) -> None:
        """Each version of a key is higher than every one before, and starts at 1 or more."""
        versions = [await create(store, key("a"))]
        for _ in range(10):
            versions.append((await committed(store, Put(key("a"), b"", versions[-1]))).versions[key("a")])

        assert versions[0] >= 1
        assert all(old < new for old, new in itertools.pairwise(versions))

    async def test_versions_stay_exact_everywhere(self, store: Store, key: MakeKey) -> None:
        """A version is a whole number that JSON, Lua and JavaScript keep exact."""
        version = await create(store, key("a"))

        assert type(version) is int
        assert version <= MAX_VERSION

    async def test_versions_grow_across_delete_and_create(self, store: Store, key: MakeKey) -> None:
        """A deleted key does not start again: what guarded the old record never matches the new one."""
        highest = 0
        for _ in range(5):
            version = await create(store, key("a"))
            assert version > highest
            highest = (await committed(store, Put(key("a"), b"", version))).versions[key("a")]
            await committed(store, Delete(key("a"), expected=highest))

    async def test_an_old_version_does_not_match_a_record_that_was_created_anew(
        self, store: Store, key: MakeKey
    ) -> None:
        """The same value under the same key after a delete is another record."""
        old = await create(store, key("a"), b"same")
        await committed(store, Delete(key("a"), expected=old))
        await create(store, key("a"), b"same")

        await refused(store, Put(key("a"), b"", expected=old))
        await refused(store, Delete(key("a"), expected=old))

    async def test_versions_grow_across_expiry(self, store: Store, key: MakeKey, clock: VirtualClock | None) -> None:
        """A record that is created where one has expired gets a higher version."""
        expires_at = later(await now(store, key("a")), MOMENT)
        old = await create(store, key("a"), expires_at=expires_at)
        await reach(store, expires_at, clock, key("a"))

        assert await create(store, key("a")) > old

    async def test_versions_grow_across_handles(self, store: Store, key: MakeKey, open_another: OpenAnother) -> None:
        """Two handles that delete and create in turn never repeat a version."""
        async with another(open_another) as other:
            versions: list[int] = []
            for turn in (store, other, store, other):
                versions.append(await create(turn, key("a")))
                await committed(turn, Delete(key("a"), expected=versions[-1]))

        assert versions == sorted(set(versions))

    async def test_versions_grow_after_a_handle_is_closed(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """What a closed handle wrote and deleted still counts for those that come after it."""
        async with another(open_another) as other:
            version = await create(store, key("a"))
            await committed(store, Delete(key("a"), expected=version))
            await store.aclose()

            assert await create(other, key("a")) > version

    async def test_updates_of_one_tick_have_versions_of_their_own(self, store: Store, key: MakeKey) -> None:
        """However updates are put together on their way, each is told a version, and they grow in order."""
        decided = await asyncio.gather(*(store.update([key("a")], increment(key("a"))) for _ in range(20)))

        versions = [each.versions[key("a")] for each in decided]
        assert versions == sorted(set(versions))
        assert (await store.read(key("a"))).version(key("a")) == versions[-1]
