"""A run keeps its place in a line while it sleeps, and is told when it changes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant, later
from standfast.errors import StoreClosedError, WaitCycleError
from standfast.events import NO_HOOKS
from standfast.locks import entry
from standfast.locks.deadlock import describe_cycle, find_cycle
from standfast.locks.entry import Answer, EnterRequest, LeaveRequest, LineEntries, RunGrant
from standfast.locks.inspect import explain
from standfast.locks.line import Entry, Granted, OfPresence, OfRun, Rules, TooHeavy, Waiting
from standfast.locks.line_records import (
    READY,
    WINDOW,
    Enter,
    ExtraChanges,
    Leave,
    Left,
    LockSpec,
    Resize,
    WaitsForItself,
    ready_key,
)
from standfast.locks.locks import MUTEX, Mutex, Semaphore
from standfast.locks.registry import Lines
from standfast.scope import Scope, address_of
from standfast.stores import Put

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.locks.line_step import Answered
    from standfast.testing import VirtualClock

ONE = LockSpec("limit", Rules(1))
TWO = LockSpec("semaphore", Rules(2))


class Worker:
    """A process that drives runs, in lines that are named by plain text."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.scope = scope
        self.lines = Lines(scope, clock, NO_HOOKS, None)
        self.entries = LineEntries(self.lines)

    async def enter(self, run: str, key: str = "k", spec: LockSpec = ONE, **asked: Any) -> Answered:
        """Let a run enter a line, once."""
        entry = Entry(
            f"{run}:lock",
            run,
            OfRun(run),
            Instant(0),
            **{n: asked.pop(n) for n in ("max_hold", "weight") if n in asked},
        )
        known = {n: asked.pop(n) for n in ("waits", "ticket") if n in asked}
        return await self.entries.enter(EnterRequest(address_of(key), spec, entry, **known), **asked)

    async def leave(self, run: str, key: str = "k", spec: LockSpec = ONE, **asked: Any) -> Answered:
        """Let a run leave."""
        extra = asked.pop("extra_changes", None)
        leave = LeaveRequest(address_of(key), spec, f"{run}:lock", **asked)
        return await self.entries.leave(leave, extra_changes=extra)

    async def look(self, run: str, key: str = "k", **known: Any) -> RunGrant | Waiting | None:
        """Look at a run's place."""
        return await self.entries.find(address_of(key), f"{run}:lock", **known)

    async def ready(self, run: str) -> int:
        """Return the version of a run's ready record; 0: there is none."""
        key = ready_key(self.scope, run)
        record = (await self.scope.read(key)).get(key)
        assert record is None or record.value == READY
        return 0 if record is None else record.version


@pytest.fixture
async def worker(scope: Scope, clock: VirtualClock) -> AsyncIterator[Worker]:
    """One worker."""
    opened = Worker(scope, clock)
    yield opened
    await opened.lines.aclose()


@pytest.fixture
async def other(scope: Scope, clock: VirtualClock) -> AsyncIterator[Worker]:
    """Another one, on the same store."""
    opened = Worker(Scope(scope.store), clock)
    yield opened
    await opened.lines.aclose()


async def test_a_place_is_found_again_by_any_process(worker: Worker, other: Worker) -> None:
    """The holder keeps its grant and fence, the waiter its place, whoever asks again."""
    held = worker.entries.grant_in(address_of("k"), "a:lock", await worker.enter("a"))
    waiting = (await worker.enter("b")).answer

    again = await other.enter("a")
    assert other.entries.grant_in(address_of("k"), "a:lock", again) == held == await other.look("a")
    assert (await other.enter("b")).answer == waiting == await other.look("b") == Waiting(0, 0)


async def test_a_turn_guards_commits_until_the_run_leaves(worker: Worker, scope: Scope) -> None:
    """Its fence is the version of its grant: a commit that checks it fails once the lock is given back."""
    await worker.enter("a")
    turn = await worker.look("a")
    assert isinstance(turn, RunGrant)
    assert hasattr(await scope.commit(Put(scope.key("x"), b""), turn.guard), "versions")

    await worker.leave("a", slot=turn.slot)
    assert not hasattr(await scope.commit(Put(scope.key("y"), b""), turn.guard), "versions")
    assert await worker.look("a") is None


