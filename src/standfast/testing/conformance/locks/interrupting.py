"""Interrupting a coroutine at each of its awaits, one after another."""

from __future__ import annotations

import asyncio
import functools
import types
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

Moment: TypeAlias = Literal["as it begins to wait", "as it is answered"]

MOMENTS: Final[tuple[Moment, ...]] = ("as it begins to wait", "as it is answered")
"""An await can be interrupted before what it waits for has happened, or in the very tick in which it does."""


@final
class Interruption:
    """Does something to a task at its n-th await.

    Attributes:
        happened: Whether it came to that; if not, the coroutine has fewer awaits.
    """

    def __init__(self, number: int, moment: Moment, act: Callable[[asyncio.Task[Any]], object]) -> None:
        self._left, self._moment, self._act = number, moment, act
        self.happened = False

    def at(self, awaited: Any) -> None:
        """Note an await of the running task."""
        self._left -= 1
        task = asyncio.current_task()
        if self._left != 0 or task is None:
            return
        if self._moment == "as it is answered" and asyncio.isfuture(awaited):
            awaited.add_done_callback(lambda _: self._interrupt(task))
        else:
            self._interrupt(task)

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        self.happened = True
        self._act(task)


def cancellation(number: int, moment: Moment) -> Interruption:
    """Cancel the task at its n-th await."""
    return Interruption(number, moment, lambda task: task.cancel())


@types.coroutine
def interrupted(work: Coroutine[Any, Any, Any], interruption: Interruption) -> Generator[Any, Any, Any]:
    """Run ``work`` as ``await`` does, and tell ``interruption`` of each of its awaits."""
    go_on: Callable[[], Any] = functools.partial(work.send, None)
    while True:
        try:
            awaited: Any = go_on()
        except StopIteration as ended:
            return ended.value
        interruption.at(awaited)
        try:
            answer: Any = yield awaited
        except BaseException as problem:  # noqa: BLE001 -- it belongs to the coroutine
            go_on = functools.partial(work.throw, problem)
        else:
            go_on = functools.partial(work.send, answer)
