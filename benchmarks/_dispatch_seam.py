"""What a dispatcher adds to a function that is awaited, without any transport."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from benchmarks._dispatch_flow import BODY, FLOW, Question, answer
from standfast.flows.dispatcher import Dispatcher
from standfast.flows.request import Call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

REQUESTS: Final = 600
AT_ONCE: Final = 16
_DECODER: Final = msgspec.json.Decoder(Question)
_ENCODER: Final = msgspec.json.Encoder()


async def bare() -> bytes:
    """Do what the actions do, and nothing else."""
    question = _DECODER.decode(BODY)
    return _ENCODER.encode(answer(question.text, question.number, question.tags))


class Seam:
    """A dispatcher with the local arbiter, on an event loop of its own."""

    def __init__(self, url: str) -> None:
        self._runner: Final = asyncio.Runner()
        self._dispatcher: Final = Dispatcher(url, [FLOW], arbiter="local")
        self._runner.run(self._dispatcher.open())

    def close(self) -> None:
        """Close it."""
        self._runner.run(self._dispatcher.aclose())
        self._runner.close()

    def bare(self) -> float:
        """Return the microseconds of the function alone."""
        return self._runner.run(_timed(lambda _: bare()))

    def dispatched(self, action: str) -> float:
        """Return the microseconds of a request, from its arrival to its result, each task in a session of its own."""

        def ask(number: int) -> Awaitable[bytes]:
            return self._asked(Call(flow="bench", action=action, inputs=BODY, session=f"s-{number}", transport="local"))

        return self._runner.run(_timed(ask))

    async def _asked(self, arrival: Call) -> bytes:
        return await (await self._dispatcher.dispatch(arrival, here=True)).packed()  # as HTTP does


async def _timed(ask: Callable[[int], Awaitable[bytes]]) -> float:
    """Return the microseconds of a request if a few tasks ask, each one after another."""

    async def task(number: int) -> None:
        for _ in range(REQUESTS // AT_ONCE):
            await ask(number)

    started = time.perf_counter()
    await asyncio.gather(*(task(number) for number in range(AT_ONCE)))
    return (time.perf_counter() - started) / (REQUESTS // AT_ONCE * AT_ONCE) * 1e6
