"""Blocking code starts runs, talks to them and waits for them, as async code does."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, assert_type

import pytest

import standfast as sf
from standfast import blocking
from standfast.errors import (
    ResultTimeoutError,
    RunCancelledError,
    RunFailedError,
    RunNotFoundError,
    ScheduleNotFoundError,
    WorkflowConcurrencyLimitExceededError,
)
from tests.unit.blocking.engine_scene import (
    WORKFLOWS,
    OutOfStockError,
    doubles,
    engine,
    fails,
    in_thread,
    one_at_a_time,
    sums,
    until_it_waits,
    waits,
)
from tests.unit.blocking.scene import PATIENCE, beside, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=["memory", "sqlite"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[blocking.Engine]:
    """An engine that drives runs and is closed when the test is over, on each store."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'a.db'}"
    with engine(url) as opened:
        yield opened


# --- starting --------------------------------------------------------------------------------------------------------


def test_a_run_is_started_and_its_result_comes_back_typed(ours: blocking.Engine) -> None:
    """The type of the result is that of the workflow."""
    run = ours.start(doubles, 21, id="answer")
    assert_type(run, blocking.Run[int])

    assert (run.id, run.is_new, run.result(timeout=PATIENCE)) == ("answer", True, 42)
    assert ours.result("answer") == 42


def test_starting_the_same_again_finds_the_run(ours: blocking.Engine) -> None:
    """An id or an idempotency key makes a start safe to repeat."""
    first = ours.start(doubles, 1, idempotency_key="once")
    again = ours.start(doubles, 1, idempotency_key="once")

    assert (again.id, again.is_new) == (first.id, False)


def test_tags_are_read_in_the_thread_that_gives_them(ours: blocking.Engine) -> None:
    """What they come from, such as a query set, may be for that thread alone."""
    read_in: list[threading.Thread] = []

    def words() -> Iterator[str]:
        read_in.append(threading.current_thread())
        yield "urgent"

    run = ours.start(doubles, 1, tags=words())
    other, _ = ours.start_or_signal(waits, 1, id="w", signal="go", value=1, tags=words())

    assert read_in == [threading.main_thread()] * 2
    assert {each.id for each in ours.list(tag="urgent").runs} == {run.id, other.id}


def test_many_threads_start_and_wait_at_once(ours: blocking.Engine) -> None:
    """Each gets the result of its own run, and of those that ask for the same run only one starts it."""

    def work(number: int) -> tuple[int, bool]:
        shared = ours.start(doubles, 0, id="shared")
        return ours.start(doubles, number).result(timeout=PATIENCE), shared.is_new

    answers = [each.result(PATIENCE) for each in [beside(partial(work, number)) for number in range(16)]]

    assert [number for number, _ in answers] == [2 * number for number in range(16)]
    assert [is_new for _, is_new in answers].count(True) == 1


def test_one_that_drives_nothing_leaves_it_to_others() -> None:
    """A web process starts runs, and a worker drives them; the result is heard of."""
    with engine("memory://shared", drive=False) as web:
        run = web.start(doubles, 4)
        assert run.info().status == "pending"
        with engine("memory://shared"):
            assert run.result(timeout=PATIENCE) == 8


# --- steps -----------------------------------------------------------------------------------------------------------


def test_a_plain_step_runs_in_a_thread_and_may_use_the_engine() -> None:
    """It is not on the loop, so it may block: also for another run."""

    @sf.step
    def start_another() -> int:
        return opened.start(doubles, 5).result(timeout=PATIENCE)

    @sf.workflow
    async def uses_threads(ctx: sf.Context) -> tuple[str, int]:
        return await ctx.step(in_thread), await ctx.step(start_another)

    with blocking.Engine("memory://", workflows=[doubles, uses_threads]) as opened:
        name, number = opened.start(uses_threads).result(timeout=PATIENCE)

    assert name.startswith("standfast-step")
    assert number == 10


