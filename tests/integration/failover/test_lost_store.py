"""A store that lost what it had acknowledged: what drives runs ends with an error instead of driving nothing."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
import redis.asyncio

import standfast as sf
from standfast.errors import StoreRewoundError
from tests import services
from tests.integration.cli.programs import Program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services.server import Server

pytestmark = [pytest.mark.services, pytest.mark.heavy]

MODULE = """
import asyncio, os
import standfast as sf

async def stay():
    print("staying", flush=True)
    await asyncio.sleep(600)

@sf.workflow
async def stays(ctx):
    await ctx.step(stay)

@sf.workflow
async def says(ctx):
    return "on"

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[stays, says])
app = sf.App(engine, flows=[])
"""


@sf.workflow
async def stays(ctx: sf.Context) -> None:
    """Stand in for the workflow of the module, to start it from here."""
    raise NotImplementedError(ctx)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of the test's own, to be emptied."""
    with services.private("redis") as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Where the module is."""
    (tmp_path / "flows.py").write_text(MODULE)
    return str(tmp_path)


async def lose_everything(server: Server) -> None:
    """Do what a promoted replica that had nothing yet, or a restart without persistence, comes to."""
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.flushall()


@pytest.mark.parametrize("what", ["idle", "busy"])
async def test_a_worker_whose_store_lost_commits_ends_with_an_error(server: Server, folder: str, what: str) -> None:
    """Within seconds, also in the middle of a step; the next process takes part again."""
    worker = Program(server.url, "worker", "flows:engine", "--app-dir", folder, "--grace", "30s")
    assert "drives runs" in worker.hear()
    worker.hear()
    if what == "busy":
        async with sf.Engine(server.url, drive=False) as engine:
            await engine.start(stays)
            assert worker.hear() == "staying"
    await lose_everything(server)

    async with asyncio.timeout(20):
        code, said = await asyncio.to_thread(worker.end)

    assert code == 1
    assert "acknowledged data is missing" in said
    assert "Traceback" not in said
    again = Program(server.url, "worker", "flows:engine", "--app-dir", folder)
    assert "drives runs" in again.hear()
    async with sf.Engine(server.url, drive=False) as engine:
        run = await engine.start("says")
        assert await run.result(timeout=20) == "on"
    again.process.terminate()
    assert again.end()[0] == 0


async def test_a_served_application_whose_store_lost_commits_ends_with_an_error(server: Server, folder: str) -> None:
    """So that what keeps the service running starts it anew."""
    app = Program(server.url, "serve", "flows:app", "--app-dir", folder, "--port", "0")
    assert "serving flows:app" in app.hear()
    await lose_everything(server)

    async with asyncio.timeout(30):
        code, said = await asyncio.to_thread(app.end)

    assert code == 1
    assert "acknowledged data is missing" in said


async def test_an_engine_in_a_program_tells_all_that_wait_for_its_runs(server: Server) -> None:
    """Whoever waits for a result is told, and the engine can be closed and opened again."""

    @sf.workflow
    async def waits(ctx: sf.Context) -> None:
        await ctx.sleep(600)

    engine = sf.Engine(server.url, workflows=[waits])
    await engine.open()
    run = await engine.start(waits)
    worker = engine.worker
    assert worker is not None
    async with redis.asyncio.Redis.from_url(server.url) as client:
        await client.flushall()

    async with asyncio.timeout(20):
        with pytest.raises(StoreRewoundError):
            await run.result()
        with pytest.raises(StoreRewoundError):
            await worker.join()
        with contextlib.suppress(StoreRewoundError):
            await engine.aclose()
        async with engine:
            assert (await engine.start(waits)).is_new
