"""Runs of one process that take turns on one key: what a turn costs, and that none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import LeaseLostError, LockMismatchError
from standfast.events import Event, RunDeposed
from standfast.locks.entry import LineEntries, LockSpec, Rules
from standfast.locks.line_records import Leave
from standfast.locks.mutex_line import MutexDriver
from standfast.scope import address_of
from standfast.stores.group_commit import GroupedStore
from standfast.stores.protocol import Put
from standfast.workflows.records import RunKeys, events_of
from tests.unit.workflows.engines import until

if TYPE_CHECKING:
    from pathlib import Path

STOCK = address_of("stock")


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of its own."""
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'runs.db'}"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store was asked for what."""
    counted: Counter[str] = Counter()

    def count(name: str) -> None:
        real = getattr(GroupedStore, name)

        async def asked(store: GroupedStore, *args: Any, **options: Any) -> Any:
            counted[name.removesuffix("_unchecked")] += 1
            return await real(store, *args, **options)

        monkeypatch.setattr(GroupedStore, name, asked)

    for name in ("choose", "commit", "commit_unchecked", "update", "read", "scan"):
        count(name)
    monkeypatch.setattr(GroupedStore, "commit_at_once", GroupedStore.commit_unchecked)
    return counted


@sf.step
async def add_one(number: int) -> int:
    """Do the work that the lock protects."""
    return number + 1


inside: list[int] = []
order: list[int] = []
most_inside: list[int] = []
gate: list[asyncio.Event] = []
entered: list[asyncio.Event] = []


@sf.step
async def pass_the_gate(number: int) -> int:
    """Wait inside of the lock until the test goes on."""
    inside.append(number)
    order.append(number)
    most_inside.append(len(inside))
    entered[-1].set()
    await gate[-1].wait()
    inside.remove(number)
    return number


@sf.workflow
async def takes_a_turn(ctx: sf.Context, key: str, number: int) -> int:
    """Take one step while a mutex is held."""
    async with ctx.mutex(key):
        return await ctx.step(add_one, number)


@sf.workflow
async def stays_inside(ctx: sf.Context, number: int) -> tuple[int, int]:
    """Hold a mutex until the gate opens."""
    async with ctx.mutex("stock") as held:
        return held.fence, await ctx.step(pass_the_gate, number)


@sf.workflow
async def hesitates(ctx: sf.Context) -> str:
    """Wait for something else between taking a mutex and the first step."""
    try:
        async with ctx.mutex("stock"):
            entered[-1].set()
            await gate[-1].wait()
            await ctx.step(pass_the_gate, 0)
    except LeaseLostError:
        return "lost"
    return "held"


async def hold_as(space: sf.Space, number: int) -> None:
    """Hold the mutex as a process does."""
    async with space.mutex("stock").hold():
        order.append(number)


@sf.workflow
async def mistaken(ctx: sf.Context) -> str:
    """Ask for a mutex where others use a semaphore."""
    try:
        async with ctx.mutex("stock"):
            return "held"
    except LockMismatchError:
        return "refused"


@sf.workflow
async def counts_down(ctx: sf.Context) -> int:
    """Hold one of two permits until the gate opens."""
    async with ctx.semaphore("stock", permits=2):
        return await ctx.step(pass_the_gate, 0)


WORKFLOWS: list[sf.Workflow[..., Any]] = [takes_a_turn, stays_inside, mistaken, counts_down]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    inside.clear()
    order.clear()
    most_inside.clear()
    gate.append(asyncio.Event())
    entered.append(asyncio.Event())


async def until_waiting(engine: sf.Engine, number: int) -> None:
    """Wait until so many runs stand in line behind the holder."""
    while len(engine.runtime.turns) < number:  # noqa: ASYNC110 -- the engine tells nobody
        await asyncio.sleep(0.001)