def test_the_code_of_a_workflow_must_not_block() -> None:
    """It runs on the loop that would have to answer: it is refused, where it would hang for ever."""

    @sf.workflow
    async def careless(ctx: sf.Context) -> None:
        opened.get(ctx.run_id)

    with blocking.Engine("memory://", workflows=[careless]) as opened:
        run = opened.start(careless)
        with pytest.raises(RunFailedError, match="UsageError"):
            run.result(timeout=PATIENCE)


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_failure_is_raised_where_the_result_is_asked_for(ours: blocking.Engine) -> None:
    """What the workflow declares comes back as itself."""
    with pytest.raises(RunFailedError) as failed:
        ours.start(fails, "shoes").result(timeout=PATIENCE)

    assert isinstance(failed.value.__cause__, OutOfStockError)


def test_a_wait_ends_in_time_and_the_run_goes_on(ours: blocking.Engine) -> None:
    """A timeout is for the one who waits, not for the run."""
    run = ours.start(waits, 1)
    with pytest.raises(ResultTimeoutError):
        run.result(timeout=0.01)
    run.signal("go", 2)

    assert run.result(timeout=PATIENCE) == 3


def test_a_run_that_is_not_there_is_told() -> None:
    """A handle is only an id; whether there is such a run is found out when it is used."""
    with engine("memory://", drive=False) as ours, pytest.raises(RunNotFoundError):
        ours.run("nowhere").result()


# --- talking ---------------------------------------------------------------------------------------------------------


def test_a_run_is_talked_to_by_its_handle(ours: blocking.Engine) -> None:
    """Query, update and signal reach it."""
    run = ours.start(waits, 1)

    assert run.update("add", 2) == 3
    assert run.query("total") == 3
    assert (run.signal("go", 4, signal_id="s"), run.signal("go", 4, signal_id="s")) == (True, False)
    assert run.result(timeout=PATIENCE) == 7
    assert [entry.kind for entry in run.history()].count("update") == 1


def test_a_run_is_talked_to_by_its_id(ours: blocking.Engine) -> None:
    """So can those who did not start it."""
    ours.start(waits, 1, id="w")

    assert ours.update("w", "add", 2) == 3
    assert ours.query("w", "total") == 3
    assert ours.signal("w", "go", 4)
    assert ours.result("w", timeout=PATIENCE) == 7
    assert ours.get("w").status == "completed"
    assert ours.history("w")


def test_starting_and_signalling_is_one_call(ours: blocking.Engine) -> None:
    """The first call starts the run, the next only signals it."""
    run, outcome = ours.start_or_signal(waits, 1, id="w", signal="other")
    assert_type(run, blocking.Run[int])
    again, then = ours.start_or_signal(waits, 1, id="w", signal="go", value=5)

    assert (outcome, then, again.is_new) == ("started", "signalled", False)
    assert run.result(timeout=PATIENCE) == 6


def test_a_run_is_cancelled(ours: blocking.Engine) -> None:
    """By its handle or by its id."""
    run, other = ours.start(waits, 1), ours.start(waits, 1)
    run.cancel("no longer wanted")
    ours.cancel(other.id, force=True)

    with pytest.raises(RunCancelledError, match="no longer wanted"):
        run.result(timeout=PATIENCE)
    assert other.info().status == "cancelled"


# --- looking after runs ----------------------------------------------------------------------------------------------


def test_runs_are_started_again_forked_and_retried(ours: blocking.Engine) -> None:
    """What an operator does works without await, and gives handles."""
    run = ours.start(doubles, 3, id="first")
    run.result(timeout=PATIENCE)
    failed = ours.start(fails, "hat")
    with pytest.raises(RunFailedError):
        failed.result(timeout=PATIENCE)

    assert ours.restart("first", id="second").result(timeout=PATIENCE) == 6
    assert ours.fork("first", "double", id="third").result(timeout=PATIENCE) == 6
    assert not ours.retry(failed.id).has_ended


def test_runs_are_looked_at_and_deleted(ours: blocking.Engine) -> None:
    """Sweeping, recovering, resuming and purging answer as the async engine does."""
    run, waiting = ours.start(doubles, 3), ours.start(waits, 3)
    run.result(timeout=PATIENCE)
    until_it_waits(waiting)
    ours.state.shared("visits", type=int).set(1)

    assert ours.resume(waiting.id).status == "suspended"
    assert ours.recover_all(unknown="raise").found == (waiting.id,)
    assert isinstance(ours.sweep(), tuple)
    assert ours.purge(status="completed") == 1
    assert ours.erase(tenant="default") == 1
    assert ours.list().runs == ()


