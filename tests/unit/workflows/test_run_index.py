"""Lists and counts of runs: by what they are and when, in the order of time, at the cost of what is shown."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Raw

import standfast as sf
from standfast.clock import MICROSECONDS, Instant
from standfast.errors import DeclarationError, InvalidArgumentError
from standfast.locks.run_locks import LISTING
from standfast.stores.protocol import Delete, Put
from standfast.workflows import lanes, run_index
from standfast.workflows.records import HEADERS, RUN_STATES, Header, RunKeys, RunState, listing
from standfast.workflows.run_index import RunFilter, chosen_by, count_runs, list_runs, oldest_ended
from tests.unit.workflows.engines import acts, collects, engine, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.space import Space
    from standfast.stores.protocol import Snapshot

DAY = datetime(2026, 1, 1, tzinfo=UTC)


def instant(minute: int) -> Instant:
    """Return an instant of that day."""
    return Instant(int((DAY + timedelta(minutes=minute)).timestamp()) * MICROSECONDS)


async def write(space: Space, run_id: str, status: Any, minute: int, **facts: Any) -> None:
    """Write a run that has been so since a minute of the day, and where it is listed."""
    name, tags = facts.get("workflow", "w"), tuple(facts.get("tags", ()))
    header = Header(name, "", Raw(b"{}"), instant(facts.get("started", 0)), tags=tags)
    keys, state = RunKeys(space, run_id), RunState(status, name, "", instant(minute))
    listed = listing(keys, state, header) if facts.get("listed", True) else []
    if facts.get("old"):  # a version has written it that did not say when runs were started
        listed = [Put(change.key, LISTING) for change in listed if change.key.parts[2] in ("runs", "tagged")]
    await space.commit(Put(keys.header, HEADERS.encode(header)), Put(keys.state, RUN_STATES.encode(state)), *listed)


@pytest.fixture
async def space(url: str) -> AsyncIterator[Space]:
    """A space whose index is complete."""
    async with sf.open(url) as opened:
        await run_index.begin_index(opened)
        yield opened


async def ids(space: Space, *, size: int = 100, newest_first: bool = False, **filters: Any) -> list[str]:
    """Return the runs of all pages."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = await list_runs(space, chosen_by(**filters), limit=size, newest_first=newest_first, after=after)
        found += [run.id for run in page.runs]
        if (after := page.next) is None:
            return found


# --- lists ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_list_is_in_the_order_of_time_over_all_workflows_and_statuses(
    space: Space, size: int, *, newest_first: bool
) -> None:
    """Whatever the size of a page, and whatever ids say."""
    order = ["m", "a", "z", "k", "b", "y", "c"]
    for minute, run_id in enumerate(order):
        status = ("failed", "completed", "suspended")[minute % 3]
        await write(space, run_id, status, minute, workflow=f"w{minute % 2}")
    assert await ids(space, size=size, newest_first=newest_first) == (order[::-1] if newest_first else order)


async def test_a_list_is_narrowed_by_all_that_is_said(space: Space) -> None:
    """By status, workflow, tag, start and end, alone and together."""
    await write(space, "a", "failed", 10, started=1, tags=["red"])
    await write(space, "b", "completed", 20, started=2, tags=["red", "blue"], workflow="v")
    await write(space, "c", "failed", 30, started=25)
    await write(space, "d", "suspended", 40, started=3, tags=["red"])
    at = [DAY + timedelta(minutes=minute) for minute in range(60)]

    assert await ids(space, status="failed") == ["a", "c"]
    assert await ids(space, workflow="w") == ["a", "c", "d"]
    assert await ids(space, tag="red", newest_first=True) == ["d", "b", "a"]
    assert await ids(space, tag="red", workflow="w", status=["failed", "completed"]) == ["a"]
    assert await ids(space, ended_after=at[20]) == ["b", "c"]
    assert await ids(space, ended_before=at[20]) == ["a"]
    assert await ids(space, started_after=at[2], started_before=at[25]) == ["b", "d"]
    assert await ids(space, started_after=at[2]) == ["b", "d", "c"]
    assert await ids(space, started_before=at[4], newest_first=True, tag="red") == ["d", "b", "a"]
    assert await ids(space, started_before=at[4], status=["failed", "suspended"], workflow="w") == ["a", "d"]
    assert await ids(space, started_after=at[1], started_before=at[4], ended_before=at[20]) == ["a"]
    assert await ids(space, started_after=at[1], ended_after=at[20], ended_before=at[31]) == ["b", "c"]
    assert await ids(space, started_after=at[3], status="failed") == ["c"]
    assert await ids(space, status=[]) == []


