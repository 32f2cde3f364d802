"""``standfast status``: what is told, what needs a person, and the exit codes for a monitor."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import standfast as sf
from standfast.cli.status import megabytes
from standfast.clock import Instant
from standfast.errors import RunFailedError
from standfast.stores import Delete, Put
from standfast.telemetry.health import Health
from standfast.workflows.records import READY, RUN_STATES, RunKeys, RunState, listing
from standfast.workflows.schedules.spec import STORED, pause

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Ask


@sf.workflow
async def fails(ctx: sf.Context) -> None:
    """Fail."""
    del ctx
    raise ValueError("no stock")


@sf.workflow(version="2")
async def waits(ctx: sf.Context) -> None:
    """Wait for something that does not come."""
    await ctx.sleep("1 day")


async def kinds(ask: Ask, *arguments: str) -> list[str]:
    """Return what needs a person."""
    told = json.loads((await ask("status", "--json", *arguments)).stdout)
    return [concern["kind"] for concern in told["concerns"]]


async def test_all_is_well(url: str, ask: Ask) -> None:
    """One screen, and exit code 0."""
    async with sf.Engine(url, workflows=[waits]) as engine:
        await engine.start(waits)
        shown = await ask("status")
        short = await ask("status", "--check")
        told = json.loads((await ask("status", "--json")).stdout)

    assert (shown.exit_code, short.exit_code) == (0, 0)
    lines = shown.stdout.splitlines()
    assert lines[0].startswith(f"store:    sqlite at {url}, answers in ")
    assert lines[2].startswith("workers:  1, driving ")
    assert lines[-1] == "nothing needs a person"
    assert short.stdout.startswith("OK: 1 worker, ")
    assert (told["is_well"], told["store"]["is_reachable"], len(told["workers"])) == (True, True, 1)


async def test_a_failed_run_needs_a_person(url: str, ask: Ask) -> None:
    """It is named, with what to type; a failure that is long ago is no longer told."""
    async with sf.Engine(url, workflows=[fails]) as engine:
        with pytest.raises(RunFailedError):
            await (await engine.start(fails, id="order-7")).result()
        shown = await ask("status", "--namespace", "default")
        late = await ask("status", "--lately", "1us")

    assert (shown.exit_code, late.exit_code) == (6, 0)
    assert "1 run failed in the last 24 h\n    order-7\n    standfast runs list --status failed" in shown.stdout


async def test_runs_that_no_worker_has_the_code_of_need_a_person(url: str, ask: Ask) -> None:
    """By version too; and without any worker it is that which is told."""
    async with sf.Engine(url, workflows=[waits], drive=False) as engine:
        await engine.start(waits, id="a")
        nobody = await kinds(ask)
        async with sf.Engine(url, workflows=[fails]):
            strangers = json.loads((await ask("status", "--json")).stdout)["concerns"]

    assert nobody == ["no-worker"]
    assert [concern["kind"] for concern in strangers] == ["no-code"]
    assert strangers[0]["words"] == "no worker has the code of waits@2: 1 run cannot continue"
    assert strangers[0]["examples"] == ["a"]


async def first() -> str:
    """Do the first thing."""
    return "first"


async def other() -> str:
    """Do another thing."""
    return "other"


async def test_a_run_that_no_code_fits_needs_a_person(url: str, ask: Ask) -> None:
    """With what differs, since when, and what to type; when its code is back it goes on, and all is well."""

    @sf.workflow(name="wf")
    async def old(ctx: sf.Context) -> str:
        done = await ctx.step(first)
        await ctx.wait_signal("go")
        return done

    @sf.workflow(name="wf")
    async def new(ctx: sf.Context) -> str:
        return await ctx.step(other)

    async with sf.Engine(url, workflows=[old]) as engine:
        run = await engine.start(old, id="r7")
        while (await engine.get("r7")).waits_for != "the signal 'go'":  # noqa: ASYNC110 -- a run in a store has no event
            await asyncio.sleep(0)
    async with sf.Engine(url, workflows=[new]) as engine:
        await engine.signal("r7", "go")
        since = await _misfit_at(engine, "r7")
        shown = await ask("status")
        top = await ask("top", "--once")
        listed = await ask("runs", "show", "r7")
        engine.runtime.try_again("r7")
        await engine.signal("r7", "again")
        while (await engine.get("r7")).claims < 3:  # noqa: ASYNC110 -- a run in a store has no event
            await asyncio.sleep(0)
        assert await _misfit_at(engine, "r7") == since
        scale = await Health(engine).scale()
    async with sf.Engine(url, workflows=[old]) as engine:
        assert await engine.run("r7").result() == "first"
        assert await kinds(ask) == []

    assert shown.exit_code == 6
    assert "the code of no worker that tried fits 1 run: wf r7 waits for a worker whose code fits its history" in (
        shown.stdout
    )
    assert "standfast runs show r7" in shown.stdout
    assert "the code of no worker that tried" in top.stdout
    assert "it recorded step 'first', and the code asks for step 'other'" in listed.stdout
    assert (scale["load"], scale["misfits"], run.id) == (1, 1, "r7")


async def test_a_run_whose_input_its_code_does_not_take_needs_a_person(url: str, ask: Ask) -> None:
    """It does not fail, as other code may take it; it is told what does not fit, and its age counts from the first."""

    @sf.workflow(name="job")
    async def job(ctx: sf.Context, n: float) -> float:
        del ctx
        return n

    async with sf.Engine(url, workflows=[job]) as engine:
        await ask("runs", "start", "job", "--id", "j1", "--input", '["abc"]')
        await _misfit_at(engine, "j1")
        told = json.loads((await ask("status", "--json")).stdout)["concerns"]
        await engine.cancel("j1", "no number", force=True)
        assert await kinds(ask) == []

    assert [(each["kind"], each["examples"]) for each in told] == [("misfit-runs", ["j1"])]
    assert "Expected `float`, got `str`" in told[0]["words"]


async def _misfit_at(engine: sf.Engine, run_id: str) -> Instant:
    """Wait until a worker has found that its code does not fit; return since when that is so."""
    while True:
        record = (await engine.space.read(key := engine.space.key("life", run_id))).records[key]
        state = RUN_STATES.decode(record.value)
        if state.is_misfit and state.misfit_at is not None:
            return state.misfit_at
        await asyncio.sleep(0)


async def test_a_lock_that_is_waited_for_too_long_needs_a_person(space: sf.Space, ask: Ask) -> None:
    """With its holder, and the command that explains it."""
    async with space.mutex("stock").hold(owner="ann"):
        waiting = asyncio.create_task(space.mutex("stock").hold(owner="ben").__aenter__())
        while not (await space.explain("stock")).waiting:  # noqa: ASYNC110 -- a line in a store has no event to wait for
            await asyncio.sleep(0)
        patient = await kinds(ask)
        shown = await ask("status", "--patience", "1us")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    assert patient == []
    assert shown.exit_code == 6
    assert "held by ann\n    standfast locks explain stock" in shown.stdout


async def test_a_run_that_is_overdue_needs_a_person(url: str, ask: Ask) -> None:
    """A worker lives, and does not take it up."""
    async with sf.Engine(url, workflows=[waits], drive=False) as engine:
        for name in ("a", "b"):
            await engine.start(waits, id=name)
        async with sf.Engine(url, workflows=[waits]) as driving:
            worker = driving.worker
            assert worker is not None
            worker.is_stopping = True  # it lives, and takes nothing up
            await _age(engine.space, "a")
            assert await kinds(ask) == ["overdue-runs"]


async def _age(space: sf.Space, run_id: str) -> None:
    """Let a run be ready for long."""
    key = space.key("life", run_id)
    seen = await space.read(key, space.key("ready", run_id))
    old = RUN_STATES.decode(seen.records[key].value)
    aged = RunState("pending", old.workflow, old.version, Instant(seen.at - 120_000_000), waits_for="a worker")
    await space.commit(Put(key, RUN_STATES.encode(aged), seen.version(key)))
    ready = space.key("ready", run_id)
    if not seen.version(ready):
        await space.commit(Put(ready, READY))


async def test_a_schedule_that_is_late_needs_a_person(url: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that an operator paused does not."""
    async with sf.Engine(url, workflows=[waits], drive=False) as engine:
        await engine.schedules.create(sf.Schedule(waits, id="often", every="1 hour"))
        await engine.schedules.pause("often", "on purpose")
        assert await kinds(ask) == []
        monkeypatch.setattr("standfast.workflows.schedules.schedules.LATE", -1e9)
        await engine.schedules.resume("often")
        assert await kinds(ask) == ["late-schedules"]


