"""What the screens show, and that nothing stored becomes markup."""

from __future__ import annotations

import asyncio
import re
from html import unescape
from html.parser import HTMLParser

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

import standfast as sf
from tests.browser.stage import in_a_circle
from tests.unit.web.dashboard.opened import NASTY, opened, until


async def ended(run: sf.Run[object]) -> None:
    """Wait for the end of a run that fails."""
    with pytest.raises(sf.errors.RunFailedError):
        await run.result(timeout="10s")


async def hold_once(space: sf.Space, key: sf.Key) -> None:
    """Wait for a key."""
    async with space.mutex(key).hold(note=NASTY):
        pass


class Tags(HTMLParser):
    """Collects what a browser would see in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of an element."""
        self.found.append((tag, dict(attrs)))


def assert_harmless(text: str) -> None:
    """Fail if a page has a script but ours, a handler, a style, or an element that a name brought along."""
    tags = Tags()
    tags.feed(text)
    for tag, attributes in tags.found:
        assert tag not in ("img", "style", "iframe", "object"), (tag, attributes)
        assert tag != "script" or str(attributes.get("src", "")).startswith("/static/dashboard-")
        assert not [name for name in attributes if name.startswith("on") or name == "style"], attributes
        assert not str(attributes.get("href", "")).lower().startswith("javascript:")


async def test_names_keys_inputs_and_errors_never_become_markup() -> None:
    """Everything that a program stores may be chosen by an attacker."""
    async with opened() as made:
        key = sf.KeyFamily(f"family{NASTY}")(NASTY)
        run = await made.engine.start("broken", NASTY, id=f"run{NASTY}", tags=[f"tag{NASTY}"])
        await ended(run)
        space = made.engine.space
        async with space.mutex(key).hold(note=NASTY) as hold, space.mutex(NASTY).hold():
            waiting = asyncio.ensure_future(hold_once(space, key))
            address = ["1", key.family.name, NASTY]
            told = await space.explain(key)
            pages = [
                await made.get("runs"),
                await made.get("runs", status="failed", workflow=NASTY, tag=NASTY, after=""),
                await made.get("run", id=run.id, values="shown"),
                await made.get("run", id=NASTY),
                await made.get("lines", prefix=NASTY),
                await made.get("lines"),
                await made.get("line", at=address),
                await made.get("why", run=run.id),
                await made.get("act/lock.release", at=address, entry=told.holders[0].entry),
                await made.get("act/run.retry", id=run.id),
                await made.get(NASTY),
                await made.get("audit", subject=NASTY, actor=NASTY),
                await made.get("", done=NASTY),
                await made.get(""),
                await made.get("compare", **{"id": run.id, "with": run.id, "values": "shown"}),
                await made.get("compare", **{"id": run.id, "with": NASTY}),
                await made.get("test", id=run.id),
                await made.get("bulk", id=NASTY),
                await made.get("act/runs.retry", tag=f"tag{NASTY}"),
                await made.get("act/runs.purge", workflow=NASTY),
                await made.get("act/run.restart", id=run.id),
                await made.get("act/run.signal", id=run.id, name=NASTY),
                await made.get("act/schedule.backfill", id=NASTY, start=NASTY),
                await made.get("act/rate.close", at=["1", NASTY, NASTY]),
                await made.get("act/request.cancel", id=NASTY),
                await made.get("flows", flow=NASTY, action=NASTY, user=NASTY),
                await made.get("why", request=NASTY),
                await made.get("store"),
                await made.get("runs", started_after=NASTY),
                await made.get("runs", order=NASTY, tag=NASTY),
            ]
            waiting.cancel()
            del hold
        for page in pages:
            assert_harmless(page.text)
        assert "&lt;img src=x" in pages[2].text
        assert "ValueError" in pages[2].text


async def test_values_are_hidden_until_a_role_asks_for_them_and_never_in_lists() -> None:
    """An input is shown on request to those who may, without what looks like a secret."""
    async with opened() as made:
        await made.engine.start("posting", {"customer": "Ada Lovelace", "password": "hunter2"}, id="r1")
        assert "Ada" not in (await made.get("runs", values="shown")).text
        assert "Ada" not in (await made.get("run", id="r1")).text
        shown = (await made.get("run", id="r1", values="shown")).text
        assert "Ada Lovelace" in shown
        assert "hunter2" not in shown
        made.level = "read"
        assert "Ada" not in (await made.get("run", id="r1", values="shown")).text


async def test_why_says_in_one_sentence_who_waits_for_whom() -> None:
    """A run waits for a lock that another run holds, which waits for a person."""
    async with opened() as made:
        await made.engine.start("approval", "x", id="first")
        await until(made.engine, "first", "approve")
        await made.engine.start("posting", "x", id="second")
        await until(made.engine, "second", "ledger")
        text = (await made.get("why", run="second")).text
        assert "second waits for ledger, which is held by first" in text
        assert "waits for the signal &#39;approve&#39;" in text
        assert "<svg" in text


