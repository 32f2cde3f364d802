"""The dashboard in other people's applications: Starlette, FastAPI and Django, with their own users."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import standfast as sf
from standfast.web.dashboard import Dashboard
from tests.unit.web.dashboard.opened import opened

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

DJANGO = """
import asyncio, json
import django, httpx
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path
import standfast as sf
from starlette.applications import Starlette
from starlette.routing import Mount


def login(request):
    request.session["user"] = "ann"
    return HttpResponse("hello")


urlpatterns = [path("login", login)]
settings.configure(
    SECRET_KEY="x" * 50, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)
django.setup()
from django.contrib.sessions.backends.signed_cookies import SessionStore


def signed_in(connection):
    user = SessionStore(connection.cookies.get("sessionid")).get("user")
    return sf.Principal("default", user, frozenset({"operator"})) if user else None


async def main():
    async with sf.Engine("memory://") as engine:
        dashboard = sf.web.Dashboard(engine, authenticate=signed_in)
        site = Starlette(routes=[Mount("/ops", dashboard), Mount("/", get_asgi_application())])
        transport = httpx.ASGITransport(site)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as http:
            before = (await http.get("/ops/runs")).status_code
            hello = (await http.get("/login")).text
            page = await http.get("/ops/runs")
            print(json.dumps([before, hello, page.status_code, page.text]))


asyncio.run(main())
"""


async def pages(host: Any, *paths: str) -> list[httpx.Response]:
    """Open pages of a host."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://ops.test") as http:
        return [await http.get(path) for path in paths]


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_it_is_mounted_below_a_path_of_an_application(framework: str) -> None:
    """All its links, forms and streams stay below that path."""
    async with opened() as made:
        host: Any = FastAPI() if framework == "fastapi" else Starlette(routes=[Mount("/ops", made.dashboard)])
        if framework == "fastapi":
            host.mount("/ops", made.dashboard)
        await (await made.engine.start("posting", "x", id="r1")).result(timeout="10s")
        runs, one, missing, elsewhere = await pages(host, "/ops/runs", "/ops/run?id=r1", "/ops/none", "/other")
        assert (runs.status_code, one.status_code, missing.status_code) == (200, 200, 404)
        assert elsewhere.status_code == 404
        assert 'data-live="/ops/live"' in runs.text
        assert 'action="/ops/act/run.restart"' in one.text
        assert 'href="/ops/run?id=r1"' in runs.text


async def test_it_is_opened_and_closed_with_the_application_that_it_is_in() -> None:
    """A URL is opened by the first request, and closed by the application's own lifespan."""
    dashboard = Dashboard("memory://")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with dashboard:
            yield

    host = FastAPI(lifespan=lifespan)
    host.mount("/ops", dashboard)
    async with host.router.lifespan_context(host):
        (answer,) = await pages(host, f"/ops/runs?token={dashboard.token}")
        assert answer.status_code in (200, 303)
    assert dashboard.closing.is_set()


async def test_in_django_the_users_of_django_open_it() -> None:
    """It stands beside Django in one application, and reads Django's session."""
    command = [sys.executable, "-c", DJANGO]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr.decode()
    before, hello, status, text = json.loads(done.stdout)
    assert (before, hello, status) == (401, "hello", 200)
    assert "<span>ann</span>" in text
    assert 'data-live="/ops/live"' in text


async def test_a_principal_of_the_application_says_which_tenant_is_seen() -> None:
    """Two users of two tenants see two dashboards at one address."""
    async with opened() as made:
        await made.engine.start("posting", "x", id="of-default")
        made.who = sf.Principal("acme", "eve")
        acme = await made.get("runs")
        made.who = sf.Principal("default", "ann")
        assert ("of-default" in acme.text, "of-default" in (await made.get("runs")).text) == (False, True)
