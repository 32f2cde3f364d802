"""An exclusion belongs to one event loop, and says so."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from standfast.errors import UsageError
from standfast.exclusion import Exclusion
from tests.unit.exclusion.scene import OTHER, PLAIN, ticks

if TYPE_CHECKING:
    from collections.abc import Callable


async def use(exclusion: Exclusion) -> str:
    """Hold a key for a moment."""
    async with exclusion.hold(PLAIN("a")):
        await asyncio.sleep(0)
    return "used"


def in_a_thread(work: Callable[[], object]) -> object:
    """Do something in a thread of its own and wait for it without letting the loop run."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def test_one_loop_after_another_may_use_it() -> None:
    """A module-level exclusion serves several runs, each of which ends before the next begins."""
    exclusion = Exclusion()
    assert [asyncio.run(use(exclusion)) for _ in range(3)] == ["used"] * 3


def test_a_second_open_loop_is_refused() -> None:
    """As long as the first loop is open, it may come back: nobody else gets in."""
    exclusion = Exclusion()
    with asyncio.Runner() as first:
        first.run(use(exclusion))
        with pytest.raises(UsageError, match="belongs to another event loop"):
            asyncio.run(use(exclusion))
        first.run(use(exclusion))


async def test_another_thread_is_refused_while_the_loop_is_busy() -> None:
    """The other thread asks while a task of this loop is in the middle of a step."""
    exclusion = Exclusion()
    await use(exclusion)
    with pytest.raises(UsageError, match="belongs to another event loop"):
        in_a_thread(lambda: asyncio.run(use(exclusion)))


async def test_another_thread_is_refused_while_the_loop_is_idle() -> None:
    """The other thread asks while this loop waits for it."""
    exclusion = Exclusion()
    await use(exclusion)
    with pytest.raises(UsageError):
        await asyncio.to_thread(asyncio.run, use(exclusion))


async def test_another_thread_cannot_inspect_a_running_exclusion() -> None:
    """A picture taken in the middle of a change would be wrong."""
    exclusion = Exclusion()
    await use(exclusion)
    with pytest.raises(UsageError, match="inspected outside"):
        in_a_thread(exclusion.inspect)


async def test_a_contended_key_left_in_another_thread_is_freed_on_its_own_loop() -> None:
    """The mistake is named, and the waiter gets the key all the same."""
    exclusion = Exclusion()
    hold = exclusion.hold(PLAIN("a"))
    await hold.__aenter__()
    waiter = asyncio.create_task(use(exclusion))
    await ticks()
    with pytest.raises(UsageError, match="was left outside the event loop"):
        in_a_thread(lambda: hold.__aexit__(None, None, None))
    assert await waiter == "used"


def test_no_loop_at_all_is_refused() -> None:
    """A coroutine that is driven by hand has no task to own the key."""
    step = use(Exclusion())
    with pytest.raises(UsageError, match="no event loop runs"):
        step.send(None)


async def test_a_coroutine_driven_without_a_task_is_refused() -> None:
    """A callback of the loop is nobody's task."""
    exclusion, answers = Exclusion(), list[object]()

    def drive() -> None:
        try:
            use(exclusion).send(None)
        except UsageError as error:
            answers.append(str(error))

    asyncio.get_running_loop().call_soon(drive)
    await ticks()
    assert "outside a task" in str(answers)


def test_keys_left_behind_by_a_closed_loop_are_not_given_away() -> None:
    """What they protected may be half done: the next loop is told, not let in."""
    exclusion = Exclusion()
    hold = exclusion.hold(PLAIN("a"))

    async def take_and_forget() -> None:
        await hold.__aenter__()

    asyncio.run(take_and_forget())
    with pytest.raises(UsageError, match="1 keys held by a closed event loop"):
        asyncio.run(use(exclusion))
    assert hold.__aexit__(None, None, None) is not None
    assert asyncio.run(use(exclusion)) == "used"


def test_of_two_threads_that_come_first_one_gets_it() -> None:
    """However close they are, one is told that it came second."""
    for _ in range(20):
        exclusion, together = Exclusion(), threading.Barrier(2)

        async def contend(exclusion: Exclusion = exclusion, together: threading.Barrier = together) -> str:
            together.wait()
            try:
                async with exclusion.hold(OTHER()):
                    return "used"
            except UsageError:
                return "refused"
            finally:
                together.wait()

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda _: asyncio.run(contend()), range(2)))
        assert sorted(answers) == ["refused", "used"]
