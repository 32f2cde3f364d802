"""Taking over the runs of workers that died."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.events import WorkerDied
from standfast.space import Space
from standfast.testing.workflows import WorkflowEnvironment
from standfast.workflows import claims as claiming
from standfast.workflows.claims import reclaim, workers_of
from standfast.workflows.records import RUN_STATES, RunKeys
from tests.unit.workflows.engines import acts, collects, engine

if TYPE_CHECKING:
    from standfast.events import Event


async def test_a_run_that_is_cancelled_while_it_is_taken_over_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes it over looks again: nobody else would, once the dead worker is forgotten."""
    async with WorkflowEnvironment([collects], linger=60) as env:
        run = await env.start(collects, 1)
        await env.settle()
        await env.crash()
        find_out = claiming._freed  # called between the look and the commit

        async def meanwhile(*args: Any, **options: Any) -> Any:
            monkeypatch.undo()
            await run.cancel("meanwhile")
            return await find_out(*args, **options)

        monkeypatch.setattr(claiming, "_freed", meanwhile)
        await env.restart()
        async with asyncio.timeout(10):
            await env.settle()
        assert (await run.info()).status == "cancelled"


async def test_a_death_is_told_once_however_many_see_it() -> None:
    """Those who find nothing left to do say nothing."""
    told: list[Event] = []
    async with WorkflowEnvironment([collects], hooks=[told.append], linger=60) as env:
        await env.start(collects, 1)
        await env.settle()
        await env.crash()
        runtime = env.client.runtime
        [(name, worker)] = (await workers_of(runtime.space)).items()
        await asyncio.gather(*(reclaim(runtime, name, worker) for _ in range(5)))
        assert sum(event.runs for event in told if isinstance(event, WorkerDied)) == 1
        assert len([event for event in told if isinstance(event, WorkerDied)]) <= 2


async def test_a_run_that_waits_because_workers_died_with_it_says_so() -> None:
    """A worker drives one such run at a time; an operator would else look for a worker that is missing."""
    async with WorkflowEnvironment([collects], linger=60) as env:
        run = await env.start(collects, 1)
        for _ in range(2):
            await env.restart()
            await env.settle()
            await env.crash()
        runtime = env.client.runtime
        [(name, worker)] = (await workers_of(runtime.space)).items()
        await reclaim(runtime, name, worker)

        info = await run.info()

    assert info.waits_for == "a worker that drives no other such run: 2 workers in a row died with it"


async def test_a_worker_that_was_taken_for_dead_does_not_take_the_flag_of_its_run_away() -> None:
    """The flag is for whoever takes the run over; without it nobody would ever look at the run again."""
    async with WorkflowEnvironment([collects], linger=60) as env:
        run = await env.start(collects, 1)
        await env.settle()
        runtime = env.client.runtime
        [(name, worker)] = (await workers_of(runtime.space)).items()
        await reclaim(runtime, name, worker)  # it was only not heard of for a while
        await env.settle()
        keys = RunKeys(runtime.space, run.id)
        seen = await runtime.space.read(keys.state, keys.ready)
        assert RUN_STATES.decode(seen.records[keys.state].value).owner or seen.version(keys.ready)


async def test_a_worker_that_loses_its_presence_while_it_loads_a_run_again_leaves_it_to_another(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it was when it began is what it goes on with: it may be no worker at all by then."""
    heard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    async with engine(url) as opened:
        run = await opened.start(collects, 1)
        runtime = opened.runtime
        lost = asyncio.Event()

        def lose(*_: object) -> bool:
            """Lose the presence after the run's records were read, and before it is claimed."""
            if not lost.is_set():
                lost.set()
                runtime.lost_presence()
            return False

        monkeypatch.setattr(claiming, "_is_being_claimed", lose)
        runtime.loaded[run.id].abandon()
        await lost.wait()
        await run.signal("item", 7)
        assert await run.result(timeout=20) == [7]
    assert heard == []


@pytest.mark.parametrize("is_sent", [False, True])
async def test_a_first_claim_reads_the_inbox_only_if_something_was_sent(
    url: str, *, is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no history, and an inbox without a counter is empty."""
    read: list[str] = []
    scan = Space.scan

    async def noting(space: Space, start: Any, *rest: Any, **options: Any) -> Any:
        read.extend({"step", "inbox"} & {*start.parts})
        return await scan(space, start, *rest, **options)

    async with engine(url, drive=False) as client:
        run = await client.start(collects, 1) if is_sent else await client.start(acts, ["one"])
        if is_sent:
            await run.signal("item", "early")
        monkeypatch.setattr(Space, "scan", noting)
        async with engine(url), asyncio.timeout(20):
            result = await run.result()

    assert result == (["early"] if is_sent else ["one"])
    assert read[:1] == (["inbox"] if is_sent else [])
