"""Looking for runs that can go on, on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec import structs

from standfast.errors import DeclarationError, RunNotFoundError, WorkflowTypeNotRegisteredForRecoveryError
from standfast.events import RunLeftAlone
from standfast.stores.protocol import Put
from standfast.workflows import admin as recovering
from standfast.workflows.records import RUN_STATES
from tests.unit.workflows.engines import DONE, acts, collects, engine, sleeps, until

if TYPE_CHECKING:
    from standfast.events import Event


async def test_resume_leaves_a_run_that_has_nothing_due(url: str) -> None:
    """It answers how the run is, and the run goes on sleeping."""
    async with engine(url) as opened:
        run = await opened.start(sleeps, 1e6)
        claims = (await until(opened, run.id, "suspended")).claims
        info = await opened.resume(run.id)
        assert (info.status, info.claims) == ("suspended", claims)
        with pytest.raises(RunNotFoundError):
            await opened.resume("nobody")


async def test_resume_answers_how_a_run_is_that_is_driven_elsewhere(url: str) -> None:
    """Nobody takes it away from whoever drives it."""
    async with engine(url, linger=60) as driver, engine(url) as other:
        run = await driver.start(collects, 1)
        owner = (await until(driver, run.id, "running")).owner
        assert (await other.resume(run.id)).owner == owner
        assert not other.runtime.loaded


async def test_resume_takes_up_what_nobody_drives(url: str) -> None:
    """A run that was started where nothing is driven is taken up here, and now."""
    async with engine(url, drive=False) as client, engine(url) as worker:
        run = await client.start(collects, 1)
        info = await worker.resume(run.id)
        assert info.claims >= 1


async def test_an_engine_that_drives_nothing_tells_the_others(url: str) -> None:
    """Its looks change nothing but the flags that others look at."""
    async with engine(url, drive=False) as client:
        run, delayed = await client.start(acts, ["x"]), await client.start(acts, ["y"], delay=1e6)
        assert (await client.resume(run.id)).status == "pending"
        assert [(each.run_id, each.how) for each in await client.sweep()] == [(run.id, "told")]
        assert (await client.resume(delayed.id)).status == "pending"
        looked = await recovering.poll_run(client.runtime, None, delayed.id)
        assert (looked.how, looked.problem) == ("waiting", "it waits for the time of its start")
        assert DONE == []


async def test_a_sweep_drives_what_is_due_and_one_that_is_broken_does_not_stop_it(url: str) -> None:
    """An unreadable run, one of an unknown workflow, and one that is gone: the rest goes on."""
    async with engine(url, drive=False) as client:
        space = client.space
        broken, unknown = await client.start(acts, []), await client.start(collects, 1)
        good = await client.start(acts, ["x"])
        state = space.key("life", broken.id)
        await space.commit(Put(state, b"nonsense", (await space.read(state)).version(state)))
        await space.commit(Put(space.key("timer", f"{1:016d}", "gone"), b"1:{}"))
        async with engine(url, workflows=[acts]) as worker:
            swept = await worker.sweep()
            looked = {each.run_id: each.how for each in swept}
            assert await good.result() == ["x"]
        why = {each.run_id: each.problem for each in swept}
        assert why[unknown.id] == "the workflow 'collects' is not here; start a worker that has it"
        assert "DecodeError" in why[broken.id]
        assert looked.get(good.id, "ended") in ("taken", "ended")
        assert (looked[broken.id], looked[unknown.id]) == ("failed", "left")
        assert not (await space.scan(*space.key("timer").within(), limit=1)).records


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, None])
async def test_a_sweep_needs_a_positive_limit(url: str, limit: int) -> None:
    """Anything else is refused, before anything is looked at."""
    async with engine(url, drive=False) as client:
        with pytest.raises(DeclarationError, match="at least 1"):
            await client.sweep(limit)


async def test_a_sweep_looks_at_so_many_at_most(url: str) -> None:
    """The limit counts runs, and the longest due come first."""
    async with engine(url, drive=False) as client:
        for n in range(5):
            await client.start(acts, [], id=f"r{n}")
        assert len(await client.sweep(3)) == 3


async def test_of_a_resume_a_signal_and_a_sweep_at_once_one_drives(url: str) -> None:
    """Whatever two engines do at the same time, each step runs once."""
    async with engine(url, drive=False) as client:
        runs = [await client.start(sleeps, 0, id=f"r{n}") for n in range(10)]
        async with engine(url) as one, engine(url) as two:
            racing = [
                work for run in runs for work in (one.resume(run.id), two.resume(run.id), client.signal(run.id, "item"))
            ]
            await asyncio.gather(*racing, one.sweep(), two.sweep(), one.sweep(), return_exceptions=True)
            assert [await run.result() for run in runs] == ["after"] * 10
    assert DONE == ["after"] * 10


async def test_recovery_insists_on_all_code_before_it_resumes_anything(url: str) -> None:
    """The error says what is missing; nothing was taken up."""
    async with engine(url, drive=False) as client, engine(url, drive=False, workflows=[acts]) as other:
        for n in range(25):
            await client.start(collects, 1, id=f"c{n:02d}")
        await client.start(acts, ["x"])
        with pytest.raises(WorkflowTypeNotRegisteredForRecoveryError) as caught:
            await other.recover_all(unknown="raise")
        error = caught.value
        assert (error.registered_types, error.missing_types) == (("acts",), ("collects",))
        assert (len(error.missing_workflow_samples), error.missing_workflow_count) == (20, 25)
        assert error.samples_truncated
        assert DONE == []
        with pytest.raises(DeclarationError):
            await other.recover_all(unknown="ignore")  # type: ignore[arg-type] # wrong on purpose


async def test_recovery_can_leave_what_it_does_not_know(url: str) -> None:
    """One event for each run that is left; the others go on."""
    events: list[Event] = []
    async with engine(url, drive=False) as client:
        left, run = await client.start(collects, 1), await client.start(acts, ["x"])
        async with engine(url, workflows=[acts], hooks=[events.append]) as worker:
            recovered = await worker.recover_all()
            await worker.recover_all()
            assert await run.result() == ["x"]
    assert recovered.left == (left.id,)
    assert [each.run for each in events if isinstance(each, RunLeftAlone)] == [left.id]


async def test_runs_are_listed_page_by_page(url: str) -> None:
    """Every run is on one page, from either end; a page needs a positive size."""
    async with engine(url, drive=False) as client:
        for n in range(7):
            await client.start(acts, [], id=f"r{n}", tags=["odd"] if n % 2 else [])
        for newest_first in (False, True):
            found: list[str] = []
            after = None
            while True:
                page = await client.list(limit=3, after=after, newest_first=newest_first)
                found += [each.id for each in page.runs]
                if (after := page.next) is None:
                    break
            assert found == sorted((f"r{n}" for n in range(7)), reverse=newest_first)
        assert len((await client.list(tag="odd")).runs) == 3
        with pytest.raises(DeclarationError):
            await client.list(limit=0)


async def test_a_sweep_says_why_it_left_something(url: str) -> None:
    """Whatever is not taken up comes with the reason: who has it, or what is wrong with it here."""
    async with engine(url, drive=False) as client:
        space, run = client.space, await client.start(acts, ["x"], id="a")
        key = space.key("life", run.id)
        record = (await space.read(key)).records[key]
        state = RUN_STATES.decode(record.value)
        for change, how, why in [
            ({"status": "quarantined", "deaths": 3}, "left", "it is quarantined: 3 workers died with it"),
            ({"status": "running", "owner": "elsewhere.1"}, "held", "the worker elsewhere.1 drives it"),
        ]:
            version = (await space.read(key)).version(key)
            await space.commit(Put(key, RUN_STATES.encode(structs.replace(state, **cast("Any", change))), version))
            looked = await recovering._outcome(client.runtime, "a")
            assert (looked.how, looked.problem[: len(why)]) == (how, why)
