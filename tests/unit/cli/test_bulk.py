"""``standfast runs cancel``, ``retry`` and ``purge`` of many runs: a dry run, a question, and what could not be."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import standfast as sf
from standfast.cli import application
from standfast.cli import target as asking
from standfast.errors import RunFailedError
from standfast.flows.bulk import Changed, cancel_many, change_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.cli.conftest import Ask

STOCK = {"tea": 0}


async def take(item: str) -> int:
    """Take something that may not be there."""
    if not STOCK[item]:
        raise LookupError(f"no {item} left")
    return STOCK[item]


@sf.workflow
async def sells(ctx: sf.Context, item: str) -> int:
    """Sell something."""
    return await ctx.step(take, item)


@sf.workflow
async def waits(ctx: sf.Context) -> None:
    """Wait for something that does not come."""
    await ctx.sleep("1 day")


@pytest.fixture
async def engine(url: str) -> AsyncIterator[sf.Engine]:
    """Three runs that failed, and two that wait."""
    STOCK["tea"] = 0
    async with sf.Engine(url, workflows=[sells, waits], worker=sf.admin.WorkerLimits(linger=0.01)) as opened:
        for number in range(3):
            with pytest.raises(RunFailedError):
                await (await opened.start(sells, "tea", id=f"f{number}", tags=["web"])).result()
        for number in range(2):
            await opened.start(waits, id=f"w{number}")
        while (await opened.count(status="suspended")).number < 2:  # noqa: ASYNC110 -- nothing tells it
            await asyncio.sleep(0.01)
        yield opened


async def statuses(engine: sf.Engine) -> dict[str, str]:
    """Return how all runs are."""
    return {run.id: run.status for run in (await engine.list()).runs}


async def test_a_dry_run_counts_and_names_and_does_nothing(engine: sf.Engine, ask: Ask) -> None:
    """For people and for programs."""
    before = await statuses(engine)
    shown = await ask("runs", "retry", "--status", "failed", "--dry-run")
    told = json.loads((await ask("runs", "purge", "--workflow", "sells", "--dry-run", "--json")).stdout)

    assert shown.stdout.startswith("would retry 3 runs; nothing was done\n  f0  sells  failed")
    assert told == {"count": 3, "has_more": False, "first": ["f0", "f1", "f2"], "dry_run": True}
    assert await statuses(engine) == before


async def test_failed_runs_are_retried_together(engine: sf.Engine, ask: Ask) -> None:
    """They go on with the step that failed, and complete."""
    STOCK["tea"] = 7
    shown = await ask("runs", "retry", "--status", "failed", "--tag", "web", "--yes")
    assert (shown.exit_code, shown.stdout) == (0, "retried 3 runs\n")
    assert [await engine.result(f"f{number}", timeout="20s") for number in range(3)] == [7, 7, 7]


async def test_waiting_runs_are_cancelled_together(engine: sf.Engine, ask: Ask) -> None:
    """All that have not ended, if nothing else is said; each with its own record in the audit."""
    shown = await ask("runs", "cancel", "--workflow", "waits", "--yes", "--json", "--as", "ann")
    assert json.loads(shown.stdout) == {"done": 2, "failed": {}}
    for name in ("w0", "w1"):
        with pytest.raises(sf.errors.RunCancelledError):
            await engine.result(name, timeout="20s")
    assert {record.subject for record in (await engine.audit(actor="ann")).records} == {"w0", "w1"}


BEGUN: list[int] = []


@sf.workflow(concurrency=sf.Limit(2, on_limit="queue"))
async def takes_turns(ctx: sf.Context, number: int) -> None:
    """Have an effect as soon as its turn comes."""
    BEGUN.append(number)
    await ctx.sleep("1 day")


@pytest.mark.parametrize("force", [False, True], ids=["asked", "forced"])
async def test_no_run_that_is_cancelled_with_others_begins_because_they_end(url: str, *, force: bool) -> None:
    """Those that wait for their turn are cancelled before those in whose place they would begin."""
    BEGUN.clear()
    async with sf.Engine(url, workflows=[takes_turns], worker=sf.admin.WorkerLimits(linger=0.01)) as driving:
        for number in range(60):
            await driving.start(takes_turns, number, id=f"t{number}")
        while (await driving.count(status="suspended")).number < 2:  # noqa: ASYNC110 -- nothing tells it
            await asyncio.sleep(0.01)
        changed = Changed(failed={})
        await change_all(driving, cancel_many("for a test", force=force), {"workflow": "takes_turns"}, changed)
        while (await driving.count(status="cancelled")).number < 60:  # noqa: ASYNC110 -- nothing tells it
            await asyncio.sleep(0.01)
    assert (changed.done, changed.failed, set(BEGUN)) == (60, {}, {0, 1})  # a replay begins again


async def test_a_run_that_ends_by_itself_before_it_is_asked_to_stop_is_not_counted(engine: sf.Engine) -> None:
    """The number that is told at the end is of those that were asked, not of those that were listed."""
    STOCK["tea"] = 1
    listed = await engine.get("f0")  # as a page showed it a moment ago
    await engine.retry("f0")
    assert await engine.result("f0") == 1
    change = cancel_many("wrong figures").change
    assert await change(engine, listed) == 0
    assert await change(engine, await engine.get("w0")) == 1
    assert (await engine.get("f0")).status == "completed"


async def test_ended_runs_are_purged_together(engine: sf.Engine, ask: Ask) -> None:
    """By when they ended; those that have not are no business of a purge."""
    none = await ask("runs", "purge", "--ended-before", "1 hour", "--yes")
    some = await ask("runs", "purge", "--ended-before", "0s", "--yes")
    assert none.exit_code == 3
    assert some.stdout == "purged 3 runs\n"
    assert set(await statuses(engine)) == {"w0", "w1"}


async def test_one_that_cannot_be_changed_does_not_keep_the_others_from_it(
    engine: sf.Engine, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with the reason, and the exit code says that not all is done."""
    purge = sf.Engine.purge

    async def refuses(self: sf.Engine, run_id: str | None = None, *, force: bool = False) -> int:
        if run_id == "f1":
            raise sf.errors.RunUnfinishedError("f1", "running")
        return await purge(self, run_id, force=force)

    monkeypatch.setattr(sf.Engine, "purge", refuses)
    shown = await ask("runs", "purge", "--status", "failed", "--yes")

    assert (shown.exit_code, shown.stdout) == (7, "purged 2 runs\n")
    assert "not f1: RunUnfinishedError" in shown.stderr
    assert set(await statuses(engine)) == {"f1", "w0", "w1"}


