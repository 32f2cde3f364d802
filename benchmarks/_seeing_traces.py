"""What traces cost: CPU time of runs and of requests, with a hook that traces and without."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import standfast as sf
from benchmarks._seeing_index import AT_ONCE, five
from benchmarks.harness import Row, at_most
from standfast.flows.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

RUNS, REQUESTS = 500, 3_000
QUEUE: Final = 100_000
"""How many spans wait at most, so that none is dropped, which would be cheaper."""

BAR: Final = 1.10
shop = sf.Flow("shop", concurrency="allow")


@shop.action
async def echo(request: sf.Request, number: int) -> int:
    """Do nothing to speak of."""
    del request
    return number


class Traced:
    """An engine and a dispatcher on one store, whose work is traced or not."""

    def __init__(self, path: str, *, traces: bool) -> None:
        self._provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter, max_queue_size=QUEUE))
        hooks = [sf.admin.TracingHook(self._provider)] if traces else []
        self._runner = asyncio.Runner()
        self._engine = self._runner.run(sf.Engine(path, workflows=[five], hooks=hooks).__aenter__())
        self._dispatcher = self._runner.run(Dispatcher(self._engine, [shop]).__aenter__())

    def run(self) -> float:
        """Return the microseconds of CPU time of a run of five steps."""
        return self._runner.run(self._runs())

    def request(self) -> float:
        """Return the same of a request whose caller waits."""
        return self._runner.run(self._requests())

    async def _runs(self) -> float:
        numbers = itertools.count()

        async def some() -> None:
            while next(numbers) < RUNS:
                await (await self._engine.start(five, 1)).result()

        began = time.process_time()
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
        self._exporter.clear()
        return (time.process_time() - began) / RUNS * 1e6

    async def _requests(self) -> float:
        began = time.process_time()
        for number in range(REQUESTS):
            call = sf.Call(flow="shop", action="echo", inputs={"number": number})
            await (await self._dispatcher.dispatch(call, here=True)).result()
        self._exporter.clear()
        return (time.process_time() - began) / REQUESTS * 1e6

    def close(self) -> None:
        """Close everything."""
        self._runner.run(self._dispatcher.aclose())
        self._runner.run(self._engine.aclose())
        self._runner.close()
        self._provider.shutdown()


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    on, off = (Traced(f"sqlite:///{folder}/traces-{each}.db", traces=each) for each in (True, False))
    stack.callback(on.close)
    stack.callback(off.close)
    yield Row("a run of five steps, with traces and without", "us CPU", on.run, off.run, bar=at_most(BAR), rounds=9)
    # Without a bar: the goal is about requests over HTTP, which cost several times as much.
    yield Row("a request at the seam, with traces and without", "us CPU", on.request, off.request, rounds=9)
