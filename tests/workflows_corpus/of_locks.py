"""Shapes of holding: locks over sleeps and crashes, states, progress, and what others hold meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from standfast.errors import HoldTimeoutError, LeaseLostError
from tests.workflows_corpus.of_families import cancelled
from tests.workflows_corpus.of_steps import add, break_down, shout
from tests.workflows_corpus.shape import Shape

if TYPE_CHECKING:
    from standfast.testing.workflows import WorkflowEnvironment


@sf.workflow
async def holds_a_mutex(ctx: sf.Context) -> int:
    """Take a step inside of a mutex."""
    async with ctx.mutex("stock"):
        return await ctx.step(add, 1, 1)


@sf.workflow
async def sleeps_in_a_mutex(ctx: sf.Context) -> int:
    """Sleep for two days inside of a mutex, in try and finally."""
    done = 0
    async with ctx.mutex("stock"):
        try:
            done = await ctx.step(add, done, 1)
            await ctx.sleep("2 days")
        finally:
            done = await ctx.step(add, done, 1)
    return await ctx.step(add, done, 1)


@sf.workflow
async def fails_in_a_mutex(ctx: sf.Context) -> str:
    """Fail inside of a mutex, and take it again."""
    try:
        async with ctx.mutex("stock"):
            await ctx.step(break_down, "inside")
    except ValueError as problem:
        async with ctx.mutex("stock"):
            return await ctx.step(shout, str(problem))
    return "never"


@sf.workflow
async def holds_two(ctx: sf.Context) -> int:
    """Hold one lock inside of another."""
    async with ctx.mutex("outer"), ctx.semaphore("inner", permits=2, weight=2):
        await ctx.sleep("1 hour")
        return await ctx.step(add, 1, 1)


@sf.workflow
async def branches_take_turns(ctx: sf.Context) -> list[int]:
    """Let branches hold locks of their own side by side."""

    async def branch(number: int) -> int:
        async with ctx.mutex(f"stock {number}"):
            await ctx.sleep(f"{number + 1} hours")
            return await ctx.step(add, number, number)

    return await ctx.gather(branch(0), branch(1))


@sf.workflow
async def cancelled_in_a_mutex(ctx: sf.Context) -> None:
    """Be cancelled inside of a mutex, and clean up before it is released."""
    async with ctx.mutex("stock"):
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step(shout, "still mine")


@sf.workflow
async def loses_what_it_holds(ctx: sf.Context) -> int:
    """Lose the outer of two locks while asleep, and fail by that."""
    done = await ctx.step("before", add, 0, 1)
    async with ctx.mutex("stock"):
        done = await ctx.step("outside", add, done, 1)
        async with ctx.mutex("shelf"):
            done = await ctx.step("inside", add, done, 1)
            await ctx.sleep("1 hour")
            return await ctx.step("late", add, done, 1)


@sf.workflow
async def leaves_too_late(ctx: sf.Context) -> int:
    """Learn at the end of a lock that it was lost, and fail by that."""
    done = await ctx.step("before", add, 0, 1)
    async with ctx.mutex("stock", max_hold="1 hour"):
        done = await ctx.step("inside", add, done, 1)
        await ctx.sleep("2 hours")
    return done


@sf.workflow
async def learns_late_and_goes_on(ctx: sf.Context) -> int:
    """Learn at the end of a lock that it was lost, and go on; a branch beside it holds another one."""

    async def bounded() -> int:
        try:
            async with ctx.mutex("stock", max_hold="1 hour"):
                await ctx.step("inside", add, 1, 1)
                await ctx.sleep("2 hours")
        except LeaseLostError:
            return await ctx.step("told", add, 2, 2)
        return 0

    async def beside() -> int:
        async with ctx.semaphore("shelf", permits=2):
            await ctx.sleep("3 hours")
            return await ctx.step("beside", add, 3, 3)

    return sum(await ctx.gather(bounded(), beside()))


@sf.workflow
async def fails_beside_a_lock(ctx: sf.Context) -> None:
    """Fail in one branch while another one holds a lock, and a third waits for it."""

    async def holds() -> None:
        async with ctx.mutex("stock"):
            await ctx.step("inside", add, 1, 1)
            await ctx.sleep("2 hours")

    async def waits() -> None:
        await ctx.sleep("1 minute")
        async with ctx.mutex("stock"):
            await ctx.step("never", add, 1, 1)

    async def fails() -> None:
        await ctx.sleep("1 hour")
        await ctx.step(break_down, "beside")

    await ctx.gather(holds(), waits(), fails())


@sf.workflow
async def cancelled_in_line(ctx: sf.Context) -> None:
    """Be cancelled while waiting for a lock inside of another one, and clean up."""
    await ctx.sleep("1 minute")
    async with ctx.mutex("shelf"):
        try:
            async with ctx.mutex("stock"):
                await ctx.step("never", shout, "never")
        finally:
            await ctx.step("cleanup", shout, "cleaned up")


@sf.workflow
async def has_a_child_in_a_mutex(ctx: sf.Context) -> int:
    """Let a child go on inside of a mutex."""
    async with ctx.mutex("shelf"):
        await ctx.child(keeper)
        return await ctx.step("inside", add, 1, 1)


@sf.workflow
async def modes(ctx: sf.Context) -> str:
    """Hold a mode lock, in one mode and then in another."""
    async with ctx.mode_lock("page", "read", modes=("read", "write"), alone=("write",)):
        text = await ctx.step(shout, "read")
    async with ctx.mode_lock("page", "write", modes=("read", "write"), alone=("write",)):
        return await ctx.step(shout, f"{text} and written")


@sf.workflow
async def keeper(ctx: sf.Context) -> None:
    """Hold the stock for an hour."""
    async with ctx.mutex("stock"):
        await ctx.sleep("1 hour")


@sf.workflow
async def waits_for_a_mutex(ctx: sf.Context) -> int:
    """Wait for a mutex that another run holds."""
    await ctx.sleep("1 minute")
    async with ctx.mutex("stock"):
        return await ctx.step(add, 1, 1)


@sf.workflow
async def loses_its_place(ctx: sf.Context) -> list[int]:
    """Wait for a mutex in one branch, go on in another one, and lose the place in line."""

    async def waits() -> int:
        await ctx.sleep("1 minute")
        async with ctx.mutex("stock", max_hold="1 day"):
            return await ctx.step("inside", add, 1, 1)

    async def goes_on() -> int:
        await ctx.sleep("3 minutes")
        return await ctx.step("beside", add, 2, 2)

    return await ctx.gather(waits(), goes_on())


@sf.workflow
async def waits_in_vain(ctx: sf.Context) -> str:
    """Wait for a mutex that another run holds for longer."""
    await ctx.sleep("1 minute")
    try:
        async with ctx.mutex("stock", timeout="10 minutes"):
            return "never"
    except HoldTimeoutError:
        return await ctx.step(shout, "too late")


@sf.workflow
async def counts(ctx: sf.Context) -> list[Any]:
    """Change states of the workflow, of the execution and of the run."""
    visits = ctx.state.workflow("visits", type=int, initial=0)
    found = [await visits.increment()]
    await ctx.step(add, 1, 1)
    note = ctx.state.run("note", type=str, initial="")
    await note.set("written")
    await ctx.sleep("1 hour")
    return [*found, await visits.increment(), await note.get()]


@sf.workflow
async def shows_progress(ctx: sf.Context) -> int:
    """Say how far it is."""
    for number in range(2):
        ctx.set_progress({"done": number})
        await ctx.step(add, number, number)
    await ctx.sleep("1 hour")
    ctx.set_progress({"done": 2})
    return 2


@sf.workflow
async def keeps_to_a_rate(ctx: sf.Context) -> int:
    """Take a token twice, which takes a while."""
    limiter = ctx.rate_limiter("calls", interval="1 hour")
    for number in range(2):
        async with limiter:
            await ctx.step(add, number, number)
    return 2


async def with_a_keeper(env: WorkflowEnvironment, _: sf.Run[Any]) -> None:
    """Let another run hold the stock."""
    await env.start(keeper, id="keeper")
    await env.settle()


async def evicted_unnoticed(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Let an operator release the lock while no worker is up: from the keeper, and from the run that has it then."""
    await with_a_keeper(env, run)
    await env.advance("2 minutes")
    await env.crash()
    stock = env.client.space.mutex("stock")
    while holders := (await stock.explain()).holders:
        await stock.force_release(holders[0].entry)
    await env.restart()


