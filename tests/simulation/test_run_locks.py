"""Run locks on a bad day: lost replies, late commits, and activations that pause past their lease or die."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StandfastError
from standfast.space import Space
from standfast.stores import Decision, Put
from standfast.stores.memory import open_memory
from standfast.testing import FaultyStore, VirtualClock, simulate
from tests.sizes import rounds

if TYPE_CHECKING:
    from standfast.locks import Hold, RunLease, RunLocks
    from standfast.stores import Snapshot, Store


class Drivers:
    """Activations of one run that write their fence into one log, each only while it holds the run."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ends: Counter[str] = Counter()
        self.inside: list[RunLease | Hold] = []

    async def play(self, seed: int) -> list[int]:
        """Let three processes drive the run, then see that it is free again; return the log."""
        clock = VirtualClock(asyncio.get_running_loop())
        calm = open_memory(clock=clock)
        rough: Store = FaultyStore(calm, seed=seed)
        spaces = [Space(rough, clock=clock, lease=1) for _ in range(3)]
        await asyncio.gather(*(self.driver(space) for space in spaces for _ in range(2)))
        await asyncio.sleep(4)
        last = Space(calm, clock=clock)
        assert await last.run_locks.try_acquire("checkout", "1") is not None
        record = (await last.read(last.key("log"))).get(last.key("log"))
        for space in spaces:
            await space.aclose()
        return [] if record is None else [int(fence) for fence in record.value.split()]

    async def driver(self, space: Space) -> None:
        """Drive the run a few times, as far as the day permits."""
        for _ in range(5):
            await asyncio.sleep(self.chance.random())
            drive = self.chance.choice([self.lease, self.hold])
            try:
                await drive(space, space.run_locks)
            except StandfastError as error:
                self.ends[type(error).__name__] += 1

    async def lease(self, space: Space, locks: RunLocks) -> None:
        """Drive it with a lease; sometimes renew it, sometimes never release it."""
        lease = await locks.try_acquire("checkout", "1", lease=1)
        if lease is None:
            self.ends["refused"] += 1
            return
        await self.write(space, lease)
        if self.chance.random() < 0.5:
            self.ends[f"renewed: {bool(await lease.renew())}"] += 1
            await self.write(space, lease)
        if self.chance.random() < 0.7:
            await lease.release()

    async def hold(self, space: Space, locks: RunLocks) -> None:
        """Drive it in a block."""
        async with locks.hold("checkout", "1") as hold:
            try:
                await self.write(space, hold)
            finally:
                self.inside = [each for each in self.inside if each is not hold]

    async def write(self, space: Space, held: RunLease | Hold) -> None:
        """See that nobody else believes to hold the run; pause, and write the fence, guarded."""
        self.inside = [each for each in self.inside if each is not held and not each.is_lost]
        if not held.is_lost:
            assert self.inside == []
            self.inside.append(held)
        await asyncio.sleep(self.chance.choice([0, 0.1, 0.6, 1.5]))
        key, fence = space.key("log"), b"%d " % held.fence

        def append(seen: Snapshot) -> Decision[bool]:
            record, grant = seen.get(key), seen.get(held.grant)
            if grant is None or grant.version != held.fence:
                return Decision(answer=False)
            before = b"" if record is None else record.value
            return Decision(answer=True, changes=(Put(key, before + fence, seen.version(key)), held.guard))

        decided = await space.update([key, held.grant], append)
        self.ends[f"written: {decided.answer}"] += 1


@pytest.mark.heavy
def test_one_activation_at_a_time_drives_a_run() -> None:
    """Under every seed nobody believes to hold what another holds, the log of fences only grows, and it ends free."""
    ends: Counter[str] = Counter()
    for seed in rounds("seeds of run locks", full=2_000, quick=20):
        drivers = Drivers(seed)
        log = simulate(seed, drivers.play, seed)
        assert log == sorted(log), f"seed {seed}"
        ends.update(drivers.ends)
    assert {"written: True", "written: False", "refused", "RunHeldError", "renewed: True"} <= ends.keys()
