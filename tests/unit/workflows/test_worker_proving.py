"""A worker that others cannot see starts no step; it goes on when they can, or leaves its runs to others."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import standfast as sf
from standfast.ids import new_id
from standfast.stores.liveness import ProcessLiveness
from standfast.stores.url import open_store
from standfast.testing.workflows.mortal_store import Mortality, MortalStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Watched:
    """A worker whose session can be lost between two steps of its run."""

    def __init__(self) -> None:
        self.proof = ProcessLiveness(new_id())
        self.between, self.go_on = asyncio.Event(), asyncio.Event()
        self.steps: list[str] = []

    @asynccontextmanager
    async def between_two_steps(self) -> AsyncIterator[sf.Run[None]]:
        """Lose the session when the first step is done."""

        async def act(name: str) -> None:
            self.steps.append(name)

        @sf.workflow
        async def flow(ctx: sf.Context) -> None:
            await ctx.step("first", act, "first")
            self.between.set()
            await self.go_on.wait()
            await ctx.step("second", act, "second")

        self.proof.attach()
        store = MortalStore(await open_store("memory://"), Mortality(self.proof.token, set()))
        async with sf.Space(store, lease=2) as space, sf.Engine(space, workflows=[flow]) as engine:
            run = await engine.start(flow)
            await self.between.wait()
            self.proof.lose()
            self.go_on.set()
            for _ in range(100):  # whatever could go on does
                await asyncio.sleep(0)
            yield run
        await store.aclose()


async def test_a_step_waits_until_the_worker_has_proven_that_it_lives() -> None:
    """Others may be about to take it for dead, and to do the same step."""
    world = Watched()
    async with world.between_two_steps() as run:
        assert world.steps == ["first"]

        world.proof.attach()
        await run.result()

    assert world.steps == ["first", "second"]


async def test_a_worker_that_cannot_prove_itself_starts_the_step_only_as_another_one() -> None:
    """Its claim is over; the run is taken up anew, and what was recorded is not done again."""
    world = Watched()
    async with world.between_two_steps() as run:
        await run.result()

    assert world.proof.left() <= 0
    assert world.steps == ["first", "second"]
