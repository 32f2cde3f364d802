"""Callers that are cancelled at any moment while they take, hold or leave a lock."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import types
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import pytest

from standfast.testing.conformance.locks.ground import (
    SOON,
    LockClient,
    LockGround,
    at_rest,
    entered,
    eventually,
    passes,
    queued_or_done,
    waiters_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Generator

    from standfast.locks.locks import Holding
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind


Moment: TypeAlias = Literal["as it begins to wait", "as it is answered"]


MOMENTS: Final[tuple[Moment, ...]] = ("as it begins to wait", "as it is answered")
"""An await can be interrupted before what it waits for has happened, or in the very tick in which it does."""


@final
class Interruption:
    """Does something to a task at its n-th await.

    Attributes:
        happened: Whether it came to that; if not, the coroutine has fewer awaits.
    """

    def __init__(self, number: int, moment: Moment, act: Callable[[asyncio.Task[Any]], object]) -> None:
        self._left, self._moment, self._act = number, moment, act
        self.happened = False

    def at(self, awaited: Any) -> None:
        """Note an await of the running task."""
        self._left -= 1
        task = asyncio.current_task()
        if self._left != 0 or task is None:
            return
        if self._moment == "as it is answered" and asyncio.isfuture(awaited):
            awaited.add_done_callback(lambda _: self._interrupt(task))
        else:
            self._interrupt(task)

    def _interrupt(self, task: asyncio.Task[Any]) -> None:
        self.happened = True
        self._act(task)


def cancellation(number: int, moment: Moment) -> Interruption:
    """Cancel the task at its n-th await."""
    return Interruption(number, moment, lambda task: task.cancel())


@types.coroutine
def interrupted(work: Coroutine[Any, Any, Any], interruption: Interruption) -> Generator[Any, Any, Any]:
    """Run ``work`` as ``await`` does, and tell ``interruption`` of each of its awaits."""
    go_on: Callable[[], Any] = functools.partial(work.send, None)
    while True:
        try:
            awaited: Any = go_on()
        except StopIteration as ended:
            return ended.value
        interruption.at(awaited)
        try:
            answer: Any = yield awaited
        except BaseException as problem:  # noqa: BLE001 -- it belongs to the coroutine
            go_on = functools.partial(work.throw, problem)
        else:
            go_on = functools.partial(work.send, answer)


MOST_AWAITS = 200


async def each_cancellation(
    work: Callable[[Interruption], Coroutine[Any, Any, object]], moment: Moment
) -> AsyncIterator[bool]:
    """Run ``work`` with a cancellation at its first await, its second, and so on; yield after each if it was cancelled.

    It ends with the run that had no more awaits to be cancelled at.
    """
    for number in range(1, MOST_AWAITS):
        interruption = cancellation(number, moment)
        task = asyncio.create_task(work(interruption))
        async with asyncio.timeout(SOON):
            await asyncio.wait({task})
        if not task.cancelled():
            await task
        yield task.cancelled()
        if not interruption.happened:
            return
    pytest.fail("it never came to an end")


async def enter_and_leave(holding: Holding, interruption: Interruption) -> None:
    """Enter, with interruptions, and leave."""
    await interrupted(holding.__aenter__(), interruption)
    await holding.__aexit__(None, None, None)


async def leave_at_last(holding: Holding, interruption: Interruption) -> None:
    """Enter, and leave with interruptions."""
    await holding.__aenter__()
    await interrupted(holding.__aexit__(None, None, None), interruption)


class LockCancellationCases(LockGround):
    """A task that is cancelled while it takes a lock, waits for it, or gives it back."""

    @pytest.fixture(params=MOMENTS)
    def moment(self, request: pytest.FixtureRequest) -> Moment:
        """When it is cancelled."""
        found: Moment = request.param
        return found

    async def test_a_cancelled_acquisition_leaves_nothing(
        self, space: Space, other: Space, kind: Kind, moment: Moment
    ) -> None:
        """Of a free lock, at each await."""
        counted = 0
        async for was_cancelled in each_cancellation(lambda at: enter_and_leave(kind.one(space), at), moment):
            counted += was_cancelled
            await at_rest(other)
            await passes(kind.alone(other))
        assert counted >= 1

    async def test_a_cancelled_try_leaves_nothing(self, space: Space, other: Space, kind: Kind, moment: Moment) -> None:
        """Of a free lock that is only taken if it is free."""
        async for _ in each_cancellation(lambda at: enter_and_leave(kind.try_one(space), at), moment):
            await at_rest(other)
            await passes(kind.alone(other))

    async def test_a_cancelled_waiter_leaves_the_line(
        self, space: Space, other: Space, kind: Kind, moment: Moment
    ) -> None:
        """Of a lock that another process has: at each await until it would have got in, the hand-over included."""
        cancelled = 0

        async def wait_for_it(interruption: Interruption) -> None:
            holder = await entered(kind.alone(other))
            task = asyncio.create_task(enter_and_leave(kind.one(space), interruption))
            await queued_or_done(space, task)
            await holder.leave()
            await task

        async for was_cancelled in each_cancellation(wait_for_it, moment):
            cancelled += was_cancelled
            await at_rest(other)
            await passes(kind.alone(other))
        assert cancelled >= 2

    async def test_a_cancelled_waiter_that_holds_something_else_leaves_nothing(
        self, space: Space, other: Space, kind: Kind, moment: Moment
    ) -> None:
        """It might have been part of a circle: what was noted of that is gone, too."""

        async def wait_for_it(interruption: Interruption) -> None:
            holder = await entered(kind.alone(other))
            async with kind.alone(space, "outer", owner="me"):
                task = asyncio.create_task(enter_and_leave(kind.one(space, owner="me"), interruption))
                await queued_or_done(space, task)
                await holder.leave()
                await task

        async for _ in each_cancellation(wait_for_it, moment):
            await at_rest(other)

    async def test_the_next_gets_what_a_cancelled_one_was_given(
        self, space: Space, other: Space, kind: Kind, moment: Moment
    ) -> None:
        """Two wait in one process; the first is cancelled at each await: the second gets in all the same."""

        async def wait_for_it(interruption: Interruption) -> None:
            holder = await entered(kind.alone(other))
            task = asyncio.create_task(enter_and_leave(kind.alone(space), interruption))
            await queued_or_done(space, task)
            second = LockClient(kind.alone(space, note="second"))
            await eventually(lambda: _stands_in_line(space, "second"))
            await holder.leave()
            await second.hold()
            await second.leave()
            await task

        async for _ in each_cancellation(wait_for_it, moment):
            await at_rest(other)

    async def test_a_cancelled_release_gives_back_all_the_same(
        self, space: Space, other: Space, kind: Kind, moment: Moment
    ) -> None:
        """At each await of leaving."""
        async for _ in each_cancellation(lambda at: leave_at_last(kind.alone(space), at), moment):
            await passes(kind.alone(other))
            await at_rest(other)

    async def test_a_second_cancellation_changes_nothing(
        self, space: Space, other: Space, kind: Kind, moment: Moment
    ) -> None:
        """One who is cancelled again while it withdraws leaves nothing either."""

        async def twice(interruption: Interruption) -> None:
            task = asyncio.create_task(enter_and_leave(kind.one(space), interruption))
            task.add_done_callback(lambda _: None)
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        async for _ in each_cancellation(twice, moment):
            await at_rest(other)
            await passes(kind.alone(other))


async def _stands_in_line(space: Space, note: str) -> bool:
    return any(waiter.entry.note == note for waiter in await waiters_of(space))