@pytest.mark.parametrize(("typed", "code"), [("3\n", 0), ("2\n", 1), ("yes\n", 1), ("\n", 1)])
async def test_the_number_has_to_be_typed(
    engine: sf.Engine, ask: Ask, monkeypatch: pytest.MonkeyPatch, typed: str, code: int
) -> None:
    """So that it is read; anything else does nothing."""
    monkeypatch.setattr(asking, "is_terminal", lambda: True)
    shown = await ask("runs", "purge", "--status", "failed", typed=typed)
    assert shown.exit_code == code
    assert "To purge 3 runs, type 3" in shown.stderr
    assert len(await statuses(engine)) == (2 if code == 0 else 5)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("cancel",), "Name a run, or say which runs are meant"),
        (("cancel", "w0", "--workflow", "waits"), "not both"),
        (("cancel", "--status", "failed"), "Runs that are failed cannot be cancelled."),
        (("retry", "--status", "completed"), "Runs that are completed cannot be retried."),
        (("purge", "--status", "failed"), "say --yes"),
    ],
)
async def test_what_is_not_meant_is_refused(ask: Ask, arguments: tuple[str, ...], words: str) -> None:
    """Before anything is done."""
    shown = await ask("runs", *arguments)
    assert shown.exit_code == 2
    assert words in shown.stderr


async def test_one_run_is_purged_by_its_id(engine: sf.Engine, ask: Ask) -> None:
    """One that has not ended is not, unless by force."""
    done = await ask("runs", "purge", "f0", "--yes")
    refused = await ask("runs", "purge", "w0", "--yes")
    forced = await ask("runs", "purge", "w0", "--yes", "--force")
    assert (done.stdout, refused.exit_code, forced.exit_code) == ("purged f0: 1 run\n", 3, 0)
    assert set(await statuses(engine)) == {"f1", "f2", "w1"}


def test_an_interrupted_change_says_how_far_it_came(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was under way is done, and recorded so; the same command does the rest."""
    cancel = sf.Engine.cancel

    async def interrupted(engine: sf.Engine, *given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return await cancel(engine, *given, **options)

    asyncio.run(_start_many(url, 25))
    command = ("runs", "cancel", "--workflow", "waits", "--yes")
    environment = {"STANDFAST_STORE": url, "STANDFAST_ACTOR": "ann"}
    with monkeypatch.context() as patched:
        patched.setattr(sf.Engine, "cancel", interrupted)
        first = CliRunner().invoke(application, command, env=environment, prog_name="standfast")
    second = CliRunner().invoke(application, command, env=environment, prog_name="standfast")
    told = CliRunner().invoke(application, ("audit", "--json"), env=environment, prog_name="standfast")

    assert first.exit_code == 130
    assert "interrupted: asked 20 of 25 runs to stop" in first.stderr
    assert (second.exit_code, second.stdout) == (0, "asked 5 runs to stop\n")
    assert "unknown" not in told.stdout


async def _start_many(url: str, number: int) -> None:
    async with sf.Engine(url, workflows=[waits], drive=False) as engine:
        for index in range(number):
            await engine.start(waits, id=f"w{index}")