async def test_a_turn_is_one_commit_and_the_end_of_the_run_another(url: str, calls: Counter[str]) -> None:
    """Leaving, and the next one's grant, are one; no run is made ready, claimed or replayed for its turn."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first = await engine.start(stays_inside, 0)
        rest = await asyncio.gather(*[engine.start(takes_a_turn, "stock", at) for at in range(40)])
        await until_waiting(engine, 40)
        calls.clear()
        gate[-1].set()
        await first.result()
        assert [await each.result() for each in rest] == [each + 1 for each in range(40)]
    assert calls["choose"] <= 43
    assert calls["commit"] <= 45  # with those of the worker itself
    assert calls["read"] + calls["scan"] <= 15  # its front once in a while, and those of the worker


async def test_a_mutex_that_is_free_costs_one_commit_to_take_and_one_to_leave(url: str, calls: Counter[str]) -> None:
    """Nothing is read: the store decides, and what it says is not asked again before the first step."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        await (await engine.start(takes_a_turn, "another", 1)).result()
        calls.clear()
        assert await (await engine.start(takes_a_turn, "stock", 1)).result() == 2
        found = dict(calls)
    assert (found["choose"], found["commit"]) == (2, 2)  # the start and the end of the run are the others
    assert found.get("read", 0) + found.get("scan", 0) == 0


async def test_a_lock_that_was_taken_away_before_the_first_step_is_lost_there(url: str) -> None:
    """What the store said before the run waited for something else is asked again."""
    async with sf.Engine(url, workflows=[hesitates]) as engine:
        run = await engine.start(hesitates)
        await entered[-1].wait()
        lines = LineEntries(engine.runtime.lines)
        [holder] = (await lines.read(STOCK)).holders
        spec = LockSpec("mutex", Rules(1))
        await engine.runtime.lines.line(STOCK).driver.do(Leave(holder.entry.id, by_force=True), spec)
        gate[-1].set()
        assert await run.result() == "lost"
    assert inside == []


async def test_one_that_left_the_front_of_the_line_is_passed(url: str) -> None:
    """It is known from the last look at the line; that it is gone is found out by the commit."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first = await engine.start(stays_inside, 0)
        await entered[-1].wait()
        rest: list[sf.Run[Any]] = []
        for number in range(1, 6):
            rest.append(await engine.start(stays_inside, number))
            await until_waiting(engine, number)
        for number in (1, 2, 4):
            await rest[number - 1].cancel("not needed")
        gate[-1].set()
        await asyncio.gather(first.result(), rest[2].result(), rest[4].result())
    assert order == [0, 3, 5]


async def test_runs_and_processes_take_turns_in_the_order_in_which_they_came(url: str) -> None:
    """A run that leaves hands over to a process by the store, and to a run by what it knows."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first = await engine.start(stays_inside, 0)
        await entered[-1].wait()
        waiting: list[asyncio.Future[Any]] = []
        driver = engine.runtime.lines.line(STOCK).driver
        for number in range(1, 9):
            if number % 3 == 0:
                waiting.append(asyncio.ensure_future(hold_as(engine.space, number)))
            else:
                waiting.append(asyncio.ensure_future((await engine.start(stays_inside, number)).result()))
            while len((await driver.look()).line.waiters) < number:  # noqa: ASYNC110 -- a line tells nobody else
                await asyncio.sleep(0.001)
        gate[-1].set()
        await asyncio.gather(first.result(), *waiting)
    assert order == list(range(9))


async def test_a_crowd_joins_without_reading_the_line_for_each(url: str, calls: Counter[str]) -> None:
    """Joining is decided by the store, and one look at the line serves all that have joined."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first = await engine.start(stays_inside, 0)
        await entered[-1].wait()
        calls.clear()
        rest = await asyncio.gather(*[engine.start(takes_a_turn, "stock", at) for at in range(40)])
        await until_waiting(engine, 40)
        assert calls["choose"] <= 45
        assert calls["scan"] <= 60
        gate[-1].set()
        await asyncio.gather(first.result(), *[each.result() for each in rest])


async def test_a_crowd_on_a_mutex_that_gets_free_all_the_time_does_not_race(url: str, calls: Counter[str]) -> None:
    """None of them tries again because another was faster: the store takes it in or lets it join."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        runs = await asyncio.gather(*[engine.start(takes_a_turn, "stock", at) for at in range(60)])
        await asyncio.gather(*[each.result() for each in runs])
    assert calls["choose"] <= 60 * 2 + 20