async def test_a_cursor_survives_what_is_written_meanwhile(space: Space) -> None:
    """The next page goes on behind the last one, though the run that ended it is gone and others came."""
    for minute in range(6):
        await write(space, f"r{minute}", "failed", minute)
    chosen = RunFilter(status=frozenset({"failed"}))
    first = await list_runs(space, chosen, limit=2, newest_first=True)
    await write(space, "new", "failed", 50)
    keys = [RunKeys(space, "r4").state, space.key("runs", "failed", "w", f"{instant(4):016d}", "r4")]
    seen = await space.read(*keys)
    await space.commit(*(Delete(key, seen.version(key)) for key in keys))
    second = await list_runs(space, chosen, limit=2, newest_first=True, after=first.next)

    assert [run.id for run in (*first.runs, *second.runs)] == ["r5", "r4", "r3", "r2"]


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("most", [3, 10_000])
async def test_runs_by_their_start_are_in_the_order_of_their_start(
    space: Space, monkeypatch: pytest.MonkeyPatch, size: int, most: int, *, newest_first: bool
) -> None:
    """Those that took minutes, those that took no time and those that still wait; whatever a page may pass over."""
    monkeypatch.setattr(lanes, "MOST_SKIPPED", most)
    monkeypatch.setattr(lanes, "PAGE", 4)
    monkeypatch.setattr(lanes, "BATCH", 2)
    for minute in range(30):
        status, name = ("failed", "completed", "suspended")[minute % 3], f"w{minute % 2}"
        took = 0 if minute % 4 else 40 - minute
        tags = ["red"] if minute % 5 else []
        await write(space, f"r{minute:02}", status, minute + took, started=minute, workflow=name, tags=tags)
    times: Any = {"started_after": DAY + timedelta(minutes=7), "started_before": DAY + timedelta(minutes=22)}

    def expected(keep: Any) -> list[str]:
        found = [f"r{minute:02}" for minute in range(7, 22) if keep(minute)]
        return found[::-1] if newest_first else found

    async def listed(**filters: Any) -> list[str]:
        found = await ids(space, size=size, newest_first=newest_first, **times, **filters)
        count = await count_runs(space, chosen_by(**times, **filters))
        assert count.number == len(found) or count.has_more
        assert most == 3 or not count.has_more
        return found

    assert await listed() == expected(lambda _: True)
    assert await listed(status="failed") == expected(lambda minute: minute % 3 == 0)
    assert await listed(workflow="w1") == expected(lambda minute: minute % 2)
    assert await listed(tag="red") == expected(lambda minute: minute % 5)
    assert await listed(tag="red", status="suspended") == expected(lambda minute: minute % 5 and minute % 3 == 2)
    assert await listed(tag="red", workflow="w0") == expected(lambda minute: minute % 5 and minute % 2 == 0)


@pytest.mark.parametrize("newest_first", [False, True])
async def test_runs_of_one_moment_are_in_the_order_of_their_start_whatever_they_took(
    space: Space, monkeypatch: pytest.MonkeyPatch, *, newest_first: bool
) -> None:
    """Just below a second, just above, and by a clock that went back; in pages of one."""
    monkeypatch.setattr(lanes, "PAGE", 2)
    monkeypatch.setattr(lanes, "BATCH", 1)
    monkeypatch.setattr(lanes, "MOST_SKIPPED", 2)
    for number in range(40):
        start = instant(1) + 100_000 * number
        took = (0, 999_999, 1_000_000, -5, 3_000_000, 400_000)[number % 6]
        header = Header("w", "", Raw(b"{}"), Instant(start))
        keys, state = RunKeys(space, f"r{number:02}"), RunState("failed", "w", "", Instant(start + took))
        puts = Put(keys.header, HEADERS.encode(header)), Put(keys.state, RUN_STATES.encode(state))
        await space.commit(*puts, *listing(keys, state, header))
    bounds = [datetime.fromtimestamp((instant(1) + 100_000 * number) / MICROSECONDS, UTC) for number in (5, 31)]
    found = await ids(space, size=1, newest_first=newest_first, started_after=bounds[0], started_before=bounds[1])

    expected = [f"r{number:02}" for number in range(5, 31)]
    assert found == (expected[::-1] if newest_first else expected)