def test_limits_are_changed(ours: blocking.Engine) -> None:
    """More runs than the code allows may be allowed, for a while."""
    ours.start(one_at_a_time)
    ours.set_limit(one_at_a_time, 2)
    ours.start(one_at_a_time)
    ours.clear_limit(one_at_a_time)

    with pytest.raises(WorkflowConcurrencyLimitExceededError):
        ours.start(one_at_a_time)


def test_the_place_in_line_is_told() -> None:
    """A run that waits for its turn knows how many are in front."""

    @sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
    async def in_turn(ctx: sf.Context) -> None:
        await ctx.wait_signal("go")

    with blocking.Engine("memory://", workflows=[in_turn]) as ours:
        runs = [ours.start(in_turn, id=name) for name in "abc"]

        assert [run.place() for run in runs] == [None, 0, 1]


# --- what lies beside ------------------------------------------------------------------------------------------------


def test_locks_and_states_are_within_reach(ours: blocking.Engine) -> None:
    """The space of the engine is a blocking one, and so are its states."""
    with ours.space.mutex("m").hold():
        assert ours.space.explain("m").holders
    ours.state.workflow("doubles", "count", type=int, initial=0).increment()

    assert ours.space.state.workflow("doubles", "count", type=int).get() == 1


def test_what_has_no_blocking_name_is_reached_with_the_async_engine() -> None:
    """A handle that it returns is a blocking one, and typed."""
    soon = sf.collect(sums, sf.Batch(2, "1 hour"))
    with blocking.Engine("memory://", workflows=[soon]) as ours:
        ours.call(lambda engine: soon.add(engine, 1))
        run = ours.call(lambda engine: soon.add(engine, 2))
        assert_type(run, blocking.Run[int])

        assert run.result(timeout=PATIENCE) == 3
        assert_type(ours.call(lambda engine: engine.get(run.id)).id, str)


# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_are_made_changed_and_deleted(ours: blocking.Engine) -> None:
    """Each call answers with how the schedule is then."""
    hourly = sf.Schedule(doubles, 2, id="s", every="1 hour")

    assert ours.schedules.create(hourly).every == 3600
    assert ours.schedules.change(sf.Schedule(doubles, 2, id="s", every="2 hours")).every == 7200
    ours.schedules.declare(iter([hourly]))
    assert ours.schedules.pause("s", "holidays").note == "holidays"
    assert not ours.schedules.resume("s").is_paused
    assert [each.id for each in ours.schedules.list()] == ["s"]
    ours.schedules.delete("s")
    with pytest.raises(ScheduleNotFoundError):
        ours.schedules.get("s")


def test_schedules_start_runs(ours: blocking.Engine) -> None:
    """A tick is triggered by hand, and those that were missed are made up for."""
    ours.schedules.create(sf.Schedule(doubles, 2, id="s", cron="0 * * * *"))
    now = datetime.now(UTC)
    missed = ours.schedules.backfill("s", now - timedelta(hours=3), now)

    assert ours.schedules.trigger("s", overlap="allow").result(timeout=PATIENCE) == 4
    assert [run.result(timeout=PATIENCE) for run in missed] == [4, 4, 4]


def test_declared_schedules_are_made_when_the_engine_opens() -> None:
    """As with the async engine."""
    hourly = sf.Schedule(doubles, 2, id="s", every="1 hour")
    with blocking.Engine("memory://", workflows=WORKFLOWS, schedules=[hourly], drive=False) as ours:
        assert ours.schedules.get("s").workflow == "doubles"


def test_hooks_hear_of_runs() -> None:
    """They are called on Standfast's own thread, those of opening too."""
    heard: list[str] = []
    threads: set[str] = set()

    def hook(event: object) -> None:
        heard.append(type(event).__name__)
        threads.add(threading.current_thread().name)

    ours = engine("memory://")
    ours.open(hooks=iter([hook]))
    ours.start(doubles, 1).result(timeout=PATIENCE)
    until(lambda: "RunMoved" in heard)
    ours.close()

    assert threads == {"standfast-blocking"}
