"""What the other processes do: transfer money, ring now and then, contend for a mutex, or drive workflows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import standfast as sf
from demonstration.bank import Bank, Ledger, any_transfer
from demonstration.fenced import contend
from demonstration.orders import drive
from demonstration.talking import reach, say
from standfast.stores import Commit, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

TASKS: Final = 3
REPORT_EVERY: Final = 0.05
LONGEST_LIFE: Final = 60.0  # seconds, should nobody be left to tell it to stop


class Worker:
    """Transfers money with a few tasks at a time."""

    def __init__(self, space: sf.Space, name: str, ledger: Ledger) -> None:
        self._bank, self._name, self._ledger = Bank(space), name, ledger
        self._chance = random.Random(name)  # noqa: S311 -- play money
        self._numbers = itertools.count(1)
        self._done = 0
        self.stopping = False

    async def work(self) -> None:
        """Transfer until told to stop, by guarded commit and by update in turn."""
        for number in self._numbers:
            if self.stopping:
                return
            transfer = any_transfer(f"{self._name}/{number}", self._chance)
            if number % 2:
                await self._bank.move_by_commit(transfer)
            else:
                await self._bank.move_by_update(transfer)
            self._ledger.write(transfer.receipt)
            self._done += 1

    async def report(self) -> None:
        """Say now and then how far it is, and once at the end."""
        while not self.stopping:
            self._say()
            await asyncio.sleep(REPORT_EVERY)

    def _say(self) -> None:
        say(done=self._done, lost_races=self._bank.lost_races)

    async def run(self) -> None:
        """Do all of it."""
        await asyncio.gather(self.report(), *(self.work() for _ in range(TASKS)))
        self._say()


async def transfer(url: str, name: str, ledger: str) -> None:
    """Be a process that transfers money between the phases ``go`` and ``stop``."""
    async with sf.open(url, namespace="demo") as space:
        phase = space.key("phase")
        worker = Worker(space, name, Ledger(Path(ledger)))
        say(ready=True)
        await reach(space, phase, b"go")
        running = asyncio.create_task(worker.run())
        await reach(space, phase, b"stop")
        worker.stopping = True
        await running


async def ring(url: str, times: int) -> None:
    """Be a process that commits now and then, each time with the moment at which it asked."""
    async with sf.open(url, namespace="demo") as space:
        key, version = space.key("bell"), 0
        await reach(space, space.key("phase"), b"ring")
        for _ in range(times):
            verdict = await space.commit(Put(key, str(time.monotonic_ns()).encode(), version))
            assert isinstance(verdict, Commit)
            version = verdict.versions[key]
            await asyncio.sleep(0.005)


def main(role: str, orders: str) -> None:
    """Do what another process has ordered."""
    roles = (transfer, ring, contend, drive)
    work: dict[str, Callable[..., Coroutine[None, None, None]]] = {each.__name__: each for each in roles}
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # nobody wants to know any more
        asyncio.run(asyncio.wait_for(work[role](**json.loads(orders)), LONGEST_LIFE))
