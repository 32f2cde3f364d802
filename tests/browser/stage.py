"""A shop with something on every screen of its dashboard, served on a real port: for tests and for pictures."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, final
from unittest.mock import patch

import uvicorn

import standfast as sf
from standfast.web.auth import OwnToken
from standfast.web.dashboard import Dashboard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.browser.chromium import Tab

TOKEN = "t" * 24
QUERIES = {
    "run": "?id=order-7",
    "line": "?at=1&at=&at=ledger",
    "why": "?run=order-9",
    "compare": "?id=order-1&with=order-2",
    "test": "?id=order-1",
}
"""What a screen needs to be told to have something to show."""

INVENTORY = sf.KeyFamily("inventory", history=20)


@sf.step(retry=sf.Retry(attempts=3, delay="30ms"))
async def charge(order: str) -> str:
    """Charge a card, which fails at first."""
    CHARGED[order] = CHARGED.get(order, 0) + 1
    await asyncio.sleep(0.05)
    if CHARGED[order] == 1 and order.endswith(("7", "2")):
        raise ConnectionError("the bank did not answer")
    return f"receipt of {order}"


CHARGED: dict[str, int] = {}


@sf.workflow
async def fulfil(ctx: sf.Context, order: str, amount: int = 120, card_token: str = "tok_4711") -> str:  # noqa: S107 -- it is not to be shown
    """Charge an order, book it, and wait for its approval."""
    del amount, card_token
    state = {"approved": False}
    ctx.on_query("state", lambda: dict(state))
    ctx.on_update("approve", lambda by: state.update(approved=by) or f"approved by {by}")
    receipt = await ctx.step(charge, order)
    async with ctx.mutex("ledger"):
        await ctx.step("book", asyncio.sleep, 0.04)
        if order == "order-7":
            await ctx.sleep("300ms")
            await ctx.wait_signal("approve")
    return receipt


@sf.workflow
async def refund(ctx: sf.Context, order: str) -> None:
    """Fail."""

    async def pay_back() -> None:
        raise ValueError(f"there is no payment for {order}")

    await ctx.step("pay_back", pay_back)


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue"))
async def report(ctx: sf.Context, day: str = "") -> str:
    """Report one day, one at a time."""
    if day == "slow":
        await ctx.wait_signal("go")
    return day


def flow_of(gate: asyncio.Event) -> sf.Flow:
    """Return a flow whose questions wait for an event."""
    support = sf.Flow("support")

    @support.action(concurrency=sf.Queue())
    async def ask(request: sf.Request, text: str) -> str:
        del request
        await gate.wait()
        return text

    @support.action(concurrency=sf.Debounce("10 minutes"))
    async def index(request: sf.Request, text: str) -> str:
        del request
        return text

    @support.action(concurrency=sf.Restart())
    async def draft(request: sf.Request, text: str) -> str:
        del request
        await gate.wait()
        return text

    return support


@final
class Stage:
    """The shop: its engine, and where its dashboard is served."""

    def __init__(self, engine: sf.Engine, address: str) -> None:
        self.engine, self.address = engine, address

    def at(self, path: str = "", query: str | None = None) -> str:
        """Return the address of a screen."""
        return f"{self.address}/{path}{QUERIES.get(path, '') if query is None else query}"


@asynccontextmanager
async def served(dashboard: Any) -> AsyncIterator[str]:
    """Serve a dashboard, or an application with one in it, on a real port."""
    config = uvicorn.Config(dashboard, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.ensure_future(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            if isinstance(dashboard, Dashboard):
                dashboard.drain()
            server.should_exit = True
            await serving


@asynccontextmanager
async def stage(url: str = "memory://") -> AsyncIterator[Stage]:
    """Open the shop."""
    CHARGED.clear()
    gate, tasks = asyncio.Event(), list[asyncio.Task[Any]]()
    support, own = flow_of(gate), OwnToken()
    own.token = TOKEN
    workflows: list[Any] = [fulfil, refund, report]
    async with (
        sf.Engine(url, workflows=workflows, retention=sf.admin.Retention(completed="7 days")) as engine,
        sf.Dispatcher(engine, [support]) as dispatcher,
    ):
        await _fill(engine, dispatcher, tasks)
        dashboard = Dashboard(engine, authenticate=own, title="Shop", flows=[support])
        try:
            async with served(dashboard) as address:
                yield Stage(engine, address)
        finally:
            gate.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _fill(engine: sf.Engine, dispatcher: sf.Dispatcher, tasks: list[asyncio.Task[Any]]) -> None:
    space = engine.space
    for number in range(1, 6):
        await (await engine.start(fulfil, f"order-{number}", id=f"order-{number}", tags=["web"])).result(timeout="10s")
    for number in range(3):
        run = await engine.start(refund, f"order-{number}", id=f"refund-{number}")
        with contextlib.suppress(sf.errors.RunFailedError):
            await run.result(timeout="10s")
    await engine.start(fulfil, "order-7", id="order-7", tags=["web", "large"])
    await until(engine, "order-7", "approve")
    for number in (8, 9, 10):
        await engine.start(fulfil, f"order-{number}", id=f"order-{number}")
        await until(engine, f"order-{number}", "ledger")
    for day in ("slow", "2026-11-16", "2026-11-17"):
        await engine.start(report, day, id=f"report-{day}")
    await engine.schedules.create(sf.Schedule(report, id="nightly-report", cron="0 3 * * *", zone="Europe/Berlin"))
    await engine.schedules.create(sf.Schedule(report, id="hourly-report", every=timedelta(hours=1)))
    await engine.schedules.pause("hourly-report", "the disk is full")
    limiter = space.rate_limiter("mail-api", interval="1 minute", capacity=10)
    for _ in range(4):
        await limiter.try_acquire()

    async def hold(lock: Any, *mode: str, **options: Any) -> None:
        async with lock.hold(*mode, **options):
            await asyncio.Event().wait()

    shelf = space.mutex(INVENTORY("shelf-4"))
    async with shelf.hold(note="count", on_lost="tell", max_hold="1ms"), shelf.hold(owner="recount"):
        pass
    pool = space.semaphore("gpu", permits=8)
    weights = ((3, "train"), (4, "embed"), (2, "rank"), (6, "train"))
    tasks += [asyncio.create_task(hold(pool, weight=weight, note=note)) for weight, note in weights]
    modes = space.mode_lock(INVENTORY("stock"), modes={"read": ["read"], "write": []})
    tasks += [asyncio.create_task(hold(modes, mode)) for mode in ("read", "read", "write", "read")]
    for action, session in (("ask", "s-1"), ("ask", "s-1"), ("index", "s-2"), ("draft", "s-3"), ("draft", "s-3")):
        call = sf.Call(
            flow="support",
            action=action,
            inputs={"text": "hello"},
            session=session,
            principal=sf.Principal("default", "ada"),
        )
        tasks.append(asyncio.create_task(_sent(dispatcher, call)))
        await asyncio.sleep(0.05)
    await engine.acting_as(sf.admin.Actor("eve", "cli", "ops-1")).retry("refund-0")


@asynccontextmanager
async def in_a_circle(space: sf.Space) -> AsyncIterator[None]:
    """Let two owners wait for each other, as if the locks had not seen it: they refuse what closes a circle."""

    async def none(*_: object) -> tuple[()]:
        return ()

    async def take(owner: str, first: str, second: str) -> None:
        async with space.mutex(first).hold(owner=owner):
            both.append(owner)
            async with space.watch(space.key("line")) as watch:
                while len(both) < 2:
                    await watch.wait(0.1)
            async with space.mutex(second).hold(owner=owner):
                pass

    both: list[str] = []
    with patch("standfast.locks.entry.find_cycle", none), patch("standfast.locks.deadlock.find_cycle", none):
        tasks = [
            asyncio.create_task(take("billing", "invoices", "accounts")),
            asyncio.create_task(take("refunds", "accounts", "invoices")),
        ]
        async with space.watch(space.key("line")) as watch:
            while not ((await space.explain("invoices")).waiters and (await space.explain("accounts")).waiters):
                await watch.wait(0.1)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _sent(dispatcher: sf.Dispatcher, call: sf.Call) -> object:
    return await (await dispatcher.dispatch(call)).result()


async def until(engine: sf.Engine, run_id: str, words: str) -> None:
    """Wait until a run waits for something."""
    async with engine.space.watch(engine.space.key("life", run_id)) as watch:
        while words not in (await engine.get(run_id)).waits_for:
            await watch.wait(1)


async def go(tab: Tab, url: str) -> None:
    """Open another page in the same tab."""
    tab.is_loaded.clear()
    await tab.ask("Page.navigate", url=url)
    await asyncio.wait_for(tab.is_loaded.wait(), 20)


async def press(tab: Tab, selector: str) -> None:
    """Press a button that leads to another page."""
    tab.is_loaded.clear()
    await tab.run(f"document.querySelector({selector!r}).click()")
    await asyncio.wait_for(tab.is_loaded.wait(), 20)


async def look(tab: Tab, scheme: str, width: int = 1280, height: int = 900) -> None:
    """Let a tab prefer light or dark, and be so wide."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    await tab.ask("Emulation.setEmulatedMedia", features=features)
    await tab.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
