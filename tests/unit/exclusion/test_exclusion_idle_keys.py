"""A key that nobody wants costs nothing."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from standfast.exclusion import Exclusion
from tests.sizes import size
from tests.unit.exclusion.scene import MODES, PLAIN, ticks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

KEYS = size(full=1_000_000, quick=4_000)


async def growth(use: Callable[[Exclusion, int], Awaitable[None]], keys: int) -> int:
    """Return the bytes that are left when many keys have been used once each."""
    exclusion = Exclusion()
    for number in range(-200, 0):  # whatever the interpreter keeps for itself, it has by then
        await use(exclusion, number)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(keys):
            await use(exclusion, number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


async def alone(exclusion: Exclusion, number: int) -> None:
    """Hold a key that nobody else wants."""
    async with exclusion.hold(PLAIN(str(number))):
        pass


async def contended(exclusion: Exclusion, number: int) -> None:
    """Hold a key that two others wait for in modes, one of whom gives up."""

    async def hold(mode: str) -> None:
        async with exclusion.hold(MODES(str(number)), mode=mode):
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(hold(mode)) for mode in ("pull", "observe", "exclusive")]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize(("use", "keys"), [(alone, KEYS), (contended, KEYS // 20)])
async def test_keys_that_were_used_leave_nothing_behind(
    use: Callable[[Exclusion, int], Awaitable[None]], keys: int
) -> None:
    """After a hundred thousand keys the exclusion is as small as after a few."""
    # What is kept for a key is kept each time; what other threads of the test runner keep at that moment is not.
    least = min([await growth(use, keys) for _ in range(3)])
    assert least < 16_000  # a single forgotten pointer for each key would be as much


async def test_nothing_is_kept_of_finished_tasks() -> None:
    """Neither holders nor waiters are remembered once they are done."""
    exclusion = Exclusion()
    await asyncio.gather(*(contended(exclusion, number % 3) for number in range(30)))
    await ticks()
    table = exclusion._table
    assert (table.entries, table.held, table.stuck) == ({}, {}, {})
