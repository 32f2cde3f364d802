"""Processes that are killed in the line of a rate limiter, on a store that sees them die."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from tests.integration.sqlite.children import Child

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.locks import RateLimiter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has a lock")

AT_ONCE = 2.0
"""Seconds within which those behind a dead waiter go on, with room for a busy machine; its place lasts for 30."""


async def in_line(limiter: RateLimiter, waiters: int) -> None:
    """Return when so many stand in line."""
    async with asyncio.timeout(30):
        while len((await limiter.inspect()).waiters) < waiters:  # noqa: ASYNC110 -- nothing else tells
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("joins", ["before", "after"])
async def test_a_dead_waiter_holds_up_nobody(tmp_path: Path, joins: str) -> None:
    """Whether the next one joined before the process was killed or comes after it."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with sf.open(url) as space:
        limiter = space.rate_limiter("mails", interval="10ms")
        await limiter.close_for("1 hour")
        child = Child("tests.integration.locks.programs.limit", url)
        await in_line(limiter, 1)
        behind = asyncio.ensure_future(limiter.acquire()) if joins == "before" else None
        if behind is not None:
            await in_line(limiter, 2)
        child.kill()
        await limiter.open_again()
        await asyncio.wait_for(behind or limiter.acquire(), AT_ONCE)
        assert (await limiter.inspect()).waiters == ()


async def test_one_that_only_tries_passes_a_dead_waiter(tmp_path: Path) -> None:
    """It need not stand in line to see that nobody is in front."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with sf.open(url) as space:
        limiter = space.rate_limiter("mails", interval="10ms")
        await limiter.close_for("1 hour")
        child = Child("tests.integration.locks.programs.limit", url)
        await in_line(limiter, 1)
        child.kill()
        await limiter.open_again()
        async with asyncio.timeout(AT_ONCE):
            assert await limiter.try_acquire()


async def test_a_living_waiter_keeps_its_place(tmp_path: Path) -> None:
    """Those behind it look whether it lives, and do not pass it."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    async with sf.open(url) as space:
        limiter = space.rate_limiter("mails", interval="10ms")
        await limiter.close_for("1 hour")
        child = Child("tests.integration.locks.programs.limit", url)
        await in_line(limiter, 1)
        [first] = (await limiter.inspect()).waiters
        behind = asyncio.ensure_future(limiter.acquire())
        await in_line(limiter, 2)
        assert not await limiter.try_acquire()
        assert (await limiter.inspect()).waiters[0].id == first.id
        await limiter.open_again()
        assert child.hear() == ["passed"]
        await behind
        child.kill()