@pytest.mark.parametrize("known", ["nothing", "ticket", "owner"])
async def test_a_waiter_far_back_is_found(worker: Worker, other: Worker, known: str) -> None:
    """Out of sight it keeps its place, is seen, and leaves, whatever is known of it."""
    for n in range(WINDOW + 5):
        await worker.enter(f"{n}")
    waiting = (await worker.enter("far", marker=known == "owner", is_new=True)).answer
    assert waiting == Waiting(WINDOW + 4, WINDOW + 4)
    ways: dict[str, dict[str, Any]] = {"nothing": {}, "ticket": {"ticket": WINDOW + 4}, "owner": {"owner": "far"}}
    facts = ways[known]

    assert await other.look("far", **facts) == waiting
    assert (await other.enter("far", ticket=facts.get("ticket"))).answer == waiting
    assert (await other.leave("far", **facts)).answer == Left(was_holding=False, was_waiting=True)
    assert await worker.look("far", **facts) is None


async def test_a_run_that_is_granted_is_told_in_the_same_commit(worker: Worker) -> None:
    """Whoever leaves makes the next one ready, and nobody else; each time with another version."""
    for run in ("a", "b", "c"):
        await worker.enter(run)
    assert [await worker.ready(run) for run in "abc"] == [0, 0, 0]

    await worker.leave("a")
    first = await worker.ready("b")
    turn = await worker.look("b")
    assert isinstance(turn, RunGrant)
    assert (first > 0, await worker.ready("a"), await worker.ready("c")) == (True, 0, 0)

    await worker.leave("b")
    await worker.enter("b")
    await worker.leave("c")
    assert await worker.ready("b") > first


async def test_one_who_asks_is_not_told_what_it_is_answered(worker: Worker, clock: VirtualClock) -> None:
    """Entering, leaving and asking again tell by their answers; the front that is free is taken by asking."""
    await worker.enter("a", max_hold=5)
    await worker.enter("b")
    clock.advance(6)
    assert isinstance((await worker.enter("b")).answer, Granted)
    await worker.leave("b")
    assert await worker.ready("b") == 0
    assert await worker.ready("a") > 0  # its time was over, and somebody else saw to it


async def test_one_who_is_granted_after_its_answer_is_told(worker: Worker) -> None:
    """It is answered that it waits, and another one leaves in the same step: what it has noted is no longer so."""
    await worker.enter("a")
    driver = worker.lines.line(address_of("k")).driver
    entry = Entry("b:lock", "b", OfRun("b"), Instant(0))
    waiting, _ = await asyncio.gather(driver.ask(Enter(entry), ONE), driver.ask(Leave("a:lock"), ONE))

    assert waiting.answer == Waiting(0, 0)
    assert isinstance(worker.entries.grant_in(address_of("k"), "b:lock", waiting), RunGrant)
    assert await worker.ready("b") > 0


async def test_a_run_is_told_when_its_time_is_over(worker: Worker, other: Worker, clock: VirtualClock) -> None:
    """Whoever looks after the line lets it fall, tells it, and is told when to look again."""
    await worker.enter("a", max_hold=5)
    await worker.enter("b", max_hold=7)
    turn = await worker.look("a")
    assert isinstance(turn, RunGrant)
    assert await other.entries.reap(address_of("k")) == turn.ends_at

    clock.advance(5)
    moved = await other.entries.reap(address_of("k"))
    turn = await worker.look("b")
    assert isinstance(turn, RunGrant)
    assert turn.ends_at == moved
    assert min(await worker.ready("a"), await worker.ready("b")) > 0


@pytest.mark.parametrize("only_waiting", [True, False])
async def test_a_run_that_is_turned_out_is_told(worker: Worker, other: Worker, only_waiting: bool) -> None:  # noqa: FBT001 -- both ways
    """By force or withdrawn, holding or waiting: its ready record is there when its place is gone."""
    await worker.enter("a")
    await worker.enter("b")
    remove = other.lines.cancel if only_waiting else other.lines.evict
    assert await remove(address_of("k"), ONE, "b:lock")
    assert (await worker.ready("b") > 0, await worker.look("b")) == (True, None)
    assert await worker.lines.was_cancelled("b:lock")

    assert await remove(address_of("k"), ONE, "a:lock") is not only_waiting
    assert (await worker.ready("a") > 0) is not only_waiting


async def test_more_permits_wake_the_runs_that_fit(worker: Worker, other: Worker) -> None:
    """Of four that want one of two permits, a third one is granted and told when there are three."""
    for run in "abcd":
        await worker.enter(run, spec=TWO)
    await other.lines.line(address_of("k")).driver.ask(Resize(3), TWO)

    assert [await worker.ready(run) > 0 for run in "abcd"] == [False, False, True, False]


async def test_a_run_that_has_become_too_heavy_is_told(worker: Worker) -> None:
    """It waits for two permits, and only one is left: it is turned away, asks again, and is refused."""
    await worker.enter("a", spec=TWO)
    await worker.enter("b", spec=TWO, weight=2)
    await worker.lines.line(address_of("k")).driver.ask(Resize(1), TWO)

    assert await worker.ready("b") > 0
    assert (await worker.enter("b", spec=TWO, weight=2)).answer == TooHeavy(1)


