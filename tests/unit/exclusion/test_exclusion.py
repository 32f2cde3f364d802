"""Holding keys: one at a time, in order of arrival, each key for itself."""

from __future__ import annotations

import asyncio
import copy
import pickle
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import (
    ArgumentTypeError,
    HoldTimeoutError,
    InvalidArgumentError,
    StandfastError,
    UsageError,
    WouldWaitError,
)
from standfast.exclusion import Exclusion
from tests.unit.exclusion.scene import MODES, OTHER, PLAIN, Overlaps, Scene, ended, held, ticks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


async def test_one_task_at_a_time_holds_a_key() -> None:
    """Tasks that hold the same key never overlap."""
    exclusion, overlaps = Exclusion(), Overlaps()

    async def visit(number: int) -> None:
        async with exclusion.hold(PLAIN("a")):
            await overlaps.visit(str(number))

    await asyncio.gather(*(visit(number) for number in range(10)))
    assert overlaps.most == 1


async def test_tasks_are_served_in_order_of_arrival() -> None:
    """Who asked first holds first."""
    scene = Scene()
    async with ended(scene):
        for name in "1234":
            await scene.enter(name)
        for name in "1234":
            await scene.leave(name)
    assert scene.log == ["1", "2", "3", "4"]


async def test_different_keys_are_held_at_once() -> None:
    """A key of the same family with other parts is another lock."""
    exclusion, overlaps = Exclusion(), Overlaps()

    async def visit(part: str) -> None:
        async with exclusion.hold(PLAIN(part)):
            await overlaps.visit(part)

    await asyncio.gather(visit("a"), visit("b"), visit("a,b"), visit(""))
    assert overlaps.most == 4


async def test_keys_that_only_look_alike_are_different_locks() -> None:
    """A part with a comma is not two parts."""
    exclusion = Exclusion()
    async with exclusion.hold(PLAIN("a,b")), exclusion.hold(PLAIN("a", "b")):
        assert len(exclusion.inspect()) == 2


async def test_nobody_slips_in_while_a_key_is_handed_over() -> None:
    """A task that asks in the very tick of the release stands behind those who wait."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("waiter")
        scene.let_go("holder")
        scene.start("barger", scene._hold("barger", None, None))
        await ticks()
        assert (scene.inside, scene.line) == (["waiter"], ["barger"])


async def test_a_holder_that_asks_again_stands_at_the_end() -> None:
    """The task that frees a key has no advantage in taking it anew."""
    exclusion, order = Exclusion(), list[str]()

    async def often(name: str) -> None:
        for _ in range(3):
            async with exclusion.hold(PLAIN("a")):
                order.append(name)
                await asyncio.sleep(0)

    await asyncio.gather(often("a"), often("b"), often("c"))
    assert order == ["a", "b", "c"] * 3


async def test_a_failing_holder_frees_the_key_and_fails_nobody_else() -> None:
    """The exception goes to whoever raised it, and the next in line enters as if nothing had happened."""
    exclusion = Exclusion()

    async def fail() -> None:
        async with exclusion.hold(PLAIN("a")):
            await asyncio.sleep(0)
            raise LookupError

    async def succeed() -> str:
        async with exclusion.hold(PLAIN("a")):
            return "done"

    failed, done = await asyncio.gather(fail(), succeed(), return_exceptions=True)
    assert isinstance(failed, LookupError)
    assert done == "done"


async def test_exclusions_know_nothing_of_each_other() -> None:
    """Locks live in the instance: the same key in another exclusion is free."""
    one, other = Exclusion(), Exclusion()
    async with one.hold(PLAIN("a")), other.try_hold(PLAIN("a")):
        assert len(one.inspect()) == len(other.inspect()) == 1


async def test_text_is_refused_as_a_key() -> None:
    """Only a family makes keys; the message says how."""
    with pytest.raises(ArgumentTypeError, match="KeyFamily"):
        Exclusion().hold("repo")  # type: ignore[arg-type]  # that is the point of the test


async def test_a_look_alike_is_refused_as_a_key() -> None:
    """Being shaped like a key is not being one."""

    class LookAlike:
        family, encoded, parts = PLAIN, b"x", ("x",)

    with pytest.raises(ArgumentTypeError):
        Exclusion().hold(LookAlike())  # type: ignore[arg-type]  # that is the point of the test


async def test_a_family_with_modes_needs_one() -> None:
    """The error names the choices."""
    with pytest.raises(InvalidArgumentError, match="'pull', 'observe', 'exclusive'"):
        Exclusion().hold(MODES())


async def test_a_family_refuses_modes_that_it_does_not_declare() -> None:
    """A typo in a mode is found before anything is held."""
    with pytest.raises(InvalidArgumentError, match="mode 'pul' cannot be the mode"):
        Exclusion().hold(MODES(), mode="pul")
    with pytest.raises(InvalidArgumentError, match="declares no modes"):
        Exclusion().try_hold(PLAIN(), mode="pull")


# --- try_hold -----------------------------------------------------------------------------------------------------


async def test_a_free_key_can_be_had_at_once() -> None:
    """``try_hold`` takes what is free, without a turn of the loop."""
    exclusion = Exclusion()
    async with exclusion.try_hold(PLAIN("a")):
        assert len(exclusion.inspect()) == 1
    assert exclusion.inspect() == ()


async def test_a_taken_key_is_refused_at_once() -> None:
    """``try_hold`` never waits; it says who holds the key, and leaves no trace."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        with pytest.raises(WouldWaitError, match=r"test-plain\(stage\) is taken by holder at .*scene.py:\d+"):
            async with scene.exclusion.try_hold(scene.key):
                pytest.fail("it is taken")
        assert (scene.inside, scene.line) == (["holder"], [])