async def evicted_asleep(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Let an operator release the lock that the run holds."""
    await env.advance("10 minutes")
    await env.client.space.mutex("stock").force_release(f"{run.id}:mutex")


async def cancelled_behind_a_keeper(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Cancel the run while it waits for the lock."""
    await with_a_keeper(env, run)
    await env.advance("5 minutes")
    await run.cancel("enough")


async def last_word(env: WorkflowEnvironment, run: sf.Run[Any]) -> None:
    """Look at the progress on the way."""
    await env.advance("10 minutes")
    assert (await run.info()).progress == {"done": 1}


SHAPES: Final = (
    Shape(holds_a_mutex),
    Shape(sleeps_in_a_mutex),
    Shape(fails_in_a_mutex),
    Shape(holds_two),
    Shape(branches_take_turns),
    Shape(cancelled_in_a_mutex, script=cancelled),
    Shape(learns_late_and_goes_on),
    Shape(fails_beside_a_lock),
    Shape(cancelled_in_line, workflows=(keeper,), script=cancelled_behind_a_keeper),
    Shape(has_a_child_in_a_mutex, workflows=(keeper,)),
    Shape(modes),
    Shape(waits_for_a_mutex, workflows=(keeper,), script=with_a_keeper),
    Shape(loses_its_place, workflows=(keeper,), script=evicted_unnoticed),
    Shape(waits_in_vain, workflows=(keeper,), script=with_a_keeper),
    Shape(counts),
    Shape(shows_progress, script=last_word),
    Shape(keeps_to_a_rate),
)

LOSING: Final = (Shape(loses_what_it_holds, script=evicted_asleep), Shape(leaves_too_late))
"""Shapes that fail by the loss of a lock, which names its fence: no two of their runs end in the same words."""
