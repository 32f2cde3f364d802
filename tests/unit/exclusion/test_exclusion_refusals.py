"""What could never end is refused at once: asking for what one holds, and waiting in a circle."""

from __future__ import annotations

import asyncio

import pytest

from standfast.errors import HoldTimeoutError, ReentryError, WaitCycleError
from standfast.events import LockOrderInverted
from standfast.exclusion import Exclusion, Hold
from tests.unit.exclusion.scene import MODES, OTHER, PLAIN, Scene, ended, ticks


async def test_a_task_cannot_ask_for_what_it_holds() -> None:
    """The error names both places, and the key is still held once."""
    exclusion = Exclusion()
    async with exclusion.hold(PLAIN("a")):
        with pytest.raises(ReentryError) as caught:
            async with exclusion.hold(PLAIN("a")):
                pytest.fail("it is held")
        assert caught.value.taken.startswith(f"{__file__}:")
        assert int(caught.value.again.rpartition(":")[2]) == int(caught.value.taken.rpartition(":")[2]) + 2
        assert len(exclusion.inspect(PLAIN("a")).holders) == 1
    assert exclusion.inspect() == ()


async def test_a_task_cannot_enter_the_same_mode_twice() -> None:
    """Sharing is between tasks: with another mode in line, entering again would wait for ever."""
    exclusion = Exclusion()
    async with exclusion.hold(MODES(), mode="pull"):
        with pytest.raises(ReentryError):
            await exclusion.hold(MODES(), mode="pull").__aenter__()


async def test_reentry_is_refused_when_others_wait_or_share() -> None:
    """A key with company knows its holders as well."""
    scene = Scene(MODES("graph"))
    async with ended(scene), scene.exclusion.hold(scene.key, mode="pull"):
        await scene.enter("pull", "pull")
        await scene.enter("observe", "observe")
        for mode in ("pull", "observe", "exclusive"):
            with pytest.raises(ReentryError):
                await scene.exclusion.hold(scene.key, mode=mode).__aenter__()
        for name in ("pull", "observe"):
            scene.tasks[name].cancel()


async def test_try_hold_refuses_reentry_as_a_mistake() -> None:
    """A task that holds the key has made a mistake; that is not the answer "somebody else has it"."""
    exclusion = Exclusion()
    async with exclusion.hold(PLAIN("a")):
        with pytest.raises(ReentryError):
            await exclusion.try_hold(PLAIN("a")).__aenter__()


async def test_the_same_hold_cannot_be_entered_within_its_own_block() -> None:
    """Re-using the hold object makes no difference."""
    hold = Exclusion().hold(PLAIN("a"))
    async with hold:
        with pytest.raises(ReentryError):
            await hold.__aenter__()


async def test_the_key_can_be_taken_again_after_the_block() -> None:
    """Only nesting is refused."""
    exclusion = Exclusion()
    for _ in range(3):
        async with exclusion.hold(PLAIN("a")):
            pass


# --- circles of waiting tasks -------------------------------------------------------------------------------------


def quiet() -> Exclusion:
    """Make an exclusion that does not warn about the order of keys: that is tested elsewhere."""
    return Exclusion(hooks=[lambda event: isinstance(event, LockOrderInverted)])


async def take_both(first: Hold, second: Hold) -> str:
    """Take two keys, one on top of the other, with a pause between."""
    async with first:
        await ticks()
        async with second:
            return "both"


async def test_two_tasks_that_wait_for_each_other_are_found() -> None:
    """The one that would close the circle is refused at once and names it; the other goes on."""
    exclusion = quiet()
    calls = (
        take_both(exclusion.hold(PLAIN("a")), exclusion.hold(OTHER("b"))),
        take_both(exclusion.hold(OTHER("b")), exclusion.hold(PLAIN("a"))),
    )
    first, second = await asyncio.gather(*calls, return_exceptions=True)
    assert first == "both"
    assert isinstance(second, WaitCycleError)
    assert len(second.cycle) == 2
    assert "waiting for test-plain(a)" in str(second)


async def test_longer_circles_are_found() -> None:
    """Three tasks, each waiting for the next: one is refused, and the others get through."""
    exclusion, parts = quiet(), ["a", "b", "c"]
    calls = [
        take_both(exclusion.hold(PLAIN(part)), exclusion.hold(PLAIN(then)))
        for part, then in zip(parts, ["b", "c", "a"], strict=True)
    ]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(answer) for answer in answers] == [str, str, WaitCycleError]
    assert exclusion.inspect() == ()


async def test_a_circle_through_one_of_several_sharers_is_found() -> None:
    """A key that several tasks share is waited for until all of them have left."""
    scene = Scene(MODES("graph"), lambda _: None)
    async with ended(scene):
        await scene.enter("bystander", "pull")
        sharer = take_both(scene.exclusion.hold(scene.key, mode="pull"), scene.exclusion.hold(PLAIN("a")))
        other = take_both(scene.exclusion.hold(PLAIN("a")), scene.exclusion.hold(scene.key, mode="exclusive"))
        answers = await asyncio.gather(sharer, other, return_exceptions=True)
        assert [type(answer) for answer in answers] == [str, WaitCycleError]


async def test_a_wait_with_a_timeout_is_never_a_circle() -> None:
    """It ends by itself, so the other task may wait for it."""
    exclusion = quiet()

    async def with_patience() -> str:
        try:
            return await take_both(exclusion.hold(PLAIN("a")), exclusion.hold(OTHER("b"), timeout=0.001))
        except HoldTimeoutError:
            return "gave up"

    other = take_both(exclusion.hold(OTHER("b")), exclusion.hold(PLAIN("a")))
    assert list(await asyncio.gather(with_patience(), other)) == ["gave up", "both"]


async def test_a_task_that_has_just_been_let_in_is_not_taken_for_waiting() -> None:
    """Two that enter together: the first to run may wait for what the second holds."""
    exclusion = quiet()

    async def waiter(extra: Hold, more: Hold | None = None) -> str:
        async with extra, exclusion.hold(MODES(), mode="pull"):
            if more is not None:
                async with more:
                    return "all three"
            await ticks()
            return "two"

    async with exclusion.hold(MODES(), mode="exclusive"):
        first = asyncio.create_task(waiter(exclusion.hold(PLAIN("x")), exclusion.hold(OTHER("y"))))
        second = asyncio.create_task(waiter(exclusion.hold(OTHER("y"))))
        await ticks()
    assert list(await asyncio.gather(first, second)) == ["all three", "two"]


async def test_a_task_that_is_being_cancelled_is_not_taken_for_waiting() -> None:
    """Its keys are about to be free, so waiting for them is right."""
    exclusion = quiet()

    async with exclusion.hold(PLAIN("a")):
        other = asyncio.create_task(take_both(exclusion.hold(OTHER("b")), exclusion.hold(PLAIN("a"))))
        await ticks(10)
        other.cancel()
        async with exclusion.hold(OTHER("b")):
            assert other.cancelled()
