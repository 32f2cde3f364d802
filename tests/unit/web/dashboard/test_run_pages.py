"""The screens of runs: filters and order in the address, two runs compared, edited input, and a run as a test."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from html import unescape
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast.web.dashboard.values import masked, unmasked
from tests.unit.web.dashboard.opened import opened, until

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = '''
import standfast as sf


@sf.step
async def charge(card: dict) -> str:
    """Charge a card."""
    return "paid \\u20ac \\U0001F600 " + card["owner"]


@sf.workflow
async def checkout(ctx: sf.Context, card: dict, note: str) -> str:
    """Charge, and wait for a word."""
    paid = await ctx.step("charge", charge, card)
    async with ctx.mutex("ledger"):
        word = await ctx.wait_signal("go") if note == "wait" else note
    return paid + word
'''


@sf.workflow
async def counting(ctx: sf.Context, count: int, token: str = "") -> int:
    """Count, take updates, and answer queries."""
    total = {"value": count}

    def add(more: int) -> int:
        total["value"] += more
        return total["value"]

    ctx.on_update("add", add)
    ctx.on_query("total", lambda: {"total": total["value"], "password": "hunter2"})

    async def one() -> str:
        return token

    for number in range(count):
        await ctx.step(f"step-{number}", one)
    if count > 100:
        await ctx.wait_signal("never")
    return total["value"]


async def test_runs_are_listed_by_time_in_the_order_that_the_address_says() -> None:
    """What is filtered and how it is ordered can be sent to somebody as a link."""
    async with opened("all", counting) as made:
        for name in ("a", "b", "c"):
            await (await made.engine.start(counting, 1, id=name)).result(timeout="10s")
        newest = (await made.get("runs")).text
        oldest = (await made.get("runs", order="oldest")).text
        assert newest.index("id=c") < newest.index("id=a")
        assert oldest.index("id=a") < oldest.index("id=c")
        assert "id=a" in (await made.get("runs", started_after="1 hour", ended_after="1 hour")).text
        assert "id=a" not in (await made.get("runs", started_before="1 hour")).text
        assert "id=a" not in (await made.get("runs", ended_before="2020-01-01 08:00")).text
        refused = await made.get("runs", started_after="yesterday-ish")
        assert refused.status_code == 400
        assert "2 hours" in refused.text
        kept = (await made.get("runs", started_after="1 hour", order="oldest")).text
        assert "started_after=1+hour&amp;order=oldest&amp;status=failed" in kept


async def test_two_runs_are_compared_to_where_they_went_apart() -> None:
    """What only one of them did is told, values only to those who may see them."""
    async with opened("all", counting) as made:
        await (await made.engine.start(counting, 1, "left", id="one")).result(timeout="10s")
        await (await made.engine.start(counting, 2, "right", id="two")).result(timeout="10s")
        text = (await made.get("compare", **{"id": "one", "with": "two"})).text
        assert "They went apart at" in text
        assert "step-0" in text
        assert "only second" in text
        assert "right" not in text
        shown = (
            await made.get("compare", **{"id": "one", "with": "two", "values": "shown", "only": "differences"})
        ).text
        assert "right" in shown
        same = (await made.get("compare", **{"id": "one", "with": "one"})).text
        assert "They recorded the same." in same
        assert (await made.get("compare", id="one")).status_code == 400
        made.level = "read"
        hidden = (await made.get("compare", **{"id": "one", "with": "two", "values": "shown"})).text
        assert "right" not in hidden


async def test_a_run_is_restarted_with_an_edited_input_and_its_secrets() -> None:
    """What is masked in the form and left alone is what it was; what does not fit the code is refused."""
    async with opened("all", counting) as made:
        await (await made.engine.start(counting.bind(1, token="secret-7"), id="one")).result(timeout="10s")  # noqa: S106 -- it is not to be shown
        form = unescape((await made.get("act/run.restart", id="one")).text)
        assert '"token": "***"' in form
        assert "secret-7" not in form
        answer = await made.act("run.restart", id="one", input='{"count": 3, "token": "***"}')
        new = httpx.URL(answer.headers["location"]).params["id"]
        assert await made.engine.result(new, timeout="10s") == 3
        info = await made.engine.get(new)
        assert (info.input, info.forked_from) == ({"count": 3, "token": "secret-7"}, "one")
        for wrong in ('{"count": "many"}', "[3]", "{", '{"other": 1}'):
            assert (await made.act("run.restart", id="one", input=wrong)).status_code in (400, 409), wrong
        made.level = {"run.restart"}
        assert "textarea" not in (await made.get("act/run.restart", id="one")).text
        answer = await made.act("run.restart", id="one", input='{"count": 9}')
        assert (await made.engine.get(httpx.URL(answer.headers["location"]).params["id"])).input["count"] == 1


async def test_a_run_is_asked_and_updated_and_its_answer_shown() -> None:
    """An answer is a value: it is masked, and shown to those who may see values."""
    async with opened("all", counting) as made:
        await made.engine.start(counting, 101, id="one")
        await until(made.engine, "one", "never")
        answer = await made.act("run.update", id="one", name="add", arguments="[5]")
        assert "106" in answer.text
        answer = await made.act("run.query", id="one", name="total", arguments="[]")
        assert "106" in answer.text
        assert "hunter2" not in answer.text
        assert (await made.act("run.query", id="one", name="no-such", arguments="[]")).status_code == 409
        assert (await made.act("run.update", id="one", name="add", arguments="5")).status_code == 400
        made.level = {"run.update", "run.query"}
        assert "111" not in (await made.act("run.update", id="one", name="add", arguments="[5]")).text
        assert (await made.act("run.query", id="one", name="total", arguments="[]")).status_code == 403
        assert [each.action for each in (await made.engine.audit()).records] == ["run.update", "run.update"]


async def test_of_a_very_long_run_only_what_is_shown_is_read() -> None:
    """It opens at its end; each part is drawn by itself, and leads to the others."""
    async with opened("all", counting) as made:
        await made.engine.start(counting, 2_500, id="long")
        await until(made.engine, "long", "never")
        text = (await made.get("run", id="long")).text
        assert "step-2499" in text
        assert "step-2299<" not in text
        assert "<title>step-2499" in text
        middle = (await made.get("run", **{"id": "long", "from": "1000"})).text
        assert re.findall(r'class="id">(step-\d+)<', middle) == [f"step-{number}" for number in range(1000, 1150)]
        assert "from=850" in middle
        assert "from=1150" in middle
        assert "waited for a worker" not in middle
        assert "step-0<" in (await made.get("run", **{"id": "long", "from": "0"})).text
        assert (await made.get("run", **{"id": "long", "from": "99999"})).status_code == 200


async def test_a_long_run_is_read_once_and_shown_page_by_page() -> None:
    """However many steps it has, one page has so many rows, and leads to the others."""
    async with opened("all", counting) as made:
        await made.engine.start(counting, 450, id="long")
        await until(made.engine, "long", "never")
        text = (await made.get("run", id="long")).text
        assert text.count("<tr>") < 260
        assert "step-449" in text
        assert "rows=400" in text
        assert "step-0<" in (await made.get("run", **{"id": "long", "from": "0"})).text


@pytest.mark.parametrize("note", ["done", "wait"])
async def test_a_run_copied_as_a_test_passes_when_it_is_pasted_and_fails_with_other_code(
    tmp_path: Path, note: str
) -> None:
    """It needs nothing but the code of the workflow; a run that is under way is replayed as far as it came."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    module: dict[str, Any] = {"__name__": "shop"}
    exec(compile(PROGRAM, "shop.py", "exec"), module)  # noqa: S102 -- a module of the test's own
    checkout = module["checkout"]
    async with opened("all", checkout) as made:
        card = {"token": "tok_1", "owner": 'Ada "quoted" \\ back \u20ac'}
        await made.engine.start(checkout, card, note, id="order/7 \u20ac")
        if note == "wait":
            await until(made.engine, "order/7 \u20ac", "go")
        else:
            await made.engine.result("order/7 \u20ac", timeout="10s")
        page = await made.get("test", id="order/7 \u20ac")
        saved = await made.get("test", **{"id": "order/7 \u20ac", "as": "file"})
    assert "attachment" in saved.headers["content-disposition"]
    assert "from shop import checkout" in saved.text
    assert "tok_1" not in saved.text
    assert unescape(page.text).count("HISTORY = rb") == 1
    test = tmp_path / "test_copied.py"
    test.write_text(saved.text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(test)]
    env = {"PYTHONPATH": f"{tmp_path}:src", "PATH": "/usr/bin:/bin"}
    passed = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, check=False)
    assert b"1 passed" in passed.stdout, passed.stdout
    (tmp_path / "shop.py").write_text(PROGRAM.replace('"charge", charge', '"other", charge'))
    broken = await asyncio.to_thread(subprocess.run, command, env=env, capture_output=True, check=False)
    assert b"1 failed" in broken.stdout, broken.stdout


def test_what_was_masked_and_left_alone_is_put_back() -> None:
    """Only where it is still what was shown."""
    original = {"token": "a", "deep": [{"password": "b", "n": 1}], "text": "x"}
    shown = masked(original)
    assert unmasked(shown, original) == original
    edited = {"token": "***", "deep": [{"password": "new", "n": 2}], "more": "***"}
    assert unmasked(edited, original) == {"token": "a", "deep": [{"password": "new", "n": 2}], "more": "***"}


def test_a_long_text_is_shown_whole_and_a_very_long_one_says_that_it_is_cut() -> None:
    """What is edited and sent back must not lose its end without a mark."""
    assert masked(["x" * 5_000]) == ["x" * 5_000]
    assert masked("x" * 30_000) == "x" * 20_000 + "..."
