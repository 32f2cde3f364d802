"""A window of time in which runs of a workflow are started and finished, and what came of it.

Needs the standard library only, so that peers can use it in an environment of their own.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

T = TypeVar("T")


class Window(NamedTuple):
    """What came of a window: finished runs a second, and the milliseconds from a start to its result, p50."""

    rate: float
    p50: float


class Taking(Generic[T]):
    """Results that several figures are taken from, each from results that it has not been taken from yet."""

    def __init__(self, measure: Callable[[], T]) -> None:
        self._measure = measure
        self._results: list[T] = []

    def figure(self, of: Callable[[T], float]) -> Callable[[], float]:
        """Return a measure that takes one figure of one result after another; what is missing is measured."""
        turns = itertools.count()

        def measure() -> float:
            turn = next(turns)
            while turn >= len(self._results):
                self._results.append(self._measure())
            return of(self._results[turn])

        return measure


def rate(window: Window) -> float:
    """Return how many runs were finished a second."""
    return window.rate


def p50(window: Window) -> float:
    """Return the milliseconds from a start to its result."""
    return window.p50


@dataclass
class Timing:
    """A window that is open: everybody in it starts runs until it closes, and the last run is waited for."""

    seconds: float
    started: float = field(default_factory=time.perf_counter)
    taken: list[float] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether another run should be started."""
        return time.perf_counter() - self.started < self.seconds

    def note(self, started: float) -> None:
        """Note a run that is finished."""
        self.taken.append(time.perf_counter() - started)

    def result(self) -> Window:
        """Return what came of it, once everybody has left."""
        elapsed = time.perf_counter() - self.started
        return Window(len(self.taken) / elapsed, statistics.median(self.taken) * 1000)


async def tasks(run: Callable[[], Coroutine[Any, Any, object]], at_once: int, seconds: float) -> Window:
    """Keep so many tasks busy, each of which runs one after another."""
    timing = Timing(seconds)

    async def task() -> None:
        while timing.is_open:
            started = time.perf_counter()
            await run()
            timing.note(started)

    await asyncio.gather(*(task() for _ in range(at_once)))
    return timing.result()


def threads(run: Callable[[], object], at_once: int, seconds: float) -> Window:
    """Keep so many threads busy, each of which runs one after another."""
    timing = Timing(seconds)

    def thread() -> None:
        while timing.is_open:
            started = time.perf_counter()
            run()
            timing.note(started)

    if at_once == 1:
        thread()
        return timing.result()
    crowd = [threading.Thread(target=thread) for _ in range(at_once)]  # these are the peers' customers, not our own
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    return timing.result()


def serve(answers: Mapping[str, Callable[..., object]]) -> NoReturn:
    """Answer orders until there are no more: ``{"what": "runs", "at_once": 100, "steps": 5, "seconds": 4}``."""
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        print(json.dumps(answers[order.pop("what")](**order)), flush=True)
    sys.exit(0)
