"""Where the number of a limit comes from: the code, a deploy of other code, or an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import DeclarationError, WorkflowConcurrencyLimitExceededError
from tests.unit.workflows.engines import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def limited(most: int, *, on_limit: Any = "queue", key: Any = None, version: str = "") -> sf.Workflow[..., str]:
    """Return a workflow that waits for a signal, so many at a time."""

    @sf.workflow(name="job", version=version, concurrency=sf.Limit(most, key=key, on_limit=on_limit))
    async def job(ctx: sf.Context, name: str) -> str:
        return f"{name}{await ctx.wait_signal('go')}"

    return job


QUEUED = limited(1)
KEYED = limited(1, on_limit="reject", key=lambda name: name[0])


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """An engine with a workflow that runs one at a time."""
    async with sf.Engine(url, workflows=[QUEUED], worker=sf.admin.WorkerLimits(linger=0.01)) as opened:
        yield opened


async def running(*runs: sf.Run[Any]) -> int:
    """Count the runs that have begun and not ended."""
    return sum([(await run.info()).status in ("running", "suspended") for run in runs])


async def go(*runs: sf.Run[Any]) -> None:
    """Let runs go on, and wait for their ends."""
    for run in runs:
        await run.signal("go", "!")
        await run.result()


async def test_a_deploy_with_a_larger_number_lets_waiting_runs_begin(url: str, engine: sf.Engine) -> None:
    """The first start that comes with it does, and everybody goes by it from then on."""
    runs = [await engine.start(QUEUED, name) for name in "abc"]
    async with sf.Engine(url, workflows=[limited(3)], drive=False) as deployed:
        await deployed.start(limited(3), "d")
    for run in runs:
        await until(engine, run.id, "running", "suspended")

    assert await running(*runs) == 3


async def test_a_deploy_with_a_smaller_number_ends_no_run(url: str) -> None:
    """Those that run go on; the next one is let in when fewer than the new number are left."""
    wide, narrow = limited(2, on_limit="reject"), limited(1, on_limit="reject")
    async with sf.Engine(url, workflows=[wide], worker=sf.admin.WorkerLimits(linger=0.01)) as engine:
        runs = [await engine.start(wide, name) for name in "ab"]
        async with sf.Engine(url, workflows=[narrow], drive=False) as deployed:
            for run in runs:
                with pytest.raises(WorkflowConcurrencyLimitExceededError) as caught:
                    await deployed.start(narrow, "c")
                assert caught.value.limit == 1
                await go(run)

            assert (await deployed.start(narrow, "c")).is_new


async def test_an_operator_can_allow_more(engine: sf.Engine) -> None:
    """Runs that wait begin at once, in order."""
    runs = [await engine.start(QUEUED, name) for name in "abcd"]

    await engine.set_limit(QUEUED, 3)

    for run in runs[:3]:
        await until(engine, run.id, "running", "suspended")
    assert await runs[3].place() == 0


async def test_an_operator_can_allow_very_many_more(engine: sf.Engine) -> None:
    """Also more than are in sight at once."""
    runs = [await engine.start(QUEUED, str(number)) for number in range(40)]

    await engine.set_limit(QUEUED, 39)

    for run in runs[:39]:
        await until(engine, run.id, "running", "suspended")
    assert await running(*runs) == 39


async def test_what_an_operator_has_set_stays_whatever_code_says(engine: sf.Engine) -> None:
    """Starts do not change it, and it outlives the last run."""
    await engine.set_limit(QUEUED, 2)
    first = [await engine.start(QUEUED, name) for name in "abc"]
    assert await running(*first[:2]) == 2
    await go(*first)

    second = [await engine.start(QUEUED, name) for name in "abc"]

    assert await second[2].place() == 0


async def test_what_an_operator_has_set_can_be_cleared(engine: sf.Engine) -> None:
    """From then on the number in the code counts again, and an empty line leaves nothing behind."""
    await engine.set_limit(QUEUED, 2)
    await engine.clear_limit(QUEUED)

    assert not (await engine.space.scan(*engine.space.key("line").within(), limit=10)).records
    runs = [await engine.start(QUEUED, name) for name in "ab"]
    assert await runs[1].place() == 0


async def test_an_operator_can_set_the_limit_of_one_key(url: str) -> None:
    """The other keys keep theirs."""
    async with sf.Engine(url, workflows=[KEYED]) as engine:
        await engine.set_limit(KEYED, 2, key="a")
        for name in ("a1", "a2", "b1"):
            await engine.start(KEYED, name)

        with pytest.raises(WorkflowConcurrencyLimitExceededError) as caught:
            await engine.start(KEYED, "b2")
        assert caught.value.partition_key == "b"
        with pytest.raises(WorkflowConcurrencyLimitExceededError) as caught:
            await engine.start(KEYED, "a3")
        assert caught.value.limit == 2


async def test_only_limits_that_there_are_can_be_set(engine: sf.Engine) -> None:
    """And only to numbers that they can have."""
    with pytest.raises(DeclarationError, match="no limit with a key"):
        await engine.set_limit(QUEUED, 2, key="a")
    with pytest.raises(DeclarationError, match="whole number from 1 to 1,000,000"):
        await engine.set_limit(QUEUED, 0)
