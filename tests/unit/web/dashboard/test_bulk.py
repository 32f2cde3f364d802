"""Many runs are changed at once: counted and named first, confirmed by their number, followed and stopped."""

from __future__ import annotations

import asyncio
import re
import sys
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast.web.dashboard import bulk
from tests.fork_server import forked_exec
from tests.unit.web.dashboard.opened import Opened, broken, opened, until

if TYPE_CHECKING:
    from pathlib import Path


async def failed(made: Opened, count: int, **options: Any) -> None:
    """Let runs fail."""
    for number in range(count):
        run = await made.engine.start("broken", "x", id=f"bad-{number}", **options)
        with pytest.raises(sf.errors.RunFailedError):
            await run.result(timeout="10s")


async def confirmed(made: Opened, action: str, number: str, **fields: Any) -> httpx.Response:
    """Look at the preview of a change of many runs, type a number, and send the form."""
    shown = await made.get(f"act/{action}", **fields)
    assert shown.status_code == 200, shown.text
    hidden = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', shown.text))
    headers = {"origin": "http://ops.test", "sec-fetch-site": "same-origin"}
    return await made.http.post(f"/act/{action}", data={**hidden, "number": number}, headers=headers)


async def over(made: Opened, answer: httpx.Response) -> bulk.BulkJob:
    """Return the work that a form has begun, when it is over."""
    assert answer.status_code == 303, answer.text
    job = made.dashboard.jobs._known[httpx.URL(answer.headers["location"]).params["id"]]
    assert job.task is not None
    await asyncio.wait([job.task])
    return job


async def test_all_runs_of_a_filter_are_purged_after_their_number_was_typed() -> None:
    """The dry run counts and names them, changes nothing, and the list is empty afterwards."""
    async with opened() as made:
        await failed(made, 7)
        await made.engine.start("approval", "x", id="other")
        listed = (await made.get("runs", status="failed")).text
        assert "Delete all of them" in listed
        shown = (await made.get("act/runs.purge", status="failed")).text
        assert "7 runs will be deleted" in shown
        assert "bad-6" in shown or "bad-0" in shown
        assert (await made.engine.count(status="failed")).number == 7
        job = await over(made, await confirmed(made, "runs.purge", "7", status="failed"))
        assert (job.changed.done, job.changed.failed) == (7, {})
        page = (await made.get("bulk", id=job.id)).text
        assert "Purged 7 of 7 runs" in page
        assert "100 per cent" in page
        assert (await made.engine.count(status="failed")).number == 0
        assert not (await made.engine.get("other")).has_ended
        assert {each.action for each in (await made.engine.audit()).records} == {"run.purge"}
        assert {each.actor.name for each in (await made.engine.audit()).records} == {"ann"}


@pytest.mark.parametrize("typed", ["", "6", "70", "seven"])
async def test_nothing_is_done_if_another_number_was_typed(typed: str) -> None:
    """The number is typed so that it is read."""
    async with opened() as made:
        await failed(made, 7)
        assert (await confirmed(made, "runs.purge", typed, status="failed")).status_code == 400
        assert (await made.engine.count(status="failed")).number == 7


async def test_runs_are_retried_and_cancelled_by_a_filter() -> None:
    """Only those that it can be done to are counted, and the reason is kept."""
    async with opened() as made:
        await failed(made, 2, tags=["night"])
        await made.engine.start("approval", "x", id="first", tags=["night"])
        await until(made.engine, "first", "approve")
        retried = await over(made, await confirmed(made, "runs.retry", "2", tag="night"))
        assert retried.changed.done == 2
        shown = (await made.get("act/runs.cancel", tag="night", workflow="approval")).text
        assert "1 run will be asked to stop" in shown
        await over(made, await confirmed(made, "runs.cancel", "1", tag="night", workflow="approval"))
        with pytest.raises(sf.errors.RunCancelledError):
            await made.engine.result("first", timeout="10s")
        assert (await made.engine.get("first")).cancel == "cancelled in the dashboard"


async def test_a_time_that_was_said_as_long_ago_does_not_move_before_it_is_confirmed() -> None:
    """What was counted is what is done: "2 hours" becomes a moment in the form."""
    async with opened() as made:
        await failed(made, 1)
        shown = (await made.get("act/runs.purge", status="failed", started_after="2 hours")).text
        assert re.search(r'name="started_after" value="20\d\d-\d\d-\d\dT', shown)


async def test_without_a_filter_or_for_a_status_that_does_not_fit_nothing_is_offered() -> None:
    """All runs of a store are never meant by an address that says nothing."""
    async with opened() as made:
        await failed(made, 1)
        assert "all of them" not in (await made.get("runs")).text
        assert (await made.get("act/runs.purge")).status_code == 400
        assert (await made.get("act/runs.cancel", status="failed")).status_code == 400
        assert (await made.get("act/runs.purge", status="completed")).status_code == 404


