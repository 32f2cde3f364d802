"""An event loop that stands still is told, whatever the worker was doing then."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import TYPE_CHECKING, cast

import pytest

import standfast as sf
from standfast.events import LoopHeldUp
from standfast.locks.heartbeat import PRESENCES
from standfast.workflows.worker import HELD_UP, MINUTES, PULSE, Pulse
from tests.fork_server import forked_exec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from standfast.events import Event
    from standfast.locks.heartbeat import LoopReport


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


def test_the_worst_of_the_last_minutes_is_told_and_then_forgotten() -> None:
    """With how long ago it was, and how often it was half a second or longer."""
    loop = Loop()
    pulse = Pulse(cast("asyncio.AbstractEventLoop", loop), lambda _: None)
    loop.run_until(30)
    loop.block(0.3)
    loop.run_until(90)
    loop.block(2.0)
    loop.run_until(150)
    told = pulse.report()
    assert (2.0 - PULSE <= told.worst <= 2.0, told.times, told.stands_for) == (True, 1, 0.0)
    assert told.ago == pytest.approx(58.0, abs=0.2)
    loop.run_until(150 + 60 * MINUTES)
    told = pulse.report()
    assert (told.worst, told.times, told.ago) == (0.0, 0, 0.0)


def test_a_loop_that_stands_still_is_told_by_another_thread() -> None:
    """Nothing on the loop could do so."""
    loop = Loop()
    pulse = Pulse(cast("asyncio.AbstractEventLoop", loop), lambda _: None)
    loop.run_until(30)
    loop.now += 12.0
    assert pulse.report().stands_for == pytest.approx(12.0, abs=PULSE)


STALLS = """
import asyncio, sys
import standfast as sf

@sf.workflow
async def stalls(ctx: sf.Context) -> None:
    async def block() -> None:
        sys.stdin.readline()  # the mistake that is to be seen
    await ctx.step(block)
    await ctx.wait_signal("end")

async def main() -> None:
    async with sf.Engine(sys.argv[1], workflows=[stalls], lease=1.0) as engine:
        await (await engine.start(stalls, id="it")).result()

asyncio.run(main())
"""


async def loop_of_a_worker(engine: sf.Engine, is_so: Callable[[LoopReport], object]) -> LoopReport:
    """Wait until a worker says of its loop that it is so; each heartbeat may."""
    space = engine.space
    async with asyncio.timeout(20), space.watch(space.key("presence")) as watch:
        while True:
            for worker in await engine.workers():
                if worker.is_alive and worker.loop is not None and is_so(worker.loop):
                    return worker.loop
            await watch.wait(0.2)


async def test_others_see_that_the_loop_of_a_worker_stands_still(tmp_path: Path) -> None:
    """While it does, by the heartbeat of its process; and afterwards how long it was."""
    url = f"sqlite:///{tmp_path}/standfast.db"
    worker = await forked_exec(sys.executable, "-c", STALLS, url, stdin=asyncio.subprocess.PIPE)
    try:
        async with sf.Engine(url, drive=False) as engine:
            during = await loop_of_a_worker(engine, lambda told: told.stands_for > HELD_UP)
            assert worker.stdin is not None
            worker.stdin.write(b"\n")
            after = await loop_of_a_worker(engine, lambda told: told.times)
            assert after.worst >= during.stands_for
            assert not after.stands_for
            await engine.signal("it", "end")
            await worker.wait()
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()


def test_presences_of_older_versions_are_read() -> None:
    """They say nothing of their loop, and a process that is no worker writes what it always did."""
    old = b'1:{"process":7,"host":"a","program":"b","lease":10.0}'
    assert PRESENCES.decode(old).loop is None
    assert PRESENCES.encode(PRESENCES.decode(old)) == old
