"""What a branch, a child or a signal costs does not depend on how many others there are."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

import standfast as sf
from standfast.clock import Instant
from standfast.stores.group_commit import CommitGroup, GroupedStore
from standfast.workflows.activation import MOST_IN_A_TURN, BranchPace
from standfast.workflows.replay import Branch, Branches, Wait
from tests.unit.workflows.engines import until

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Watch

FEW: Final = 40
MANY: Final = 400


@sf.step
async def one(number: int) -> int:
    """Do next to nothing."""
    return number


@sf.workflow
async def child(ctx: sf.Context, number: int) -> int:
    """Take one step."""
    return await ctx.step(one, number)


@sf.workflow
async def branches(ctx: sf.Context, count: int) -> int:
    """Take many steps side by side."""
    return len(await ctx.gather(*(ctx.step(one, number) for number in range(count))))


@sf.workflow
async def children(ctx: sf.Context, count: int) -> int:
    """Start many runs side by side."""
    return len(await ctx.gather(*(ctx.child(child, number) for number in range(count))))


@sf.workflow
async def sleepers(ctx: sf.Context, count: int) -> int:
    """Sleep side by side."""
    return len(await ctx.gather(*(ctx.sleep(0.2) for _ in range(count))))


@sf.workflow
async def named(ctx: sf.Context, count: int) -> int:
    """Wait for a signal of its own in each branch."""
    return len(await ctx.gather(*(ctx.wait_signal(f"signal {number}") for number in range(count))))


@sf.workflow
async def first_of(ctx: sf.Context, count: int) -> int:
    """Race many branches of which one ends."""
    return (await ctx.race(*(ctx.sleep(1e6) for _ in range(count - 1)), ctx.step(one, 1)))[0]


WORKFLOWS: Final[list[Any]] = [child, branches, children, sleepers, named, first_of]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count what the store is asked for."""
    counts: Counter[str] = Counter()
    read, board = GroupedStore.read, CommitGroup.board

    def reads(store: GroupedStore, *keys: Any) -> Any:
        counts["reads"] += 1
        return read(store, *keys)

    def boards(group: CommitGroup, rider: Any) -> Any:
        counts["commits"] += 1
        return board(group, rider)

    monkeypatch.setattr(GroupedStore, "read", reads)
    monkeypatch.setattr(CommitGroup, "board", boards)
    return counts


async def count(url: str, asked: Counter[str], workflow: Any, number: int) -> int:
    """Return how often the store is asked for a run with so many branches."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        await (await engine.start(branches, 1)).result()
        asked.clear()
        run = await engine.start(workflow, number)
        if workflow is named:
            await until(engine, run.id, "suspended")
            await asyncio.gather(*(run.signal(f"signal {each}") for each in range(number)))
        await run.result()
        return asked.total()


@pytest.mark.parametrize("workflow", [branches, children, sleepers, named, first_of], ids=lambda each: each.name)
async def test_the_store_is_asked_no_more_for_each_of_many(workflow: Any, url: str, asked: Counter[str]) -> None:
    """Ten times the branches ask the store at most ten times as often."""
    few, many = await count(url, asked, workflow, FEW), await count(url, asked, workflow, MANY)
    assert many <= 1.5 * (MANY / FEW) * (few + 4)  # a few more or less by the time that commits take


async def test_children_that_end_elsewhere_are_seen_many_at_a_time(url: str, asked: Counter[str]) -> None:
    """The process that drives the parent reads their states together, not one after another for each that ends."""
    if url.startswith("memory"):
        pytest.skip("two processes do not share a memory store")
    async with (
        sf.Engine(url, workflows=[children], namespace="shared") as parents,
        sf.Engine(url, workflows=[child], namespace="shared") as others,
    ):
        del others
        run = await parents.start(children, MANY)
        assert await run.result() == MANY
    assert asked["reads"] < 30 * MANY  # with a read of each for each that ends there would be 80,000 and more


async def test_other_runs_go_on_while_one_has_thousands_of_branches(url: str) -> None:
    """The loop turns many times meanwhile: a few branches begin something in each turn."""
    async with sf.Engine(url, workflows=WORKFLOWS) as engine:
        await (await engine.start(branches, 1)).result()
        turns = 0

        async def beat() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beating = asyncio.get_running_loop().create_task(beat())
        await (await engine.start(branches, 3_000)).result()
        beating.cancel()
    assert turns >= 3_000 / MOST_IN_A_TURN


async def test_branches_begin_in_the_order_in_which_they_came() -> None:
    """However many wait for a turn of the loop, none is overtaken, and one that is cancelled holds up no other."""
    all_of_them, order = Branches(), list[int]()
    for number in range(200):
        all_of_them.add(Branch(f"g1.{number}"))
    pace = BranchPace(all_of_them)

    async def begin(number: int) -> None:
        if not pace.is_free():
            await pace.turn()
        order.append(number)

    tasks = [asyncio.get_running_loop().create_task(begin(number)) for number in range(200)]
    await asyncio.sleep(0)
    tasks[150].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == [number for number in range(200) if number != 150]


async def test_what_branches_wait_for_is_counted_as_it_changes() -> None:
    """A branch that waits is not at work, one whose wait has ended is again, and one that waits for others is not."""
    kept, main, members = Branches(), Branch(""), [Branch("g1.0"), Branch("g1.1")]
    kept.add(main)
    kept.begin_group(main, members)
    assert (kept.leaves, kept.active) == (2, 2)
    waits = [Wait("a signal", signal="go"), Wait("a child", child="c")]
    for member, wait in zip(members, waits, strict=True):
        kept.begin_wait(member, wait)
    assert (kept.leaves, kept.active) == (2, 0)
    waits[0].settle("went")
    assert kept.active == 1
    for member, wait in zip(members, waits, strict=True):
        kept.end_wait(member, wait)
        kept.end_member(main, member)
    assert (kept.leaves, kept.active, len(kept)) == (1, 1, 1)
    assert (kept.signals, kept.children) == ({}, {})


async def test_waits_that_ended_before_their_time_are_forgotten() -> None:
    """A run that waits again and again, each time for a day at most, does not keep every one of these days in mind."""
    kept, main = Branches(), Branch("")
    kept.add(main)
    for number in range(10_000):
        wait = Wait("a signal", Instant(number + 1), signal="go")
        kept.begin_wait(main, wait)
        wait.settle(None)
        kept.end_wait(main, wait)
    assert len(kept._dues) < 100
    assert kept.due_at() is None


@sf.workflow
async def adds(ctx: sf.Context, count: int) -> int:
    """Answer updates until they come to a sum."""
    total = 0

    def add(number: int) -> int:
        nonlocal total
        total += number
        return total

    ctx.on_update("add", add)
    await ctx.wait_until(lambda: total >= count)
    return total


async def test_callers_that_wait_for_updates_share_one_watch(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, the run is watched once, and each gets its own answer."""
    watched: list[Any] = []
    watch = GroupedStore.watch

    def note_watch(store: GroupedStore, *keys: RecordKey) -> Watch:
        watched.append(keys)
        return watch(store, *keys)

    async with sf.Engine(url, workflows=[adds]) as engine:
        run = await engine.start(adds, MANY)
        monkeypatch.setattr(GroupedStore, "watch", note_watch)
        answers = await asyncio.gather(*(run.update("add", 1, timeout=60) for _ in range(MANY)))
        assert sorted(answers) == list(range(1, MANY + 1))
        assert await run.result() == MANY
        assert not engine.runtime.answers._waiting
    assert len(watched) < 5
