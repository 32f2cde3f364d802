"""Who held something when a store was moved, and what is sealed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import StoreMovedError
from standfast.stores import Put
from tests.integration.moving.places import fresh_url
from tests.integration.moving.transfers import carried

if TYPE_CHECKING:
    from pathlib import Path

LEASE = "30s"


async def test_a_holder_of_the_old_store_holds_nothing_in_the_new_one(url: str, tmp_path: Path) -> None:
    """Its next guarded commit is refused; in the new store the lock is free at once, with a higher fence."""
    new_url = fresh_url("sqlite", tmp_path)
    old = await sf.open(url, lease=LEASE)
    async with old.mutex("k").hold(on_lost="tell") as hold:
        await carried(url, new_url)

        with pytest.raises(StoreMovedError):
            await old.commit(hold.guard, Put(old.key("late"), b""))
        assert await asyncio.create_task(fence_of(new_url)) > hold.fence
        with pytest.raises(StoreMovedError):
            await old.commit(Put(old.key("late"), b""))
    await old.aclose()


async def fence_of(url: str) -> int:
    """Take the lock, and return its fence."""
    async with sf.open(url, lease=LEASE) as space, space.mutex("k").hold(timeout="5s") as hold:
        return hold.fence


async def test_what_is_sealed_moves_as_it_is(tmp_path: Path) -> None:
    """Who moves a store needs no keys; who opens it needs the same."""
    url, new_url = fresh_url("sqlite", tmp_path), fresh_url("sqlite", tmp_path)
    keyring = sf.admin.Keyring({"2026-01": sf.admin.Keyring.new_key()})
    async with sf.open(url, encryption=keyring) as old:
        await old.commit(Put(old.key("secret"), b"plain text"))

    await carried(url, new_url)

    async with sf.open(new_url) as bare:
        assert b"plain" not in (await bare.read(bare.key("secret"))).records[bare.key("secret")].value
    async with sf.open(new_url, encryption=keyring) as new:
        assert (await new.read(new.key("secret"))).records[new.key("secret")].value == b"plain text"
