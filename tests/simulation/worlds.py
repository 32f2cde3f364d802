"""What all simulated worlds have in common: they run to their end, and fail with the first thing that was wrong."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, cast

from tests.simulation.lock_process import Process

if TYPE_CHECKING:
    from standfast.testing import SimulatedLoop


class World(Protocol):
    """Everything that one seed decides."""

    @property
    def watch(self) -> Any:
        """Notes what was wrong."""
        ...

    async def run(self) -> None:
        """Let everything happen, and look at what has become of it."""
        ...

    async def discard(self) -> None:
        """Let the tasks of the dead end."""
        ...


def settle_in(world: Any, number: int, saw: Any = None) -> Process:
    """Return a new process of a world, whose death the others can see if the world lets them."""
    seed = world.chance.randrange(2**32)
    process = Process(f"process {number}", seed, world.memory, world.watch.saw if saw is None else saw)
    process.sees_deaths, process.liveness_tokens = world.sees_deaths, world.liveness_tokens
    world.liveness_tokens[process.name] = process
    return process


async def play(world: World) -> str:
    """Run a world, and fail with what was wrong; return what tells its steps from those of another."""
    try:
        await world.run()
    finally:
        await world.discard()
    assert not world.watch.problems, world.watch.problems[0]
    return cast("SimulatedLoop", asyncio.get_running_loop()).trace.digest
