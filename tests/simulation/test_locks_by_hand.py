"""A lock by hand on a bad day: lost replies, late commits, holders that pause past their lease or die."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from standfast.errors import StandfastError
from standfast.locks import AtomicState, DurableMutex, Slots
from standfast.scope import Scope
from standfast.stores.memory import open_memory
from standfast.testing import FaultyStore, VirtualClock, simulate
from tests.sizes import rounds

LOCK = DurableMutex(lease=1, waiter_ttl=2)


class Work:
    """Workers that write their fence into one log, each only while it holds the lock."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ends: Counter[str] = Counter()

    async def play(self, seed: int) -> list[int]:
        """Let five workers work, then see that the lock is free again; return the log."""
        calm = open_memory(clock=VirtualClock(asyncio.get_running_loop()))
        rough = FaultyStore(calm, seed=seed)
        await asyncio.gather(*(self.worker(Slots(Scope(rough)), f"w{number}") for number in range(5)))
        await asyncio.sleep(4)
        slots = Slots(Scope(calm))
        assert (await LOCK.try_acquire(slots.shared("lock"), "last")).acquired
        log: Any = await slots.shared("log").get()
        await rough.aclose()
        return log or []

    async def worker(self, slots: Slots, name: str) -> None:
        """Hold, write and let go, a few times, as far as the day permits."""
        for turn in range(4):
            try:
                await self.turn(slots.shared("lock"), slots.shared("log"), f"{name}-{turn}")
            except StandfastError as error:
                self.ends[type(error).__name__] += 1

    async def turn(self, slot: AtomicState[Any], log: AtomicState[Any], name: str) -> None:
        """Hold once; sometimes pause too long, sometimes never let go."""
        place = await LOCK.acquire(slot, name, timeout=self.chance.choice([0.5, 3]), poll=0.1)
        for _ in range(2):
            await asyncio.sleep(self.chance.choice([0, 0.1, 0.6, 1.5]))
            guard = LOCK.guard(slot, name, place.fence)
            await log.update(lambda fences: [*(fences or []), place.fence], guard=guard)
            self.ends["written"] += 1
        if self.chance.random() < 0.7:
            await LOCK.release(slot, name, fence=place.fence)


@pytest.mark.heavy
def test_no_write_of_an_older_hold_comes_after_one_of_a_newer() -> None:
    """Under every seed the log of fences only grows, and in the end nobody is in the way."""
    ends: Counter[str] = Counter()
    for seed in rounds("seeds of locks by hand", full=2_000, quick=25):
        work = Work(seed)
        log = simulate(seed, work.play, seed)
        assert log == sorted(log), f"seed {seed}"
        ends.update(work.ends)
    assert {"written", "StaleWriteError", "HoldTimeoutError", "OutcomeUnknownError"} <= ends.keys()