async def test_only_one_is_inside_and_each_has_a_larger_fence(url: str) -> None:
    """Told in memory or by the store, a turn is a turn."""
    gate[-1].set()
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        runs = await asyncio.gather(*[engine.start(stays_inside, at) for at in range(30)])
        fences = [(await each.result())[0] for each in runs]
    assert len(set(fences)) == 30
    assert max(most_inside) == 1


async def test_a_run_that_is_taken_out_of_memory_has_its_turn_all_the_same(url: str) -> None:
    """It is made ready by the commit that grants it, as it is not there to be told."""
    async with sf.Engine(url, workflows=WORKFLOWS, worker=sf.admin.WorkerLimits(linger="10ms")) as engine:
        first = await engine.start(stays_inside, 0)
        await entered[-1].wait()
        second = await engine.start(takes_a_turn, "stock", 1)
        await until(engine, second.id, "suspended")
        gate[-1].set()
        await first.result()
        assert await second.result() == 2


async def test_waiters_of_an_engine_that_stops_are_left_to_the_next_without_a_look(tmp_path: Path) -> None:
    """They are suspended where they wait, not handed back to be loaded at once."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first = await engine.start(stays_inside, 0)
        await entered[-1].wait()
        rest = await asyncio.gather(*[engine.start(takes_a_turn, "stock", at) for at in range(5)])
        await until_waiting(engine, 5)
        await engine.cancel(first.id)
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        assert [await engine.result(each.id) for each in rest] == [1, 2, 3, 4, 5]


async def test_a_mutex_that_is_used_as_a_semaphore_keeps_nothing_of_a_run_that_asks(url: str) -> None:
    """What joined by mistake, and the record of it, are taken back before the run is told."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        other = await engine.start(counts_down)
        await entered[-1].wait()
        run = await engine.start(mistaken)
        assert await run.result() == "refused"
        events = await events_of(engine.runtime.space, RunKeys(engine.runtime.space, run.id))
        assert [event.kind for event in events] == ["released"]
        lines = engine.runtime.lines
        page = await engine.runtime.space.scan(*lines.line(STOCK).driver.keys.queue.within(), limit=10)
        assert not page.records
        gate[-1].set()
        await other.result()


async def test_a_refused_answer_in_the_short_way_is_asked_the_long_way(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that another worker drives by now does not join: its own guard is part of the commit."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        first = await engine.start(stays_inside, 0)
        await entered[-1].wait()
        real = MutexDriver._enter

        async def deposed(driver: MutexDriver, request: Any, spec: Any) -> Any:
            claim = engine.runtime.loaded[request.entry.owner].claim
            assert claim is not None
            record = (await engine.runtime.space.read(claim.key)).records[claim.key]
            await engine.runtime.space.commit(Put(claim.key, record.value, record.version))
            monkeypatch.setattr(MutexDriver, "_enter", real)
            return await real(driver, request, spec)

        monkeypatch.setattr(MutexDriver, "_enter", deposed)
        second = await engine.start(takes_a_turn, "stock", 1)
        gate[-1].set()
        await first.result()
        assert await asyncio.wait_for(second.result(), 30) == 2
        line = await LineEntries(engine.runtime.lines).read(STOCK)
        assert not line.holders


@sf.step
async def pause(seconds: float) -> None:
    """Take a moment, so that what is noted is written from time to time."""
    await asyncio.sleep(seconds)


@sf.workflow
async def takes_its_turn(ctx: sf.Context, seconds: float) -> None:
    """Work, and then work alone."""
    await ctx.step(pause, seconds)
    async with ctx.mutex("stock"):
        await ctx.step(pause, seconds)


async def test_a_write_that_comes_after_the_end_of_a_run_tells_of_no_other_worker(url: str) -> None:
    """The worker that ended a run has given up its grant itself: nothing has deposed it."""
    deposed: list[Event] = []

    def hook(event: Event) -> None:
        if isinstance(event, RunDeposed):
            deposed.append(event)

    async with sf.Engine(url, workflows=[takes_its_turn], hooks=[hook]) as engine:
        runs = [await engine.start(takes_its_turn, number % 7 / 500) for number in range(120)]
        await asyncio.gather(*(run.result() for run in runs))

    assert deposed == []
