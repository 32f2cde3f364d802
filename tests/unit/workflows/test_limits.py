"""Start limits: how many runs may be unfinished at a time, and what a start beyond that comes to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    ArgumentTypeError,
    DeclarationError,
    LimitKeyError,
    RunCancelledError,
    RunFailedError,
    RunTimedOutError,
    WorkflowAlreadyExistsError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.events import RunMoved
from tests.unit.workflows.engines import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@sf.workflow(concurrency=1)
async def alone(ctx: sf.Context, name: str = "") -> str:
    """Wait for a signal, one run at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, key=lambda name: name))
async def by_name(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one run of each name at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=[sf.Limit(2), sf.Limit(1, key=lambda name: name)])
async def by_both(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, one run of each name and two in all at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="join"))
async def joined(ctx: sf.Context, name: str) -> str:
    """Wait for a signal; whoever starts another one gets this one."""
    return f"{name}{await ctx.wait_signal('go')}"


@sf.workflow(concurrency=1, timeout=0.05)
async def hurried(ctx: sf.Context) -> None:
    """Wait for longer than is allowed."""
    await ctx.wait_signal("go")


@sf.workflow(concurrency=1)
async def failing(ctx: sf.Context) -> None:
    """Fail."""
    await ctx.now()
    raise ValueError("it failed")


@sf.workflow(concurrency=sf.Limit(1, key=lambda number: number))
async def by_number(ctx: sf.Context, number: int) -> None:
    """Have a key that is no text."""


@sf.workflow(concurrency=sf.Limit(1, key=lambda order: order["customer"]))
async def by_customer(ctx: sf.Context, order: dict[str, str]) -> None:
    """Have a key that not every order has."""


@sf.workflow(concurrency=1)
async def counting(ctx: sf.Context, left: int) -> int:
    """Go on as a new run some times."""
    await ctx.wait_signal("go")
    if left:
        await ctx.continue_as_new(left - 1)
    return left


@sf.workflow
async def parent(ctx: sf.Context, name: str) -> str:
    """Wait for a child that is limited."""
    return await ctx.child(alone, name)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def nested(ctx: sf.Context, depth: int) -> int:
    """Wait for a child that needs the very place that this run has."""
    return 0 if depth == 0 else 1 + await ctx.child(nested, depth - 1)


