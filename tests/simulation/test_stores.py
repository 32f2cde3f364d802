"""Stores under a thousand simulated schedules, with faults: nothing lost, nothing twice, everything explained."""

from __future__ import annotations

import asyncio
import os
import tempfile
from typing import TYPE_CHECKING

import pytest

from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.sqlite import SqliteOptions, open_sqlite
from standfast.testing import FaultyBackend, FaultyStore, VirtualClock, simulate
from tests.simulation.workload import work
from tests.sizes import rounds

if TYPE_CHECKING:
    from standfast.stores import Store

MEMORY = "/dev/shm"  # noqa: S108 -- only where TemporaryDirectory makes its own folder
QUICK_DISK = MEMORY if os.access(MEMORY, os.W_OK) else None
"""Schedules are what is tried here, not disks: waiting for one would only mean fewer of them."""

HANDLES = 2
CLIENTS = 5


def virtual_clock() -> VirtualClock:
    """Return a clock that follows the simulated loop."""
    return VirtualClock(asyncio.get_running_loop())


async def work_on_memory(seed: int) -> None:
    """Let clients work on a store in memory whose backend has faults."""
    memory = MemoryRecords(clock=virtual_clock())
    stores = [GroupedStore(FaultyBackend(MemoryBackend(memory), seed=seed * HANDLES + n)) for n in range(HANDLES)]
    await work(stores, seed, CLIENTS)


async def work_on_a_faulty_store(seed: int) -> None:
    """Let clients work on stores that show them every fault."""
    memory = MemoryRecords(clock=virtual_clock())
    stores = [FaultyStore(GroupedStore(MemoryBackend(memory)), seed=seed * HANDLES + n) for n in range(HANDLES)]
    await work(stores, seed, CLIENTS)


async def work_on_sqlite(seed: int, path: str) -> None:
    """Let clients work on an SQLite store whose backend has faults; its threads are simulated, too."""
    clock = virtual_clock()
    stores: list[Store] = []
    for n in range(HANDLES):
        options = SqliteOptions(commits="thread" if (seed + n) % 2 else "loop", hints="process")
        plain = await open_sqlite(path, options, clock=clock)
        stores.append(GroupedStore(FaultyBackend(plain.backend, seed=seed * HANDLES + n)))
    await work(stores, seed, CLIENTS)


@pytest.mark.heavy
def test_memory_keeps_its_promises_on_every_schedule() -> None:
    """Whatever the interleaving and the faults."""
    for seed in rounds("simulated seeds, memory", full=10_000, quick=120):
        simulate(seed, work_on_memory, seed)


@pytest.mark.heavy
def test_code_that_settles_works_on_a_faulty_store() -> None:
    """Clients that see every unknown outcome and settle it lose nothing and do nothing twice."""
    for seed in rounds("simulated seeds, faulty store", full=10_000, quick=120):
        simulate(seed, work_on_a_faulty_store, seed)


@pytest.mark.heavy
def test_sqlite_keeps_its_promises_on_every_schedule() -> None:
    """The real store on a real file, with its threads on seeded callbacks."""
    for seed in rounds("simulated seeds, SQLite", full=1_000, quick=20):
        with tempfile.TemporaryDirectory(dir=QUICK_DISK) as folder:
            simulate(seed, work_on_sqlite, seed, f"{folder}/store.db")
