"""Losing: what the block is told when the lock is gone, and what comes out of it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import LeaseLostError
from standfast.events import LeaseLost
from standfast.testing.conformance.locks.ground import (
    KEY,
    SOON,
    LockGround,
    at_rest,
    entered,
    head_of,
    leftovers,
    passes,
    waiting,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from standfast.events import Event
    from standfast.locks.locks import Holding
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace


async def turn_out(space: Space, kind: Kind, key: str = KEY) -> None:
    """Release whoever holds, by force."""
    head = await head_of(space, key)
    assert head is not None
    for holder in head.holders:
        assert await kind.make(space, key).force_release(holder.entry.id)


async def for_ever() -> None:
    """Wait for what never comes."""
    await asyncio.get_running_loop().create_future()


async def losing(
    holding: Holding, loss: Coroutine[Any, Any, None], body: Callable[[], Awaitable[None]] = for_ever
) -> None:
    """Hold, while somebody else sees to it that it is lost."""
    operator: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(SOON), holding:
            operator = asyncio.create_task(loss)
            await body()
    finally:
        if operator is not None:
            await operator


class LosingCases(LockGround):
    """The block of a hold that was lost."""

    async def test_the_block_is_cancelled(self, space: Space, other: Space, kind: Kind) -> None:
        """It can clean up; then it raises what happened."""
        cleaned_up = False

        async def body() -> None:
            nonlocal cleaned_up
            try:
                await for_ever()
            finally:
                cleaned_up = True

        with pytest.raises(LeaseLostError):
            await losing(kind.alone(space), turn_out(other, kind), body)
        assert cleaned_up

    async def test_the_task_goes_on_as_if_nobody_had_cancelled_it(self, space: Space, other: Space, kind: Kind) -> None:
        """The cancellation of the loss is taken back, whether or not the block waited for anything."""
        task = asyncio.current_task()
        assert task is not None
        for loss, body in ((turn_out(other, kind), for_ever), (_nothing(), lambda: turn_out(other, kind))):
            with pytest.raises(LeaseLostError):
                await losing(kind.alone(space), loss, body)
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    async def test_the_block_is_told_if_it_wants_to(self, space: Space, other: Space, kind: Kind) -> None:
        """With "tell" nobody is cancelled: the block hears of it, and leaves in peace."""
        async with asyncio.timeout(SOON), kind.alone(space, on_lost="tell") as hold:
            assert not hold.lost.is_set()
            await turn_out(other, kind)
            await hold.lost.wait()
            with pytest.raises(LeaseLostError):
                hold.check()

    async def test_a_hook_is_told(self, open_space: OpenSpace, other: Space, kind: Kind) -> None:
        """Once for each hold that is lost."""
        told: list[Event] = []
        space = await open_space(told=told)
        async with kind.alone(space, on_lost="tell") as hold:
            await turn_out(other, kind)
            async with asyncio.timeout(SOON):
                await hold.lost.wait()

        [event] = [event for event in told if isinstance(event, LeaseLost)]
        assert (event.key, event.fence) == (KEY, hold.fence)

    async def test_a_block_that_ends_before_it_is_told_learns_it_in_the_end(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """It finds out when it gives back what it does not have any more."""

        async def work() -> None:
            async with kind.alone(space):
                await turn_out(other, kind)

        with pytest.raises(LeaseLostError):
            await work()

    async def test_a_block_that_swallows_the_cancellation_learns_it_in_the_end(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """The error is raised whatever the block does with its cancellation."""

        async def body() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await for_ever()
            await asyncio.sleep(0)

        with pytest.raises(LeaseLostError):
            await losing(kind.alone(space), turn_out(other, kind), body)

    async def test_the_blocks_own_error_wins(self, space: Space, other: Space, kind: Kind) -> None:
        """What the block raises is not replaced."""

        async def body() -> None:
            try:
                await for_ever()
            finally:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await losing(kind.alone(space), turn_out(other, kind), body)

    async def test_a_cancellation_by_others_wins(self, space: Space, other: Space, kind: Kind) -> None:
        """A task that is cancelled by somebody else while it loses its lock ends as cancelled."""

        async def body() -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await for_ever()
            finally:
                task.cancel()

        task = asyncio.create_task(losing(kind.alone(space), turn_out(other, kind), body))
        await asyncio.wait({task}, timeout=SOON)
        assert task.cancelled()
        await at_rest(other)

    async def test_a_cancellation_while_the_block_cleans_up_wins(self, space: Space, other: Space, kind: Kind) -> None:
        """It comes after the loss, and before the block has ended."""
        cleaning = asyncio.Event()

        async def body() -> None:
            try:
                await for_ever()
            finally:
                cleaning.set()
                await for_ever()

        task = asyncio.create_task(losing(kind.alone(space), turn_out(other, kind), body))
        async with asyncio.timeout(SOON):
            await cleaning.wait()
            task.cancel()
            await asyncio.wait({task})
        assert task.cancelled()
        await at_rest(other)

    async def test_a_task_group_inside_the_block_is_cancelled(self, space: Space, other: Space, kind: Kind) -> None:
        """Its tasks end before the lock is given back."""
        ended: list[str] = []

        async def child() -> None:
            try:
                await for_ever()
            finally:
                ended.append("child")

        async def body() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(child())

        with pytest.raises(LeaseLostError):
            await losing(kind.alone(space), turn_out(other, kind), body)
        assert ended == ["child"]

    async def test_both_locks_of_a_nested_block_are_given_back(self, space: Space, other: Space, kind: Kind) -> None:
        """The outer one is lost: the inner one is released, and so is whatever is left of the outer."""

        async def body() -> None:
            async with kind.alone(space, "inner"):
                await for_ever()

        with pytest.raises(LeaseLostError, match="outer"):
            await losing(kind.alone(space, "outer"), turn_out(other, kind, "outer"), body)
        await at_rest(other)
        await passes(kind.alone(other, "inner"))

    async def test_losing_the_inner_lock_leaves_the_outer(self, space: Space, other: Space, kind: Kind) -> None:
        """The outer block can go on after the inner one failed."""
        async with kind.alone(space, "outer") as outer:
            with pytest.raises(LeaseLostError, match="inner"):
                await losing(kind.alone(space, "inner"), turn_out(other, kind, "inner"))
            outer.check()
        assert await leftovers(other) == []

    async def test_one_who_lost_it_does_not_release_the_next(self, space: Space, other: Space, kind: Kind) -> None:
        """Leaving late gives back nothing that somebody else has by now."""
        late = await entered(kind.alone(space, on_lost="tell"))
        await turn_out(other, kind)
        successor = await entered(kind.alone(other))

        await late.leave()

        (await successor.hold()).check()
        assert await head_of(space) is not None
        await successor.leave()

    async def test_a_forced_release_lets_the_next_in(self, space: Space, other: Space, kind: Kind) -> None:
        """Whoever waits moves up at once; turning out the same one again does nothing."""
        late = await entered(kind.alone(space, on_lost="tell"))
        waiter = await waiting(other, kind.one(other))
        lock, head = kind.make(other, KEY), await head_of(space)
        assert head is not None

        assert await lock.force_release(head.holders[0].entry.id)
        assert not await lock.force_release(head.holders[0].entry.id)

        await waiter.hold()
        await waiter.leave()
        await late.leave()


async def _nothing() -> None:
    """Do nothing: the block does it itself."""