async def test_a_key_that_is_being_handed_over_is_taken() -> None:
    """``try_hold`` in the tick of the release finds the key in the next one's hands."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("waiter")
        scene.afterwards["holder"] = lambda: scene.log.append(",".join(scene.inside))
        await scene.leave("holder")
        with pytest.raises(WouldWaitError):
            await scene.exclusion.try_hold(scene.key).__aenter__()
        assert scene.log == ["holder", "waiter", "waiter"]


# --- as a decorator, in a stack -----------------------------------------------------------------------------------


async def test_a_decorated_function_takes_the_key_for_each_call() -> None:
    """Calls of one function never overlap, and each returns its own result."""
    exclusion, overlaps = Exclusion(), Overlaps()

    @exclusion.hold(PLAIN("a"))
    async def visit(number: int, *, times: int = 1) -> int:
        """Pay a visit."""
        await overlaps.visit(str(number))
        return number * times

    assert list(await asyncio.gather(visit(1), visit(2, times=5))) == [1, 10]
    assert (overlaps.most, visit.__name__, visit.__doc__) == (1, "visit", "Pay a visit.")


async def test_a_decorated_function_shows_where_it_was_decorated() -> None:
    """The site of such a hold is the line of the decorator."""
    exclusion = Exclusion()

    @exclusion.hold(PLAIN("a"))
    async def look() -> str:
        return exclusion.inspect(PLAIN("a")).holders[0].site

    assert (await look()).startswith(__file__)


async def test_a_decorated_function_waits_no_longer_than_its_hold_would() -> None:
    """The timeout of the hold, or its refusal to wait, is that of each call."""
    exclusion = Exclusion()

    async def work() -> None:
        """Do nothing."""

    async with exclusion.hold(PLAIN("a")):
        with pytest.raises(HoldTimeoutError):
            await asyncio.create_task(exclusion.hold(PLAIN("a"), timeout=0)(work)())
        with pytest.raises(WouldWaitError):
            await asyncio.create_task(exclusion.try_hold(PLAIN("a"))(work)())


async def test_only_a_coroutine_function_can_be_decorated() -> None:
    """Others could not wait, so they are refused where they are decorated."""

    def plain() -> None:
        """Do nothing."""

    async def generator() -> AsyncIterator[None]:
        """Yield nothing."""
        yield

    functions: tuple[Any, ...] = (plain, generator, classmethod(plain))  # type: ignore[arg-type]  # never called
    for function in functions:
        with pytest.raises(ArgumentTypeError, match=r"a coroutine function, below any @classmethod.* without yield"):
            Exclusion().hold(PLAIN("a"))(function)


async def test_holds_work_in_an_exit_stack() -> None:
    """Several keys are freed together when the stack is closed."""
    exclusion = Exclusion()
    async with AsyncExitStack() as stack:
        for part in ("a", "b", "c"):
            await stack.enter_async_context(exclusion.hold(PLAIN(part)))
        assert len(exclusion.inspect()) == 3
    assert exclusion.inspect() == ()


async def test_keys_may_be_freed_in_any_order() -> None:
    """Blocks need not be nested like brackets."""
    exclusion = Exclusion()
    first, second, third = (exclusion.hold(key) for key in (PLAIN("a"), PLAIN("b"), OTHER("a")))
    for hold in (first, second, third):
        await hold.__aenter__()
    for hold in (second, first, third):
        await hold.__aexit__(None, None, None)
    assert not exclusion._table.entries
    assert not exclusion._table.held


async def test_a_hold_can_be_used_again_after_its_block() -> None:
    """One after another, the same hold serves several blocks."""
    exclusion = Exclusion()
    hold = exclusion.hold(PLAIN("a"))
    for _ in range(3):
        async with hold:
            assert len(exclusion.inspect()) == 1


async def test_a_hold_serves_one_task_at_a_time() -> None:
    """A hold that is shared by two tasks is refused, rather than freed by the wrong one."""
    exclusion = Exclusion()
    hold = exclusion.hold(PLAIN("a"))

    async def use() -> None:
        async with hold:
            await ticks()

    first, second = await asyncio.gather(use(), use(), return_exceptions=True)
    assert first is None
    assert isinstance(second, UsageError)


async def test_a_hold_cannot_be_left_twice() -> None:
    """Leaving what is not held is refused, and takes the key from nobody."""
    exclusion = Exclusion()
    hold = exclusion.hold(PLAIN("a"))
    async with hold:
        pass
    async with exclusion.hold(PLAIN("a")):
        with pytest.raises(UsageError, match="without being held"):
            await hold.__aexit__(None, None, None)
        assert len(held(exclusion, PLAIN("a"))) == 1


async def test_another_task_may_leave_the_block() -> None:
    """The key is freed all the same, as when an async generator is closed by another task."""
    exclusion = Exclusion()
    hold = exclusion.hold(PLAIN("a"))
    await hold.__aenter__()

    async def leave() -> None:
        await hold.__aexit__(None, None, None)

    await asyncio.create_task(leave())
    assert exclusion.inspect() == ()


async def test_a_wait_that_begins_late_takes_what_has_become_free() -> None:
    """Between asking and awaiting the holder has left: nobody is there to hand the key over, so it is taken."""
    exclusion = Exclusion()
    first, second = exclusion.hold(PLAIN("a")), exclusion.hold(PLAIN("a"))
    await first.__aenter__()

    async def late() -> None:
        asking = second.__aenter__()
        await ticks()
        await asking
        await second.__aexit__(None, None, None)

    task = asyncio.create_task(late())
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)
    await task
    assert exclusion.inspect() == ()


async def test_a_hold_says_what_it_is() -> None:
    """Its text has the key, the mode and where it was asked for."""
    assert repr(Exclusion().hold(MODES("g"), mode="pull")).startswith("<Hold test-modes(g) in mode 'pull' from /")
    assert repr(Exclusion()) == "<Exclusion with 0 keys in use>"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_is_held_cannot_be_copied(again: Callable[[object], object]) -> None:
    """A copy would let go of what the original holds, or would guard nothing in another process."""
    exclusion = Exclusion()
    for original in (exclusion, exclusion.hold(PLAIN("a"))):
        with pytest.raises(StandfastError, match="cannot be copied"):
            again(original)
