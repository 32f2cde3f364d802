"""A limit that an operator sets for a while: it ends by itself, and what waits then begins without being asked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.clock import MICROSECONDS, Instant
from standfast.errors import InvalidArgumentError
from standfast.locks.inspect import moment
from standfast.locks.line import Rules
from standfast.locks.line_records import HEADS, Head, Reversion, head_at
from standfast.testing.workflows import WorkflowEnvironment

if TYPE_CHECKING:
    from standfast.workflows.limits import LimitInfo


@sf.workflow(name="job", concurrency=sf.Limit(3, on_limit="queue"))
async def job(ctx: sf.Context, name: str) -> str:
    """Wait for a signal, three at a time."""
    return f"{name}{await ctx.wait_signal('go')}"


async def statuses(runs: list[sf.Run[Any]]) -> list[str]:
    """Return how runs are."""
    return ["waits" if (await run.info()).status == "pending" else "runs" for run in runs]


async def limit_of(env: WorkflowEnvironment) -> LimitInfo:
    """Return the limit as an operator is shown it."""
    [found] = (await env.client.limits("job")).limits
    return found


async def test_runs_that_wait_begin_when_the_override_ends_though_nothing_else_happens() -> None:
    """A worker has a timer for it: no start, no end and no operator is needed."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        await env.client.set_limit(job, 1, lasts="2 hours")
        runs = [await env.start(job, name) for name in "abc"]
        assert await statuses(runs) == ["runs", "waits", "waits"]
        await env.advance("119 minutes")
        assert await statuses(runs) == ["runs", "waits", "waits"]

        await env.advance("61 seconds")

        assert await statuses(runs) == ["runs", "runs", "runs"]


async def test_an_override_that_ends_while_no_worker_is_there_is_over_when_one_comes() -> None:
    """The timer waits in the store; who starts or looks meanwhile goes by the time, too."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        await env.client.set_limit(job, 1, lasts="1 hour")
        runs = [await env.start(job, name) for name in "ab"]
        await env.crash()
        await env.advance("2 hours")
        found = await limit_of(env)
        assert (found.max, found.is_set, found.until) == (3, False, None)

        await env.restart()
        await env.settle()

        assert await statuses(runs) == ["runs", "runs"]
        assert not (await env.client.space.scan(*env.client.space.key("timer").within(), limit=5)).records


async def test_after_a_larger_number_the_smaller_one_counts_again_and_ends_no_run() -> None:
    """Those that began go on; the next waits until fewer than the limit are left."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        await env.client.set_limit(job, 5, lasts="1 hour")
        runs = [await env.start(job, name) for name in "abcde"]
        await env.advance("61 minutes")
        runs.append(await env.start(job, "f"))
        assert await statuses(runs) == ["runs"] * 5 + ["waits"]

        for run in runs[:3]:
            await run.signal("go", "!")
        await env.settle()

        assert await statuses(runs[3:]) == ["runs"] * 3


async def test_an_override_goes_back_to_what_an_operator_had_set_for_good() -> None:
    """It is what it was before, not what the code says; also if it was set for a while twice."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        await env.client.set_limit(job, 2)
        await env.client.set_limit(job, 7, lasts="1 hour")
        await env.client.set_limit(job, 9, lasts="2 hours")
        found = await limit_of(env)
        assert (found.max, found.then, found.is_set) == (9, 2, True)
        await env.advance("90 minutes")
        assert (await limit_of(env)).max == 9

        await env.advance("31 minutes")

        found = await limit_of(env)
        assert (found.max, found.until, found.is_set) == (2, None, True)


async def test_an_override_is_ended_by_clearing_it_and_made_lasting_by_setting_it() -> None:
    """The timer that is left finds nothing to do."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        await env.client.set_limit(job, 1, lasts="1 hour")
        await env.client.clear_limit(job)
        assert (await limit_of(env)).max == 3
        await env.client.set_limit(job, 1, lasts="1 hour")
        await env.client.set_limit(job, 1)

        await env.advance("2 hours")

        found = await limit_of(env)
        assert (found.max, found.is_set, found.until) == (1, True, None)


async def test_more_waiting_runs_than_are_in_sight_begin_at_the_end() -> None:
    """One step of a line sees eight of them."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        await env.client.set_limit(job, 40)
        await env.client.set_limit(job, 1, lasts="1 minute")
        runs = [await env.start(job, str(number)) for number in range(30)]

        await env.advance("61 seconds")

        assert await statuses(runs) == ["runs"] * 30


async def test_an_end_is_a_moment_to_come_with_a_time_zone() -> None:
    """What is meant otherwise is refused before anything is changed."""
    async with WorkflowEnvironment(workflows=[job]) as env:
        now = datetime.fromtimestamp((await env.client.space.read(env.client.space.key("life"))).at / MICROSECONDS, UTC)
        with pytest.raises(InvalidArgumentError, match="it has passed"):
            await env.client.set_limit(job, 1, until=now - timedelta(seconds=1))
        with pytest.raises(InvalidArgumentError, match="time zone"):
            await env.client.set_limit(job, 1, until=now.replace(tzinfo=None) + timedelta(hours=1))
        with pytest.raises(InvalidArgumentError, match="not both"):
            await env.client.set_limit(job, 1, until=now + timedelta(hours=1), lasts="1 hour")
        assert not (await limit_of(env)).is_set

        operator = env.client.acting_as(sf.admin.Actor("ann"))
        end = await operator.set_limit(job, 1, until=now + timedelta(hours=1))

        assert end is not None
        assert (await limit_of(env)).until == end
        [entry] = (await operator.audit()).records
        assert (entry.action, entry.details["until"]) == ("limit.set", moment(end))


def test_heads_from_before_there_were_overrides_are_read_and_new_ones_only_grow() -> None:
    """A head without an end is written as it always was."""
    old = b'1:{"life":"x","kind":"limit","rules":{"permits":2},"pinned":true}'
    head = HEADS.decode(old)
    assert (head.pinned, head.reversion) == (True, None)
    assert HEADS.encode(head) == old
    timed = Head("x", "limit", Rules(9), pinned=True, reversion=Reversion(Instant(100), 2))
    assert HEADS.decode(HEADS.encode(timed)) == timed


def test_an_override_ends_at_its_instant() -> None:
    """Itself included, as leases do."""
    head = Head("x", "limit", Rules(9), pinned=True, reversion=Reversion(Instant(100), 2))
    assert head_at(head, Instant(99)) is head
    after = head_at(head, Instant(100))
    assert (after.rules.permits, after.pinned, after.reversion) == (2, False, None)
