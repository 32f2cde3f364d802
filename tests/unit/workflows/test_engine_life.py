"""Opening and closing engines."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import standfast as sf
from standfast.clock import Instant
from standfast.errors import (
    DeclarationError,
    EngineCreateNameMismatchError,
    EngineNotOpenError,
    StoreClosedError,
    UnknownWorkflowError,
    UsageError,
    WorkflowTypeNotRegisteredForRecoveryError,
)
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.records import OWNERSHIPS, Ownership, RunKeys
from tests.unit.workflows.engines import acts, collects, engine, sleeps, until


async def test_an_engine_that_is_not_open_is_refused(url: str) -> None:
    """Before it is opened, and after it is closed, every call says so."""
    closed = engine(url)
    with pytest.raises(EngineNotOpenError):
        await closed.start(acts, [])
    async with closed:
        await closed.start(acts, [], id="a")
    with pytest.raises(EngineNotOpenError, match="not open"):
        await closed.get("a")


async def test_an_engine_can_be_opened_again(url: str) -> None:
    """A closed engine opens its store anew."""
    again = engine(url)
    async with engine(url):  # a store in memory lasts for as long as somebody has it open
        async with again:
            await (await again.start(acts, ["x"], id="a")).result()
        async with again:
            assert (await again.get("a")).status == "completed"


async def test_an_open_engine_is_not_opened_twice(url: str) -> None:
    """Opening it again while it is open is a mistake, and harms nothing."""
    async with engine(url) as opened:
        with pytest.raises(DeclarationError, match="open already"):
            await opened.open()
        assert await (await opened.start(acts, ["x"])).result() == ["x"]


async def test_closing_twice_is_fine(url: str) -> None:
    """The second time there is nothing to do."""
    opened = engine(url)
    await opened.open()
    await opened.aclose()
    await opened.aclose()


async def test_an_engine_is_refused_in_another_loop(url: str) -> None:
    """An engine belongs to the event loop that opened it."""
    async with engine(url) as opened:

        def elsewhere() -> None:
            with pytest.raises(UsageError):
                asyncio.run(opened.get("a"))

        await asyncio.to_thread(elsewhere)


async def test_an_engine_is_refused_after_a_fork(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process does not have the engine of its parent."""
    async with engine(url) as opened:
        with monkeypatch.context() as patched:
            patched.setattr(opened._fork, "crossed", True)  # as it is in a child
            with pytest.raises(StoreClosedError, match="the engine: it was opened before this process was forked"):
                await opened.get("a")


def test_workflows_are_given_under_their_own_names() -> None:
    """A mapping whose key is another name is refused before anything is opened."""
    with pytest.raises(EngineCreateNameMismatchError):
        sf.Engine("memory://", workflows={"other": acts})


async def test_a_workflow_that_the_engine_does_not_have_is_refused(url: str) -> None:
    """An engine that drives runs starts only what it could drive."""
    async with engine(url, workflows=[acts]) as opened:
        with pytest.raises(UnknownWorkflowError, match="acts"):
            await opened.start(collects, 1)


async def test_opening_can_insist_on_all_code(url: str) -> None:
    """With ``recover=True`` an engine does not open while there are runs that it could not drive."""
    async with engine(url) as first:
        await first.start(collects, 1, id="a")
        insisting = engine(url, workflows=[acts], recover=True)
        with pytest.raises(WorkflowTypeNotRegisteredForRecoveryError, match="collects"):
            await insisting.open()
        with pytest.raises(EngineNotOpenError):
            await insisting.get("a")


async def test_a_run_goes_on_when_its_code_is_registered(url: str) -> None:
    """A run whose workflow is not here is left as it is, until it is."""
    async with engine(url, drive=False) as client, engine(url, workflows=[acts]) as worker:
        run = await client.start(sleeps, 0)
        assert await (await worker.start(acts, ["x"])).result() == ["x"]
        assert (await client.get(run.id)).status == "pending"

        worker.register(sleeps)

        assert (await until(client, run.id, "completed")).result == "after"


@pytest.mark.parametrize("delay", [0, 0.001])
async def test_runs_whose_code_is_not_here_do_not_keep_others_waiting(url: str, delay: float) -> None:
    """However many there are, and however few runs may be in memory."""
    async with engine(url, drive=False) as client:
        await asyncio.gather(*(client.start(collects, 0, id=f"a-{n}", delay=delay) for n in range(250)))
        run = await client.start(acts, ["x"], id="b", delay=delay)
        async with engine(url, workflows=[acts], max_loaded=5):
            assert await run.result(timeout=10) == ["x"]


@sf.workflow
async def named(ctx: sf.Context, first: int, *, second: int) -> int:
    """Take something that can only be given by name."""
    del ctx
    return first - second


async def test_arguments_can_be_given_by_name() -> None:
    """A workflow may have parameters that have to be."""
    async with sf.Engine("memory://", workflows=[named]) as engine:
        assert await (await engine.start(named, 5, kwargs={"second": 2})).result() == 3


async def test_a_start_that_is_written_while_its_engine_closes_is_not_left_behind(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that comes after the engine has looked for what it drives is refused: no worker would ever find it."""
    ours = engine(url)
    await ours.open()
    space, worker = ours.runtime.space, await ours.runtime.ensure_presence()
    grant = Put(RunKeys(space, "late").own(worker.presence), OWNERSHIPS.encode(Ownership("late", Instant(1))))
    answers: list[type] = []
    scan = space.scan

    async def look_and_be_late(*args: Any, **options: Any) -> Any:
        page = await scan(*args, **options)
        if args[0].parts[2] == "own":
            answers.append(type(await space.commit(worker.guard, grant)))
        return page

    monkeypatch.setattr(space, "scan", look_and_be_late)

    await ours.aclose()

    assert answers == [Conflict]
