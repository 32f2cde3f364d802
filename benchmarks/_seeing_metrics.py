"""What metrics cost: CPU time of runs with the hook and without it, in turns; and what a scrape takes."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

import standfast as sf
from benchmarks._seeing_index import five
from benchmarks._workflow_ours import Ours
from benchmarks.harness import Row, at_least

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

RUNS: Final = 400
AT_ONCE: Final = 50
SECONDS: Final = 0.5


class Cost:
    """Two engines on files of their own, one of which counts."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        self._metrics = sf.admin.PrometheusMetrics(CollectorRegistry())
        bare = sf.Engine(f"sqlite:///{folder}/bare.db", workflows=[five])
        counted = sf.Engine(f"sqlite:///{folder}/counted.db", workflows=[five], hooks=[self._metrics])
        self._bare_runs = Ours(f"sqlite:///{folder}/bare-runs.db", ())
        self._counted_runs = Ours(
            f"sqlite:///{folder}/counted-runs.db", [sf.admin.PrometheusMetrics(CollectorRegistry())]
        )
        self._bare, self._counted = (self._runner.run(each.__aenter__()) for each in (bare, counted))

    def counted(self) -> float:
        """Return the microseconds of CPU time that a run takes."""
        return self._runner.run(self._spent(self._counted))

    def bare(self) -> float:
        """Return the same without metrics."""
        return self._runner.run(self._spent(self._bare))

    async def _spent(self, engine: sf.Engine) -> float:
        numbers = itertools.count()

        async def some() -> None:
            while next(numbers) < RUNS:
                await (await engine.start(five, 1)).result()

        began = time.process_time()
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        return (time.process_time() - began) / RUNS * 1e6

    def counted_rate(self) -> float:
        """Return how many runs a second there are, a hundred at a time."""
        return self._counted_runs.runs(100, 5, SECONDS).rate

    def bare_rate(self) -> float:
        """Return the same without metrics."""
        return self._bare_runs.runs(100, 5, SECONDS).rate

    def scrape(self) -> float:
        """Return how many milliseconds a scrape takes, with gauges that were read in the last seconds."""
        self._runner.run(self._metrics.text())
        began = time.perf_counter()
        self._runner.run(self._metrics.text())
        return (time.perf_counter() - began) * 1e3

    def close(self) -> None:
        """Close all engines."""
        self._counted_runs.close()
        self._bare_runs.close()
        for each in (self._bare, self._counted):
            self._runner.run(each.aclose())
        self._runner.close()


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    cost = Cost(folder)
    stack.callback(cost.close)
    what = "100 at a time, 5 steps, with metrics and without"
    yield Row(what, "runs/s", cost.counted_rate, cost.bare_rate, bar=at_least(0.98), rounds=41, by_round=True)
    what = "a run of five steps, with metrics and without"
    yield Row(what, "us CPU", cost.counted, cost.bare, rounds=25)
    yield Row("a scrape", "ms", cost.scrape)
