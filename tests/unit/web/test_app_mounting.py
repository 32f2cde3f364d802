"""Applications in others: opened and closed with them, and what an application brings along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest
from fastapi import FastAPI

import standfast as sf
from standfast.errors import DeclarationError, NotTheSoleServerError
from tests.unit.web.fakes import shown

if TYPE_CHECKING:
    from pathlib import Path

office = sf.Flow("office")


@office.action
async def tidy(request: sf.Request, room: str = "hall") -> str:
    """Tidy a room."""
    del request
    return f"tidied {room}"


@sf.workflow
async def report(ctx: sf.Context) -> str:
    """Return when it is."""
    return str(await ctx.now())


async def call(host: FastAPI, path: str, app: sf.App) -> httpx.Response:
    """Send a request to a host."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=host), base_url="http://localhost") as client:
        return await client.post(path, json={"room": "attic"}, headers=shown(app))


async def test_in_fastapi_it_serves_while_the_host_does() -> None:
    """With the lifespan of ours it answers below its mount; before and after, it says that it is not open."""
    app = sf.App("memory://", flows=[office])
    api = FastAPI(lifespan=sf.web.lifespan(app))
    api.mount("/api", app)
    assert "lifespan" in (await call(api, "/api/flows/office/tidy", app)).json()["detail"]
    async with api.router.lifespan_context(api):
        assert (await call(api, "/api/flows/office/tidy", app)).json() == "tidied attic"
    assert (await call(api, "/api/flows/office/tidy", app)).status_code == 503


@pytest.mark.parametrize(("mounted", "servers"), [("/api", [{"url": "/api"}]), ("", None)])
async def test_the_description_says_where_it_is_mounted(mounted: str, servers: object) -> None:
    """Its paths are below that; by default they are those of the host itself."""
    app = sf.App("memory://", flows=[office])
    api = FastAPI(openapi_url=None)
    api.mount(mounted, app)
    transport = httpx.ASGITransport(app=api)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=shown(app)) as client:
        assert (await client.get(f"{mounted}/openapi.json")).json().get("servers") == servers


async def test_two_applications_are_opened_together_or_not_at_all(tmp_path: Path) -> None:
    """If the second cannot open, the first is closed again, and the host does not start."""
    url = f"sqlite:///{tmp_path / 'office.db'}"
    first, second = sf.App(url, flows=[office], name="one"), sf.App(url, flows=[office], arbiter="local")
    async with sf.App(url, flows=[office], arbiter="local"):
        api = FastAPI(lifespan=sf.web.lifespan(first, second))
        with pytest.raises(NotTheSoleServerError):
            async with api.router.lifespan_context(api):
                pytest.fail("it has started")
    assert not first.is_well


async def test_an_application_takes_schedules_of_actions_and_of_workflows() -> None:
    """They stand in one list, and are there when it is open."""
    schedules = [tidy.schedule("nightly", cron="0 3 * * *"), sf.Schedule(report, id="hourly", every="1 hour")]
    async with sf.App("memory://", flows=[office], workflows=[report], schedules=schedules) as app:
        known = await app.dispatcher.engine.schedules.list()
    assert [(each.id, each.workflow) for each in known] == [("hourly", "report"), ("nightly", "office.tidy")]


def test_beside_an_engine_only_schedules_of_actions_are_taken() -> None:
    """Those of workflows are the engine's own."""
    engine = sf.Engine("memory://", workflows=[report])
    sf.App(engine, flows=[office], schedules=[tidy.schedule("nightly", cron="0 3 * * *")])
    with pytest.raises(DeclarationError, match="schedules"):
        sf.App(engine, flows=[office], schedules=[sf.Schedule(report, id="hourly", every="1 hour")])