async def test_a_circle_is_told_in_one_sentence_and_drawn() -> None:
    """It is found on the first screen, and each of its parts is marked."""
    async with opened() as made, in_a_circle(made.engine.space):
        assert "1 circle of owners" in (await made.get("")).text
        waiter = (await made.engine.space.explain("accounts")).waiters[0]
        text = (await made.get("why", at=["1", "", "accounts"], entry=waiter.entry)).text
        assert "billing waits for refunds, which waits for billing: a circle" in text
        assert text.count('class="arrow circle"') == 4
        assert text.count(' circle">') >= 4


async def test_a_holder_is_evicted_after_a_preview_that_names_the_next() -> None:
    """What it will do is said before it is done, and the audit says who did it."""
    async with opened() as made:
        await made.engine.start("approval", "x", id="first")
        await until(made.engine, "first", "approve")
        await made.engine.start("posting", "x", id="second")
        await until(made.engine, "second", "ledger")
        holder = (await made.engine.space.explain("ledger")).holders[0]
        shown = (await made.get("act/lock.release", at=["1", "", "ledger"], entry=holder.entry)).text
        assert "hands the lock to run second" in shown
        assert f"Fence {holder.fence} is void" in shown
        assert "LeaseLostError" in shown
        answer = await made.act("lock.release", at=["1", "", "ledger"], entry=holder.entry)
        assert answer.status_code == 303
        await made.engine.result("second", timeout="10s")
        page = await made.engine.audit()
        assert [(each.action, each.actor.name, each.actor.via) for each in page.records] == [
            ("lock.release", "ann", "http")
        ]


async def test_runs_are_cancelled_signalled_retried_and_restarted() -> None:
    """Each leads back to the run that it was about, or to the new one."""
    async with opened() as made:
        await made.engine.start("approval", "x", id="r1")
        await until(made.engine, "r1", "approve")
        answer = await made.act("run.signal", id="r1", name="approve", value='"yes"')
        assert answer.headers["location"] == "/run?id=r1&done=run.signal"
        assert await made.engine.result("r1", timeout="10s") == "yes"
        answer = await made.act("run.restart", id="r1")
        again = httpx.URL(answer.headers["location"]).params["id"]
        await until(made.engine, again, "approve")
        await made.act("run.cancel", id=again, reason="a test")
        assert "was asked to stop" in (await made.get("run", id=again, done="run.cancel")).text
        run = await made.engine.start("broken", "x", id="r2")
        await ended(run)
        assert (await made.act("run.retry", id="r2")).status_code == 303
        assert (await made.get("act/run.fork", id="r2", step="no-such")).status_code == 404


async def test_it_is_mounted_below_a_path_and_its_links_stay_there() -> None:
    """In Starlette, FastAPI and Django the mount says where it is."""
    async with opened() as made:
        host = Starlette(routes=[Mount("/ops", made.dashboard)])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(host), base_url="http://ops.test") as http:
            text = (await http.get("/ops/runs")).text
            tags = Tags()
            tags.feed(text)
            links = [str(attributes["href"]) for _, attributes in tags.found if "href" in attributes]
            assert [link for link in links if not link.startswith(("/ops/", "#"))] == []
            assert 'aria-current="page">Runs' in text


async def test_a_part_is_the_same_page_without_its_shell() -> None:
    """Our script replaces what changes, and nothing else."""
    async with opened() as made:
        answer = await made.http.get("/runs", headers={"standfast-part": "main"})
        assert "<h1>Runs</h1>" in answer.text
        assert '<nav aria-label="Screens"' not in answer.text


async def test_why_the_first_waiter_of_a_line_waits_is_one_click_from_the_first_screen() -> None:
    """Without knowing which entry that is."""
    async with opened() as made:
        await made.engine.start("approval", 1, id="first")
        await until(made.engine, "first", "approve")
        await made.engine.start("posting", 1, id="second")
        await until(made.engine, "second", "ledger")
        link = re.search(r'href="(/why[^"]+)">why\?', (await made.get("")).text)
        assert link is not None
        assert "second waits for ledger, which is held by first" in (await made.http.get(unescape(link[1]))).text


async def test_why_says_that_no_worker_has_the_code_of_a_run() -> None:
    """That it waits for a worker would be true of every run, and help nobody."""

    @sf.workflow(name="elsewhere", version="2")
    async def elsewhere(ctx: sf.Context) -> None:
        """Have code that no worker has."""

    async with opened() as made, sf.Engine(made.engine.space, workflows=[elsewhere], drive=False) as client:
        await client.start(elsewhere, id="lost")
        words = "waits for a worker, and none that is alive has the code of elsewhere in version 2"
        assert words in (await made.get("why", run="lost")).text
