"""A bounded look at all lines: who waits longest, who waits in a circle, and how much rate limiters let pass."""

from __future__ import annotations

import pytest

import standfast as sf
from standfast.errors import InvalidArgumentError
from standfast.locks.survey import find_circles, read_lines, read_rates
from tests.unit.locks.test_deadlock import World, world

__all__ = ["world"]


async def test_circles_are_found_each_once(world: World) -> None:
    """Whoever of them is met first; one who waits for someone who goes on is in none."""
    for key, owner in (("a", "one"), ("b", "two"), ("c", "free"), ("d", "three")):
        await world.held(key, owner)
    await world.waits("one", "b")
    await world.waits("two", "a")
    await world.waits("three", "c")

    found = await find_circles(world.scope)

    assert found.circles == (("one waits for b", "two waits for a"),)
    assert not found.more


async def test_a_search_that_stops_early_says_so(world: World) -> None:
    """From as many owners as are asked for, and no more."""
    await world.held("a", "free")
    for number in range(3):
        await world.waits(f"owner-{number}", "a", ticket=number)

    assert (await find_circles(world.scope, searches=2)).more
    assert (await find_circles(world.scope, most=2)).more
    assert not (await find_circles(world.scope, searches=3)).more


async def test_lines_are_told_with_their_longest_wait(world: World) -> None:
    """Only those that are waited for, if that is asked for; and whether that was all."""
    await world.held("a", "ann")
    await world.waits("ben", "a")
    await world.held("b", "cat")

    [waited_for] = (await read_lines(world.scope, waiting=True)).lines
    every = await read_lines(world.scope)
    first = await read_lines(world.scope, most=1)

    assert (waited_for.key, waited_for.holder, waited_for.waiter, waited_for.waiting) == ("a", "ann", "ben", 1)
    assert waited_for.waited is not None
    assert [line.key for line in every.lines] == ["a", "b"]
    assert not every.more
    assert ([line.key for line in first.lines], first.more) == (["a"], True)


async def test_a_first_waiter_that_left_out_of_turn_is_passed_over(world: World) -> None:
    """The head may still name its ticket; the one behind it is first."""
    await world.held("a", "ann")
    await world.waits("ben", "a", ticket=0)
    await world.held("b", "ann")
    [line] = (await read_lines(world.scope, waiting=True)).lines
    assert (line.key, line.waiter) == ("a", "ben")  # nobody is left in the line of b


async def test_rates_are_told_as_they_are_now() -> None:
    """Tokens that were earned since count; a limit is a number."""
    async with sf.open("memory://") as space:
        for name in ("mail", "sms"):
            await space.rate_limiter(name, interval="1 hour", capacity=2).try_acquire()
        page = await read_rates(space, limit=1)
        assert ([(rate.key, rate.tokens, rate.waiting) for rate in page.rates], page.more) == ([("mail", 1, 0)], True)
        assert [rate.key for rate in (await space.rates()).rates] == ["mail", "sms"]
        with pytest.raises(InvalidArgumentError):
            await read_rates(space, limit=0)
