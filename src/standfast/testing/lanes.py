"""Simulated threads: work that was offloaded, done on the loop at seeded later moments."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from collections.abc import Callable

    Answer = tuple[Any, BaseException | None]
    Later = Callable[[Callable[[], None]], object]


@final
class SimulatedLane:
    """One simulated thread: does its work in order, each piece at a moment that ``later`` chooses.

    The loop hears of a piece at another, later moment, so that a caller can be cancelled in between. As with real
    threads, a piece whose future is cancelled before it begins is never begun.
    """

    __slots__ = ("_answers", "_later", "_work")

    def __init__(self, later: Later) -> None:
        self._later: Final = later
        self._work: Final[deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = deque()
        self._answers: Final[deque[tuple[asyncio.Future[Any], Answer]]] = deque()

    def start(self, work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        """Queue ``work`` and let ``future`` have its result."""
        self._work.append((future, work))
        if len(self._work) == 1:
            self._later(self._do_next)

    def _do_next(self) -> None:
        future, work = self._work[0]
        if not future.cancelled():
            self._answers.append((future, _outside_of_the_loop(work)))
            self._later(self._answer_next)
        self._work.popleft()
        if self._work:
            self._later(self._do_next)

    def _answer_next(self) -> None:
        # Whichever of the chosen moments comes first delivers the oldest answer: a thread reports in order.
        future, (result, problem) = self._answers.popleft()
        if future.cancelled():
            return
        if problem is None:
            future.set_result(result)
        else:
            future.set_exception(problem)


def _outside_of_the_loop(work: Callable[[], Any]) -> Answer:
    """Run ``work`` as if on a thread, where no event loop is running."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)  # noqa: SLF001 -- made for event loops
    try:
        return work(), None
    except BaseException as problem:  # noqa: BLE001 -- the caller's future has it
        return None, problem
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001 -- made for event loops
