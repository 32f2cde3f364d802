"""Runs that ended long enough ago are deleted by a policy, and nothing else is."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast import admin
from standfast.errors import DeclarationError, IdempotencyKeyPurgedError, RunFailedError, StandfastError
from standfast.events import Event, RunsSwept
from standfast.keys import RecordKey
from standfast.space import Space
from standfast.stores.memory import open_memory
from standfast.testing import Faults, FaultyStore, VirtualClock, simulate
from standfast.workflows.batch_purge import TOGETHER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.stores.protocol import Store


@sf.step
async def act(number: int) -> int:
    """Do something."""
    return number


@sf.workflow
async def acts(ctx: sf.Context, ending: str = "") -> str:
    """Act, and end in one way or another."""
    await ctx.step(act, 1)
    await ctx.state.run("note", type=str, initial="").set(ending)
    if ending == "fails":
        raise ValueError(ending)
    if ending == "waits":
        await ctx.wait_signal("go")
    return ending


@sf.workflow
async def parent(ctx: sf.Context, ending: str = "") -> None:
    """Start a child, and end, or wait for another one."""
    await ctx.child(acts, "")
    if ending == "waits":
        await ctx.wait_signal("go")


@sf.workflow
async def ledger(ctx: sf.Context) -> None:
    """Be kept for longer than others."""


WORKFLOWS: list[Any] = [acts, parent, ledger]
KEPT = admin.Retention(completed="10 seconds", failed="1 hour", workflows={"ledger": None}, idempotency="1 minute")


def _engine(store: Store, clock: VirtualClock, **options: Any) -> sf.Engine:
    return sf.Engine(Space(store, clock=clock), workflows=WORKFLOWS, **{"retention": KEPT, **options})


def played(main: Callable[[Store, VirtualClock], Awaitable[None]]) -> None:
    """Run a test in virtual time."""

    async def run() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        store = open_memory(clock=clock)
        await main(store, clock)
        await store.aclose()

    simulate(1, run)


async def _kinds(space: sf.Space) -> set[str]:
    page = await space.scan(*RecordKey(space.namespace, space.tenant).within(), limit=1_000)
    return {key.parts[2] for key in page.records} - {"presence", "worker", "fleet", "declared", "indexed", "sweeping"}


def test_runs_are_kept_by_how_they_ended_and_by_their_workflow() -> None:
    """Completed ones for ten seconds, failed ones for an hour, those of one workflow for ever."""

    async def main(store: Store, clock: VirtualClock) -> None:
        async with _engine(store, clock) as engine:
            await (await engine.start(acts, id="done")).result()
            await (await engine.start(ledger, id="book")).result()
            with pytest.raises(RunFailedError):
                await (await engine.start(acts, "fails", id="failed")).result()
            await asyncio.sleep(5)
            assert {run.id for run in (await engine.list()).runs} == {"done", "book", "failed"}
            await asyncio.sleep(20)
            assert {run.id for run in (await engine.list()).runs} == {"book", "failed"}
            await asyncio.sleep(3_700)
            assert {run.id for run in (await engine.list()).runs} == {"book"}

    played(main)


def test_nothing_of_a_run_is_left_but_what_says_that_it_was_there_and_that_only_for_a_while() -> None:
    """Its idempotency key and the count of its id have a length of their own."""

    async def main(store: Store, clock: VirtualClock) -> None:
        async with _engine(store, clock) as engine:
            await (await engine.start(acts, id="named")).result()
            await (await engine.start(acts, idempotency_key="once")).result()
            await (await engine.start(parent, id="family")).result()
            await (await engine.start(parent, idempotency_key="family")).result()
            await asyncio.sleep(20)
            assert await _kinds(engine.space) == {"run", "once"}
            with pytest.raises(IdempotencyKeyPurgedError):
                await engine.start(acts, idempotency_key="once")
            await asyncio.sleep(90)
            assert await _kinds(engine.space) == set()
            assert (await engine.start(acts, idempotency_key="once")).is_new
            assert (await engine.start(parent, idempotency_key="family")).is_new

    played(main)


def test_a_child_goes_with_its_parent_and_not_before() -> None:
    """However long ago it ended."""

    async def main(store: Store, clock: VirtualClock) -> None:
        async with _engine(store, clock) as engine:
            run = await engine.start(parent, "waits", id="family")
            await asyncio.sleep(100)
            assert len((await engine.list()).runs) == 2
            await run.signal("go")
            await run.result()
            await asyncio.sleep(20)
            assert (await engine.list()).runs == ()

    played(main)


def test_many_runs_are_deleted_together_and_told_of() -> None:
    """More than one group of them, with others between them that are not meant."""
    told: list[Event] = []

    async def main(store: Store, clock: VirtualClock) -> None:
        async with _engine(store, clock, hooks=[told.append]) as engine:
            many = 4 * TOGETHER
            runs = [await engine.start(acts, "waits" if n % 3 == 0 else "", id=f"r.{n:03}") for n in range(many)]
            await asyncio.gather(*(run.result() for n, run in enumerate(runs) if n % 3))
            await asyncio.sleep(30)
            left = (await engine.list(limit=many)).runs
            assert sorted(run.id for run in left) == [f"r.{n:03}" for n in range(0, many, 3)]
            assert sum(each.runs for each in told if isinstance(each, RunsSwept)) == many - len(left)

    played(main)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_unfinished_is_ever_deleted_whatever_fails(seed: int) -> None:
    """Two engines sweep, on a store that fails now and then, while runs are made, signalled, retried and cancelled."""
    simulate(seed, _storm, seed)


async def _storm(seed: int) -> None:
    random, clock = Random(seed), VirtualClock(asyncio.get_running_loop())
    store = open_memory(clock=clock)
    faulty = FaultyStore(store, faults=Faults(refuse=0.02, lose_reply=0.02, land_late=0.02, fail_read=0.01), seed=seed)
    calm = _engine(store, clock, drive=False)
    await calm.open()
    keep = admin.Retention(completed="3 seconds", failed="3 seconds", cancelled="3 seconds")
    workers = [_engine(faulty, clock, retention=keep) for _ in range(2)]
    for worker in workers:
        while True:
            try:
                await worker.open()
                break
            except StandfastError:
                continue
    unfinished: set[str] = set()
    for number in range(60):
        await asyncio.sleep(random.random())
        workflow: Any = random.choice([acts, parent])
        ending = random.choice(["", "fails", "waits"])
        run = await calm.start(workflow, ending, id=f"{random.choice(['a', 'a.b', 'c-d'])}.{number}")
        if ending == "waits":
            unfinished.add(run.id)
        if unfinished and random.random() < 0.3:
            ended = random.choice(sorted(unfinished))
            unfinished.discard(ended)
            with suppress(StandfastError):
                await (calm.signal(ended, "go") if random.random() < 0.7 else calm.cancel(ended))
        for name in unfinished:
            assert not (await calm.get(name)).has_ended
    await asyncio.sleep(60)
    runs = (await calm.list(limit=1_000)).runs
    assert {run.id for run in runs if not run.has_ended} == unfinished
    assert {run.root or run.id for run in runs} <= unfinished
    for worker in workers:
        with suppress(StandfastError):
            await worker.aclose()
    await calm.aclose()
    await store.aclose()


@pytest.mark.parametrize(
    "given",
    [
        {"completed": "1 ms"},
        {"workflows": {"ledger": -1}},
        {"workflows": ["ledger"]},
        {"most_per_second": 0},
        {"idempotency": 0},
    ],
)
def test_a_retention_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    """Before anything is deleted by it."""
    with pytest.raises((DeclarationError, ValueError)):
        admin.Retention(**given)
