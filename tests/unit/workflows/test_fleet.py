"""What workers say about themselves: it is there while they are, and nothing rests on it."""

from __future__ import annotations

import asyncio

import pytest

import standfast as sf
from standfast.clock import Instant
from standfast.errors import DeclarationError
from standfast.events import Event, PresenceLost
from standfast.stores import Delete, Put
from standfast.workflows.fleet import ABOUT, AboutWorker, about_key


@sf.workflow
async def waits(ctx: sf.Context) -> None:
    """Wait for something that does not come."""
    await ctx.sleep("1 day")


async def test_a_worker_that_stops_leaves_nothing() -> None:
    """Neither the record of itself nor the one that guards its claims."""
    async with sf.open("memory://") as space:
        async with sf.Engine(space, workflows=[waits]) as engine:
            [worker] = await engine.workers()
            assert worker.is_alive
            assert (await space.read(about_key(space, worker.id))).records
        for kind in ("worker", "fleet"):
            assert not (await space.scan(*space.key(kind).within(), limit=10)).records


async def test_a_worker_of_an_older_version_is_listed_without_what_it_does_not_say() -> None:
    """And no run is said to have no code because of it: it may have it."""
    async with sf.open("memory://") as space, sf.Engine(space, workflows=[waits]) as engine:
        [worker] = await engine.workers()
        key = about_key(space, worker.id)
        await space.commit(Delete(key, (await space.read(key)).version(key)))
        async with sf.Engine(space, drive=False) as other:
            await other.start("unknown", unknown="start")
            [older] = await other.workers()
            seen = await other.overview()

    assert (older.id, older.is_alive, older.workflows, older.is_whole) == (worker.id, True, (), False)
    assert older.process > 0  # its presence says that
    assert [concern.kind for concern in seen.concerns] == []


def test_a_description_with_fields_of_the_future_left_out_is_read() -> None:
    """Formats only grow: what is not there has its default."""
    assert ABOUT.decode(b'1:{"since":7}') == AboutWorker(Instant(7))


async def test_a_limit_of_a_list_is_a_number() -> None:
    """At least one."""
    async with sf.Engine("memory://", drive=False) as engine:
        for limit in (0, True, "all"):
            with pytest.raises(DeclarationError):
                await engine.workers(limit=limit)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- what is refused


async def test_a_worker_that_was_taken_for_dead_is_listed_again() -> None:
    """Though it has nothing to do: a machine that was suspended goes on, and others have cleared what it left."""
    lost = asyncio.Event()

    def hear(event: Event) -> None:
        if isinstance(event, PresenceLost):
            lost.set()

    async with sf.open("memory://", lease=0.5, hooks=[hear]) as space, sf.Engine(space, workflows=[waits]) as engine:
        [before] = await engine.workers()
        key = space.key("presence", *before.id.split("."))
        await space.commit(Delete(key, (await space.read(key)).version(key)))
        await lost.wait()
        async with asyncio.timeout(20):
            while not (now := [each.id for each in await engine.workers() if each.is_alive]):  # noqa: ASYNC110 -- the list is asked
                await asyncio.sleep(0)

    assert now != [before.id]


async def test_a_dead_worker_is_listed_until_its_runs_are_taken_over() -> None:
    """It is known by the record that guards its claims, which the one who takes over removes."""
    async with sf.open("memory://") as space, sf.Engine(space, drive=False) as engine:
        key = space.key("worker", "gone.1")
        await space.commit(Put(key, b'1:{"since":7}'))
        [dead] = await engine.workers()
        assert (dead.id, dead.is_alive, dead.silent_for) == ("gone.1", False, None)
        assert [concern.kind for concern in (await engine.overview()).concerns] == ["dead-workers"]
        async with sf.Engine(space, workflows=[waits]) as driving:
            assert driving.worker is not None
            await driving.worker.reclaim_dead()
            assert [worker.id for worker in await engine.workers()] != ["gone.1"]
