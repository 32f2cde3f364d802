"""The dashboard in a real browser: every screen, an action, live parts, and all of it without JavaScript."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import uvicorn

import standfast as sf
from standfast.web.auth import OwnToken
from standfast.web.dashboard import Dashboard
from standfast.web.dashboard.screens import SCREENS
from tests.browser.chromium import started, window

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.browser.chromium import Browser, Tab

pytestmark = pytest.mark.services

QUERIES = {"run": "?id=first", "line": "?at=1&at=&at=ledger", "why": "?run=second"}
NASTY = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'<"


@sf.workflow
async def approval(ctx: sf.Context, order: str) -> object:
    """Hold the ledger until it is approved."""
    del order
    async with ctx.mutex("ledger"):
        return await ctx.wait_signal("approve")


@sf.workflow
async def posting(ctx: sf.Context, order: str) -> None:
    """Wait for the ledger."""
    del order
    async with ctx.mutex("ledger"):
        pass


@pytest.fixture(scope="module")
def running() -> Iterator[str]:
    """A browser for all tests of these pages."""
    with started() as address:
        yield address


@pytest.fixture
async def chromium(running: str) -> AsyncIterator[Browser]:
    """A window that knows nothing."""
    async with window(running) as opened:
        yield opened


@asynccontextmanager
async def served(dashboard: Dashboard) -> AsyncIterator[str]:
    """Serve a dashboard on a real port."""
    config = uvicorn.Config(dashboard, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            dashboard.drain()
            server.should_exit = True
            await serving


@pytest.fixture
async def engine() -> AsyncIterator[sf.Engine]:
    """An engine with a run that holds a lock, and one that waits for it."""
    async with sf.Engine("memory://", workflows=[approval, posting]) as opened:
        await opened.start(approval, NASTY, id="first", tags=[NASTY])
        await waits(opened, "first", "approve")
        await opened.start(posting, NASTY, id="second")
        await waits(opened, "second", "ledger")
        yield opened


@pytest.fixture
async def address(engine: sf.Engine) -> AsyncIterator[str]:
    """Where it is served; the token follows."""
    own = OwnToken()
    own.token = "t" * 24
    async with served(Dashboard(engine, authenticate=own)) as url:
        yield url


async def waits(engine: sf.Engine, run_id: str, words: str) -> None:
    """Wait until a run waits for something."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while words not in (await engine.get(run_id)).waits_for:
            await watch.wait(1)


async def go(tab: Tab, url: str) -> None:
    """Open another page in the same tab."""
    tab.is_loaded.clear()
    await tab.ask("Page.navigate", url=url)
    await asyncio.wait_for(tab.is_loaded.wait(), 10)


async def press(tab: Tab, selector: str) -> None:
    """Press a button that leads to another page."""
    tab.is_loaded.clear()
    await tab.run(f"document.querySelector({selector!r}).click()")
    await asyncio.wait_for(tab.is_loaded.wait(), 10)


@pytest.mark.parametrize("has_script", [True, False])
async def test_every_screen_opens_with_and_without_javascript(
    chromium: Browser, address: str, *, has_script: bool
) -> None:
    """No screen breaks its own policy, and none needs a script."""
    tab = await chromium.tab("about:blank")
    await tab.ask("Emulation.setScriptExecutionDisabled", value=not has_script)
    await go(tab, f"{address}/?token={'t' * 24}")
    for path in SCREENS:
        await go(tab, f"{address}/{path}{QUERIES.get(path, '')}")
        assert await tab.texts("h1"), path
        assert not await tab.texts(".error"), path
        assert await tab.run("document.title") != "taken"
        unnamed = (
            "[...document.querySelectorAll('main input:not([type=hidden]), select')].filter((e) => !e.labels.length)"
        )
        assert await tab.run(f"{unnamed}.length") == 0, path
        assert await tab.run("document.querySelectorAll('main').length") == 1
    assert tab.complaints == []


@pytest.mark.parametrize("has_script", [True, False])
async def test_a_holder_is_evicted_by_two_clicks_after_it_was_said_what_happens(
    chromium: Browser, address: str, engine: sf.Engine, *, has_script: bool
) -> None:
    """The first button shows what it will do, the second does it."""
    tab = await chromium.tab("about:blank")
    await tab.ask("Emulation.setScriptExecutionDisabled", value=not has_script)
    await go(tab, f"{address}/line?at=1&at=&at=ledger&token={'t' * 24}")
    await press(tab, ".slot button.danger")
    assert "hands the lock to run second" in " ".join(await tab.texts(".confirm li"))
    assert (await engine.space.explain("ledger")).holders[0].run == "first"
    await press(tab, ".confirm button")
    assert await tab.texts(".done") == ["The holder was evicted."]
    await engine.result("second", timeout="10s")
    assert [each.action for each in (await engine.audit()).records] == ["lock.release"]


async def test_a_page_follows_what_happens_until_it_is_paused(
    chromium: Browser, address: str, engine: sf.Engine
) -> None:
    """One stream says that something changed, and the part that did is drawn again."""
    tab = await chromium.tab(f"{address}/runs?token={'t' * 24}")
    await tab.until("document.body.dataset.state === 'live'")
    await engine.start(posting, "x", id="third")
    await tab.until("[...document.querySelectorAll('td .id')].some((e) => e.textContent === 'third')")
    await tab.run("document.getElementById('pause').click()")
    assert await tab.run("document.body.dataset.state") == "paused"
    drawn = await tab.run("document.getElementById('main').dataset.drawn")
    await engine.start(posting, "x", id="fourth")
    await waits(engine, "fourth", "ledger")
    assert await tab.run("document.getElementById('main').dataset.drawn") == drawn
    await tab.run("document.getElementById('pause').click()")
    await tab.until("[...document.querySelectorAll('td .id')].some((e) => e.textContent === 'fourth')")
    assert tab.complaints == []


async def test_two_tenants_in_two_browsers_see_their_own(running: str, engine: sf.Engine) -> None:
    """The cookie says who it is, and that says whose records there are."""

    def who(connection: object) -> sf.Principal | None:
        tenant = getattr(connection, "cookies", {}).get("tenant", "")
        return sf.Principal(tenant, "ann", frozenset({"viewer"})) if tenant else None

    async with (
        served(Dashboard(engine, authenticate=who)) as url,
        window(running) as one,
        window(running) as other,
    ):
        pages: dict[str, list[str]] = {}
        for tenant, browser in (("default", one), ("acme", other)):
            tab = await browser.tab(f"{url}/runs")
            assert await tab.texts(".code") == ["401"]
            await tab.ask("Network.setCookie", name="tenant", value=tenant, url=url)
            await go(tab, f"{url}/runs")
            pages[tenant] = await tab.texts("td .id")
        assert pages["acme"] == []
        assert set(pages["default"]) == {"first", "second"}
