"""A key is never lost: not by a cancellation, not by a timeout, whenever they come."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from standfast.errors import HoldTimeoutError, InvalidArgumentError, UsageError
from standfast.exclusion import Exclusion
from standfast.exclusion.table import KeyLine
from tests.unit.exclusion.scene import PLAIN, Scene, ended, ticks


def timers() -> list[asyncio.TimerHandle]:
    """Return the timers that are set on the running loop; there is no public way to see them."""
    loop: Any = asyncio.get_running_loop()
    return [timer for timer in loop._scheduled if not timer.cancelled()]


async def test_a_cancelled_waiter_leaves_the_line() -> None:
    """Those behind it move up, and the key goes to the next."""
    scene = Scene()
    async with ended(scene):
        for name in ("holder", "cancelled", "next"):
            await scene.enter(name)
        scene.tasks["cancelled"].cancel()
        await ticks()
        assert scene.line == ["next"]
        await scene.leave("holder")
        assert scene.inside == ["next"]


async def test_a_cancelled_holder_frees_the_key() -> None:
    """Cancelling the holder hands the key to the next."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("next")
        scene.tasks["holder"].cancel()
        await ticks()
        assert scene.inside == ["next"]


async def test_a_waiter_cancelled_just_before_the_hand_over_is_passed_over() -> None:
    """Its cancellation is under way but has not arrived when the holder lets go."""
    scene = Scene()
    async with ended(scene):
        for name in ("holder", "cancelled", "next"):
            await scene.enter(name)
        scene.let_go("holder")
        await asyncio.sleep(0)  # the holder is woken after this, and lets go in its turn
        scene.tasks["cancelled"].cancel()
        await ticks()
        assert scene.tasks["cancelled"].cancelled()
        assert scene.inside == ["next"]


async def test_a_waiter_cancelled_right_after_the_hand_over_passes_the_key_on() -> None:
    """It owns the key already, but has not run since: the key must not go down with it."""
    scene = Scene()
    async with ended(scene):
        for name in ("holder", "cancelled", "next"):
            await scene.enter(name)
        scene.afterwards["holder"] = scene.tasks["cancelled"].cancel
        await scene.leave("holder")
        assert scene.tasks["cancelled"].cancelled()
        assert scene.log == ["holder", "next"]
        assert scene.inside == ["next"]


@pytest.mark.parametrize("delay", range(8))
async def test_the_key_survives_a_cancellation_in_any_tick(delay: int) -> None:
    """However many ticks lie between the release and the cancellation, somebody gets the key in the end."""
    scene = Scene()
    async with ended(scene):
        for name in ("holder", "cancelled", "next"):
            await scene.enter(name)
        scene.let_go("holder")
        await ticks(delay)
        scene.tasks["cancelled"].cancel()
        await ticks(10)
        assert scene.inside == ["next"]


async def test_a_whole_line_can_be_cancelled_at_once() -> None:
    """Ten thousand waiters leave together, and nothing is left of them."""
    exclusion = Exclusion()

    async def wait() -> None:
        async with exclusion.hold(PLAIN("a")):
            pytest.fail("it was never free")

    async with exclusion.hold(PLAIN("a")):
        waiters = [asyncio.create_task(wait()) for _ in range(10_000)]
        await ticks()
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        assert exclusion.inspect(PLAIN("a")).waiters == ()
    assert exclusion.inspect() == ()


async def test_those_who_gave_up_do_not_stay_in_the_line() -> None:
    """However many come and go behind a waiter that stays, the line holds only those who wait."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("staying")
        for number in range(100):
            (await scene.enter(f"leaving {number}")).cancel()
        await ticks()
        line = scene.exclusion._table.entries[scene.key.encoded]
        assert isinstance(line, KeyLine)
        assert len(line.waiters) < 4


async def test_cancelling_a_task_that_is_about_to_wait_leaves_nothing_behind() -> None:
    """A cancellation that comes before the task first runs."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        scene.start("late", scene._hold("late", None, None)).cancel()
        await ticks()
        assert scene.line == []


# --- timeouts -----------------------------------------------------------------------------------------------------


async def test_a_wait_ends_when_its_time_is_up() -> None:
    """The waiter holds nothing, has left the line, and is told who holds the key."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        with pytest.raises(HoldTimeoutError, match=r"within 0.001 s; held by holder at ") as caught:
            async with scene.exclusion.hold(scene.key, timeout="1ms"):
                pytest.fail("it was never free")
        assert isinstance(caught.value, TimeoutError)
        assert (scene.inside, scene.line) == (["holder"], [])


async def test_a_free_key_needs_no_time() -> None:
    """A timeout of nothing at all is enough for a key that is free."""
    async with Exclusion().hold(PLAIN("a"), timeout=0):
        pass


async def test_the_timeout_limits_the_wait_and_not_the_hold() -> None:
    """Once inside, the holder may take its time."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("patient", timeout=30)
        await scene.leave("holder")
        assert scene.inside == ["patient"]
        assert timers() == []


@pytest.mark.parametrize("order", ["expire first", "release first"])
async def test_a_timeout_in_the_tick_of_the_hand_over_has_one_outcome(order: str) -> None:
    """Either the waiter runs out of time or it holds the key; the key is never lost and never doubled."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("in time?", timeout=30)
        await scene.enter("next")
        [timer] = timers()
        [holder] = scene.exclusion._table.holders_of(scene.key)
        holding = scene.tasks.pop("holder")
        holding.cancel()  # the test lets go in its place, below, before it learns of that
        if order == "expire first":
            timer._run()
        scene.exclusion._table.leave(holder)
        timer._run()
        assert scene.inside == (["next"] if order == "expire first" else ["in time?"])
        await ticks()
        assert isinstance(holding.exception(), UsageError)
        in_time = scene.tasks["in time?"]
        assert (in_time.done() and type(in_time.exception())) == (order == "expire first" and HoldTimeoutError)


async def test_a_wait_that_ran_out_and_was_cancelled_is_cancelled() -> None:
    """A cancellation is never swallowed by a timeout that came first."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        task = await scene.enter("unlucky", timeout=30)
        [timer] = timers()
        timer._run()
        task.cancel()
        await ticks()
        assert task.cancelled()
        assert scene.line == []


async def test_a_bad_timeout_is_refused_before_anything_is_held() -> None:
    """A negative or unreadable timeout is a mistake in the call."""
    exclusion = Exclusion()
    for timeout in (-1, "soon", float("nan")):
        with pytest.raises(InvalidArgumentError, match="timeout"):
            exclusion.hold(PLAIN("a"), timeout=timeout)
