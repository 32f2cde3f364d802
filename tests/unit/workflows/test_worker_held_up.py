"""An event loop that stands still is told, whatever the worker was doing then."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, cast

import pytest

import standfast as sf
from standfast.events import LoopHeldUp
from standfast.workflows.worker import HELD_UP, PULSE, Pulse

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.events import Event


class Handle:
    """A timer of a loop whose time is set by hand."""

    def __init__(self, at: float) -> None:
        self.at, self.is_cancelled = at, False

    def when(self) -> float:
        """Return when it is due."""
        return self.at

    def cancel(self) -> None:
        """Be due no more."""
        self.is_cancelled = True


class Loop:
    """A loop whose time is set by hand, with one timer."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timer = Handle(0.0)
        self.callback: Callable[[], None] = self.run

    def run(self) -> None:
        """Do nothing: nothing was scheduled."""

    def time(self) -> float:
        """Return the time that was set."""
        return self.now

    def call_at(self, at: float, callback: Callable[[], None]) -> Handle:
        """Remember a timer."""
        self.timer, self.callback = Handle(at), callback
        return self.timer

    def run_until(self, end: float) -> None:
        """Call what is due, each when it is."""
        while self.timer.at <= end:
            self.now = self.timer.at
            self.callback()
        self.now = end

    def block(self, seconds: float) -> None:
        """Let time pass in which nothing is called."""
        self.now += seconds
        if self.timer.at <= self.now:
            self.callback()


@pytest.mark.parametrize("phase", [PULSE * part / 20 for part in range(20)])
def test_no_moment_hides_that_the_loop_stood_still(phase: float) -> None:
    """A hold-up of half a second is told once wherever it begins between two beats; one of a third is not."""
    loop, told = Loop(), list[float]()
    Pulse(cast("asyncio.AbstractEventLoop", loop), told.append)
    loop.run_until(7 + phase)
    loop.block(HELD_UP - PULSE - 0.001)
    loop.run_until(9 + phase)
    assert told == []
    loop.block(HELD_UP + 0.001)
    loop.run_until(20)
    [seconds] = told
    assert HELD_UP - PULSE <= seconds <= HELD_UP + 0.001


def test_nothing_beats_when_the_worker_has_stopped() -> None:
    """Its timer is gone."""
    loop = Loop()
    Pulse(cast("asyncio.AbstractEventLoop", loop), lambda _: None).stop()
    assert loop.timer.is_cancelled


@sf.workflow
async def blocks(ctx: sf.Context, seconds: float) -> None:
    """Do in async code what belongs into a thread."""

    async def block() -> None:
        await asyncio.sleep(0)
        threading.Event().wait(seconds)  # the mistake that is to be told

    await ctx.step(block)


async def test_a_step_that_blocks_the_loop_is_told_each_time() -> None:
    """Not only if it happens to block while the worker rests and nothing else wakes it."""
    told: list[Event] = []
    async with sf.Engine("memory://", workflows=[blocks], hooks=[told.append]) as engine:
        for number in range(1, 4):
            await (await engine.start(blocks, HELD_UP + PULSE)).result()
            async with asyncio.timeout(5):
                while len([event for event in told if isinstance(event, LoopHeldUp)]) < number:  # noqa: ASYNC110 -- nothing else tells
                    await asyncio.sleep(0)
