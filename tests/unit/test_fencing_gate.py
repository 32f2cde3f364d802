"""The gate of a service that receives fences."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import DecodeError, InvalidArgumentError, StaleFenceError
from standfast.fencing import FenceGate
from standfast.stores import Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
async def space(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[sf.Space]:
    """A space of the receiving service, on each store."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/gate.db"}[request.param]
    async with sf.open(url) as space:
        yield space


async def test_a_stale_request_is_refused(space: sf.Space) -> None:
    """After a successor came, the holder that was replaced is told by whom."""
    gate = FenceGate(space)
    await gate.admit("invoice-7", 11)
    await gate.admit("invoice-7", 12)
    with pytest.raises(StaleFenceError, match="fence 11 is stale at 'invoice-7', which has seen 12"):
        await gate.admit("invoice-7", 11)


async def test_the_same_fence_is_admitted_again(space: sf.Space) -> None:
    """A holder writes as often as it likes, and nothing is written for it."""
    gate = FenceGate(space)
    await gate.admit("invoice-7", 12)
    key = space.key_for("fence", "invoice-7")
    before = (await space.read(key)).version(key)
    await gate.admit("invoice-7", 12)
    assert (await space.read(key)).version(key) == before


async def test_another_gate_on_the_same_space_remembers(space: sf.Space) -> None:
    """The highest fence is in the store, not in the object: a restart of the service forgets nothing."""
    await FenceGate(space).admit("invoice-7", 12)
    assert await FenceGate(space).highest("invoice-7") == 12
    with pytest.raises(StaleFenceError):
        await FenceGate(space).admit("invoice-7", 1)


async def test_resources_are_guarded_apart(space: sf.Space) -> None:
    """Fences of different resources are never compared."""
    gate = FenceGate(space)
    await gate.admit("invoice-7", 500)
    await gate.admit("invoice-8", 1)
    assert await gate.highest("invoice-9") == 0


async def test_of_many_at_once_the_admitted_ones_only_rise(space: sf.Space) -> None:
    """A crowd of fences in any order leaves the highest, and none that came after a higher one was admitted."""
    gate = FenceGate(space)
    fences = [5, 3, 9, 1, 7, 9, 2]
    answers = await asyncio.gather(*(gate.admit("r", fence) for fence in fences), return_exceptions=True)
    admitted = [fence for fence, answer in zip(fences, answers, strict=True) if answer is None]
    assert admitted == [5, 9, 9]
    assert await gate.highest("r") == 9


async def test_a_forgotten_resource_admits_any_fence(space: sf.Space) -> None:
    """Forgetting leaves no record, and doing it twice is harmless."""
    gate = FenceGate(space)
    await gate.admit("invoice-7", 12)
    await gate.forget("invoice-7")
    await gate.forget("invoice-7")
    assert not (await space.scan(*space.key("fence").within(), limit=10)).records
    await gate.admit("invoice-7", 1)


async def test_a_damaged_record_admits_nobody(space: sf.Space) -> None:
    """What cannot be read is an error, never an open gate."""
    await space.commit(Put(space.key_for("fence", "invoice-7"), b"1:{}"))
    with pytest.raises(DecodeError, match="highest fence"):
        await FenceGate(space).admit("invoice-7", 12)


@pytest.mark.parametrize("fence", [0, 2**53, True, "12"])
async def test_what_is_no_fence_is_refused(space: sf.Space, fence: Any) -> None:
    """Before anything is read."""
    with pytest.raises(InvalidArgumentError):
        await FenceGate(space).admit("invoice-7", fence)
