"""Runs that lose their place in a line while no worker is up: they enter again, or are told, and end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

import standfast as sf
from standfast.errors import EncodeError, LeaseLostError, RunCancelledError, TooHeavyError, WithdrawnError
from standfast.events import Event, RunConflicts
from standfast.locks.entry import LineEntries, LockSpec
from standfast.locks.line import Rules
from standfast.stores.protocol import Put
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows.limits import address_of_limit
from standfast.workflows.records import CHUNKS, Chunk, RunKeys, events_of, packed_chunk
from standfast.workflows.runtime import MOST_CONFLICTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from standfast.locks.locks import DurableLock

DONE: Final[list[str]] = []


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    DONE.clear()
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


@sf.step
async def do(what: str) -> str:
    """Do something that others see."""
    DONE.append(what)
    return what


def lock_of(ctx: sf.Context, kind: str, max_hold: str | None = None) -> AbstractAsyncContextManager[Any]:
    """Return the lock of a run: one of each kind."""
    if kind == "mutex":
        return ctx.mutex("k", max_hold=max_hold)
    if kind == "semaphore":
        return ctx.semaphore("k", permits=2, weight=2, max_hold=max_hold)
    return ctx.mode_lock("k", "write", modes=("read",), alone=("write",), max_hold=max_hold)


def lock_in(space: sf.Space, kind: str) -> DurableLock:
    """Return the same lock as an operator, or another process, has it."""
    if kind == "mutex":
        return space.mutex("k")
    return (
        space.semaphore("k", permits=2)
        if kind == "semaphore"
        else space.mode_lock("k", modes=("read",), alone=("write",))
    )


@sf.workflow
async def keeper(ctx: sf.Context, kind: str) -> None:
    """Hold the lock for a day."""
    async with lock_of(ctx, kind):
        await ctx.sleep("1 day")


@sf.workflow
async def plain(ctx: sf.Context, kind: str, max_hold: str | None) -> str:
    """Do something before the lock, inside it, and after it."""
    await ctx.step("before", do, "before")
    async with lock_of(ctx, kind, max_hold):
        await ctx.step("inside", do, "inside")
    return await ctx.step("after", do, "after")


@sf.workflow
async def beside(ctx: sf.Context, kind: str, max_hold: str | None) -> str:
    """Do something in another branch while this one waits for the lock."""

    async def other() -> None:
        for number in range(3):
            await ctx.sleep("1 minute")
            await ctx.step(do, f"other {number}")

    await ctx.gather(plain.function(ctx, kind, max_hold), other())
    return await ctx.step("last", do, "last")


@sf.workflow
async def inside_another(ctx: sf.Context, kind: str, max_hold: str | None) -> str:
    """Wait for the lock while another one is held."""
    async with ctx.mutex("outer"):
        return await plain.function(ctx, kind, max_hold)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def limited(ctx: sf.Context, kind: str, max_hold: str | None) -> str:
    """Keep others from starting meanwhile."""
    return await plain.function(ctx, kind, max_hold)


SHAPES: Final[list[Any]] = [plain, beside, inside_another, limited]


async def evict(env: WorkflowEnvironment, kind: str) -> None:
    """Let an operator release the lock twice: from the keeper, and from the run that has it then."""
    lock = lock_in(env.client.space, kind)
    for _ in range(2):
        (holder,) = (await lock.explain()).holders
        assert await lock.force_release(holder.entry)


async def let_expire(env: WorkflowEnvironment, kind: str) -> None:
    """Let the run have the lock for longer than it may, and another process have it since."""
    await let_lapse(env, kind)
    space = env.client.space
    async with (
        space.mutex("k").hold()
        if kind == "mutex"
        else space.semaphore("k", permits=2).hold()
        if kind == "semaphore"
        else space.mode_lock("k", modes=("read",), alone=("write",)).hold("write")
    ):
        pass


async def let_lapse(env: WorkflowEnvironment, kind: str) -> None:
    """Let the run have the lock for longer than it may."""
    lock = lock_in(env.client.space, kind)
    (holder,) = (await lock.explain()).holders
    assert await lock.force_release(holder.entry)
    env.clock.advance(7_200)


LOSSES: Final[dict[str, tuple[Callable[[WorkflowEnvironment, str], Awaitable[None]], str | None]]] = {
    "evicted": (evict, None),
    "expired": (let_expire, "1 hour"),
    "lapsed": (let_lapse, "1 hour"),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["mutex", "semaphore", "mode_lock"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
async def test_a_run_that_lost_its_place_enters_again_and_repeats_nothing(
    url: str, shape: Any, kind: str, loss: str
) -> None:
    """A lock was handed to a run that did not notice, and is gone: the run waits again, and does everything once."""
    lose, max_hold = LOSSES[loss]
    async with WorkflowEnvironment([keeper, *SHAPES], store=url, linger=0) as env:
        await env.start(keeper, kind, id="keeper")
        await env.settle()
        run = await env.start(shape, kind, max_hold)
        await env.settle()
        await env.crash()
        await lose(env, kind)
        await env.restart()
        await env.result(run)
        assert set(env.effects.of(run).values()) == {1}
        fresh = await env.start(shape, kind, max_hold)
        await env.result(fresh)


async def test_a_run_that_was_taken_out_of_the_line_while_no_worker_was_up_is_told(url: str) -> None:
    """An operator withdrew it on purpose, so it does not enter again."""

    @sf.workflow
    async def gives_up(ctx: sf.Context) -> str:
        try:
            async with ctx.mutex("k"):
                return "held"
        except WithdrawnError:
            return await ctx.step("told", do, "told")

    async with WorkflowEnvironment([keeper, gives_up], store=url, linger=0) as env:
        await env.start(keeper, "mutex", id="keeper")
        await env.settle()
        run = await env.start(gives_up, id="b")
        await env.settle()
        await env.crash()
        assert await env.client.space.mutex("k").withdraw("b:mutex")
        await env.restart()
        assert await env.result(run) == "told"


async def test_a_run_that_can_never_be_granted_any_more_is_told(url: str) -> None:
    """The semaphore was made smaller than what the run asks for, while no worker was up."""

    @sf.workflow
    async def heavy(ctx: sf.Context) -> str:
        try:
            async with ctx.semaphore("k", permits=2, weight=2):
                return "held"
        except TooHeavyError:
            return await ctx.step("told", do, "told")

    async with WorkflowEnvironment([keeper, heavy], store=url, linger=0) as env:
        await env.start(keeper, "semaphore", id="keeper")
        await env.settle()
        run = await env.start(heavy, id="b")
        await env.settle()
        await env.crash()
        semaphore = env.client.space.semaphore("k", permits=2)
        await semaphore.resize(1)
        assert await semaphore.force_release("keeper:semaphore")
        await env.restart()
        assert await env.result(run) == "told"


async def test_a_lock_that_is_lost_after_it_was_noticed_is_told_once_per_block(url: str) -> None:
    """What was done inside it cannot be taken back, so the run does not enter again by itself."""

    @sf.workflow
    async def holds(ctx: sf.Context) -> str:
        try:
            async with ctx.mutex("k"):
                await ctx.sleep("1 hour")
                await ctx.step("inside", do, "inside")
        except LeaseLostError:
            return await ctx.step("told", do, "told")
        return "kept"

    async with WorkflowEnvironment([holds], store=url, linger=0) as env:
        run = await env.start(holds, id="b")
        await env.settle()
        await env.crash()
        assert await env.client.space.mutex("k").force_release("b:mutex")
        await env.restart()
        assert await env.result(run) == "told"
    assert DONE == ["told"]


@sf.workflow
async def has_a_child(ctx: sf.Context) -> str:
    """Start a child that has to wait for its turn."""
    return await ctx.child(limited, "mutex", None)


@pytest.mark.parametrize("workflow", [limited, has_a_child], ids=lambda each: each.name)
@pytest.mark.parametrize("who", ["the holder", "the waiter", "both"])
async def test_a_run_that_lost_its_slot_in_a_start_limit_starts_and_ends(url: str, workflow: Any, who: str) -> None:
    """A place in the line of a start limit is gone while no worker is up: whoever waited there waits again."""
    async with WorkflowEnvironment([keeper, limited, has_a_child], store=url, linger=0) as env:
        await env.start(keeper, "mutex", id="keeper")
        first = await env.start(limited, "mutex", None, id="first")
        await env.settle()
        second = await env.start(workflow, *(() if workflow is has_a_child else ("mutex", None)), id="second")
        await env.settle()
        await env.crash()
        lines, address = env.client.runtime.lines, address_of_limit("limited", None)
        seen = await LineEntries(lines).read(address)
        lost = [*(each.entry.id for each in seen.holders), *(each.entry.id for each in seen.waiters)]
        assert len(lost) == 2
        for entry in lost if who == "both" else lost[:1] if who == "the holder" else lost[1:]:
            assert await lines.evict(address, LockSpec("limit", Rules(1)), entry)
        await env.restart()
        for run in (first, second):
            assert await env.result(run) == "after"
        assert await env.result(await env.start(limited, "mutex", None)) == "after"
    assert DONE.count("inside") == 3


# --- records that are refused for ever ----------------------------------------------------------------------------


@sf.workflow
async def two_steps(ctx: sf.Context) -> str:
    """Take a step, wait, and take another one."""
    await ctx.step("first", do, "first")
    await ctx.wait_signal("go")
    return await ctx.step("second", do, "second")


@sf.workflow(concurrency=1)
async def two_steps_alone(ctx: sf.Context) -> str:
    """Do the same, one run at a time."""
    return await two_steps.function(ctx)


@sf.workflow
async def ends_at_once(ctx: sf.Context) -> str:
    """End without a record that comes before the end."""
    return str(await ctx.wait_signal("go"))


STUCK: Final[list[Any]] = [two_steps, two_steps_alone, ends_at_once]


async def with_a_foreign_record(env: WorkflowEnvironment, workflow: Any, heard: list[Event]) -> sf.Run[str]:
    """Start a run, put a part without events where the next part of its history has to be, and let it go on."""
    run = await env.start(workflow, id="b")
    await env.advance("1 second")
    keys, space = RunKeys(env.client.space, "b"), env.client.space
    events = await events_of(space, keys)
    await space.commit(Put(keys.chunk(len(events)), CHUNKS.encode(Chunk(()))))
    heard.clear()
    await run.signal("go", "gone")
    await env.settle()
    return run


@pytest.mark.parametrize("workflow", STUCK, ids=lambda each: each.name)
async def test_a_run_whose_records_are_refused_for_ever_is_quarantined_and_can_be_retried(
    url: str, workflow: Any
) -> None:
    """It is tried a few times, then an operator is told what to do; the retry mends the history and nothing is lost."""
    heard: list[Event] = []
    async with WorkflowEnvironment([*STUCK], store=url, linger=0, hooks=[heard.append]) as env:
        run = await with_a_foreign_record(env, workflow, heard)
        info = await run.info()
        assert (info.status, info.owner) == ("quarantined", "")
        assert "an operator" in info.waits_for
        assert [each.id for each in (await env.client.list(status="quarantined")).runs] == ["b"]
        (told,) = [event for event in heard if isinstance(event, RunConflicts)]
        assert (told.level, told.run) == ("error", "b")
        assert "standfast runs retry" in told.todo
        assert DONE.count("second") <= MOST_CONFLICTS + 1
        before = DONE.count("first")
        await env.client.retry("b")
        assert await env.result(run) == ("gone" if workflow is ends_at_once else "second")
        assert DONE.count("first") == before


@pytest.mark.parametrize("workflow", STUCK, ids=lambda each: each.name)
async def test_a_run_whose_records_are_refused_for_ever_can_be_cancelled(url: str, workflow: Any) -> None:
    """It ends, and the next one starts."""
    async with WorkflowEnvironment([*STUCK], store=url, linger=0) as env:
        run = await with_a_foreign_record(env, workflow, [])
        await run.cancel("enough")
        with pytest.raises(RunCancelledError):
            await env.result(run)
        fresh = await env.start(workflow, id="fresh")
        await fresh.signal("go", "gone")
        await env.result(fresh)


async def test_a_run_that_is_cancelled_before_its_records_are_refused_ends(url: str) -> None:
    """Its code cannot be told, so it ends without it."""

    @sf.workflow
    async def cleans_up(ctx: sf.Context) -> None:
        try:
            await ctx.wait_signal("never")
        finally:
            await ctx.step("second", do, "second")

    async with WorkflowEnvironment([cleans_up], store=url, linger=0) as env:
        run = await env.start(cleans_up, id="b")
        await env.advance("1 second")
        keys, space = RunKeys(env.client.space, "b"), env.client.space
        await space.commit(Put(keys.chunk(len(await events_of(space, keys))), CHUNKS.encode(Chunk(()))))
        await run.cancel("enough")
        with pytest.raises(RunCancelledError):
            await env.result(run)
    assert DONE.count("second") <= MOST_CONFLICTS + 1


def test_a_part_of_a_history_without_marks_is_refused() -> None:
    """It would lie where the next part has to be, so that nothing could be recorded any more."""
    with pytest.raises(EncodeError, match="at least one mark"):
        packed_chunk(())