WORKFLOWS: list[sf.Workflow[..., Any]] = [
    alone, by_name, by_both, joined, hurried, failing, by_number, by_customer, counting, parent, nested,
]  # fmt: skip


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine with limited workflows."""
    async with sf.Engine(url, workflows=WORKFLOWS, worker=sf.admin.WorkerLimits(linger=0.01)) as opened:
        yield opened


async def refused(engine: sf.Engine, workflow: sf.Workflow[..., Any], *args: Any, **options: Any) -> tuple[Any, ...]:
    """Return what the error of a refused start says."""
    with pytest.raises(WorkflowConcurrencyLimitExceededError) as caught:
        await engine.start(workflow, *args, **options)
    return caught.value.workflow_type, caught.value.partition_key, caught.value.limit


async def records(engine: sf.Engine) -> set[Any]:
    """Return the keys of everything in the store, but for who is there."""
    found = set[Any]()
    for kind in ("run", "life", "own", "ready", "timer", "once", "line", "ticket", "grant"):
        page = await engine.space.scan(*engine.space.key(kind).within(), limit=500)
        found |= set(page.records)
    return found


async def lines(engine: sf.Engine) -> int:
    """Count the lines that are in use."""
    return len((await engine.space.scan(*engine.space.key("line").within(), limit=500)).records)


# --- refusing -------------------------------------------------------------------------------------------------------


async def test_one_too_many_is_refused_at_once(engine: sf.Engine) -> None:
    """The error names the workflow, the partition, which is the workflow itself without a key, and the limit."""
    await engine.start(alone)

    assert await refused(engine, alone) == ("alone", "alone", 1)


async def test_the_error_has_a_code_and_says_it_all(engine: sf.Engine) -> None:
    """Programs go by the code, people read the message."""
    await engine.start(by_name, "kim")

    with pytest.raises(
        WorkflowConcurrencyLimitExceededError, match=r"'by_name' .* 'kim' as the limit allows: 1"
    ) as caught:
        await engine.start(by_name, "kim")

    assert caught.value.code == "WorkflowConcurrencyLimitExceededError"


async def test_a_refused_start_leaves_no_trace(engine: sf.Engine) -> None:
    """No run, no timer, no idempotency key, no place in any line."""
    await until(engine, (await engine.start(by_both, "a")).id, "suspended")
    before = await records(engine)

    await refused(engine, by_both, "a", idempotency_key="once", delay=5)

    assert await records(engine) == before


async def test_keys_are_limited_apart_from_each_other(engine: sf.Engine) -> None:
    """A key that is full keeps no other from starting, and is free when its run has ended, whatever the others do."""
    alpha, beta = await engine.start(by_name, "alpha"), await engine.start(by_name, "beta")
    assert await refused(engine, by_name, "alpha") == ("by_name", "alpha", 1)

    await alpha.signal("go", "!")
    assert await alpha.result() == "alpha!"

    assert (await engine.start(by_name, "alpha")).is_new
    assert (await beta.info()).status in ("running", "suspended")


async def test_of_two_racing_starts_one_wins_and_the_other_sees_the_limit(url: str) -> None:
    """The loser is told of the limit, not of the race."""
    async with sf.Engine(url, workflows=WORKFLOWS) as one, sf.Engine(url, workflows=WORKFLOWS) as other:
        answers = await asyncio.gather(
            *(engine.start(alone) for engine in (one, other) for _ in range(5)), return_exceptions=True
        )

        won = [answer for answer in answers if not isinstance(answer, BaseException)]
        assert len(won) == 1
        assert sum(isinstance(answer, WorkflowConcurrencyLimitExceededError) for answer in answers) == 9


# --- keys that cannot be told ---------------------------------------------------------------------------------------


async def test_a_key_that_is_no_text_is_refused(engine: sf.Engine) -> None:
    """It is a TypeError that names the workflow, and nothing was written."""
    before = await records(engine)

    with pytest.raises(ArgumentTypeError, match="by_number") as caught:
        await engine.start(by_number, 5)

    assert isinstance(caught.value, TypeError)
    assert await records(engine) == before


async def test_a_key_function_that_raises_is_told_with_its_cause(engine: sf.Engine) -> None:
    """The error names the workflow and what was raised, which is the cause; nothing was written."""
    before = await records(engine)

    with pytest.raises(LimitKeyError, match=r"by_customer.*KeyError: 'customer'") as caught:
        await engine.start(by_customer, {})

    assert isinstance(caught.value.__cause__, KeyError)
    assert await records(engine) == before


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2", 1_000_001])
def test_a_limit_is_a_positive_whole_number(wrong: Any) -> None:
    """Anything else is refused when the limit is made."""
    with pytest.raises(DeclarationError):
        sf.Limit(wrong)


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (sf.Limit(1, key="user"), "the key 'user' is for actions"),
        (sf.Limit(1, name="gpu"), "name= is for actions"),
        (sf.Limit(1, ttl="1 minute"), "ttl belong to on_limit='queue'"),
        (sf.Limit(1, on_limit="join", max_queued=3), "max_queued and ttl belong"),
    ],
)
def test_a_limit_that_only_actions_can_have_is_refused_by_the_workflow(limit: sf.Limit, reason: str) -> None:
    """With the reason, where the workflow is declared."""
    with pytest.raises(DeclarationError, match=reason):
        sf.workflow(concurrency=limit)(alone.function)


def test_a_workflow_has_one_limit_of_a_kind() -> None:
    """Two limits of the same kind would count for the same line."""
    with pytest.raises(DeclarationError, match="at most one"):
        sf.workflow(concurrency=[sf.Limit(1), sf.Limit(2)])(alone.function)


# --- being the same start -------------------------------------------------------------------------------------------


async def test_the_same_idempotency_key_takes_no_second_place(engine: sf.Engine) -> None:
    """It returns the run that is there; another key at the limit is refused."""
    first = await engine.start(alone, "a", idempotency_key="one")

    again = await engine.start(alone, "a", idempotency_key="one")

    assert (again.id, again.is_new) == (first.id, False)
    assert await refused(engine, alone, "a", idempotency_key="two") == ("alone", "alone", 1)


async def test_the_same_id_takes_no_second_place(engine: sf.Engine) -> None:
    """When the run has ended its place is free, however often it was started."""
    first = await engine.start(alone, "a", id="one")
    assert not (await engine.start(alone, "a", id="one")).is_new

    await first.signal("go", "!")
    await first.result()

    assert (await engine.start(alone, "b")).is_new


async def test_the_same_id_with_another_input_is_refused_as_such(engine: sf.Engine) -> None:
    """That there is another run of this name is said before the limit is."""
    await engine.start(alone, "a", id="one")

    with pytest.raises(WorkflowAlreadyExistsError):
        await engine.start(alone, "b", id="one")


# --- how long a place is held ---------------------------------------------------------------------------------------


async def test_a_completed_run_gives_its_place_back(engine: sf.Engine) -> None:
    """And nothing is left of the line."""
    run = await engine.start(alone, "a")
    await run.signal("go", "!")
    assert await run.result() == "a!"

    assert await lines(engine) == 0
    assert (await engine.start(alone)).is_new


async def test_a_failed_run_gives_its_place_back(engine: sf.Engine) -> None:
    """Whatever it raised."""
    with pytest.raises(RunFailedError):
        await (await engine.start(failing)).result()

    assert await lines(engine) == 0


async def test_a_cancelled_run_gives_its_place_back(engine: sf.Engine) -> None:
    """Once it has cleaned up."""
    run = await engine.start(alone)
    await run.cancel()
    with pytest.raises(RunCancelledError):
        await run.result()

    assert await lines(engine) == 0


async def test_a_run_that_took_too_long_gives_its_place_back(engine: sf.Engine) -> None:
    """When it has been stopped."""
    with pytest.raises(RunTimedOutError):
        await (await engine.start(hurried)).result()

    assert await lines(engine) == 0


async def test_a_run_that_is_ended_by_force_gives_its_place_back(engine: sf.Engine) -> None:
    """Nobody drives it any more who could do it later."""
    run = await engine.start(alone)
    await engine.cancel(run.id, force=True)

    assert (await engine.start(alone)).is_new


async def test_a_run_that_sleeps_holds_its_place(engine: sf.Engine) -> None:
    """It is unfinished, though it is not in memory."""
    await until(engine, (await engine.start(alone)).id, "suspended")

    assert await refused(engine, alone) == ("alone", "alone", 1)


async def test_a_run_whose_time_has_not_come_holds_its_place(engine: sf.Engine) -> None:
    """A delayed start is a start."""
    run = await engine.start(alone, delay="1 hour")

    assert (await run.info()).status == "pending"
    assert await refused(engine, alone) == ("alone", "alone", 1)


async def test_news_for_a_delayed_run_does_not_start_it_early(engine: sf.Engine) -> None:
    """A signal waits for it, and a look finds that its time has not come."""
    run = await engine.start(alone, delay="1 hour")
    await run.signal("go", "!")

    assert (await engine.resume(run.id)).status == "pending"


async def test_a_run_that_goes_on_as_a_new_one_keeps_its_place(engine: sf.Engine) -> None:
    """In between nobody else gets it; the last one of the chain gives it back."""
    run = await engine.start(counting, 1, id="c")
    await run.signal("go")
    await until(engine, "c", "completed")
    await until(engine, "c~2", "suspended")
    assert await refused(engine, counting, 0) == ("counting", "counting", 1)

    await engine.signal("c~2", "go")
    assert await run.result() == 0

    assert await lines(engine) == 0


# --- two limits together --------------------------------------------------------------------------------------------


async def test_both_limits_hold(engine: sf.Engine) -> None:
    """The error names the one that is full: the key's, or that of all."""
    await engine.start(by_both, "a")
    assert await refused(engine, by_both, "a") == ("by_both", "a", 1)

    await engine.start(by_both, "b")

    assert await refused(engine, by_both, "c") == ("by_both", "by_both", 2)


