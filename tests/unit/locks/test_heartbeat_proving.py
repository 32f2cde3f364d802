"""A process that others cannot see begins nothing; and what it holds it holds only for as long as they wait for it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import LeaseLostError
from standfast.ids import new_id
from standfast.stores.liveness import ProcessLiveness
from standfast.stores.url import open_store
from standfast.testing.workflows.mortal_store import Mortality, MortalStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def seen_by_a_session() -> AsyncIterator[tuple[sf.Space, ProcessLiveness]]:
    """Open a space on a store on which others see this process by a session, and the proof of that."""
    proof = ProcessLiveness(new_id())
    proof.attach()
    store = MortalStore(await open_store("memory://"), Mortality(proof.token, set()))
    async with sf.Space(store) as space:
        yield space, proof
    await store.aclose()


async def entered(space: sf.Space) -> str:
    """Enter a lock and leave it."""
    async with space.mutex("it").hold():
        return "entered"


async def lose_within(space: sf.Space, proof: ProcessLiveness) -> None:
    """Lose the session while holding the lock, and go on as long as possible."""
    async with space.mutex("it").hold():
        proof.lose()
        await asyncio.Event().wait()


async def test_nobody_is_let_in_before_the_process_has_proven_that_it_lives() -> None:
    """The lock is its own by then, but others may be about to take it for dead."""
    async with seen_by_a_session() as (space, proof):
        await entered(space)
        proof.lose()
        entering = asyncio.create_task(entered(space))
        for _ in range(100):  # whatever could go on does
            await asyncio.sleep(0)
        assert not entering.done()

        proof.attach()

        assert await entering == "entered"


async def test_a_session_that_comes_back_in_time_costs_nothing() -> None:
    """What was held is held."""
    async with seen_by_a_session() as (space, proof), space.mutex("it").hold() as hold:
        proof.lose()
        proof.attach()

        hold.check()


async def test_a_process_that_cannot_prove_itself_gives_up_what_it_holds() -> None:
    """Long before its lease lapses: others go on when the grace has passed."""
    async with seen_by_a_session() as (space, proof):
        with pytest.raises(LeaseLostError):
            await lose_within(space, proof)


async def test_whoever_was_not_let_in_in_time_asks_again() -> None:
    """By another presence, and another liveness token if there is one."""
    async with seen_by_a_session() as (space, proof):
        await entered(space)
        proof.lose()
        assert proof.left() > 0

        assert await asyncio.wait_for(entered(space), 30) == "entered"
