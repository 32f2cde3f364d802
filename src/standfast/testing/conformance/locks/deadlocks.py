"""Deadlocks: of those who would wait for each other for ever, one is told, and the others go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import HoldTimeoutError, WaitCycleError
from standfast.testing.conformance.locks.ground import KEY, SOON, LockGround, all_of, at_rest, entered, passes, waiting

if TYPE_CHECKING:
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace


async def circle(spaces: list[Space], kind: Kind) -> list[object]:
    """Let each hold a key of its own and then ask for the next one's; return what became of each."""
    holds_its_own = [asyncio.Event() for _ in spaces]

    async def work(n: int) -> str:
        async with kind.alone(spaces[n], f"key-{n}", owner=f"owner-{n}"):
            holds_its_own[n].set()
            for event in holds_its_own:
                await event.wait()
            async with kind.alone(spaces[n], f"key-{(n + 1) % len(spaces)}", owner=f"owner-{n}"):
                return "had both"

    async with asyncio.timeout(2 * SOON):
        return await asyncio.gather(*(work(n) for n in range(len(spaces))), return_exceptions=True)


class DeadlockCases(LockGround):
    """Waiting in a circle."""

    @pytest.mark.parametrize("size", [2, 3, 5])
    async def test_one_of_a_circle_is_told(self, open_space: OpenSpace, kind: Kind, size: int) -> None:
        """Processes that wait for each other: exactly one gives way, and its error names everyone in the circle."""
        spaces = [await open_space() for _ in range(size)]

        outcomes = await circle(spaces, kind)

        [error] = [each for each in outcomes if isinstance(each, WaitCycleError)]
        assert outcomes.count("had both") == size - 1
        for n in range(size):
            assert any(f"owner-{n} waits for key-{(n + 1) % size}" in link for link in error.cycle)
        await at_rest(spaces[0])

    async def test_tasks_of_one_process_are_told_too(self, space: Space, kind: Kind) -> None:
        """Also if both are in the same space, and go by the names of their tasks."""
        both = [asyncio.Event(), asyncio.Event()]

        async def work(n: int) -> str:
            async with kind.alone(space, f"key-{n}"):
                both[n].set()
                await both[1 - n].wait()
                async with kind.alone(space, f"key-{1 - n}"):
                    return "had both"

        async with asyncio.timeout(SOON):
            outcomes = await asyncio.gather(work(0), work(1), return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == ["WaitCycleError", "str"]
        await at_rest(space)

    async def test_a_holder_outside_the_circle_will_let_one_in(self, space: Space, other: Space) -> None:
        """One of two permits is in the circle, the other will be given back: that is no deadlock."""
        outside = await entered(space.semaphore(KEY, permits=2).hold(owner="outside"))
        inside = await entered(space.semaphore(KEY, permits=2).hold(owner="first"))
        second = await entered(other.mutex("m").hold(owner="second"))
        wants_mutex = await waiting(space, space.mutex("m").hold(owner="first"), "m")

        wants_permit = await waiting(other, other.semaphore(KEY, permits=2).hold(owner="second"))

        await outside.leave()
        await wants_permit.hold()
        await wants_permit.leave()
        await second.leave()
        await all_of([wants_mutex])
        await inside.leave()

    async def test_with_all_holders_in_the_circle_one_is_told(self, space: Space, other: Space) -> None:
        """Both permits are held by owners who wait for the third: nobody would ever let go."""
        semaphore = space.semaphore(KEY, permits=2)
        holders = [await entered(semaphore.hold(owner=owner)) for owner in ("first", "second")]
        third = await entered(other.mutex("m").hold(owner="third"))
        waiters = [await waiting(space, space.mutex("m").hold(owner=owner), "m") for owner in ("first", "second")]

        with pytest.raises(WaitCycleError):
            await passes(other.semaphore(KEY, permits=2).hold(owner="third"))

        await third.leave()
        await all_of(waiters)
        for holder in holders:
            await holder.leave()
        await at_rest(space)

    async def test_a_chain_is_no_circle(self, space: Space, other: Space, kind: Kind) -> None:
        """Who waits for one who waits for a third that goes on is not refused."""
        third = await entered(kind.alone(other, "c", owner="third"))
        second = await entered(kind.alone(space, "b", owner="second"))
        second_waits = await waiting(space, kind.alone(space, "c", owner="second"), "c")
        first = await entered(kind.alone(other, "a", owner="first"))
        first_waits = await waiting(space, kind.alone(other, "b", owner="first"), "b")

        await third.leave()
        await second_waits.hold()
        await second_waits.leave()
        await second.leave()
        await all_of([first_waits, first])
        await at_rest(space)

    async def test_one_who_gave_up_is_in_no_circle(self, space: Space, other: Space, kind: Kind) -> None:
        """It asked for the other's key for a moment only: when it no longer waits, the other may."""
        first = await entered(kind.alone(space, "a", owner="first"))
        second = await entered(kind.alone(other, "b", owner="second"))
        with pytest.raises(HoldTimeoutError):
            await passes(kind.alone(space, "b", owner="first", timeout=0.01))

        waiter = await waiting(other, kind.alone(other, "a", owner="second"), "a")

        await first.leave()
        await all_of([waiter, second])
        await at_rest(space)