async def test_a_run_gives_back_its_places_in_both(engine: sf.Engine) -> None:
    """No line is left when the last one has ended."""
    runs = [await engine.start(by_both, name) for name in "ab"]
    for run in runs:
        await run.signal("go", "!")
        await run.result()

    assert await lines(engine) == 0


# --- joining --------------------------------------------------------------------------------------------------------


async def test_a_start_can_join_the_run_that_is_there(engine: sf.Engine) -> None:
    """It returns the handle of the unfinished run, and says that it is not new."""
    first = await engine.start(joined, "a")

    second = await engine.start(joined, "b")

    assert (second.id, second.is_new) == (first.id, False)
    await first.signal("go", "!")
    assert await second.result() == "a!"


# --- children -------------------------------------------------------------------------------------------------------


async def test_children_are_limited_too(engine: sf.Engine) -> None:
    """The parent gets the error of the limit where it asked for the child."""
    await engine.start(alone)

    with pytest.raises(RunFailedError) as caught:
        await (await engine.start(parent, "a")).result()

    assert isinstance(caught.value.__cause__, WorkflowConcurrencyLimitExceededError)


async def test_a_child_that_would_wait_for_its_own_parent_is_refused(engine: sf.Engine) -> None:
    """The parent would hold the only place for as long as it waits for the child."""
    with pytest.raises(RunFailedError) as caught:
        await (await engine.start(nested, 1)).result()

    assert isinstance(caught.value.__cause__, WorkflowConcurrencyLimitExceededError)


async def _runs(ctx: sf.Context) -> None:
    del ctx


@pytest.mark.parametrize("limit", ["5", [3], [None]])
def test_what_is_no_limit_is_refused_where_it_is_declared(limit: Any) -> None:
    """A number in quotes, say."""
    with pytest.raises(DeclarationError, match=r"sf\.Limit"):
        sf.workflow(concurrency=limit)(_runs)


async def test_events_name_the_key_that_a_run_counts_for() -> None:
    """From its start to its end, so that whoever watches can tell what is crowded."""
    moved: list[RunMoved] = []
    hooks = [lambda event: moved.append(event) if isinstance(event, RunMoved) else None]
    async with sf.Engine("memory://", workflows=[by_name], hooks=hooks) as engine:
        run = await engine.start(by_name, "ann")
        await run.signal("go", "!")
        await run.result(timeout=10)

    assert {event.key for event in moved} == {"ann"}
    assert {event.status for event in moved} >= {"running", "completed"}
