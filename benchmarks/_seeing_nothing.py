"""What a run pays for seeing if nothing looks: the questions that its code asks of hooks that are not there."""

from __future__ import annotations

import asyncio
import collections
import itertools
import sys
import time
import timeit
from typing import TYPE_CHECKING, Final

import standfast as sf
from benchmarks._seeing_index import AT_ONCE, five
from benchmarks.harness import Row, at_most
from standfast import hooks
from standfast.events import NO_HOOKS, Committed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from pathlib import Path
    from types import FrameType

RUNS: Final = 400
ASKED: Final = 20_000
QUESTIONS: Final[dict[str, Callable[[], object]]] = {
    "__bool__": lambda: bool(NO_HOOKS),
    "want": lambda: NO_HOOKS.want(Committed),
    "tally_of": lambda: NO_HOOKS.tally_of(Committed),
}


class Unseen:
    """An engine without hooks, whose questions are counted."""

    def __init__(self, folder: Path) -> None:
        self._runner = asyncio.Runner()
        engine = sf.Engine(f"sqlite:///{folder}/unseen.db", workflows=[five])
        self._engine = self._runner.run(engine.__aenter__())
        self._asked = self._count()

    def run(self) -> float:
        """Return the microseconds of CPU time that a run takes."""
        began = time.process_time()
        self._runner.run(self._runs())
        return (time.process_time() - began) / RUNS * 1e6

    def questions(self) -> float:
        """Return the microseconds that as many questions take as a run asks."""
        return sum(
            timeit.timeit(QUESTIONS[name], number=ASKED, timer=time.process_time) / ASKED * number * 1e6
            for name, number in self._asked.items()
        )

    def _count(self) -> dict[str, float]:
        """Return how often a run asks each question.

        Raises:
            KeyError: Something is called of hooks that is not known here, an event told, for one.
        """
        asked: collections.Counter[str] = collections.Counter()

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "call" and frame.f_code.co_filename == hooks.__file__:
                asked[frame.f_code.co_name] += 1

        sys.setprofile(note)
        try:
            self._runner.run(self._runs())
        finally:
            sys.setprofile(None)
        told = {name: number / RUNS for name, number in asked.items() if number > RUNS / 10}  # all else is seldom
        unknown = told.keys() - QUESTIONS.keys()
        if unknown:
            raise KeyError(*unknown)
        return told

    async def _runs(self) -> None:
        numbers = itertools.count()

        async def some() -> None:
            while next(numbers) < RUNS:
                await (await self._engine.start(five, 1)).result()

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    def close(self) -> None:
        """Close the engine."""
        self._runner.run(self._engine.aclose())
        self._runner.close()


def rows(stack: ExitStack, folder: Path) -> Iterator[Row]:
    """Yield the rows of this part."""
    unseen = Unseen(folder)
    stack.callback(unseen.close)
    what = "asking hooks that are not there, of a run of five steps"
    yield Row(what, "us CPU", unseen.questions, unseen.run, bar=at_most(0.01), rounds=15)
