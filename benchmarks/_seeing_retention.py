"""Retention: runs are made as fast as they can be, and deleted as fast, while the file stays near its live data."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from typing import TYPE_CHECKING, Final

import standfast as sf
from benchmarks.harness import Row, at_least, plainly_at_most
from standfast import admin
from standfast.events import RunsSwept

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from standfast.events import Event

SECONDS: Final = float(os.environ.get("STANDFAST_BENCH_RETENTION", "60"))
"""For how long runs are made; the issue is ten minutes: ``STANDFAST_BENCH_RETENTION=600``."""

KEPT: Final = max(5.0, SECONDS / 5)
"""For how many seconds runs are kept: longer than the five between two sweeps of a file, as in practice."""

AT_ONCE: Final = 50
AGE: Final = KEPT + 5.0
"""How many seconds before the end the last run is made that must be gone: it was kept, and a round has passed."""


@sf.step
async def act(number: int) -> int:
    """Do nothing."""
    return number


@sf.workflow
async def five(ctx: sf.Context) -> None:
    """Take five steps."""
    for number in range(5):
        await ctx.step(act, number)


class Sweep:
    """One engine that makes runs, and deletes them after a few seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made = self.due = self.swept = 0
        self.ratio = 0.0

    def run(self) -> None:
        """Do it once; what came of it is kept for all rows."""
        if not self.made:
            asyncio.run(self._run())

    def _hear(self, event: Event) -> None:
        if isinstance(event, RunsSwept):
            self.swept += event.runs

    async def _run(self) -> None:
        file = self._folder / "retention.db"
        retention = admin.Retention(completed=KEPT)
        engine = sf.Engine(f"sqlite:///{file}", workflows=[five], retention=retention, hooks=[self._hear])
        async with engine:
            began = time.monotonic()
            while (now := time.monotonic()) < began + SECONDS:
                runs = await asyncio.gather(*(engine.start(five) for _ in range(AT_ONCE)))
                await asyncio.gather(*(run.result() for run in runs))
                self.made += len(runs)
                if now < began + SECONDS - AGE:
                    self.due = self.made
        self.ratio = self._ratio(file)

    def _ratio(self, file: Path) -> float:
        """Compare the file with a compact copy of it. Nothing of ours has it open by now."""
        copy = self._folder / "compact.db"
        connection = sqlite3.connect(file)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("VACUUM INTO ?", (str(copy),))
        connection.close()
        return file.stat().st_size / copy.stat().st_size

    def deleted(self) -> float:
        """Return how many runs a second were deleted."""
        self.run()
        return self.swept / SECONDS

    def to_delete(self) -> float:
        """Return how many runs a second were made that had to be gone by the end."""
        self.run()
        return self.due / SECONDS

    def size(self) -> float:
        """Return how many times as large the file is as its live data."""
        self.run()
        return self.ratio


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    del stack
    sweep = Sweep(folder)
    yield Row(
        f"runs of five steps deleted, of those made, for {SECONDS:g} s",
        "runs/s",
        sweep.deleted,
        sweep.to_delete,
        bar=at_least(1.0),
        rounds=1,
    )
    yield Row("size of the file, of its live data", "x", sweep.size, bar=plainly_at_most(1.2), rounds=1)
