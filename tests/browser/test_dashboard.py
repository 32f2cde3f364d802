"""The dashboard in a real browser: every screen, an action, live parts, and all of it without JavaScript."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.flows.request_list import list_requests
from standfast.web.auth import OwnToken
from standfast.web.dashboard import Dashboard
from standfast.web.dashboard.access import ACTIONS
from standfast.web.dashboard.pages import DONE
from standfast.web.dashboard.screens import SCREENS
from tests.browser.chromium import started, window
from tests.browser.stage import TOKEN, Stage, go, press, served, stage, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.browser.chromium import Browser

pytestmark = pytest.mark.services

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


@sf.workflow
async def broken(ctx: sf.Context, order: str) -> None:
    """Fail with what it was given."""

    async def fail() -> None:
        raise ValueError(order)

    await ctx.step(order, fail)


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


@pytest.fixture
async def engine() -> AsyncIterator[sf.Engine]:
    """An engine with a run that holds a lock, and one that waits for it."""
    async with sf.Engine("memory://", workflows=[approval, posting, broken]) as opened:
        await opened.start(approval, NASTY, id="first", tags=[NASTY])
        await until(opened, "first", "approve")
        await opened.start(posting, NASTY, id="second")
        await until(opened, "second", "ledger")
        yield opened


@pytest.fixture
async def address(engine: sf.Engine) -> AsyncIterator[str]:
    """Where it is served; the token follows."""
    own = OwnToken()
    own.token = TOKEN
    async with served(Dashboard(engine, authenticate=own)) as url:
        yield url


@pytest.fixture
async def shop() -> AsyncIterator[Stage]:
    """A shop with something on every screen."""
    async with stage() as opened:
        yield opened


@pytest.mark.parametrize("has_script", [True, False])
async def test_every_screen_opens_with_and_without_javascript(
    chromium: Browser, shop: Stage, *, has_script: bool
) -> None:
    """No screen breaks its own policy, and none needs a script."""
    tab = await chromium.tab("about:blank")
    await tab.ask("Emulation.setScriptExecutionDisabled", value=not has_script)
    await go(tab, shop.at("", f"?token={TOKEN}"))
    for path in SCREENS:
        await go(tab, shop.at(path))
        assert await tab.texts("h1"), path
        assert not await tab.texts(".error"), path
        assert await tab.run("document.querySelectorAll('main').length") == 1
    assert tab.complaints == []


async def test_nothing_that_was_stored_becomes_a_script_in_a_browser(
    chromium: Browser, address: str, engine: sf.Engine
) -> None:
    """Names, keys, tags, inputs, steps, errors and notes of every kind are text on every screen that shows them."""
    run = await engine.start(broken, NASTY, id=f"run {NASTY}", tags=[NASTY])
    with pytest.raises(sf.errors.RunFailedError):
        await run.result(timeout="10s")
    key = sf.KeyFamily(f"family {NASTY}")(NASTY)
    tab = await chromium.tab(f"{address}/?token={TOKEN}")
    async with engine.space.mutex(key).hold(note=NASTY):
        pages: dict[str, list[tuple[str, str]]] = {
            "": [],
            "runs": [("tag", NASTY), ("workflow", NASTY)],
            "run": [("id", run.id), ("values", "shown")],
            "lines": [("prefix", f"family {NASTY}")],
            "line": [("at", "1"), ("at", f"family {NASTY}"), ("at", NASTY)],
            "why": [("run", run.id)],
            "compare": [("id", run.id), ("with", "first"), ("values", "shown")],
            "test": [("id", run.id)],
            "flows": [("flow", NASTY)],
            "audit": [("actor", NASTY)],
            "act/run.restart": [("id", run.id)],
            "act/runs.retry": [("status", "failed")],
            NASTY: [],
        }
        for path, query in pages.items():
            script = f"location.href = {json.dumps(f'{address}/')} + {json.dumps(path)} + '?' + new URLSearchParams("
            tab.is_loaded.clear()
            await tab.run(f"{script}{json.dumps(query)})")
            await tab.is_loaded.wait()
            assert await tab.run("document.title !== 'taken' && document.querySelectorAll('main img').length === 0"), (
                path
            )
    assert [each for each in tab.complaints if "404" not in each] == []


def actions_of(entries: dict[str, str]) -> dict[str, tuple[str, dict[str, str]]]:
    """Return for each action the query of its preview, and what is typed into its form."""
    line = "?at=1&at=&at=ledger"
    return {
        "run.signal": ("?id=order-7", {"name": "later", "value": "1"}),
        "run.update": ("?id=order-7", {"name": "approve", "arguments": '["eve"]'}),
        "run.query": ("?id=order-7", {"name": "state"}),
        "run.retry": ("?id=refund-1", {}),
        "run.restart": ("?id=order-1", {}),
        "run.fork": ("?id=order-1&step=charge", {}),
        "run.purge": ("?id=order-3", {}),
        "run.cancel": ("?id=order-9", {"reason": "too slow"}),
        "runs.cancel": ("?workflow=report", {"number": ""}),
        "runs.retry": ("?status=failed", {"number": ""}),
        "runs.purge": ("?status=completed&tag=web", {"number": ""}),
        "lock.withdraw": (f"{line}&entry={entries['waiter']}", {}),
        "lock.release": (f"{line}&entry={entries['holder']}", {}),
        "lock.resize": ("?at=1&at=&at=gpu", {"permits": "9"}),
        "schedule.pause": ("?id=nightly-report", {"note": "a test"}),
        "schedule.resume": ("?id=nightly-report", {}),
        "schedule.trigger": ("?id=nightly-report", {}),
        "schedule.backfill": ("?id=nightly-report&start=2+days", {}),
        "limit.set": ("?workflow=report&key=&has_key=no&max=3&lasts=2+hours&shown=yes", {}),
        "limit.clear": ("?workflow=report&key=&has_key=no", {}),
        "rate.close": ("?at=1&at=&at=mail-api", {"length": "1 minute"}),
        "rate.open": ("?at=1&at=&at=mail-api", {}),
        "request.cancel": (f"?id={entries['request']}", {}),
    }


@pytest.mark.parametrize("has_script", [True, False])
async def test_every_action_is_done_by_its_form_in_a_browser(
    chromium: Browser, shop: Stage, *, has_script: bool
) -> None:
    """Each shows first what it will do; then the page says that it was done, or its answer."""
    told = await shop.engine.space.explain("ledger")
    requests = await list_requests(shop.engine.space, "default", status=["waiting"])
    asked = next(each for each in requests.requests if each.action == "ask")
    entries = {"holder": told.holders[0].entry, "waiter": told.waiters[-1].entry, "request": asked.id}
    actions = actions_of(entries)
    assert set(actions) == set(ACTIONS) - {"runs.stop"}  # what it stops ends too soon here
    tab = await chromium.tab("about:blank")
    await tab.ask("Emulation.setScriptExecutionDisabled", value=not has_script)
    await go(tab, shop.at("", f"?token={TOKEN}"))
    for action, (query, fields) in actions.items():
        await go(tab, shop.at(f"act/{action}", query))
        assert await tab.texts(".confirm li"), action
        counted = await tab.run("document.querySelector('[name=counted]')?.value")
        for name, value in fields.items():
            field = f"document.querySelector('form[method=post] [name={name}]')"
            await tab.run(f"{field}.value = {json.dumps(value or counted)}")
        await press(tab, ".confirm form button")
        answered = action in ("run.query", "run.update")
        shown: Any = await tab.texts("pre" if answered else ".done")
        assert shown, (action, await tab.texts("main"))
        if not answered:
            assert shown == [DONE[action]], action
    assert tab.complaints == []


@pytest.mark.parametrize("has_script", [True, False])
async def test_a_holder_is_evicted_by_two_clicks_after_it_was_said_what_happens(
    chromium: Browser, address: str, engine: sf.Engine, *, has_script: bool
) -> None:
    """The first button shows what it will do, the second does it."""
    tab = await chromium.tab("about:blank")
    await tab.ask("Emulation.setScriptExecutionDisabled", value=not has_script)
    await go(tab, f"{address}/line?at=1&at=&at=ledger&token={TOKEN}")
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
    tab = await chromium.tab(f"{address}/runs?token={TOKEN}")
    await tab.until("document.body.dataset.state === 'live'")
    await engine.start(posting, "x", id="third")
    await tab.until("[...document.querySelectorAll('td .id')].some((e) => e.textContent === 'third')")
    await tab.run("document.getElementById('pause').click()")
    assert await tab.run("document.body.dataset.state") == "paused"
    drawn = await tab.run("document.getElementById('main').dataset.drawn")
    await engine.start(posting, "x", id="fourth")
    await until(engine, "fourth", "ledger")
    assert await tab.run("document.getElementById('main').dataset.drawn") == drawn
    await tab.run("document.getElementById('pause').click()")
    await tab.until("[...document.querySelectorAll('td .id')].some((e) => e.textContent === 'fourth')")
    assert tab.complaints == []


async def test_a_page_that_is_read_or_copied_is_left_alone(chromium: Browser, address: str, engine: sf.Engine) -> None:
    """What changes meanwhile does not scroll it back, nor take away what was selected or focused."""
    tab = await chromium.tab(f"{address}/test?id=first&token={TOKEN}")
    assert await tab.run("document.getElementById('pause').hidden")
    await tab.run("document.querySelector('pre').scrollTop = 50")
    await go(tab, f"{address}/runs")
    await tab.until("document.body.dataset.state === 'live'")
    await tab.run("document.querySelector('.scroll').focus()")
    await engine.start(posting, "x", id="third")
    await tab.until("[...document.querySelectorAll('td .id')].some((e) => e.textContent === 'third')")
    assert await tab.run("document.activeElement.className") == "scroll"
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