async def test_a_store_that_does_not_answer_has_an_exit_code_of_its_own(ask: Ask) -> None:
    """In JSON too, without a secret of the address."""
    url = "postgresql://ann:secret@127.0.0.1:1/x?connect_timeout=1"
    shown = await ask("status", "--json", STANDFAST_STORE=url)
    told: dict[str, Any] = json.loads(shown.stdout)
    assert (shown.exit_code, told["store"]["is_reachable"]) == (1, False)
    assert "secret" not in shown.output


@pytest.mark.parametrize(("size", "words"), [(512, "0.512 kB"), (4_096_000, "4.1 MB"), (5 * 10**12, "5 TB")])
def test_sizes_are_shown_as_people_write_them(size: int, words: str) -> None:
    """In units of a thousand."""
    assert megabytes(size) == words


async def test_a_quarantined_run_needs_a_person(url: str, ask: Ask) -> None:
    """Workers died with it: it is named, with the command that lists such runs."""
    async with sf.Engine(url, workflows=[waits], drive=False) as engine:
        await engine.start(waits, id="deadly")
        space, keys = engine.space, RunKeys(engine.space, "deadly")
        seen = await space.read(keys.state)
        old = RUN_STATES.decode(seen.records[keys.state].value)
        quarantined = structs.replace(old, status="quarantined", claims=5)
        there = await space.read(*keys.listed(old, None))
        gone = [Delete(key, record.version) for key, record in there.records.items()]
        put = Put(keys.state, RUN_STATES.encode(quarantined), seen.version(keys.state))
        await space.commit(put, *gone, *listing(keys, quarantined, None))
        shown = await ask("status")
        found = json.loads((await ask("status", "--json")).stdout)["concerns"]

    assert shown.exit_code == 6
    assert (
        "1 run quarantined: workers died with it\n    deadly\n    standfast runs list --status quarantined"
        in shown.stdout
    )
    assert ("quarantined-runs", ["deadly"]) in [(each["kind"], each["examples"]) for each in found]


async def test_a_schedule_that_paused_itself_needs_a_person(url: str, ask: Ask) -> None:
    """Its workflow is nowhere: it says what is not there, and which schedule to look at."""
    async with sf.Engine(url, workflows=[waits], drive=False) as engine:
        await engine.schedules.create(sf.Schedule(waits, id="nightly", every="1 hour"))
        key = engine.space.key("schedule", "nightly")
        seen = await engine.space.read(key)
        stored = STORED.decode(seen.records[key].value)
        paused = structs.replace(stored, state=pause(stored.state), wake_at=None, lacks="the workflow waits@2")
        await engine.space.commit(Put(key, STORED.encode(paused), seen.version(key)))
        shown = await ask("status")

    assert shown.exit_code == 6
    assert "1 schedule paused, as something is not there: the workflow waits@2\n    nightly" in shown.stdout
    assert "standfast schedules show nightly" in shown.stdout
