"""What traces cost: the benchmarks of workflows and of dispatch with a hook that traces and without, and CPU time."""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import standfast as sf
from benchmarks._dispatch_client import AT_ONCE as CONNECTIONS
from benchmarks._dispatch_client import always, by_session, window
from benchmarks._dispatch_server import Served
from benchmarks._seeing_index import AT_ONCE, five
from benchmarks._spans import SpanReceiver, provider
from benchmarks._workflow_ours import Ours
from benchmarks.harness import Row, at_least
from standfast.flows.dispatcher import Dispatcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider

    from benchmarks._dispatch_client import Asking

RUNS, REQUESTS = 500, 3_000
SPANS_OF_A_RUN: Final = 8
"""The start, five steps, the claim and the run."""

SECONDS, HTTP_SECONDS = 0.5, 0.2
ROUNDS: Final = 25
BAR: Final = at_least(0.9)
shop = sf.Flow("shop", concurrency="allow")


@shop.action
async def echo(request: sf.Request, number: int) -> int:
    """Do nothing to speak of."""
    del request
    return number


class Traced:
    """An engine and a dispatcher on one store, whose work is traced or not."""

    def __init__(self, path: str, where: str = "") -> None:
        self._provider = provider(where or "dropped")
        hooks = [sf.admin.TracingHook(self._provider)] if where else []
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

    def __init__(self, where: str) -> None:
        self._provider = provider(where)
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
    receiver = SpanReceiver()
    stack.callback(receiver.close)
    for some in (_of_workflows, _of_dispatch, _of_cpu):
        with ExitStack() as own:  # what they are measured with is closed before the next ones begin
            yield from some(own, folder, receiver.url)


DROPPED, ENCODED = "spans dropped", "by OpenTelemetry's encoder, dropped"


def _of_workflows(stack: ExitStack, folder: Path, receiver: str) -> Iterator[Row]:
    off = Ours(f"sqlite:///{folder}/runs-off.db", ()), None
    sent, dropped, encoded = (
        (Ours(f"sqlite:///{folder}/runs-{name}.db", [sf.admin.TracingHook(where)]), where)
        for name, where in (
            ("sent", provider(receiver)),
            ("dropped", provider("dropped")),
            ("encoded", provider("encoded")),
        )
    )
    for each, _ in (off, sent, dropped, encoded):
        stack.callback(each.close)
    for how, at_once in (("100 at a time", 100), ("one after another", 1)):

        def measure(of: tuple[Ours, TracerProvider | None], at_once: int = at_once) -> float:
            ours, spans = of
            began = time.perf_counter()
            rate, ended = ours.runs(at_once, 5, SECONDS).rate, time.perf_counter()
            if spans is not None:
                spans.force_flush()  # what is left is part of this window, and not of the next contestant's
            return rate * (ended - began) / (time.perf_counter() - began)

        what = f"workflows: {how}, 5 steps, with traces and without"
        peers = {DROPPED: partial(measure, dropped), ENCODED: partial(measure, encoded)}
        yield Row(what, "runs/s", partial(measure, sent), partial(measure, off), peers, BAR, ROUNDS, by_round=True)


def _of_dispatch(stack: ExitStack, folder: Path, receiver: str) -> Iterator[Row]:
    off, sent, dropped, encoded = (
        Served(kind, f"sqlite:///{folder}/{kind}.db", receiver if kind == "sent" else "")
        for kind in ("local", "sent", "dropped", "encoded")
    )
    for each in (off, sent, dropped, encoded):
        stack.callback(each.close)
    runner = asyncio.Runner()
    stack.callback(runner.close)

    def measure(served: Served, asking: Asking) -> float:
        return runner.run(window(served.port, asking, CONNECTIONS, HTTP_SECONDS)).rate

    for what, asking in (("allow", always("allow")), ("queue, distinct keys", by_session("queue"))):
        ours, limit, first, second = (partial(measure, served, asking) for served in (sent, off, dropped, encoded))
        named = f"dispatch over HTTP: {what}, with traces and without"
        peers = {DROPPED: first, ENCODED: second}
        yield Row(named, "requests/s", ours, limit, peers, BAR, ROUNDS, by_round=True)


def _of_cpu(stack: ExitStack, folder: Path, receiver: str) -> Iterator[Row]:
    off, on, dropped, encoded = (
        Traced(f"sqlite:///{folder}/traces-{number}.db", where)
        for number, where in enumerate(("", receiver, "dropped", "encoded"))
    )
    bare = Bare("dropped")
    for each in (off, on, dropped, encoded, bare):
        stack.callback(each.close)
    for what, count, measure in (
        ("a run of five steps", SPANS_OF_A_RUN, Traced.run),
        ("a request at the seam", 1, Traced.request),
    ):
        peers = {
            DROPPED: partial(measure, dropped),
            ENCODED: partial(measure, encoded),
            f"{count} bare spans of the SDK alone": partial(bare.spans, count),
        }
        ours, limit = partial(measure, on), partial(measure, off)
        yield Row(f"{what}, with traces and without", "us CPU", ours, limit, peers, rounds=ROUNDS, by_round=True)
