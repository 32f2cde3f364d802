"""An operator: does random things to runs, locks and limits until its input ends: ``python -m ... URL SEED``.

It writes down what it is about to do, and to which run, before it does it. Most of it goes through an engine that
drives nothing, some through the command line.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from typing import TYPE_CHECKING, Final, final

import standfast as sf
from standfast.errors import StandfastError
from tests.integration.workflows.flows import LOCKS, WORKFLOWS, ledger, queued

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.workflows.queries import RunInfo

REFUSED: Final = range(1, 100)
"""Exit codes with which the command line says that something was not there, or is not possible."""


@final
class Operator:
    """Does one thing after another."""

    def __init__(self, engine: sf.Engine, url: str, seed: int) -> None:
        self._engine, self._url, self._chance = engine, url, random.Random(seed)
        self._made = 0

    async def act(self) -> None:
        """Do something."""
        verbs: tuple[Callable[[], Awaitable[object]], ...] = (
            self._cancel, self._end, self._end, self._retry, self._retry, self._restart, self._fork, self._resume,
            self._purge, self._release, self._release, self._release, self._withdraw, self._withdraw, self._set_limit,
            self._resize, self._by_command,
        )  # fmt: skip
        try:
            await self._chance.choice(verbs)()
        except StandfastError as refused:
            ledger().write("refused", name=type(refused).__name__)

    # --- runs ----------------------------------------------------------------------------------------------------

    async def _run(self, *statuses: str) -> RunInfo | None:
        page = await self._engine.list(newest_first=True, limit=60, status=statuses or None)
        return self._chance.choice(page.runs) if page.runs else None

    async def _live(self) -> RunInfo | None:
        return await self._run("pending", "running", "suspended")

    def _note(self, run: str, verb: str) -> str:
        ledger().write("operate", key=run, name=verb)
        return run

    async def _cancel(self) -> None:
        if (run := await self._live()) is not None:
            await self._engine.cancel(self._note(run.id, "cancel"), "an operator asks")

    async def _end(self) -> None:
        if (run := await self._live()) is not None:
            await self._engine.cancel(self._note(run.id, "end"), "an operator ends it", force=True)

    async def _retry(self) -> None:
        if (run := await self._run("cancelled", "failed", "quarantined")) is not None:
            await self._engine.retry(self._note(run.id, "retry"))

    async def _restart(self) -> None:
        if (run := await self._run()) is not None:
            await self._engine.restart(run.id)

    async def _fork(self) -> None:
        if (run := await self._run()) is not None:
            steps = [entry.id for entry in await self._engine.history(run.id) if entry.kind == "step"]
            if steps:
                self._made += 1
                new = self._note(f"fork-{os.getpid()}-{self._made}", "fork")
                await self._engine.fork(run.id, self._chance.choice(steps), id=new)

    async def _resume(self) -> None:
        if (run := await self._live()) is not None:
            await self._engine.resume(run.id)
        await self._engine.sweep()

    async def _purge(self) -> None:
        run = await (self._live() if self._chance.random() < 0.3 else self._run("completed", "cancelled", "failed"))
        if run is not None:
            await self._engine.purge(self._note(run.id, "purge"), force=True)

    # --- locks and limits ----------------------------------------------------------------------------------------

    async def _release(self) -> None:
        """Release the holder, and perhaps those to whom it is handed over, before they notice."""
        lock = self._engine.space.mutex(self._chance.choice(LOCKS))
        told = await lock.explain()
        for each in (*told.holders, *told.waiters[: self._chance.choice((0, 0, 1, 2))]):
            self._note(each.run or "", "release")
            await lock.force_release(each.entry)

    async def _withdraw(self) -> None:
        lock = self._engine.space.mutex(self._chance.choice(LOCKS))
        waiters = (await lock.explain()).waiters
        if waiters:
            waiter = self._chance.choice(waiters)
            self._note(waiter.run or "", "withdraw")
            await lock.withdraw(waiter.entry)

    async def _set_limit(self) -> None:
        lane, number = self._chance.choice(("north", "south")), self._chance.randint(0, 3)
        if number:
            await self._engine.set_limit(queued, number, key=lane)
        else:
            await self._engine.clear_limit(queued, key=lane)

    async def _resize(self) -> None:
        """Set the number of permits, never so low that a holder would not fit; or let the code say it again."""
        pool, permits = self._engine.space.semaphore("pool", permits=3), self._chance.choice((None, 2, 3, 5))
        if permits is None:
            await pool.forget_size()
        else:
            await pool.resize(permits)
        ledger().write("operate", name="resize")

    # --- the command line ----------------------------------------------------------------------------------------

    async def _by_command(self) -> None:
        verb = self._chance.choice(("cancel", "retry", "release", "withdraw"))
        if verb in ("cancel", "retry"):
            run = await (self._live() if verb == "cancel" else self._run("cancelled", "failed"))
            if run is not None:
                await self._command("runs", verb, self._note(run.id, verb))
            return
        key = self._chance.choice(LOCKS)
        told = await self._engine.space.explain(key)
        some = told.holders if verb == "release" else told.waiters
        if some:
            self._note(some[0].run or "", verb)
            await self._command("locks", verb, key, "--entry", some[0].entry, "--yes")

    async def _command(self, *words: str) -> None:
        """Run a command, as a person would; it may be too late for what it says."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "standfast", "--store", self._url, *words,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        _, said = await process.communicate()
        ledger().write("command", name=f"{words[0]} {words[1]} {process.returncode}")
        if b"Traceback" in said:
            ledger().write("problem", name=said.decode()[-1_000:])


async def main(url: str, seed: int) -> None:
    """Act until the input ends."""
    asked = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with sf.Engine(url, workflows=WORKFLOWS.values(), drive=False, lease=5) as engine:
        operator = Operator(engine, url, seed)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not asked.done():
            await operator.act()
            await asyncio.wait({asked}, timeout=random.uniform(0, 0.1))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
