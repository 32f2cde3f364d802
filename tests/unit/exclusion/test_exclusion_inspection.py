"""A picture of an exclusion: who holds, since when, who waits, in which order."""

from __future__ import annotations

import asyncio

import pytest

from standfast.clock import later
from standfast.errors import ArgumentTypeError
from standfast.exclusion import Exclusion, KeyState
from standfast.testing import VirtualClock
from tests.unit.exclusion.scene import MODES, OTHER, PLAIN, Scene, ended


async def test_an_unused_exclusion_has_nothing_to_show() -> None:
    """A key that nobody wants has neither holders nor waiters."""
    exclusion = Exclusion()
    assert exclusion.inspect() == ()
    assert exclusion.inspect(PLAIN("a")) == KeyState(PLAIN("a"), (), ())


async def test_the_picture_shows_holders_and_waiters_in_order() -> None:
    """Names, modes, places in the line, and where each of them asked."""
    scene = Scene(MODES("graph"))
    async with ended(scene):
        for name, mode in {"p1": "pull", "p2": "pull", "o": "observe", "x": "exclusive"}.items():
            await scene.enter(name, mode)
        state = scene.exclusion.inspect(scene.key)
        assert [(holder.task, holder.mode) for holder in state.holders] == [("p1", "pull"), ("p2", "pull")]
        assert [(w.task, w.mode, w.place) for w in state.waiters] == [("o", "observe", 1), ("x", "exclusive", 2)]
        sites = [holder.site for holder in state.holders] + [waiter.site for waiter in state.waiters]
        assert all("scene.py:" in site for site in sites)


async def test_the_site_is_the_line_that_asked() -> None:
    """File and line of the call of ``hold``, however many lines the function has."""
    exclusion = Exclusion()
    async with exclusion.hold(PLAIN("a")):
        site = exclusion.inspect(PLAIN("a")).holders[0].site
    assert site == f"{__file__}:{test_the_site_is_the_line_that_asked.__code__.co_firstlineno + 3}"


async def test_times_are_those_of_the_clock() -> None:
    """A holder shows when it took the key, a waiter when it asked."""
    clock = VirtualClock()
    exclusion, started = Exclusion(clock=clock), clock.wall()

    async def hold() -> None:
        async with exclusion.hold(PLAIN("a")):
            await asyncio.Event().wait()

    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0)
    clock.advance(5)
    state = exclusion.inspect(PLAIN("a"))
    assert (state.holders[0].taken_at, state.waiters[0].asked_at) == (started, started)
    first.cancel()
    await asyncio.wait([first])
    assert exclusion.inspect(PLAIN("a")).holders[0].taken_at == later(started, 5)
    second.cancel()


async def test_all_keys_in_use_are_shown_in_order() -> None:
    """Sorted like the keys themselves."""
    exclusion = Exclusion()
    async with exclusion.hold(PLAIN("b")), exclusion.hold(PLAIN("a")), exclusion.hold(OTHER()):
        assert [str(state.key) for state in exclusion.inspect()] == ["test-other()", "test-plain(a)", "test-plain(b)"]


async def test_the_picture_does_not_change_afterwards() -> None:
    """It is a value: frozen and independent of what happens next."""
    exclusion = Exclusion()
    async with exclusion.hold(PLAIN("a")):
        [state] = exclusion.inspect()
    assert len(state.holders) == 1
    with pytest.raises(AttributeError):
        state.holders = ()  # type: ignore[misc]  # that is the point of the test


async def test_a_waiter_that_is_leaving_is_not_shown() -> None:
    """Its cancellation is under way, so it will never be served."""
    scene = Scene()
    async with ended(scene):
        await scene.enter("holder")
        await scene.enter("leaving")
        await scene.enter("staying")
        scene.tasks["leaving"].cancel()
        assert scene.line == ["staying"]
        assert scene.exclusion.inspect(scene.key).waiters[0].place == 1


async def test_only_keys_can_be_inspected() -> None:
    """Text is refused here too."""
    with pytest.raises(ArgumentTypeError):
        Exclusion().inspect("a")  # type: ignore[call-overload]  # that is the point of the test


def test_an_exclusion_can_be_inspected_without_a_loop() -> None:
    """After the program has ended there is nothing left to be shown, and asking is no error."""
    exclusion = Exclusion()

    async def use() -> None:
        async with exclusion.hold(PLAIN("a")):
            pass

    asyncio.run(use())
    assert exclusion.inspect() == ()
