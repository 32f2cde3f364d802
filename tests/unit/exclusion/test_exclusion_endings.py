"""However a block ends, the key is free."""

from __future__ import annotations

import asyncio
import gc
import warnings
import weakref
from typing import TYPE_CHECKING

import pytest

from standfast.exclusion import Exclusion
from tests.unit.exclusion.scene import PLAIN, Scene, ended, ticks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class Abrupt(BaseException):
    """Something that ``except Exception`` does not see."""


@pytest.mark.parametrize("error", [LookupError, Abrupt, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_any_exception_frees_the_key(error: type[BaseException]) -> None:
    """The exception goes on its way unchanged."""
    exclusion = Exclusion()
    raised = error("as it was")
    with pytest.raises(error) as caught:
        async with exclusion.hold(PLAIN("a")):
            raise raised
    assert caught.value is raised
    assert exclusion.inspect() == ()


@pytest.mark.parametrize("contended", [False, True])
async def test_a_coroutine_that_is_closed_frees_the_key(contended: bool) -> None:  # noqa: FBT001 -- a parameter of pytest
    """GeneratorExit, thrown in at the await inside the block."""
    scene = Scene()
    async with ended(scene):
        work = scene._hold("closed", None, None)
        scene._let_go["closed"] = asyncio.Event()
        task = asyncio.current_task()
        assert task is not None
        work.send(None)
        if contended:
            await scene.enter("next")
        work.close()
        await ticks()
        assert scene.inside == (["next"] if contended else [])


async def test_an_async_generator_that_is_closed_frees_the_key() -> None:
    """Leaving a loop early closes the generator, and that leaves the block inside."""
    exclusion = Exclusion()

    async def numbers() -> AsyncGenerator[int, None]:
        async with exclusion.hold(PLAIN("a")):
            yield 1
            yield 2

    generator = numbers()
    assert await anext(generator) == 1
    assert len(exclusion.inspect()) == 1
    await generator.aclose()
    assert exclusion.inspect() == ()


def test_the_end_of_the_program_frees_everything() -> None:
    """``asyncio.run`` cancels what is left: holders and waiters alike."""
    exclusion = Exclusion()

    async def hold() -> None:
        async with exclusion.hold(PLAIN("a")):
            await asyncio.Event().wait()

    async def main() -> None:
        main.tasks = [asyncio.create_task(hold()) for _ in range(5)]  # type: ignore[attr-defined]  # keeps them alive
        await ticks()
        assert len(exclusion.inspect(PLAIN("a")).waiters) == 4

    asyncio.run(main())
    assert exclusion.inspect() == ()


def test_a_loop_that_is_closed_underneath_leaves_no_noise() -> None:
    """Tasks that are thrown away with their loop and their exclusion are closed without an error."""
    loop, exclusion = asyncio.new_event_loop(), Exclusion()

    async def hold(exclusion: Exclusion) -> None:
        async with exclusion.hold(PLAIN("a")):
            await asyncio.Event().wait()

    tasks = [loop.create_task(hold(exclusion)) for _ in range(3)]
    gone = weakref.ref(tasks[0])
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be destroyed
    loop.run_until_complete(ticks())
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del tasks, task, exclusion, loop
        gc.collect()
    assert gone() is None


def test_a_waiter_that_is_thrown_away_on_a_closed_loop_passes_the_key_on() -> None:
    """The coroutines are closed one by one, in any order, without a running loop."""
    loop, exclusion = asyncio.new_event_loop(), Exclusion()

    async def hold() -> None:
        async with exclusion.hold(PLAIN("a")):
            await asyncio.Event().wait()

    tasks = [loop.create_task(hold()) for _ in range(3)]
    loop.run_until_complete(ticks())
    loop.close()
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be destroyed
        coroutine = task.get_coro()
        assert coroutine is not None
        coroutine.close()
    assert exclusion.inspect() == ()
