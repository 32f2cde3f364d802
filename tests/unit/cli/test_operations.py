"""``standfast runs update``, ``query``, ``restart``, ``fork``, ``resume`` and ``erase``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import standfast as sf

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.unit.cli.conftest import Ask

MODULE = """
import os
import standfast as sf

@sf.workflow
async def counts(ctx, start=0):
    total = [start]
    def add(number):
        total[0] += number
        return total[0]
    ctx.on_update("add", add)
    ctx.on_query("total", lambda: {"total": total[0], "password": "x"})
    await ctx.wait_signal("end")
    return total[0]

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[counts])
"""


async def one(number: int) -> int:
    """Do a step."""
    return number


@sf.workflow
async def steps(ctx: sf.Context, number: int) -> int:
    """Do two steps."""
    first = await ctx.step("first", one, number)
    return first + await ctx.step("second", one, number)


@sf.workflow(concurrency=sf.Limit(1, key=str))
async def keyed(ctx: sf.Context, number: int) -> int:
    """Do a step, one of each number at a time."""
    return await ctx.step(one, number)


@sf.workflow
async def counts(ctx: sf.Context, start: int = 0) -> int:
    """Count what updates say."""
    total = [start]

    def add(number: int) -> int:
        total[0] += number
        return total[0]

    ctx.on_update("add", add)
    ctx.on_query("total", lambda: total[0])
    await ctx.wait_signal("end")
    return total[0]


async def test_a_run_is_restarted_without_its_code(url: str, ask: Ask) -> None:
    """A new run with the same input and the same limits, which a worker takes up."""
    async with sf.Engine(url, workflows=[steps, keyed]) as engine:
        assert await (await engine.start(steps, 4, id="a")).result() == 8
        assert await (await engine.start(keyed, 5, id="k")).result() == 5
    plain = await ask("runs", "restart", "a", "--id", "b")
    limited = await ask("runs", "restart", "k", "--id", "l")
    again = await ask("runs", "restart", "a", "--id", "b")
    async with sf.Engine(url, workflows=[steps, keyed]) as engine:
        assert await engine.result("b", timeout="10s") == 8
        assert await engine.result("l", timeout="10s") == 5
        assert ((await engine.get("b")).forked_from, (await engine.get("l")).lines) == ("a", ("5",))

    assert plain.stdout == "b is started, with the input of a\n"
    assert limited.exit_code == 0
    assert again.stdout.startswith("b was started before: ")


async def test_a_run_is_forked_without_its_code(url: str, ask: Ask) -> None:
    """What came before the step is not done again."""
    async with sf.Engine(url, workflows=[steps]) as engine:
        await (await engine.start(steps, 4, id="a")).result()
    shown = await ask("runs", "fork", "a", "second", "--id", "b", "--json")
    refused = await ask("runs", "fork", "a", "third")
    async with sf.Engine(url, workflows=[steps]) as engine:
        assert [entry.id for entry in await engine.history("b")][:1] == ["first"]
        assert await engine.result("b", timeout="10s") == 8

    assert json.loads(shown.stdout)["run"]["id"] == "b"
    assert refused.exit_code in (1, 2, 3)
    assert "third" in refused.stderr


async def test_a_run_answers_an_update(url: str, ask: Ask) -> None:
    """JSON goes in and comes out; without a worker there is no answer in time."""
    async with sf.Engine(url, workflows=[counts]) as engine:
        await engine.start(counts, id="a")
        first = await ask("runs", "update", "a", "add", "2")
        second = await ask("runs", "update", "a", "add", "3", "--json")
        wrong = await ask("runs", "update", "a", "add", "three")
    late = await ask("runs", "update", "a", "add", "1", "--timeout", "50ms")

    assert first.stdout == "2\n"
    assert json.loads(second.stdout) == {"run": "a", "name": "add", "answer": 5}
    assert wrong.exit_code == 2
    assert "Plain text needs --text" in wrong.stderr
    assert late.exit_code == 1


async def test_a_run_answers_a_query_by_its_code(
    url: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is replayed here, and nothing is recorded; what looks like a secret is masked."""
    (tmp_path / "counting.py").write_text(MODULE)
    monkeypatch.setenv("STANDFAST_STORE", url)
    async with sf.Engine(url, workflows=[counts]) as engine:
        await engine.start(counts, 7, id="a")
        await engine.update("a", "add", 1)
    shown = await ask("runs", "query", "a", "total", "--engine", "counting", "--app-dir", str(tmp_path))
    missing = await ask("runs", "query", "b", "total", "--engine", "counting", "--app-dir", str(tmp_path))

    assert shown.stdout.startswith('{"total":8,"password":"')
    assert '"x"' not in shown.stdout
    assert missing.exit_code == 3


async def test_a_run_is_looked_at(url: str, ask: Ask) -> None:
    """It says how it is; one that has ended is not resumed."""
    async with sf.Engine(url, workflows=[steps], drive=False) as engine:
        await engine.start(steps, 1, id="a")
        waiting = await ask("runs", "resume", "a")
        await engine.cancel("a", force=True)
        over = await ask("runs", "resume", "a")

    assert waiting.stdout == "a: pending, waits for a worker\n"
    assert over.exit_code == 3


async def test_a_tenant_is_erased_when_its_name_is_said(url: str, ask: Ask) -> None:
    """It asks first, and no other tenant is touched."""
    for tenant in ("ann", "ben"):
        async with sf.Engine(url, workflows=[steps], tenant=tenant, drive=False) as engine:
            await engine.start(steps, 1, id="a")
    unsure = await ask("runs", "erase", "ann")
    torn = await ask("runs", "erase", "ann", "--tenant", "ben", "--yes")
    done = await ask("runs", "erase", "ann", "--yes")
    async with sf.Engine(url, tenant="ann", drive=False) as engine:
        assert not (await engine.list()).runs
    async with sf.Engine(url, tenant="ben", drive=False) as engine:
        assert [run.id for run in (await engine.list()).runs] == ["a"]

    assert (unsure.exit_code, torn.exit_code, done.exit_code) == (2, 2, 0)
    assert done.stdout.startswith("erased the tenant ann: ")
