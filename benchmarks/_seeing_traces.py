"""What traces cost: the benchmarks of workflows and of dispatch with a hook that traces and without, and CPU time."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import standfast as sf
from benchmarks._dispatch_client import AT_ONCE as CONNECTIONS
from benchmarks._dispatch_client import always, by_session, window
from benchmarks._dispatch_server import Served
from benchmarks._seeing_index import AT_ONCE, five
from benchmarks._spans import provider
from benchmarks._workflow_ours import Ours
from benchmarks.harness import Row, at_least
from standfast.flows.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import ExitStack
    from pathlib import Path

    from benchmarks._dispatch_client import Asking

RUNS, REQUESTS = 500, 3_000
SPANS_OF_A_RUN: Final = 8
"""The start, five steps, the claim and the run."""

SECONDS, HTTP_SECONDS = 0.5, 0.2
ROUNDS: Final = 15
BAR: Final = at_least(0.9)
shop = sf.Flow("shop", concurrency="allow")


@shop.action
async def echo(request: sf.Request, number: int) -> int:
    """Do nothing to speak of."""
    del request
    return number


class Traced:
    """An engine and a dispatcher on one store, whose work is traced or not."""

    def __init__(self, path: str, *, traces: bool) -> None:
        self._provider = provider()
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
        self._provider.force_flush()
        return (time.process_time() - began) / RUNS * 1e6

    async def _requests(self) -> float:
        began = time.process_time()
        for number in range(REQUESTS):
            call = sf.Call(flow="shop", action="echo", inputs={"number": number})
            await (await self._dispatcher.dispatch(call, here=True)).result()
        self._provider.force_flush()
        return (time.process_time() - began) / REQUESTS * 1e6

    def close(self) -> None:
        """Close everything."""
        self._runner.run(self._dispatcher.aclose())
        self._runner.run(self._engine.aclose())
        self._runner.close()
        self._provider.shutdown()


class Bare:
    """Spans that are begun and ended through the SDK, without a name, an attribute or a parent worth the word."""

    def __init__(self, *, encodes: bool = False) -> None:
        self._provider = provider(encodes=encodes)
        self._tracer = self._provider.get_tracer("bench")

    def spans(self, each: int) -> float:
        """Return the microseconds of CPU time of so many of them."""
        began = time.process_time()
        for _ in range(REQUESTS):
            self._tracer.start_span("span").end()
        self._provider.force_flush()
        return (time.process_time() - began) / REQUESTS * each * 1e6

    def close(self) -> None:
        """Stop the thread of the processor."""
        self._provider.shutdown()


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    yield from _of_workflows(stack, folder)
    yield from _of_dispatch(stack, folder)
    yield from _of_cpu(stack, folder)


def _of_workflows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    off, *on = (
        Ours(f"sqlite:///{folder}/runs-{number}.db", hooks)
        for number, hooks in enumerate(
            ((), *([sf.admin.TracingHook(provider(encodes=encodes))] for encodes in (False, True)))
        )
    )
    for each in (off, *on):
        stack.callback(each.close)
    for how, at_once in (("100 at a time", 100), ("one after another", 1)):

        def measure(ours: Ours, at_once: int = at_once) -> float:
            return ours.runs(at_once, 5, SECONDS).rate

        what = f"workflows: {how}, 5 steps, with traces and without"
        peers = {"and encoded": partial(measure, on[1])}
        yield Row(what, "runs/s", partial(measure, on[0]), partial(measure, off), peers, BAR, ROUNDS)


def _of_dispatch(stack: ExitStack, folder: Path) -> Iterator[Row]:
    off, on, encoded = (Served(kind, f"sqlite:///{folder}/{kind}.db") for kind in ("local", "traced", "encoded"))
    for each in (off, on, encoded):
        stack.callback(each.close)
    runner = asyncio.Runner()
    stack.callback(runner.close)

    def measure(served: Served, asking: Asking) -> float:
        return runner.run(window(served.port, asking, CONNECTIONS, HTTP_SECONDS)).rate

    for what, asking in (("allow", always("allow")), ("queue, distinct keys", by_session("queue"))):
        ours, limit, peer = (partial(measure, served, asking) for served in (on, off, encoded))
        named = f"dispatch: {what}, with traces and without"
        yield Row(named, "requests/s", ours, limit, {"and encoded": peer}, BAR, ROUNDS)


def _of_cpu(stack: ExitStack, folder: Path) -> Iterator[Row]:
    on, off = (Traced(f"sqlite:///{folder}/traces-{each}.db", traces=each) for each in (True, False))
    bare, encoded = Bare(), Bare(encodes=True)
    for each in (on, off, bare, encoded):
        stack.callback(each.close)
    for what, count, ours, limit in (
        ("a run of five steps", SPANS_OF_A_RUN, on.run, off.run),
        ("a request at the seam", 1, on.request, off.request),
    ):
        peers = {
            f"{count} bare spans of the SDK alone": partial(bare.spans, count),
            "those and encoded": partial(encoded.spans, count),
        }
        yield Row(f"{what}, with traces and without", "us CPU", ours, limit, peers, rounds=ROUNDS)
