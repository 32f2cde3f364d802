"""What thousands of seeds have found, told one by one: processes that stall, and come back to a changed line."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.errors import HoldTimeoutError, StoreUnavailableError, WithdrawnError
from standfast.stores.memory import MemoryRecords
from standfast.stores.protocol import Commit, Put
from standfast.testing import Faults, VirtualClock, simulate
from standfast.testing.faults import Dice
from tests.simulation.lock_process import Process
from tests.simulation.lock_states import Attempt
from tests.simulation.lock_watch import LockWatch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.locks.locks import Hold
    from standfast.space import Space

LEASE = 1.0
SEEDS = range(20)


class Crew:
    """Two processes without faults on one memory: ``first`` and ``second``."""

    def __init__(self) -> None:
        memory = MemoryRecords(clock=VirtualClock(asyncio.get_running_loop()))
        self.watch = LockWatch(memory)
        self.watch.permits["key"], self.watch.alone["key"] = 1, ()
        self.first, self.second = (Process(name, 0, memory, self.watch.saw) for name in ("first", "second"))
        for process in (self.first, self.second):
            process.calm_down()
            self.watch.attempts[process.name] = Attempt(process.name, process, is_forced=True)

    async def line(self) -> list[str]:
        """Wait until everything has settled, and return who is in the line."""
        await asyncio.sleep(3 * LEASE)
        return [entry.note for entry in self.watch.entries("key")]


def simulated(test: Callable[[Crew, Space, Space], Awaitable[None]]) -> None:
    """Run a test under several seeds: some requests land before a stall, some after it."""

    async def run() -> None:
        crew = Crew()
        async with crew.first.open(LEASE) as first, crew.second.open(LEASE) as second:
            await test(crew, first, second)

    for seed in SEEDS:
        simulate(seed, run)


async def hold_for(space: Space, seconds: float, note: str = "first", timeout: float | None = None) -> None:
    """Hold the key for a while."""
    async with space.mutex("key").hold(note=note, timeout=timeout):
        await asyncio.sleep(seconds)


def test_nobody_holds_by_a_presence_that_lapsed_on_the_way() -> None:
    """A renewal that is answered too late is not relied on."""

    async def late(crew: Crew, first: Space, _second: Space) -> None:
        await hold_for(first, 0.6 * LEASE)
        crew.first.stall()
        asyncio.get_running_loop().call_later(2 * LEASE, crew.first.resume)
        async with first.mutex("key").hold(note="first") as hold:
            assert not hold.is_lost
            await asyncio.sleep(2 * LEASE)
            assert not hold.is_lost

    simulated(late)


def test_a_turn_that_comes_too_late_is_asked_for_again() -> None:
    """One whose presence lapsed before it heard of its turn keeps it by another one."""

    async def late(crew: Crew, first: Space, _second: Space) -> None:
        await hold_for(first, 0.1)
        crew.first.stall()
        asyncio.get_running_loop().call_later(2 * LEASE, crew.first.resume)
        async with first.mutex("key").hold(note="first") as hold:
            assert not hold.is_lost
            answer = await first.commit(Put(first.key("effect", "key", "first"), b""), hold.guard)
            assert isinstance(answer, Commit)

    simulated(late)


def test_one_who_was_turned_out_of_a_line_that_ended_is_told() -> None:
    """Also if it could not look before nothing of the line was left."""

    async def turn_out(crew: Crew, first: Space, second: Space) -> None:
        async with first.mutex("key").hold(note="first"):
            waiting = asyncio.create_task(hold_for(second, 0, "second"))
            await asyncio.sleep(0.1)
            (entry,) = (each.id for each in crew.watch.entries("key") if each.note == "second")
            crew.second.faults = Faults(drop_hint=1)
            crew.second.stall()
            assert await first.mutex("key").force_release(entry)
        crew.second.resume()
        with pytest.raises(WithdrawnError):
            await asyncio.wait_for(waiting, 5)

    simulated(turn_out)


def test_one_who_gives_up_far_back_before_it_knows_its_place_leaves_no_ghost() -> None:
    """A ghost would get the lock in its turn, and keep it for as long as its process lives."""

    async def give_up(crew: Crew, first: Space, second: Space) -> None:
        crowd = [asyncio.create_task(hold_for(first, 0.3)) for _ in range(15)]
        await asyncio.sleep(0.1)
        crew.second.faults = Faults(delay=1.0, longest_delay=0.1)
        crew.second.dice = Dice(crew.second.faults, 0)
        limits = [number / 20 for number in range(1, 20)]
        hasty = [asyncio.create_task(hold_for(second, 0, "second", timeout=limit)) for limit in limits]
        given_up = await asyncio.gather(*hasty, return_exceptions=True)
        assert all(isinstance(each, HoldTimeoutError) for each in given_up)
        await asyncio.wait_for(asyncio.gather(*crowd), 20)
        assert await crew.line() == []

    simulated(give_up)


def test_one_who_fails_while_asking_again_leaves_nothing_behind() -> None:
    """Its place from before goes, too."""

    async def fail(crew: Crew, first: Space, second: Space) -> None:
        holder = asyncio.create_task(hold_for(first, 4 * LEASE))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(hold_for(second, 0, "second"))
        await asyncio.sleep(0.1)
        crew.second.dice = Dice(Faults(refuse=1.0), 0)
        with contextlib.suppress(StoreUnavailableError):
            await waiting
        crew.second.calm_down()
        await asyncio.sleep(0.2)
        assert [entry.note for entry in crew.watch.entries("key")] == ["first"]
        await holder

    simulated(fail)


def test_a_hold_knows_by_the_clock_that_its_longest_time_is_over() -> None:
    """Also if the loop has not come to its timers since."""

    async def sleep_over(crew: Crew, first: Space, _second: Space) -> None:
        hold: Hold
        async with first.mutex("key").hold(max_hold=0.2, on_lost="tell", note="first") as hold:
            crew.first.clock.advance(0.3)
            assert hold.is_lost

    simulated(sleep_over)
