"""The queue under every line: first in, first out, and each wait ends in one way."""

from __future__ import annotations

import asyncio

import pytest

from standfast.exclusion.table import WaitQueue
from tests.unit.exclusion.scene import ticks


class Member:
    """Somebody who waits."""

    future: asyncio.Future[bool]

    def __init__(self, queue: WaitQueue[Member], timeout: float | None = None) -> None:
        self.answer = queue.join(self, asyncio.get_running_loop(), timeout)


async def test_members_are_let_in_in_order() -> None:
    """One at a time, and each is told."""
    queue: WaitQueue[Member] = WaitQueue()
    first, second = Member(queue), Member(queue)
    assert list(queue) == [first, second]
    assert queue.let_in() is first
    assert await first.answer is True
    assert list(queue) == [second]


async def test_a_member_that_was_cancelled_is_passed_over() -> None:
    """It still stands in the queue, but nobody sees it."""
    queue: WaitQueue[Member] = WaitQueue()
    gone, next_one = Member(queue), Member(queue)
    gone.future.cancel()
    assert queue.first() is next_one
    assert queue.let_in() is next_one
    assert queue.let_in() is None


async def test_a_wait_that_runs_out_of_time_is_told_so() -> None:
    """The answer is False, and it cannot be let in any more."""
    queue: WaitQueue[Member] = WaitQueue()
    member = Member(queue, timeout=0)
    assert await member.answer is False
    assert queue.let_in() is None


async def test_a_member_that_was_let_in_does_not_run_out_of_time() -> None:
    """The first of the two to happen decides."""
    queue: WaitQueue[Member] = WaitQueue()
    member = Member(queue, timeout=0)
    queue.let_in()
    await ticks()
    assert await member.answer is True


@pytest.mark.parametrize("staying", [0, 1, 10])
async def test_those_who_left_are_swept_out(staying: int) -> None:
    """There are never more of them than of those who stay."""
    queue: WaitQueue[Member] = WaitQueue()
    stay = [Member(queue) for _ in range(staying)]
    for _ in range(1_000):
        Member(queue).future.cancel()
        queue.leave()
    assert len(queue) <= 2 * staying
    assert list(queue) == stay
