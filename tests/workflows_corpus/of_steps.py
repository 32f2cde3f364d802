"""Shapes of steps: one after the other, in loops, retried, failing, at most once; and what costs no commit."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import StepFailedError
from tests.workflows_corpus.shape import Shape

if TYPE_CHECKING:
    from standfast.testing.workflows import WorkflowEnvironment

SECOND: Final = sf.Retry(attempts=3, delay=10.0)
world: Final[Counter[str]] = Counter()
"""What steps have done, outside of any store; see :func:`forget`."""


def forget() -> None:
    """Begin with an empty world."""
    world.clear()


async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def shout(text: str) -> str:
    """Say it loud."""
    return text.upper()


def plainly(text: str) -> str:
    """Run in a thread."""
    return text[::-1]


async def break_down(about: str) -> None:
    """Fail."""
    raise ValueError(about)


@sf.step(retry=SECOND)
async def third_time_lucky(about: str) -> int:
    """Fail twice."""
    attempt = sf.current_step().attempt
    if attempt < 3:
        raise ConnectionError(about)
    return attempt


@sf.step(retry=sf.Retry(attempts=2, delay=5.0))
async def never_lucky() -> None:
    """Fail for good."""
    raise ConnectionError("nobody answers")


async def did_it(amount: int) -> Any:
    """Say whether the payment happened."""
    return sf.Happened(amount) if world[sf.current_step().idempotency_key] else sf.DID_NOT_HAPPEN


@sf.step(semantics="at_most_once", reconcile=did_it)
async def pay(amount: int) -> int:
    """Pay, which must not happen twice."""
    world[sf.current_step().idempotency_key] += 1
    return amount


@sf.workflow
async def nothing(ctx: sf.Context) -> str:  # noqa: ARG001 -- a workflow has one
    """Return at once."""
    return "nothing"


@sf.workflow
async def one_step(ctx: sf.Context) -> int:
    """Take one step."""
    return await ctx.step(add, 1, 2)


@sf.workflow
async def sequence(ctx: sf.Context) -> str:
    """Take steps one after the other, plain ones too."""
    total = await ctx.step(add, 1, 2)
    loud = await ctx.step(shout, f"total {total}")
    return await ctx.step("backwards", plainly, loud)


@sf.workflow
async def loop(ctx: sf.Context, rounds: int) -> int:
    """Take the same step several times."""
    total = 0
    for number in range(rounds):
        total = await ctx.step(add, total, number)
    return total


@sf.workflow
async def retried(ctx: sf.Context) -> int:
    """Take a step that fails twice."""
    return await ctx.step(third_time_lucky, "flaky")


@sf.workflow
async def retried_in_vain(ctx: sf.Context) -> str:
    """Take a step that fails for good, and do something else instead."""
    try:
        await ctx.step(never_lucky)
    except ConnectionError as problem:
        return await ctx.step(shout, str(problem))
    return "never"


@sf.workflow
async def fails(ctx: sf.Context) -> None:
    """Fail after a step."""
    await ctx.step(add, 1, 1)
    raise ValueError("on purpose")


@sf.workflow
async def failure_caught(ctx: sf.Context) -> str:
    """Catch what a step raised, and go on."""
    found = []
    for number in range(2):
        try:
            await ctx.step(break_down, f"number {number}")
        except ValueError as problem:
            found.append(str(problem))
        await ctx.step(add, number, number)
    return ", ".join(found)


@sf.workflow
async def compensates(ctx: sf.Context) -> str:
    """Undo what was done when a later step fails."""
    undo = []
    try:
        for number in range(2):
            await ctx.step("book", add, number, 0) if number == 0 else await ctx.step("pay", break_down, "no money")
            undo.append(number)
    except ValueError:
        for number in reversed(undo):
            await ctx.step("cancel", add, -number, 0)
    return f"undone {undo}"


@sf.workflow
async def pays_once(ctx: sf.Context) -> int:
    """Take a step that is run at most once, and can tell whether it was."""
    before = await ctx.step(add, 20, 22)
    return await ctx.step(pay, before)


@sf.workflow
async def pays_twice(ctx: sf.Context) -> int:
    """Take two such steps, with another in between."""
    first = await ctx.step(pay, 1)
    await ctx.step(shout, "paid")
    return first + await ctx.step(pay, 2)


@sf.workflow
async def chances(ctx: sf.Context) -> str:
    """Read the time and throw dice: no commit of their own, and the same after a crash."""
    began = await ctx.now()
    number = (await ctx.random()).randrange(1_000)
    name = await ctx.uuid()
    text = f"{began.isoformat()} {number} {name}"
    return "same" if await ctx.step(said, text) == text else "another"


async def said(text: str) -> str:
    """Say it."""
    return text


@sf.workflow
async def time_between(ctx: sf.Context) -> bool:
    """Read the time before and after a step."""
    before = await ctx.now()
    await ctx.step(add, 1, 1)
    return await ctx.now() >= before >= datetime(2025, 1, 1, tzinfo=UTC)


@sf.workflow
async def patched_early(ctx: sf.Context) -> int:
    """Ask whether the code is the changed one, twice."""
    total = 0
    if await ctx.patched("add-more"):
        total = await ctx.step(add, total, 10)
    await ctx.step(shout, "in between")
    if await ctx.patched("add-more"):
        total = await ctx.step(add, total, 1)
    return total


@sf.workflow
async def goes_on_as_new(ctx: sf.Context, left: int) -> int:
    """Go on as a new run until nothing is left."""
    total = await ctx.step(add, left, 0)
    if left > 0:
        await ctx.continue_as_new(left - 1)
    return total


@sf.workflow
async def fails_in_words(ctx: sf.Context) -> str:
    """Catch an exception whose type is not known: it is described."""
    try:
        await ctx.step(own_problem)
    except StepFailedError as problem:
        await ctx.step(add, 0, 0)
        return str(problem)
    return "never"


class OwnProblem(Exception):  # noqa: N818 -- not one that anybody would name
    """Nobody knows it."""


async def own_problem() -> None:
    """Raise what is not among the known errors."""
    raise OwnProblem("of my own")


def paid_once(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """No payment was made twice, and the ledger says so, too."""
    assert set(world.values()) == {1}
    assert all(env.effects.count(run, key.partition(":")[2]) == 1 for key in world)


SHAPES: Final = (
    Shape(nothing),
    Shape(one_step),
    Shape(sequence),
    Shape(loop, (4,)),
    Shape(retried),
    Shape(retried_in_vain),
    Shape(fails),
    Shape(failure_caught),
    Shape(compensates),
    Shape(pays_once, before=forget, check=paid_once),
    Shape(pays_twice, before=forget, check=paid_once),
    Shape(chances),
    Shape(time_between),
    Shape(patched_early),
    Shape(goes_on_as_new, (2,)),
    Shape(fails_in_words),
)
