"""A dashboard over a memory store with something in it, and a client without a network."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, final

import httpx

import standfast as sf
from standfast.web.dashboard import Dashboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.web.dashboard.access import Level

NASTY = "<img src=x onerror=alert(1)>\"'&<script>"


@sf.workflow
async def approval(ctx: sf.Context, order: object) -> object:
    """Hold the ledger until somebody approves."""
    del order
    async with ctx.mutex("ledger"):
        return await ctx.wait_signal("approve")


@sf.workflow
async def posting(ctx: sf.Context, order: object) -> None:
    """Wait for the ledger."""
    del order
    async with ctx.mutex("ledger"):
        pass


@sf.workflow
async def broken(ctx: sf.Context, order: object) -> None:
    """Fail with what it was given."""

    async def fail() -> None:
        raise ValueError(str(order))

    await ctx.step(NASTY, fail)


@final
class Opened:
    """An engine, a dashboard on it, and a client that is signed in as somebody."""

    def __init__(self, engine: sf.Engine, level: Level = "all", tenant: str = "default") -> None:
        self.engine, self.level = engine, level
        self.who: sf.Principal | None = sf.Principal(tenant, "ann")
        self.dashboard = Dashboard(engine, authenticate=lambda _: self.who, access=lambda _: self.level)
        self.http = httpx.AsyncClient(transport=httpx.ASGITransport(self.dashboard), base_url="http://ops.test")

    async def get(self, path: str, **query: Any) -> httpx.Response:
        """Open a page."""
        return await self.http.get(f"/{path}", params=query)

    async def act(self, action: str, **fields: Any) -> httpx.Response:
        """Do it as a person does: look at the preview, and send its form."""
        shown = await self.get(f"act/{action}", **{k: v for k, v in fields.items() if k not in ("reason", "value")})
        assert shown.status_code == 200, shown.text
        token = re.search(r'name="form_token" value="([^"]+)"', shown.text)
        assert token is not None
        headers = {"origin": "http://ops.test", "sec-fetch-site": "same-origin"}
        return await self.http.post(f"/act/{action}", data={**fields, "form_token": token[1]}, headers=headers)


@asynccontextmanager
async def opened(level: Level = "all", *workflows: Any) -> AsyncIterator[Opened]:
    """Open an engine on a store in memory, and a dashboard on it."""
    async with sf.Engine("memory://", workflows=[approval, posting, broken, *workflows]) as engine:
        made = Opened(engine, level)
        async with made.dashboard, made.http:
            yield made


async def until(engine: sf.Engine, run_id: str, words: str) -> None:
    """Wait until a run waits for something."""
    scope = engine.space
    async with scope.watch(scope.key("life", run_id)) as watch:
        while words not in (await engine.get(run_id)).waits_for:
            await watch.wait(1)