async def test_a_crowd_of_runs_falls_and_all_are_told(worker: Worker, clock: VirtualClock) -> None:
    """Sixty run out of time at once: sixty records, in as many commits as a store needs."""
    many = LockSpec("semaphore", Rules(60))
    await asyncio.gather(*(worker.enter(f"{n}", spec=many, max_hold=5) for n in range(60)))
    clock.advance(5)
    await worker.enter("next", spec=many)
    assert all([await worker.ready(f"{n}") for n in range(60)])


async def test_a_run_that_waits_for_a_process_is_told_when_that_dies(
    worker: Worker, scope: Scope, clock: VirtualClock
) -> None:
    """Its presence lapses: whoever looks after the line at that instant lets the run move up."""
    presence = OfPresence(f"{scope.presence_name}.9")
    key = scope.key("presence", scope.presence_name, "9")
    lapses = later((await scope.read(key)).at, 10)
    value = b'1:{"process":1,"host":"h","program":"p","lease":10.0}'
    await scope.commit(Put(key, value, expires_at=lapses))
    await worker.lines.line(address_of("k")).driver.ask(Enter(Entry("p", "p", presence, Instant(0))), ONE)
    await worker.enter("a")
    assert await worker.entries.reap(address_of("k")) == lapses

    clock.advance(10)
    assert await worker.entries.reap(address_of("k")) is None
    assert (await worker.ready("a") > 0, type(await worker.look("a"))) == (True, RunGrant)


async def test_a_line_of_runs_alone_needs_no_looking_after(worker: Worker) -> None:
    """They live until they end."""
    await worker.enter("a")
    await worker.enter("b")
    assert await worker.entries.reap(address_of("k")) is None


async def test_a_run_does_not_wait_for_itself(worker: Worker) -> None:
    """Another step of the run that holds the mutex is refused, as a task is."""
    await worker.enter("a")
    entry = Entry("a:lock#2", "a", OfRun("a"), Instant(0))
    answered = await worker.entries.enter(EnterRequest(address_of("k"), ONE, entry))
    assert isinstance(answered.answer, WaitsForItself)


async def test_runs_that_wait_for_each_other_are_a_circle(worker: Worker, other: Worker, clock: VirtualClock) -> None:
    """The one who closed it gives way; when it has left, the other one goes on waiting for what it holds."""
    await worker.enter("a", "x")
    await other.enter("b", "y")
    await worker.enter("a", "y", marker=True)
    assert await worker.entries.cycle_to_break("a", "a:lock") == ()
    clock.advance(1)
    await other.enter("b", "x", marker=True)

    circle = await other.entries.cycle_to_break("b", "b:lock")
    assert describe_cycle(circle) == ("b waits for x", "a waits for y")
    await other.leave("b", "x", owner="b")
    assert await worker.entries.cycle_to_break("a", "a:lock") == ()
    assert await find_cycle(worker.scope, "a") == ()
    assert len((await worker.scope.scan(*worker.scope.key("waiting").within(), limit=10)).records) == 1


