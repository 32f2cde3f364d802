# ruff: noqa: D103 -- the workflows are what the tests are about, and their names say all
"""Code that was changed under runs which have begun: told by name, never guessed, and nothing is run twice."""

from __future__ import annotations

from typing import Any

import pytest

import standfast as sf
from tests.unit.workflows.recorded import go_on

Ctx = sf.Context


async def a(value: int = 0) -> int:
    return value + 1


async def b(value: int = 0) -> int:
    return value + 2


async def c(value: int = 0) -> int:
    return value + 3


async def two_steps(ctx: Ctx) -> int:
    total = await ctx.step(a) + await ctx.step(b)
    await ctx.wait_signal("go")
    return total


async def one_more_first(ctx: Ctx) -> int:
    await ctx.step(c)
    return await two_steps(ctx)


async def one_more_between(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.step(c)
    await ctx.step(b)
    await ctx.wait_signal("go")
    return 0


async def one_more_after(ctx: Ctx) -> int:
    total = await ctx.step(a) + await ctx.step(b)
    await ctx.wait_signal("go")
    return total + await ctx.step(c)


async def without_first(ctx: Ctx) -> int:
    await ctx.step(b)
    await ctx.wait_signal("go")
    return 0


async def without_second(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.wait_signal("go")
    return 0


async def swapped(ctx: Ctx) -> int:
    await ctx.step(b)
    await ctx.step(a)
    await ctx.wait_signal("go")
    return 0


async def renamed(ctx: Ctx) -> int:
    await ctx.step("first", a)
    await ctx.step(b)
    await ctx.wait_signal("go")
    return 0


async def renamed_back(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.step("b", c)
    await ctx.wait_signal("go")
    return 0


async def sleeps_instead(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.sleep(0)
    await ctx.wait_signal("go")
    return 0


async def ends_early(ctx: Ctx) -> int:
    return await ctx.step(a)


async def raises_early(ctx: Ctx) -> int:
    await ctx.step(a)
    raise ValueError("no")


async def other_arguments(ctx: Ctx) -> int:
    total = await ctx.step(a, 5) + await ctx.step(b)
    await ctx.wait_signal("go")
    return total


async def in_a_gather(ctx: Ctx) -> int:
    await ctx.gather(ctx.step(a), ctx.step(b))
    await ctx.wait_signal("go")
    return 0


async def twice_the_first(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.step(a)
    await ctx.wait_signal("go")
    return 0


async def asks_the_time(ctx: Ctx) -> int:
    await ctx.now()
    return await two_steps(ctx)


async def draws_a_number(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.random()
    await ctx.step(b)
    await ctx.wait_signal("go")
    return 0


async def patched_between(ctx: Ctx) -> int:
    total = await ctx.step(a)
    if await ctx.patched("check"):
        total += await ctx.step(c)
    total += await ctx.step(b)
    await ctx.wait_signal("go")
    return total


async def swallows_everything(ctx: Ctx) -> int:
    try:
        await ctx.step(c)
    except BaseException:  # noqa: BLE001 -- what this is about
        return 77
    return 0


CHANGED: dict[str, tuple[Any, str, str, str]] = {
    # name: the new code, what becomes of the run, what is named as recorded, what as asked for
    "a step was added before the first": (one_more_first, "left", "step 'a'", "step 'c'"),
    "a step was added between two": (one_more_between, "left", "step 'b'", "step 'c'"),
    "a step was added after all that is recorded": (one_more_after, "completed", "", ""),
    "the first step was removed": (without_first, "left", "step 'a'", "step 'b'"),
    "the second step was removed": (without_second, "left", "step 'b'", "signal 'signal:go'"),
    "two steps were swapped": (swapped, "left", "step 'a'", "step 'b'"),
    "a step was given an id": (renamed, "left", "step 'a'", "step 'first'"),
    "a step's function was exchanged and its id kept": (renamed_back, "completed", "", ""),
    "a step became a sleep": (sleeps_instead, "left", "step 'b'", "sleep 'sleep'"),
    "the code returns before what is recorded": (ends_early, "left", "step 'b'", "the end of the run"),
    "the code raises before what is recorded": (raises_early, "left", "step 'b'", "the end of the run"),
    "two steps became branches of a gather": (in_a_gather, "left", "step 'a'", "nothing there"),
    "the same step is asked for twice": (twice_the_first, "left", "step 'b'", "step 'a#2'"),
    "the time is asked for before the first step": (asks_the_time, "left", "step 'a'", "now 'now'"),
    "a number is drawn between two steps": (draws_a_number, "left", "step 'b'", "random 'random'"),
    "a step was added behind a patch": (patched_between, "completed", "", ""),
    "the code swallows what stops it": (swallows_everything, "left", "step 'a'", "step 'c'"),
}


@pytest.mark.parametrize("change", CHANGED)
async def test_a_change_of_the_code_is_told_or_harmless(change: str) -> None:
    """A run whose code was changed goes on if it can, and else is left as it is, with both sides named."""
    new, how, recorded, asked = CHANGED[change]

    fate = await go_on(two_steps, new)

    assert fate.how == how
    assert recorded in fate.recorded
    assert asked in fate.asked


async def test_changed_arguments_of_a_recorded_step_are_told() -> None:
    """Arguments that differ are told, and the record counts."""
    fate = await go_on(two_steps, other_arguments)

    assert (fate.how, fate.result, fate.warned) == ("completed", 3, ("a",))


async def test_changed_arguments_stop_a_strict_workflow() -> None:
    """With replay='strict' a run is left alone when the arguments of a recorded step differ."""
    fate = await go_on(two_steps, other_arguments, replay="strict")

    assert (fate.how, fate.asked) == ("left", "step 'a' with other arguments")


async def test_another_version_is_left_to_workers_that_have_the_old_one() -> None:
    """A worker that has only another version of the code leaves the run alone, and says which one it needs."""
    fate = await go_on(two_steps, two_steps, version="2")

    assert fate.how == "left"


async def three_loops(ctx: Ctx) -> int:
    for _ in range(3):
        await ctx.step(a)
    await ctx.wait_signal("go")
    return 3


async def two_loops(ctx: Ctx) -> int:
    for _ in range(2):
        await ctx.step(a)
    await ctx.wait_signal("go")
    return 2


async def four_loops(ctx: Ctx) -> int:
    for _ in range(4):
        await ctx.step(a)
    await ctx.wait_signal("go")
    return 4


@pytest.mark.parametrize(
    ("new", "recorded", "asked"),
    [(two_loops, "step 'a#3'", "signal 'signal:go'"), (four_loops, "", "")],
)
async def test_a_loop_that_goes_round_less_often_is_told(new: Any, recorded: str, asked: str) -> None:
    """One round too few is found; one more is simply run, since the run had not got past the loop's end."""
    fate = await go_on(three_loops, new)

    assert (recorded in fate.recorded, asked in fate.asked) == (True, True)


async def side_by_side(ctx: Ctx) -> int:
    first, second = await ctx.gather(ctx.step(a), ctx.step(b))
    await ctx.wait_signal("go")
    return int(first + second)


async def three_side_by_side(ctx: Ctx) -> int:
    await ctx.gather(ctx.step(a), ctx.step(b), ctx.step(c))
    await ctx.wait_signal("go")
    return 0


async def one_side_by_side(ctx: Ctx) -> int:
    await ctx.gather(ctx.step(a))
    await ctx.wait_signal("go")
    return 0


async def swapped_side_by_side(ctx: Ctx) -> int:
    await ctx.gather(ctx.step(b), ctx.step(a))
    await ctx.wait_signal("go")
    return 0


async def one_after_another(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.step(b)
    await ctx.wait_signal("go")
    return 0


async def raced(ctx: Ctx) -> int:
    await ctx.race(ctx.step(a), ctx.step(b))
    await ctx.wait_signal("go")
    return 0


GATHERED: dict[str, tuple[Any, str]] = {
    "a branch was added": (three_side_by_side, "completed"),
    "a branch was removed": (one_side_by_side, "left"),
    "branches were swapped": (swapped_side_by_side, "left"),
    "branches became a sequence": (one_after_another, "left"),
    "a gather became a race": (raced, "completed"),
}


@pytest.mark.parametrize("change", GATHERED)
async def test_changed_branches_are_told(change: str) -> None:
    """Branches are told apart by their place: what is recorded of one must be there; one more is simply run."""
    new, how = GATHERED[change]

    fate = await go_on(side_by_side, new)

    assert fate.how == how


async def sleeps_then_waits(ctx: Ctx) -> int:
    await ctx.sleep(0)
    await ctx.wait_signal("go")
    return 1


async def steps_then_waits(ctx: Ctx) -> int:
    await ctx.step(a)
    await ctx.wait_signal("go")
    return 1


async def waits_for_another(ctx: Ctx) -> int:
    await ctx.sleep(0)
    await ctx.wait_signal("stop", timeout=0)
    return 1


async def test_a_sleep_that_became_a_step_is_told() -> None:
    """Kinds are compared, not only names and order."""
    fate = await go_on(sleeps_then_waits, steps_then_waits)

    assert (fate.recorded, fate.asked) == ("sleep 'sleep'", "step 'a'")


async def test_waiting_for_another_signal_is_not_noticed_before_one_was_taken() -> None:
    """A wait leaves no event before it is over, so what it waits for can be changed."""
    fate = await go_on(sleeps_then_waits, waits_for_another)

    assert fate.how == "failed"


async def takes_an_argument(ctx: Ctx, number: int) -> int:
    await ctx.wait_signal("go")
    return number


async def takes_text(ctx: Ctx, number: str) -> str:
    await ctx.wait_signal("go")
    return number


async def takes_another(ctx: Ctx, count: int) -> int:
    await ctx.wait_signal("go")
    return count


async def takes_one_more(ctx: Ctx, number: int, factor: int = 2) -> int:
    await ctx.wait_signal("go")
    return number * factor


@pytest.mark.parametrize(("new", "how"), [(takes_text, "left"), (takes_another, "left"), (takes_one_more, "completed")])
async def test_changed_parameters_of_a_workflow_are_told(new: Any, how: str) -> None:
    """An input that the code no longer takes leaves the run alone; a new parameter with a default is fine."""
    fate = await go_on(takes_an_argument, new, old_args=(7,))

    assert fate.how == how


async def numbered() -> int:
    return 5


async def worded() -> str:
    return "five"


async def returns_a_number(ctx: Ctx) -> int:
    result = await ctx.step("same", numbered)
    await ctx.wait_signal("go")
    return result


async def returns_a_word(ctx: Ctx) -> str:
    result = await ctx.step("same", worded)
    await ctx.wait_signal("go")
    return result


async def test_a_step_that_returns_another_type_is_told() -> None:
    """A recorded result that is not of the step's type any more leaves the run alone."""
    fate = await go_on(returns_a_number, returns_a_word)

    assert (fate.how, "another type" in fate.recorded) == ("left", True)
    assert fate.asked.startswith("the declared one: the result of 'worded' cannot be read")
