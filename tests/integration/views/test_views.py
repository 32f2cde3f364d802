"""Views for people on SQLite, libSQL and MariaDB: runs, steps and locks, read with plain SQL past the store."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncmy
import pytest
from asyncmy.cursors import DictCursor
from msgspec import structs

import standfast as sf
from standfast.flows.concurrency_limits import SharedPermits
from standfast.keys import KeyFamily, RecordKey
from standfast.locks.line import presence_of
from standfast.locks.line_records import HEADS, LIMIT, LineKeys, head_value
from standfast.stores import Put
from standfast.stores.address import Address
from standfast.stores.libsql.connection import LibsqlConnection, read_options
from standfast.stores.libsql.hrana import BatchResults, HranaBatch
from standfast.stores.protocol import Decision
from standfast.stores.url import open_store
from standfast.testing.conformance.workflows.ground import eventually
from tests import services

# ruff: noqa: S608 -- names of the test's own

if TYPE_CHECKING:
    from pathlib import Path

REPO = KeyFamily("people-look-at")


@sf.step
async def look(name: str) -> str:
    """A step with a result of known size."""
    return name * 10


@sf.step
async def stumble() -> None:
    """A step that fails."""
    raise LookupError("nothing there")


@sf.workflow
async def trip(ctx: sf.Context, name: str) -> str:
    """A workflow that looks, stumbles, and goes on."""
    seen = await ctx.step(look, name)
    try:
        await ctx.step(stumble)
    except LookupError:
        return seen
    return ""


@sf.workflow
async def nap(ctx: sf.Context, seconds: float) -> None:
    """A workflow that sleeps."""
    await ctx.sleep(seconds)


@sf.workflow(concurrency=sf.Limit(1_000))
async def crowd(ctx: sf.Context) -> None:
    """A workflow of which many are unfinished."""
    await ctx.sleep(1)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("libsql", marks=pytest.mark.services),
        pytest.param("mysql", marks=pytest.mark.services),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of this test's own."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    server, name = services.url(request.param), f"v{uuid.uuid4().hex[:12]}"
    return f"{server}{'&' if '?' in server else '?'}prefix={name}{'_' if request.param == 'libsql' else ''}"


async def rows(url: str, view: str, order: str = "1") -> list[dict[str, Any]]:
    """Read a view past the store, and return its rows by their names."""
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        return await asyncio.to_thread(sqlite_rows, url, f"SELECT * FROM standfast_{view} ORDER BY {order}")
    if scheme == "mysql":
        return await mysql_rows(url, f"SELECT * FROM `{prefix_of(url)}_{view}` ORDER BY {order}")
    options = read_options(Address(url))
    caller, batch = LibsqlConnection(options), HranaBatch()
    names = batch.add(f"SELECT name FROM pragma_table_info('{options.prefix}{view}')")
    found = batch.add(f'SELECT * FROM "{options.prefix}{view}" ORDER BY {order}')
    results = await caller.read(batch)
    await caller.aclose()
    assert isinstance(results, BatchResults)
    assert results.failure() is None, results.failure()
    columns = [str(name) for [name] in results.rows(names)]
    return [dict(zip(columns, row, strict=True)) for row in results.rows(found)]


def sqlite_rows(url: str, statement: str) -> list[dict[str, Any]]:
    """Read with the library of Python, in a process of its own: two libraries on one file lose its locks."""
    import json  # noqa: PLC0415 - used here only
    import subprocess  # noqa: PLC0415 - used here only
    import sys  # noqa: PLC0415 - used here only

    program = (
        "import json, sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.row_factory = sqlite3.Row;"
        "print(json.dumps([dict(row) for row in c.execute(sys.argv[2])]))"
    )
    path = urlsplit(url).path[1:]
    found: list[dict[str, Any]] = json.loads(subprocess.check_output([sys.executable, "-c", program, path, statement]))
    return found


async def mysql_rows(url: str, statement: str) -> list[dict[str, Any]]:
    """Read on a connection of its own."""
    parts = urlsplit(url)
    connection = await asyncmy.connect(
        host=parts.hostname, port=parts.port or 0, user=parts.username, password=parts.password or "",
        database=parts.path[1:],
    )  # fmt: skip
    try:
        cursor = connection.cursor(DictCursor)
        await cursor.execute(statement)
        return list(await cursor.fetchall())
    finally:
        await connection.ensure_closed()


def prefix_of(url: str) -> str:
    """Return what the names of the tables begin with."""
    return url.partition("prefix=")[2].partition("&")[0]


async def test_a_run_is_shown_with_its_history(url: str) -> None:
    """Who, what, when, how it went and how large it was; never the values."""
    async with sf.Engine(url, namespace="trips", tenant="acme", workflows=[trip]) as engine:
        await (await engine.start(trip, "a", id="first")).result(timeout=30)
        [run] = await rows(url, "runs")
        steps = await rows(url, "steps", "place")

    told = {name: run[name] for name in ("namespace", "tenant", "run_id", "status", "owner", "content")}
    assert told == {
        "namespace": "trips", "tenant": "acme", "run_id": "first", "status": "completed", "owner": None,
        "content": "readable",
    }  # fmt: skip
    assert run["workflow"].endswith("trip")
    assert run["started_at"] <= run["ended_at"]
    kept = [step for step in steps if step["kind"] == "step"]
    assert [(bool(step["failed"]), step["size"]) for step in kept] == [(False, 12), (True, 0)]
    assert [step["place"] for step in steps] == list(range(len(steps)))
    assert all(run["started_at"] <= step["at"] <= run["ended_at"] for step in steps)


async def test_a_run_that_sleeps_is_shown_with_what_it_waits_for(url: str) -> None:
    """And until when."""

    async def sleeps() -> bool:
        return [run["status"] for run in await rows(url, "runs")] == ["suspended"]

    async with sf.Engine(url, workflows=[nap]) as engine:
        await engine.start(nap, 3_600.0, id="tired")
        await eventually(sleeps)
        [run] = await rows(url, "runs")

    assert run["waits_for"]
    assert run["ended_at"] is None
    assert run["looked_at_by"] > run["changed_at"]


async def test_a_lock_is_shown_with_its_holder_and_its_waiters(url: str) -> None:
    """A row for each holder; its fence is the one that the holder was given."""
    async with sf.open(url, namespace="n") as space:

        async def waits() -> bool:
            return [lock["waiters"] for lock in await rows(url, "locks")] == [1]

        async with space.mutex(REPO("/srv/a", "main")).hold(note="nightly") as hold:
            waiting = asyncio.create_task(space.mutex(REPO("/srv/a", "main")).hold().__aenter__())
            await eventually(waits)
            [lock] = await rows(url, "locks")
            waiting.cancel()
            await asyncio.wait({waiting})

    assert (lock["namespace"], lock["key"], lock["kind"]) == ("n", "people-look-at(/srv/a, main)", "mutex")
    assert (lock["fence"], lock["note"], str(lock["permits"])) == (hold.fence, "nightly", "1")
    assert lock["holder"]
    assert lock["since"]


async def test_everyone_who_shares_a_semaphore_is_shown(url: str) -> None:
    """With fences of their own."""
    async with (
        sf.open(url) as space,
        sf.open(url) as other,
        space.semaphore("pool", permits=3).hold() as one,
        other.semaphore("pool", permits=3).hold() as two,
    ):
        locks = await rows(url, "locks", "fence")

    assert [(lock["key"], str(lock["permits"])) for lock in locks] == [("pool", "3")] * 2
    assert [lock["fence"] for lock in locks] == sorted([one.fence, two.fence])


async def test_everyone_who_has_a_place_of_a_large_limit_is_shown(url: str) -> None:
    """Those as well that the head of the line only counts, each with its fence."""
    async with sf.Engine(url, workflows=[crowd], drive=False) as engine:
        for number in range(11):
            await engine.start(crowd, id=f"run-{number:02}")
        found = await rows(url, "locks", "holder")
    assert [each["holder"] for each in found] == [f"run-{number:02}" for number in range(11)]
    assert {(str(each["permits"]), each["content"], each["held_by"] == each["holder"]) for each in found} == {
        ("1000", "readable", True)
    }
    assert len({each["fence"] for each in found}) == 11
    assert all(each["since"] for each in found)


async def test_requests_that_their_limit_only_counts_are_shown_until_they_fall(url: str) -> None:
    """Each has a row, with the presence that it lives by; once that is not counted any more it has none."""
    address = (LIMIT, "room", "name")
    async with sf.open(url) as space, sf.open(url) as other:
        ours, theirs = [
            SharedPermits(each, address, "the limit", 1_000, "f.work", lambda: None) for each in (space, other)
        ]
        held = [(each, (await each.try_take())[1]) for each in (*[ours] * 9, *[theirs] * 3)]
        found = await rows(url, "locks")
        assert len({each["fence"] for each in found}) == len({each["holder"] for each in found}) == 12
        key = LineKeys(space, address).head
        head = HEADS.decode((await space.read(key)).records[key].value)
        [gone] = {each["held_by"] for each in found} - {presence_of(each.entry) for each in head.holders}
        after = structs.replace(
            head, unseen=1, unseen_of={name: 1 for name in head.unseen_of if name != gone}, fallen=(gone,)
        )
        await space.update([key], lambda seen: Decision(None, (Put(key, head_value(after), seen.version(key)),)))
        assert len(await rows(url, "locks")) == 9
        for permits, each in held:
            permits.give_back(each)
        for permits in (ours, theirs):
            await permits.aclose()


async def test_names_of_any_kind_are_shown(url: str) -> None:
    """Also those with a NUL, and those that look like the end of a part."""
    names = ["naïve ☃", "nul\x00in it", "\\000\x01", "\x00", "a\x01b", "\\u0000", 'quo"te', "'"]
    async with sf.open(url) as space:
        for name in names:
            async with space.mutex(name).hold():
                [lock] = await rows(url, "locks")
                assert lock["key"] == name.replace("\x00", "␀")


async def test_sealed_values_are_shown_as_sealed(url: str) -> None:
    """Keys are there to see, nothing else is."""
    keyring = sf.admin.Keyring({"k": b"k" * 32})
    async with sf.Engine(sf.open(url, namespace="hidden", encryption=keyring), workflows=[trip]) as engine:
        await (await engine.start(trip, "a", id="first")).result(timeout=30)
    [run] = await rows(url, "runs")
    steps = await rows(url, "steps")

    assert {name for name, value in run.items() if value is not None} == {"namespace", "tenant", "run_id", "content"}
    assert (run["run_id"], run["content"]) == ("first", "sealed")
    assert {step["content"] for step in steps} == {"sealed"}


VALUES = [
    b"", b"\xff\xfe", b"1:", b"1:nonsense", b"2:{}", b"{}", b"1:[]", b"1:null", b"sealed1:k:", b":", b"1:{}",
    b'1:{"marks":7,"holders":{"a":1},"status":[],"changed_at":"soon"}',
    b'1:{"marks":[7,{"at":1e300,"failure":"x","kind":{}}],"holders":[3,{"slot":{},"granted_at":-5}],"changed_at":1e99}',
    b'1:{"status":"\\ud800","rules":5,"holders":[{"entry":[]}]}',
]  # fmt: skip


async def test_no_value_breaks_a_view(url: str) -> None:
    """Whatever lies at the keys of runs, steps and locks."""
    store = await open_store(url)
    try:
        for number, value in enumerate(VALUES):
            keys = [
                RecordKey("n", "t", "life", str(number)), RecordKey("n", "t", "run", str(number)),
                RecordKey("n", "t", "step", str(number), "not a number"), RecordKey("n", "t", "life"),
                RecordKey("n", "t", "line", "1", "", str(number)), RecordKey("n", "life", "life", "life", str(number)),
            ]  # fmt: skip
            seen = await store.read(*keys)
            await store.commit(*(Put(key, value, seen.version(key)) for key in keys))

        runs = await rows(url, "runs")
        assert {run["run_id"] for run in runs} == {str(number) for number in range(len(VALUES))}
        assert {run["content"] for run in runs} == {"readable", "sealed", "unreadable"}
        assert len(await rows(url, "steps")) >= len(VALUES)
        assert len(await rows(url, "locks")) >= len(VALUES)
    finally:
        await store.aclose()


async def test_what_has_expired_is_not_shown(url: str) -> None:
    """Nor what other kinds of records hold."""
    store = await open_store(url)
    try:
        at = (await store.read(RecordKey("n", "x"))).at
        await store.commit(Put(RecordKey("n", "t", "life", "gone"), b"1:{}", expires_at=at))

        assert await rows(url, "runs") == []
    finally:
        await store.aclose()
