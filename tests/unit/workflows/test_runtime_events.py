"""What hooks hear of runs and steps: enough to count them, to time them, and to draw them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import standfast as sf
from standfast.events import (
    Committed,
    DeadlockRefused,
    Event,
    HintHeard,
    RateGranted,
    RunLocked,
    RunMoved,
    RunUnlocked,
    StepRecorded,
    StepRetried,
    WorkerPolled,
)
from standfast.testing.workflows import WorkflowEnvironment
from tests.unit.workflows.engines import act, acts, engine, sleeps, until

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STOCK = sf.KeyFamily("stock-of-events-test")
TRIES: list[int] = []


class Everything(list[Event]):
    """A hook that wants all there is."""

    def wants(self, kind: type[Event]) -> bool:
        """Want it."""
        del kind
        return True

    def __call__(self, event: Event, /) -> None:
        """Take note."""
        self.append(event)

    def of(self, kind: type[Event]) -> list[Event]:
        """Return those of one kind."""
        return [event for event in self if type(event) is kind]

    def moved(self, run: str) -> list[RunMoved]:
        """Return what happened to a run."""
        return [event for event in self if isinstance(event, RunMoved) and event.run == run]


@sf.step(retry=sf.Retry(attempts=3, delay="10ms"))
async def flaky() -> str:
    """Fail twice."""
    TRIES.append(1)
    if len(TRIES) % 3:
        raise OSError("not yet")
    return "done"


@sf.workflow
async def tries(ctx: sf.Context) -> str:
    """Do what fails at first, twice by the same name."""
    await ctx.step(act, "once")
    return await ctx.step("second", flaky)


@sf.workflow
async def locks(ctx: sf.Context) -> None:
    """Hold a lock, and ask for it again."""
    async with ctx.mutex(STOCK("apples")):
        try:
            async with ctx.mutex(STOCK("apples")):
                pass
        except sf.errors.ReentryError:
            await ctx.step(act, "refused")


@sf.workflow
async def paced(ctx: sf.Context) -> None:
    """Pass a rate limiter, and be taken out of memory."""
    await ctx.rate_limiter(STOCK("mails"), interval="1ms").acquire()
    await ctx.sleep("1 hour")


async def test_a_run_that_is_driven_where_it_is_started_is_new_and_claimed_at_once() -> None:
    """One event says that it began, and it waited for no worker."""
    told = Everything()
    async with engine("memory://", hooks=[told]) as running:
        run = await running.start(acts, ["a"], id="a")
        await run.result()
        worker = running.runtime.worker
    first, last = told.moved("a")
    assert (first.is_new, first.is_claimed, first.ready_for, first.claims) == (True, True, 0.0, 1)
    assert worker is not None
    assert first.worker == last.worker == worker.presence
    assert (last.before, last.status, last.position) == ("running", "completed", 1)
    assert last.started_at == first.started_at == first.changed_at < last.changed_at


async def test_a_run_that_waits_for_a_worker_tells_for_how_long(tmp_path: Path) -> None:
    """From its start until another process claims it: what an autoscaler and a pager look at."""
    url, told = f"sqlite:///{tmp_path}/jobs.db", Everything()
    async with engine(url, drive=False) as starter:
        await starter.start(acts, ["a"], id="a")
        async with engine(url, hooks=[told]) as worker:
            await until(worker, "a", "completed")
    claimed = next(event for event in told.moved("a") if event.is_claimed)
    assert claimed.ready_for is not None
    assert claimed.ready_for == claimed.waited > 0
    assert (claimed.before, claimed.orphaned_for, claimed.claims) == ("pending", None, 1)
    assert claimed.workflow == "acts"
    assert claimed.fence


async def test_a_run_that_slept_was_ready_only_when_its_timer_was_due() -> None:
    """The sleep itself is not counted as waiting for a worker."""
    told = Everything()
    async with WorkflowEnvironment(workflows=[sleeps], hooks=[told]) as env:
        assert await env.result(await env.start(sleeps, 3600.0, id="a")) == "after"
    waiting, claimed = [event for event in told.moved("a") if event.before][:2]
    assert (waiting.status, claimed.is_claimed) == ("suspended", True)
    assert claimed.waited > 3500
    assert claimed.ready_for is not None
    assert claimed.ready_for < 60


async def test_a_taken_over_run_tells_how_long_it_was_without_a_worker() -> None:
    """A claim after a death is a takeover; the first claim is none."""
    told, entered = Everything(), asyncio.Event()

    @sf.step
    async def stay() -> None:
        if not entered.is_set():
            entered.set()
            await asyncio.Event().wait()

    @sf.workflow
    async def stays(ctx: sf.Context) -> None:
        await ctx.step(stay)

    async with WorkflowEnvironment(workflows=[stays], hooks=[told]) as env:
        run = await env.start(stays, id="a")
        await entered.wait()
        await env.crash()
        await env.restart()
        await env.result(run)
        history = [event.orphaned_for for event in told.moved("a") if event.is_claimed]
    assert len(history) == 2
    assert history[0] is None
    assert history[1] is not None
    assert history[1] >= 0


async def test_a_step_tells_its_attempts_and_how_long_each_took() -> None:
    """The declared name is told besides the id, so that a label has few values."""
    told = Everything()
    async with engine("memory://", workflows=[tries], hooks=[told]) as running:
        await (await running.start(tries, id="a")).result()
    steps = [event for event in told if isinstance(event, StepRecorded)]
    retried = [event for event in told if isinstance(event, StepRetried)]
    assert [(each.step, each.name, each.attempt, each.failed) for each in steps] == [
        ("act", "act", 1, False),
        ("second", "flaky", 3, False),
    ]
    assert [(each.name, each.attempt, each.error) for each in retried] == [
        ("flaky", 1, "builtins.OSError"),
        ("flaky", 2, "builtins.OSError"),
    ]
    assert [*(each.position for each in retried), steps[1].position] == [2, 3, 4]
    assert all(each.started_at <= each.at and each.seconds >= 0 and each.workflow == "tries" for each in steps)
    assert all(each.worker and each.fence for each in steps)
    assert retried[0].waits > 0


async def test_a_lock_of_a_run_tells_its_family_and_a_deadlock_is_told() -> None:
    """A run that asks for what it holds is refused, and an operator hears of it."""
    told = Everything()
    async with engine("memory://", workflows=[locks], hooks=[told]) as running:
        await (await running.start(locks, id="a")).result()
    [locked] = [event for event in told if isinstance(event, RunLocked)]
    unlocked = [event for event in told if isinstance(event, RunUnlocked)]
    [refused] = [event for event in told if isinstance(event, DeadlockRefused)]
    assert (locked.family, locked.kind, locked.workflow) == (STOCK.name, "mutex", "locks")
    assert [each.outcome for each in unlocked] == ["released"]
    assert unlocked[0].held_from >= locked.asked_at > 0
    assert (refused.family, refused.reason, refused.run) == (STOCK.name, "ReentryError", "a")


async def test_a_rate_limiter_in_a_run_is_told_once_and_not_in_replay() -> None:
    """What was granted before a takeover is not counted again after it."""
    told = Everything()
    async with WorkflowEnvironment(workflows=[paced], hooks=[told]) as env:
        await env.result(await env.start(paced, id="a"))
    assert [event.family for event in told if isinstance(event, RateGranted)] == [STOCK.name]


async def test_hints_and_polls_of_a_worker_are_told(tmp_path: Path) -> None:
    """How long a hint takes from one process to another is seen where it arrives."""
    url, told = f"sqlite:///{tmp_path}/jobs.db", Everything()
    async with engine(url, hooks=[told]) as worker, engine(url, drive=False) as starter:
        await starter.start(acts, ["a"], id="a")
        await until(worker, "a", "completed")
    [hint] = [event for event in told if isinstance(event, HintHeard)]
    assert hint.run == "a"
    assert 0 <= hint.seconds < 10
    assert told.of(WorkerPolled)


async def test_every_transaction_is_told_to_a_hook_that_wants_it(tmp_path: Path) -> None:
    """With its riders, and how many of them lost a race."""
    told = Everything()
    async with engine(f"sqlite:///{tmp_path}/jobs.db", hooks=[told]) as running:
        await (await running.start(acts, ["a"], id="a")).result()
    commits = [event for event in told if isinstance(event, Committed)]
    assert {event.backend for event in commits} == {"sqlite"}
    assert all(event.riders >= 1 and event.seconds > 0 and event.conflicts <= event.riders for event in commits)


async def test_a_hook_that_does_not_choose_hears_of_no_commit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A log stays readable, and the hot path is not slower for it."""
    told: list[Event] = []
    async with engine(f"sqlite:///{tmp_path}/jobs.db", hooks=[told.append]) as running:
        await (await running.start(acts, ["a"], id="a")).result()
    assert told
    assert not [event for event in told if event.frequent]
    assert not caplog.records
