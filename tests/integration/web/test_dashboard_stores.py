"""The dashboard over real servers: every screen and a change of many runs, as over a file."""

from __future__ import annotations

import asyncio
import re
import uuid
from typing import TYPE_CHECKING

import httpx
import pytest

import standfast as sf
from standfast.web.dashboard import Dashboard
from standfast.web.dashboard.screens import SCREENS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.services

QUERIES: dict[str, dict[str, object]] = {
    "run": {"id": "held"},
    "line": {"at": ["1", "", "ledger"]},
    "why": {"run": "waits"},
    "compare": {"id": "bad-0", "with": "bad-1"},
    "test": {"id": "bad-0"},
}


@sf.workflow
async def holding(ctx: sf.Context) -> None:
    """Hold the ledger until it is told to stop."""
    async with ctx.mutex("ledger"):
        await ctx.wait_signal("go")


@sf.workflow
async def broken(ctx: sf.Context) -> None:
    """Fail."""

    async def fail() -> None:
        raise ValueError("no")

    await ctx.step("fail", fail)


async def until(engine: sf.Engine, run_id: str, words: str) -> None:
    """Wait until a run waits for something."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while words not in (await engine.get(run_id)).waits_for:
            await watch.wait(1)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "redis", "mysql"])
async def test_every_screen_and_a_change_of_many_runs_work_on_each_store(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing of it knows which store it looks at."""
    url = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else str(request.getfixturevalue(f"{kind}_url"))
    space = f"dashboard-{uuid.uuid4().hex[:8]}"
    who = sf.Principal("default", "ann")
    async with sf.Engine(url, namespace=space, workflows=[holding, broken]) as engine:
        for number in range(3):
            run = await engine.start(broken, id=f"bad-{number}")
            with pytest.raises(sf.errors.RunFailedError):
                await run.result(timeout="20s")
        await engine.start(holding, id="held")
        await until(engine, "held", "go")
        await engine.start(holding, id="waits")
        await until(engine, "waits", "ledger")
        dashboard = Dashboard(url, namespace=space, authenticate=lambda _: who, access=lambda _: "all")
        transport = httpx.ASGITransport(dashboard)
        async with dashboard, httpx.AsyncClient(transport=transport, base_url="http://ops.test") as http:
            for path in SCREENS:
                page = await http.get(f"/{path}", params=QUERIES.get(path))  # type: ignore[arg-type]  # texts and lists
                assert page.status_code == 200, (path, page.text)
            assert "waits waits for ledger, which is held by held" in (await http.get("/why?run=waits")).text
            preview = (await http.get("/act/runs.purge?status=failed")).text
            form = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', preview))
            answer = await http.post("/act/runs.purge", data={**form, "number": "3"})
            assert answer.status_code == 303, answer.text
            job = dashboard.jobs._known[httpx.URL(answer.headers["location"]).params["id"]]
            assert job.task is not None
            await asyncio.wait([job.task])
            assert (job.changed.done, job.changed.failed) == (3, {})
        assert (await engine.count(status="failed")).number == 0
