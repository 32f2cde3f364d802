"""Time-outs: one who gave up waiting is not in the line, and one who got in has not given up."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import monotonic
from standfast.errors import HoldTimeoutError
from standfast.testing.conformance.locks.ground import (
    KEY,
    LockGround,
    a_while,
    all_of,
    at_rest,
    entered,
    eventually,
    leftovers,
    look_after,
    passes,
    queued,
    waiters_of,
    waiting,
)
from standfast.testing.conformance.locks.interrupting import MOMENTS, Interruption, interrupted
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from standfast.locks.locks import Holding
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace
    from standfast.testing.conformance.locks.interrupting import Moment

MOST_AWAITS = 200

LONG = 61.5
"""A time-out that a test lets run out by hand, in seconds."""


class _Limits:
    """The time-outs that locks set, so that a test can let the last of them run out in the tick that it chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._last: Any = None
        self._timeout = asyncio.timeout
        monkeypatch.setattr("standfast.locks.acquire.asyncio.timeout", self._note)

    def _note(self, delay: float | None) -> asyncio.Timeout:
        limit = self._timeout(delay)
        if delay == LONG:  # and not one of the test's own
            self._last = limit
        return limit

    def run_out(self, _task: asyncio.Task[Any]) -> None:
        """Let the time be up right now, as the loop's timer would."""
        if self._last is not None and self._last.when() is not None:
            self._last._on_timeout()  # noqa: SLF001 -- there is no public way to choose the tick


class TimeoutCases(LockGround):
    """How long one waits at most."""

    @pytest.mark.parametrize("timeout", [0, 0.02])
    async def test_one_who_gives_up_leaves_the_line(
        self, space: Space, other: Space, kind: Kind, timeout: float
    ) -> None:
        """When it is told, it is gone already; it is told who was in the way."""
        holder = await entered(kind.alone(space, owner="the holder"))
        timeout = await a_while(other, timeout) if timeout else 0

        with pytest.raises(HoldTimeoutError) as caught:
            await passes(kind.one(other, timeout=timeout))

        assert await waiters_of(space) == []
        assert caught.value.holders == ("the holder",)
        await holder.leave()
        assert await leftovers(space) == []

    async def test_a_timeout_of_nothing_takes_what_is_free(self, space: Space, kind: Kind) -> None:
        """It does not wait, and need not."""
        assert await passes(kind.one(space, timeout=0)) > 0

    async def test_a_timeout_does_not_end_the_block(self, space: Space) -> None:
        """The limit is for the wait alone."""
        async with space.mutex(KEY).hold(timeout=0.25) as hold:
            await asyncio.sleep(0.3)
            hold.check()

    async def test_one_who_gives_up_holds_up_nobody(self, space: Space, other: Space, kind: Kind) -> None:
        """Those behind it move up."""
        holder = await entered(kind.alone(space))
        impatient = asyncio.create_task(passes(kind.alone(other, timeout=await a_while(other, 0.05))))
        await queued(space, 1)
        patient = await waiting(space, kind.one(space))

        with pytest.raises(HoldTimeoutError):
            await impatient
        await holder.leave()
        await all_of([patient])

    async def test_a_timeout_is_kept_however_often_one_is_woken(self, space: Space, other: Space, kind: Kind) -> None:
        """Looking at the line again and again does not start it anew."""
        holder, started = await entered(kind.alone(space)), monotonic()
        impatient = asyncio.create_task(passes(kind.one(other, timeout=0.1)))
        while not impatient.done():
            await look_after(other)
            await asyncio.sleep(0)

        with pytest.raises(HoldTimeoutError):
            await impatient
        assert 0.1 <= monotonic() - started < 2
        await holder.leave()

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_a_timeout_and_a_grant_are_never_both(
        self, space: Space, other: Space, kind: Kind, moment: Moment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The time is up at each await, also in the tick of the grant: either it got in or it timed out."""
        limits, outcomes = _Limits(monkeypatch), set[str]()
        for number in range(1, MOST_AWAITS):
            holder = await entered(kind.alone(other))
            interruption = Interruption(number, moment, limits.run_out)
            task = asyncio.create_task(_enter_or_give_up(kind.one(space, timeout=LONG), interruption))
            await eventually(functools.partial(_is_waiting_or_done, space, task))
            await holder.leave()
            outcomes.add(await task)
            await at_rest(other)
            if not interruption.happened:
                break
        assert outcomes == {"got in", "timed out"}

    async def test_a_timeout_is_kept_while_the_store_is_out_of_reach(self, open_space: OpenSpace) -> None:
        """It cannot leave the line at once then; it is told all the same, and leaves when it can."""
        wire = Wire()
        space, other = await open_space(), await open_space(through=wire.around)
        holder = await entered(space.mutex(KEY).hold())
        impatient = asyncio.create_task(passes(other.mutex(KEY).hold(timeout=0.5), 2))
        await queued(space, 1)

        wire.cut()
        with pytest.raises(HoldTimeoutError):
            await impatient
        wire.mend()
        await queued(space, 0)
        await holder.leave()


async def _enter_or_give_up(holding: Holding, interruption: Interruption) -> str:
    try:
        await interrupted(holding.__aenter__(), interruption)
    except HoldTimeoutError:
        return "timed out"
    await holding.__aexit__(None, None, None)
    return "got in"


async def _is_waiting_or_done(space: Space, task: asyncio.Task[Any]) -> bool:
    return task.done() or bool(await waiters_of(space))
