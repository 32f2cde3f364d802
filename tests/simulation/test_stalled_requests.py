"""What thousands of seeds have found, told one by one: requests that lose their place, and come back to newer ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final, final

import pytest

from standfast.errors import RequestSupersededError
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import QueueRules, queue_rules_of
from standfast.policies import Latest, Restart
from standfast.stores.memory import MemoryRecords
from standfast.testing import VirtualClock, simulate
from tests.conformance.arbiter_visits import QUEUE, Visit, ask
from tests.simulation.lock_process import Process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LEASE: Final = 1.0
SEEDS: Final = range(10)
RESTART: Final = queue_rules_of(Restart(grace="8s"))
SUPERSEDING: Final = pytest.mark.parametrize("rules", [RESTART, queue_rules_of(Latest())], ids=["restart", "latest"])


@final
class Crew:
    """Servers without faults on one store. The first one is steady, and somebody of another action runs there."""

    def __init__(self, processes: list[Process], arbiters: list[SharedArbiter]) -> None:
        self._processes = processes
        self.steady, self.first, self.second = arbiters
        self.busy: Final = Visit(self.steady, ask("busy", action="chat.other"))

    async def stall(self, number: int = 1) -> None:
        """Let nothing of a server through for so long that it is taken for dead."""
        await asyncio.sleep(LEASE)  # what is under way arrives
        self._processes[number].stall()
        await asyncio.sleep(3 * LEASE)

    async def resume(self, number: int = 1) -> None:
        """Let it come back, and find out what has become of its places."""
        self._processes[number].resume()
        await asyncio.sleep(3 * LEASE)


def simulated(test: Callable[[Crew], Awaitable[None]]) -> None:
    """Run a test under several seeds."""

    async def run() -> None:
        memory = MemoryRecords(clock=VirtualClock(asyncio.get_running_loop()))
        processes = [Process(f"server {number}", 0, memory, lambda *_: None) for number in range(3)]
        async with AsyncExitStack() as stack:
            for each in processes:
                each.calm_down()
            spaces = [await stack.enter_async_context(each.open(LEASE)) for each in processes]
            crew = Crew(processes, [await stack.enter_async_context(SharedArbiter(each)) for each in spaces])
            await crew.busy.runs()
            await test(crew)

    for seed in SEEDS:
        simulate(seed, run)


@SUPERSEDING
def test_one_that_lost_its_place_gives_way_to_a_newer_one_that_waits(rules: QueueRules) -> None:
    """It does not take the place of a request that came after it."""

    async def overtaken(crew: Crew) -> None:
        old = await Visit(crew.first, ask("old", rules)).waits()
        await crew.stall()
        new = await Visit(crew.steady, ask("new", rules)).waits()
        await crew.resume()
        with pytest.raises(RequestSupersededError, match="'new'"):
            await old.ended()
        await crew.busy.end()
        assert await (await new.runs()).end() == "new"

    simulated(overtaken)


@SUPERSEDING
def test_one_that_lost_its_place_gives_way_to_a_newer_one_that_runs(rules: QueueRules) -> None:
    """That one goes on."""

    async def overtaken(crew: Crew) -> None:
        old = await Visit(crew.first, ask("old", rules)).waits()
        await crew.stall()
        new = await Visit(crew.steady, ask("new", rules)).waits()
        await crew.busy.end()
        await new.runs()
        await crew.resume()
        with pytest.raises(RequestSupersededError, match="'new'"):
            await old.ended()
        assert await new.end() == "new"

    simulated(overtaken)


@SUPERSEDING
def test_of_two_that_lost_their_places_the_newer_one_wins(rules: QueueRules) -> None:
    """Though the older one has joined again first: what counts is who came first at all."""

    async def both_back(crew: Crew) -> None:
        old = await Visit(crew.first, ask("old", rules)).waits()
        await crew.stall(1)
        new = await Visit(crew.second, ask("new", rules)).waits()
        await crew.stall(2)
        behind = await Visit(crew.steady, ask("behind", action="chat.other")).waits()
        await crew.resume(1)
        await crew.resume(2)
        with pytest.raises(RequestSupersededError, match="'new'"):
            await old.ended()
        await crew.busy.end()
        await (await behind.runs()).end()
        assert await (await new.runs()).end() == "new"

    simulated(both_back)


@SUPERSEDING
def test_one_that_lost_its_place_joins_again_if_nobody_newer_is_there(rules: QueueRules) -> None:
    """It waits behind those of other actions, and has its turn."""

    async def alone(crew: Crew) -> None:
        old = await Visit(crew.first, ask("old", rules)).waits()
        await crew.stall()
        behind = await Visit(crew.steady, ask("behind", action="chat.other")).waits()
        await crew.resume()
        await crew.busy.end()
        await (await behind.runs()).end()
        assert await (await old.runs()).end() == "old"

    simulated(alone)


def test_one_that_lost_its_place_still_supersedes_an_older_one() -> None:
    """Whoever does not stop in time loses its grant, as if nothing had happened."""

    async def older(crew: Crew) -> None:
        await crew.busy.end()
        old = await Visit(crew.steady, ask("old", RESTART), stubborn=True).runs()
        new = await Visit(crew.first, ask("new", RESTART)).waits()
        await crew.stall()
        behind = await Visit(crew.steady, ask("behind", action="chat.other")).waits()
        await crew.resume()
        await (await behind.runs()).end()
        assert await (await new.runs()).end() == "new"
        with pytest.raises(RequestSupersededError, match="'new'"):
            await old.end()

    simulated(older)


def test_one_that_lost_its_place_is_not_refused_because_the_line_is_full_by_now() -> None:
    """It was let in."""

    async def full(crew: Crew) -> None:
        old = await Visit(crew.first, ask("old", QueueRules(most_waiting=1))).waits()
        await crew.stall()
        behind = await Visit(crew.steady, ask("behind", QUEUE)).waits()
        await crew.resume()
        await crew.busy.end()
        await (await behind.runs()).end()
        assert await (await old.runs()).end() == "old"

    simulated(full)