async def test_one_gives_way_if_the_last_of_a_circle_does_not(
    worker: Worker, other: Worker, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a network the last may have looked before the circle was closed, and looks no more."""
    monkeypatch.setattr(entry, "PATIENCE", 0.0)
    await worker.enter("a", "x")
    await other.enter("b", "y")
    await worker.enter("a", "y", marker=True)
    clock.advance(1)
    await other.enter("b", "x", marker=True)

    assert describe_cycle(await worker.entries.cycle_to_break("a", "a:lock")) == ("a waits for y", "b waits for x")


async def test_a_process_that_closes_a_circle_with_a_run_is_refused(worker: Worker, clock: VirtualClock) -> None:
    """The run waits for what the process holds; the process may not wait for the run."""
    held, wanted = Mutex(worker.lines, "x", 600.0), Mutex(worker.lines, "y", 600.0)
    async with held.hold():
        await worker.enter("a", "y", MUTEX)
        await worker.enter("a", "x", MUTEX, marker=True)
        clock.advance(1)
        with pytest.raises(WaitCycleError, match="a waits for x"):
            async with wanted.hold():
                pass
    assert isinstance(await worker.look("a", "x"), RunGrant)


async def test_a_run_that_closes_a_circle_with_a_process_gives_way(worker: Worker, clock: VirtualClock) -> None:
    """The process waits for the run already: it is the run that may not wait."""
    held, wanted = Mutex(worker.lines, "x", 600.0), Mutex(worker.lines, "y", 600.0)
    await worker.enter("a", "y", MUTEX)
    async with held.hold(owner="p"):
        waiting = asyncio.create_task(wanted.hold(owner="p").__aenter__())
        while not (await explain(worker.scope, address_of("y"))).waiters:  # noqa: ASYNC110 -- a line has no event
            await asyncio.sleep(0)
        clock.advance(1)
        await worker.enter("a", "x", MUTEX, marker=True)

        assert describe_cycle(await worker.entries.cycle_to_break("a", "a:lock")) == ("a waits for x", "p waits for y")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_people_see_which_run_holds(worker: Worker) -> None:
    """Runs are shown as runs: alive, without a process, and the owner too if it is called otherwise."""
    await worker.enter("a")
    entry = Entry("b:lock", "ann", OfRun("b"), Instant(0))
    await worker.entries.enter(EnterRequest(address_of("k"), ONE, entry))
    told = await explain(worker.scope, address_of("k"))

    assert [(each.run, each.is_alive, each.process) for each in told.holders] == [("a", True, None)]
    assert "holding: run a\n" in told.as_text()
    assert "waiting, next: run b (ann)\n" in told.as_text()


async def hold_three(worker: Worker) -> list[LeaveRequest]:
    """Let a run hold three keys, one of them by two of its steps, and another run wait for each."""
    specs = {"x": ONE, "y": TWO, "z": ONE}
    found = [LeaveRequest(address_of(key), spec, "a:lock") for key, spec in specs.items()]
    for key, spec in specs.items():
        await worker.enter("a", key, spec)
    extra = Entry("a:lock#2", "a", OfRun("a"), Instant(0))
    await worker.entries.enter(EnterRequest(address_of("y"), TWO, extra))
    for key, spec in specs.items():
        await worker.enter(f"next-{key}", key, spec)
    return [*found, LeaveRequest(address_of("y"), TWO, "a:lock#2")]


async def test_a_run_that_ends_leaves_all_its_lines_with_its_result(worker: Worker, scope: Scope) -> None:
    """One commit: the result is stored, nothing is held any more, and whoever waited is ready."""
    leaving, result = await hold_three(worker), scope.key("result")
    extra_changes = ExtraChanges[Answer]((result,), lambda *_: (Put(result, b"done"),))
    await worker.entries.leave_all(leaving, extra_changes=extra_changes)

    version = (await scope.read(result)).version(result)
    assert [await worker.ready(f"next-{key}") for key in "xyz"] == [version] * 3
    for key in "xyz":
        assert await worker.look("a", key) is None
        assert isinstance(await worker.look(f"next-{key}", key), RunGrant)


async def test_a_run_that_may_not_end_leaves_none_of_its_lines(worker: Worker) -> None:
    """It has lost its driver meanwhile, say: all is held as before."""

    def refuse(*_: object) -> Any:
        raise LookupError

    leaving = await hold_three(worker)
    with pytest.raises(LookupError):
        await worker.entries.leave_all(leaving, extra_changes=ExtraChanges((), refuse))
    assert [type(await worker.look("a", key)) for key in "xyz"] == [RunGrant] * 3
    assert [await worker.ready(f"next-{key}") for key in "xyz"] == [0, 0, 0]


async def test_lines_that_moved_meanwhile_are_left_together_all_the_same(worker: Worker, other: Worker) -> None:
    """What this process last saw of them is long out of date: a waiter far back leaves together with a holder."""
    await worker.enter("a", "x")
    for n in range(WINDOW + 5):
        await other.enter(f"{n}", "y")
        await other.enter(f"{n}", "x")
    await other.enter("a", "y")
    await worker.entries.leave_all([LeaveRequest(address_of(key), ONE, "a:lock") for key in "yx"])

    assert (await other.look("a", "x"), await other.look("a", "y")) == (None, None)
    assert isinstance(await other.look("0", "x"), RunGrant)


async def test_a_task_that_waits_here_is_woken_by_a_run_that_leaves_several(worker: Worker) -> None:
    """Also in a line that is left in the step of another one."""

    async def hold(key: str) -> str:
        async with Semaphore(worker.lines, key, 1, 600.0).hold() as held:
            return held.key

    one = LockSpec("semaphore", Rules(1))
    for key in "xy":
        await worker.enter("a", key, one)
    waiting = [asyncio.create_task(hold(key)) for key in "xy"]
    for key in "xy":
        while not (await explain(worker.scope, address_of(key))).waiters:  # noqa: ASYNC110 -- a line has no event
            await asyncio.sleep(0)
    await worker.entries.leave_all([LeaveRequest(address_of(key), one, "a:lock") for key in "xy"])
    assert await asyncio.gather(*waiting) == ["x", "y"]


async def test_a_closed_space_takes_no_entries(worker: Worker) -> None:
    """It says so."""
    await worker.lines.aclose()
    with pytest.raises(StoreClosedError):
        await worker.enter("a")