async def test_what_could_not_be_changed_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be changed does not keep the others from it."""
    async with opened() as made:
        await failed(made, 3)
        retry = sf.Engine.retry

        async def refuse(engine: sf.Engine, run_id: str, **options: Any) -> Any:
            if run_id == "bad-1":
                raise sf.errors.StoreBusyError(run_id, "it was <b>busy</b>")
            return await retry(engine, run_id, **options)

        monkeypatch.setattr(sf.Engine, "retry", refuse)
        job = await over(made, await confirmed(made, "runs.retry", "3", status="failed"))
        assert (job.changed.done, list(job.changed.failed)) == (2, ["bad-1"])
        page = (await made.get("bulk", id=job.id)).text
        assert "StoreBusyError" in page
        assert "<b>busy" not in page


async def test_work_is_stopped_and_belongs_to_its_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on in the server after the form was sent, until it ends or is stopped, also by the server's own end."""
    async with opened() as made:
        await failed(made, 2)
        never = asyncio.Event()

        async def wait(*_: Any, **__: Any) -> None:
            await never.wait()

        monkeypatch.setattr(bulk, "change_all", wait)
        answer = await confirmed(made, "runs.purge", "2", status="failed")
        job_id = httpx.URL(answer.headers["location"]).params["id"]
        assert 'http-equiv="refresh"' in (await made.get("bulk", id=job_id)).text
        assert job_id in (await made.get("bulk")).text
        made.who = sf.Principal("acme", "eve")
        assert (await made.get("bulk", id=job_id)).status_code == 404
        made.who = sf.Principal("default", "ann")
        made.level = {"runs.stop"}
        assert (await made.act("runs.stop", id=job_id)).status_code == 403
        made.level = "all"
        assert (await made.act("runs.stop", id=job_id)).status_code == 303
        stopped = made.dashboard.jobs._known[job_id].task
        assert stopped is not None
        await asyncio.wait([stopped])
        assert ">stopped<" in (await made.get("bulk", id=job_id)).text
        for _ in range(bulk.MOST_AT_ONCE):
            answer = await confirmed(made, "runs.purge", "2", status="failed")
        assert (await confirmed(made, "runs.purge", "2", status="failed")).status_code == 409
    assert all(job.is_over for job in made.dashboard.jobs._known.values())


CUT_OFF = """
import asyncio, sys
import httpx
import standfast as sf
from standfast.web.dashboard import bulk
from tests.unit.web.dashboard.opened import Opened
from tests.unit.web.dashboard.test_bulk import confirmed

bulk.TELL_EVERY = 0.05

async def main() -> None:
    purge, seen = sf.Engine.purge, 0

    async def some(engine: sf.Engine, run_id: str, **options: object) -> int:
        nonlocal seen
        seen += 1
        if seen > 3:
            await asyncio.Event().wait()  # until this process is killed
        return await purge(engine, run_id, **options)

    sf.Engine.purge = some
    async with sf.Engine(sys.argv[1], drive=False) as engine:
        made = Opened(engine)
        answer = await confirmed(made, "runs.purge", "7", status="failed")
        print(httpx.URL(answer.headers["location"]).params["id"], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_work_whose_process_was_killed_is_told_as_cut_off_and_the_rest_is_done(tmp_path: Path) -> None:
    """By every other process, with how far it came, at once; going on counts only what is left."""
    url = f"sqlite:///{tmp_path}/standfast.db"
    async with sf.Engine(url, workflows=[broken]) as engine:
        made = Opened(engine)
        async with made.dashboard, made.http:
            await failed(made, 7)
            process = await forked_exec(sys.executable, "-c", CUT_OFF, url, stdout=PIPE)
            assert process.stdout is not None
            job_id = (await process.stdout.readline()).decode().strip()
            async with asyncio.timeout(30), engine.space.watch(engine.space.key(bulk.BULK_RECORDS)) as watch:
                while (found := await bulk.read_work(engine.space, job_id)).done < 3:
                    await watch.wait(0.2)
            assert found.state == "under way"
            assert "under way" in (await made.get("bulk", id=job_id)).text
            process.kill()
            await process.wait()
            async with asyncio.timeout(30):
                while (await bulk.read_work(engine.space, job_id)).state == "under way":  # noqa: ASYNC110 -- a death is seen by looking
                    await asyncio.sleep(0.05)
            page = (await made.get("bulk", id=job_id)).text
            assert "Purged 3 of 7 runs" in page
            assert ">cut off<" in page
            assert "Work on many runs was cut off" in (await made.get("")).text
            rest = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', page))
            assert set(rest) == {"status", "ended_before"}
            with pytest.raises(sf.errors.RunFailedError):  # one more fails since then, and is not meant
                await (await engine.start("broken", "x", id="since")).result(timeout="10s")
            done = await over(made, await confirmed(made, "runs.purge", "4", **rest))
            assert done.changed.done == 4
            assert [each.id for each in (await engine.list(status="failed")).runs] == ["since"]


async def test_work_is_stopped_by_a_process_that_does_not_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks by the record, and the one that does it finds that out when it tells how far it is."""
    monkeypatch.setattr(bulk, "TELL_EVERY", 0.01)

    async def wait(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(bulk, "change_all", wait)
    async with opened() as made:
        await failed(made, 2)
        answer = await confirmed(made, "runs.purge", "2", status="failed")
        job_id = httpx.URL(answer.headers["location"]).params["id"]
        other = Opened(made.engine)
        async with other.dashboard, other.http:
            assert (await other.act("runs.stop", id=job_id)).status_code == 303
            async with asyncio.timeout(10):
                while (await bulk.read_work(made.engine.space, job_id)).state != "stopped":  # noqa: ASYNC110 -- told by looking
                    await asyncio.sleep(0.01)
