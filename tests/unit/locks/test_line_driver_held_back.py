"""Those that join a line in which others wait share the step of the next one that leaves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.locks.line import Entry, OfPresence, Rules, Waiting
from standfast.locks.line_driver import SHORT_HOLD, LineDriver
from standfast.locks.line_records import Enter, Leave, Left, LineKeys, LockSpec, NotGranted

if TYPE_CHECKING:
    from standfast.locks.line_step import Sight
    from standfast.scope import Scope
    from standfast.testing import VirtualClock

ONE = LockSpec("request", Rules(1))


class Queue:
    """The line of "k" as one process sees it."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.scope, self.clock = scope, clock
        self.steps: list[Sight] = []
        self.driver = LineDriver(scope, LineKeys(scope, ("1", "", "k")), clock, set[str](), self.steps.append)

    def enter(self, name: str, *, waits: bool = True, process: str = "") -> asyncio.Future[Any]:
        """Ask to enter."""
        entry = Entry(name, name, OfPresence(f"{process or self.scope.presence_name}.1"), Instant(0))
        return asyncio.ensure_future(self.driver.do(Enter(entry, waits), ONE))

    def leave(self, name: str) -> asyncio.Future[Any]:
        """Ask to leave."""
        return asyncio.ensure_future(self.driver.do(Leave(name, 0), ONE))

    async def fill(self, *, seconds: float = 0.001, process: str = "") -> None:
        """Let "b" hold and "c" wait, after holds that took so long."""
        for name in ("first", "a", "b", "c"):
            await self.enter(name, process=process)
        for name in ("first", "a"):
            self.clock.advance(seconds)
            await self.leave(name)
        self.steps.clear()


@pytest.fixture
def queue(scope: Scope, clock: VirtualClock) -> Queue:
    """A line that is empty."""
    return Queue(scope, clock)


async def test_one_that_joins_shares_the_step_of_one_that_leaves(queue: Queue) -> None:
    """Otherwise that one would have to wait for a commit of which nobody gains anything."""
    await queue.fill()
    joined = [queue.enter("d"), queue.enter("e")]
    await asyncio.sleep(0)

    left = await queue.leave("b")

    assert isinstance(left.answer, Left)
    assert [(await each).answer for each in joined] == [Waiting(3, 1), Waiting(4, 2)]
    assert len(queue.steps) == 1


async def test_one_that_joins_waits_no_longer_than_a_hold_takes(queue: Queue) -> None:
    """If none leaves, it goes by itself."""
    await queue.fill()

    assert isinstance((await asyncio.wait_for(queue.enter("d"), 5)).answer, Waiting)
    assert len(queue.steps) == 1


@pytest.mark.parametrize("how", ["holds are long", "the holder is elsewhere", "it does not wait"])
async def test_one_that_gains_nothing_is_not_held_back(queue: Queue, how: str) -> None:
    """It is answered in the turn in which it asks."""
    long, process = 2 * SHORT_HOLD if "long" in how else 0.001, "other" if "elsewhere" in how else ""
    await queue.fill(seconds=long, process=process)
    waits = "does not wait" not in how

    answered = asyncio.ensure_future(queue.driver.do(Enter(_entry("d"), waits), ONE))
    await asyncio.sleep(0)

    assert queue.driver._leaving is None
    assert isinstance((await answered).answer, Waiting if waits else NotGranted)


def _entry(name: str) -> Entry:
    return Entry(name, name, OfPresence("another.1"), Instant(0))
