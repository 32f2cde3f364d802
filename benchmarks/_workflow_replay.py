"""Replaying a long history: a run of ten thousand steps waits for a signal, and its worker is a new one each time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

import apsw

import standfast as sf
from standfast.keys import RecordKey
from standfast.workflows.records import CHUNKS

if TYPE_CHECKING:
    from pathlib import Path

STEPS: Final = 10_000
RUN: Final = "long"
HISTORY: Final = "SELECT value FROM records WHERE key >= ? AND key < ? ORDER BY key"

went_on_at: list[float] = []


@sf.step
async def add_one(number: int) -> int:
    """Do next to nothing."""
    return number + 1


@sf.workflow
async def long(ctx: sf.Context) -> None:
    """Take very many steps, then go on a little each time that a signal comes."""
    number = 0
    for _ in range(STEPS):
        number = await ctx.step(add_one, number)
    assert number == STEPS
    while True:
        went_on_at.append(time.perf_counter())
        await ctx.wait_signal("go")


class Replaying:
    """A run with a long history, and its limit: the same history read and decoded by a plain loop."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "replay.db"
        asyncio.run(self._prepare())

    async def _prepare(self) -> None:
        async with self._engine() as engine:
            await engine.start(long, id=RUN)
            await self._gone_on()

    def _engine(self) -> sf.Engine:
        return sf.Engine(f"sqlite:///{self._path}", workflows=[long])

    async def _gone_on(self) -> None:
        while not went_on_at:  # noqa: ASYNC110 -- the workflow's code must not be slowed down by telling
            await asyncio.sleep(0.001)

    def standfast(self) -> float:
        """Return the ms from a signal to the moment at which a new worker has replayed the run and goes on."""
        return asyncio.run(self._replay())

    async def _replay(self) -> float:
        async with self._engine() as engine:
            went_on_at.clear()
            started = time.perf_counter()
            await engine.signal(RUN, "go")
            await self._gone_on()
            return (went_on_at[0] - started) * 1000

    def limit(self) -> float:
        """Return the ms that it takes to read the history and to decode it."""
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        within = RecordKey("default", "default", "step", RUN).within()
        started = time.perf_counter()
        rows: Any = connection.execute(HISTORY, within)
        marks = sum(len(CHUNKS.decode(value).events) for (value,) in rows)
        taken = time.perf_counter() - started
        connection.close()
        assert marks >= STEPS
        return taken * 1000
