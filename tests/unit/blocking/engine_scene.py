"""Workflows for blocking engines, and how to know where a run is."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

import standfast as sf
from standfast import blocking
from standfast.blocking import run
from tests.unit.blocking.scene import PATIENCE, until

if TYPE_CHECKING:
    from types import FrameType

BEGAN, LET_GO = threading.Event(), threading.Event()
"""A slow step has begun; and may end."""


class OutOfStockError(Exception):
    """What an order raises."""


@sf.step
def doubled(number: int) -> int:
    """Compute in a thread."""
    return 2 * number


@sf.step
def in_thread() -> str:
    """Say where it runs."""
    return threading.current_thread().name


@sf.step
def slow() -> str:
    """Block a thread until it is let go."""
    BEGAN.set()
    LET_GO.wait(PATIENCE)
    return "slow"


@sf.workflow
async def doubles(ctx: sf.Context, number: int) -> int:
    """Return twice a number."""
    return await ctx.step("double", doubled, number)


@sf.workflow
async def waits(ctx: sf.Context, first: int) -> int:
    """Add what a signal brings, and let others look and change meanwhile."""
    total = [first]

    def add(number: int) -> int:
        total[0] += number
        return total[0]

    ctx.on_query("total", lambda: total[0])
    ctx.on_update("add", add)
    number: int = await ctx.wait_signal("go")
    return total[0] + number


@sf.workflow(raises=[OutOfStockError])
async def fails(ctx: sf.Context, item: str) -> str:
    """Raise."""
    await ctx.step("double", doubled, 1)
    raise OutOfStockError(item)


@sf.workflow
async def is_slow(ctx: sf.Context) -> str:
    """Run a step that takes its time."""
    return await ctx.step("slow", slow)


@sf.workflow(concurrency=1)
async def one_at_a_time(ctx: sf.Context) -> int:
    """Wait for a signal, alone."""
    number: int = await ctx.wait_signal("go")
    return number


@sf.workflow
async def sums(_ctx: sf.Context, numbers: list[int]) -> int:
    """Add numbers."""
    return sum(numbers)


WORKFLOWS: list[sf.Workflow[..., Any]] = [doubles, waits, fails, is_slow, one_at_a_time]


def engine(url: str, *, drive: bool = True) -> blocking.Engine:
    """Return an engine that has the workflows above."""
    return blocking.Engine(url, workflows=WORKFLOWS, drive=drive, worker=sf.admin.WorkerLimits(linger=0.01))


def until_it_waits(waiting: blocking.Run[Any]) -> None:
    """Return when a run waits for a signal."""
    until(lambda: waiting.info().status == "suspended")


def until_they_wait(count: int) -> None:
    """Return when so many threads wait for the result of a run."""
    until(lambda: sum(map(_waits_for_a_result, sys._current_frames().values())) == count)


def _waits_for_a_result(frame: FrameType) -> bool:
    stack = [(each.filename, each.name) for each in traceback.extract_stack(frame)]
    return (run.__file__, "result") in stack and stack[-1][1] == "wait"