async def test_pages_by_start_end_though_more_ended_in_a_second_than_a_page_passes_over(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page gets behind the one before."""
    monkeypatch.setattr(lanes, "MOST_SKIPPED", 5)
    monkeypatch.setattr(lanes, "PAGE", 2)
    for number in range(30):
        await write(space, f"r{number:02}", "cancelled", 20, started=number % 3)
    await write(space, "short", "cancelled", 20, started=20)

    assert await ids(space, size=1, newest_first=True, started_after=DAY + timedelta(minutes=3)) == ["short"]


async def test_a_window_of_starts_reads_what_is_in_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many runs were started before and after, and whether those took long or not."""
    for minute in range(300):
        await write(space, f"r{minute:03}", "completed", minute + (minute % 2) * 100, started=minute)
    read: list[int] = []
    scan = space.scan

    async def counted(*args: Any, **options: Any) -> Snapshot:
        page = await scan(*args, **options)
        read.append(len(page.records))
        return page

    monkeypatch.setattr(space, "scan", counted)
    for first in (0, 150, 290):
        window: Any = {
            "started_after": DAY + timedelta(minutes=first),
            "started_before": DAY + timedelta(minutes=first + 10),
        }
        page = await list_runs(space, chosen_by(**window), newest_first=True)
        assert [run.id for run in page.runs] == [f"r{minute:03}" for minute in range(first + 9, first - 1, -1)]
        assert (await count_runs(space, chosen_by(**window))).number == 10
    assert sum(read) <= 120


async def test_a_filter_that_no_index_serves_ends_its_page_early(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes over a bounded number of runs, and says where to go on though it has found nothing."""
    monkeypatch.setattr(run_index, "MOST_PASSED", 10)
    monkeypatch.setattr(run_index, "COUNTED_PAGES", 10)
    monkeypatch.setattr(run_index, "BATCH", 5)
    for minute in range(40):
        await write(space, f"r{minute:02}", "completed", minute, workflow="v" if minute else "w", tags=["red"])
    page = await list_runs(space, chosen_by(workflow="w", tag="red"), newest_first=True)

    assert (page.runs, page.next is not None) == ((), True)
    assert await ids(space, newest_first=True, workflow="w", tag="red") == ["r00"]
    count = await count_runs(space, chosen_by(workflow="x", tag="red"))
    assert (count.number, count.has_more) == (0, False)


async def test_a_page_reads_what_it_shows_however_much_there_is(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many runs the first page of one status reads about as many records as it has runs."""
    for minute in range(300):
        await write(space, f"r{minute:03}", "failed" if minute % 10 else "completed", minute)
    read: list[int] = []
    scan, one = space.scan, space.read

    async def counted(*args: Any, **options: Any) -> Snapshot:
        page = await scan(*args, **options)
        read.append(len(page.records))
        return page

    async def counted_read(*keys: Any) -> Snapshot:
        seen = await one(*keys)
        read.append(len(seen.records))
        return seen

    monkeypatch.setattr(space, "scan", counted)
    monkeypatch.setattr(space, "read", counted_read)
    page = await list_runs(space, RunFilter(status=frozenset({"failed"})), limit=10, newest_first=True)
    assert len(page.runs) == 10
    assert sum(read) <= 60


@pytest.mark.parametrize("after", ["a", "x/y", "", "99999999999999999/a", "-1/a"])
async def test_what_no_page_has_said_is_refused_as_a_cursor(space: Space, after: str) -> None:
    """With the way out."""
    with pytest.raises(InvalidArgumentError, match="next"):
        await list_runs(space, RunFilter(), after=after)


async def test_what_cannot_be_a_filter_is_refused(space: Space) -> None:
    """A status that there is not, and a time without a zone."""
    with pytest.raises(InvalidArgumentError, match="timed_out"):
        await ids(space, status="broken")
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        await count_runs(space, RunFilter(), most=0)
    with pytest.raises(InvalidArgumentError, match="time zone"):
        await ids(space, started_after=datetime(2026, 1, 1))  # noqa: DTZ001 -- that is the point


async def test_the_event_loop_is_not_held_up_by_a_long_list(space: Space) -> None:
    """Between two batches others have their turn."""
    for minute in range(200):
        await write(space, f"r{minute:03}", "failed", minute)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    began = time.monotonic()
    await list_runs(space, RunFilter(), limit=200)
    task.cancel()
    assert turns >= 4, f"{turns} turns in {time.monotonic() - began:.3f} s"


# --- runs that are driven -------------------------------------------------------------------------------------------


async def test_a_run_is_found_whether_a_worker_drives_it_or_not(url: str) -> None:
    """As pending, running, suspended and completed, and nowhere else."""
    async with engine(url, drive=False) as client:
        await client.start(collects, 1, id="r", tags=["red"])
        wanted: Any
        for wanted in ({}, {"tag": "red"}, {"workflow": "collects"}):
            assert [run.status for run in (await client.list(**wanted)).runs] == ["pending"]
        async with engine(url, linger=60) as driver:
            await until(driver, "r", "running")
            for wanted in ({}, {"tag": "red"}, {"workflow": "collects"}, {"status": "running"}):
                assert [run.status for run in (await client.list(**wanted)).runs] == ["running"]
                assert (await client.count(**wanted)).number == 1
            for wanted in ({"tag": "blue"}, {"workflow": "acts"}, {"status": "pending"}):
                assert (await client.list(**wanted)).runs == ()
                assert (await client.count(**wanted)).number == 0
        assert [run.status for run in (await client.list(status="running")).runs] == ["running"]  # handed back
        async with engine(url) as driver:
            await driver.signal("r", "item", 1)
            await driver.result("r")
        assert [run.status for run in (await client.list(tag="red")).runs] == ["completed"]


async def test_a_run_has_no_more_tags_than_it_is_listed_under(url: str) -> None:
    """Each of them finds it; more are refused before anything is written."""
    async with engine(url, drive=False) as client:
        tags = [f"t{number}" for number in range(10)]
        await client.start(acts, [], id="r", tags=tags)
        assert [len((await client.list(tag=tag)).runs) for tag in tags] == [1] * 10
        with pytest.raises(DeclarationError, match="at most 10"):
            await client.start(acts, [], id="s", tags=[*tags, "more"])


# --- counts ---------------------------------------------------------------------------------------------------------


async def test_a_count_stops_at_its_bound_and_says_so(space: Space) -> None:
    """Over all workflows, of one, with a tag and within a time."""
    for minute in range(25):
        await write(space, f"r{minute:02}", "failed", minute, workflow=f"w{minute % 2}", tags=["red"])
    within: dict[str, Any] = {"ended_after": DAY + timedelta(minutes=5), "ended_before": DAY + timedelta(minutes=15)}

    async def count(most: int = 1_000, **filters: Any) -> str:
        return str(await count_runs(space, chosen_by(**filters), most=most))

    assert [await count(most) for most in (10, 24, 25, 26)] == ["10+", "24+", "25", "25"]
    assert await count(status="failed", workflow="w0") == "13"
    assert await count(tag="red", most=20) == "20+"
    assert await count(**within) == "10"
    assert await count(workflow="w1", **within) == "5"
    assert await count(tag="red", workflow="w1") == "12"
    assert await count(status="completed") == "0"
    assert str(run_index.RunCount(1_000, has_more=True)) == "1,000+"


async def test_the_oldest_that_ended_come_first_for_retention(space: Space) -> None:
    """Of one status, of each workflow, until an instant; deleting what was shown does no harm."""
    for minute in range(6):
        await write(space, f"r{minute}", "failed", minute, workflow=f"w{minute % 2}")
    await write(space, "kept", "completed", 0)
    found = [run async for page in oldest_ended(space, "failed", before=instant(5)) for run in page]

    assert [(run.id, run.workflow) for run in found] == [
        ("r0", "w0"), ("r2", "w0"), ("r4", "w0"), ("r1", "w1"), ("r3", "w1"),
    ]  # fmt: skip
    assert {run.ended_at for run in found} == {instant(minute) for minute in range(5)}


# --- stores that are older than the index ---------------------------------------------------------------------------


async def test_runs_of_an_older_store_are_indexed_by_a_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until that is done, lists read all runs and show the same."""
    monkeypatch.setattr(run_index, "BATCH", 4)
    async with sf.open(url) as space:
        for minute in range(10):
            status = "failed" if minute % 2 else "suspended"
            await write(space, f"r{minute}", status, minute, tags=["red"], listed=False)
        assert not await run_index.is_complete(space)
        assert await ids(space, status="failed", tag="red", size=2) == ["r1", "r3", "r5", "r7", "r9"]
        assert (await count_runs(space, chosen_by(status="failed"))).number == 5
        async with engine(url), space.watch(space.key("indexed")) as watch:
            while not await run_index.is_complete(space):
                await watch.wait(0.1)
        assert len((await space.scan(*space.key("runs").within(), limit=100)).records) == 10
        assert await ids(space, status="failed", tag="red", size=2) == ["r1", "r3", "r5", "r7", "r9"]


async def test_runs_that_an_older_version_listed_are_indexed_by_their_start(url: str) -> None:
    """Until a worker has done that, lists by start read all runs and show the same."""
    window: dict[str, Any] = {"started_after": DAY + timedelta(minutes=2), "started_before": DAY + timedelta(minutes=7)}
    async with sf.open(url) as space:
        done = lanes.INDEXINGS.encode(lanes.Indexing(is_done=True))
        await space.commit(Put(space.key("indexed", "runs"), done))
        for minute in range(10):
            took = 100 if minute % 2 else 0
            await write(space, f"r{minute}", "failed", minute + took, started=minute, old=minute % 3 == 0)
            begun = space.key("begun", "failed", "w", f"{instant(minute):016d}", f"r{minute}")
            if version := (await space.read(begun)).version(begun):
                await space.commit(Delete(begun, version))
        assert await run_index.is_complete(space)
        assert not await run_index.is_complete(space, by_start=True)
        assert await ids(space, **window) == ["r2", "r3", "r4", "r5", "r6"]
        assert (await count_runs(space, chosen_by(**window))).number == 5
        async with engine(url), space.watch(space.key("indexed")) as watch:
            while not await run_index.is_complete(space, by_start=True):
                await watch.wait(0.1)
        assert len((await space.scan(*space.key("begun").within(), limit=100)).records) == 5
        values = [
            record.value for record in (await space.scan(*space.key("runs").within(), limit=100)).records.values()
        ]
        assert LISTING not in values
        assert await ids(space, **window, size=2, newest_first=True) == ["r6", "r5", "r4", "r3", "r2"]
        assert (await count_runs(space, chosen_by(**window))).number == 5


async def test_indexing_goes_on_where_it_was_interrupted(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at the last batch that was done, and runs that moved in between are not listed twice."""
    monkeypatch.setattr(run_index, "BATCH", 2)
    for minute in range(6):
        await write(space, f"r{minute}", "failed", minute, listed=False)
    marker = space.key("indexed", "runs")
    half = lanes.INDEXINGS.encode(lanes.Indexing(after="r3"))
    await space.commit(Put(marker, half, (await space.read(marker)).version(marker)))

    assert await run_index.index_existing(space, pause=0) == 2  # by start all is done
    assert await ids(space) == ["r4", "r5"]
    assert await run_index.index_existing(space, pause=0, again=True) == 4
    assert await ids(space) == [f"r{minute}" for minute in range(6)]
    assert await run_index.index_existing(space, pause=0) == 0


async def test_a_run_that_moves_while_it_is_indexed_is_not_left_listed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What moves it looks again, and deletes the listing that came meanwhile."""
    async with engine(url, drive=False) as client, sf.open(url) as space:
        run = await client.start(collects, 1, delay=1e6)
        listed = space.key("runs", "pending", "collects", f"{(await client.get(run.id)).changed_at:016d}", run.id)
        await space.commit(Delete(listed, (await space.read(listed)).version(listed)))  # as an older version left it
        commit = client.space.commit

        async def late(*changes: Any, **options: Any) -> Any:
            monkeypatch.setattr(client.space, "commit", commit)
            assert await run_index._index(space, RunKeys(space, run.id))
            return await commit(*changes, **options)

        monkeypatch.setattr(client.space, "commit", late)
        await client.cancel(run.id, force=True)

        assert [each.status for each in (await client.list()).runs] == ["cancelled"]
        assert (await client.count(status="pending")).number == 0


async def test_a_new_store_needs_no_indexing(url: str) -> None:
    """An engine that finds no runs says that the index is complete, also one that drives nothing."""
    async with engine(url, drive=False) as client:
        assert await run_index.is_complete(client.space)
        run = await client.start(acts, ["x"])
        assert [each.id for each in (await client.list(newest_first=True)).runs] == [run.id]
