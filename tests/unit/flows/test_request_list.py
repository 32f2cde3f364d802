"""Lists and counts of requests: by what was decided and how they are, at the cost of what is shown."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import standfast as sf
from standfast.clock import MICROSECONDS, Instant
from standfast.errors import InvalidArgumentError, RequestCancelledError, RequestFailedError
from standfast.flows import request_list
from standfast.flows.records import NOTHING, REQUESTS, RequestKeys, RequestRecord
from standfast.flows.request_list import UnseenEnds, count_requests, list_requests
from standfast.flows.server import SETTLE_EVERY, keep_index
from standfast.space import Space
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.protocol import Delete, Put
from standfast.testing import simulate
from standfast.workflows import lanes
from tests.conformance.arbiter_visits import fresh_name
from tests.conformance.dispatch_stage import SOON, Stage, arrival, result

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.request import Status
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

BEGAN = 1_750_000_000 * MICROSECONDS


@pytest.fixture
async def space() -> AsyncIterator[sf.Space]:
    """A space whose index of requests is complete."""
    async with sf.open("memory://") as opened:
        await request_list.begin_index(opened)
        yield opened


async def write(
    space: sf.Space, number: int, status: Status, *, tenant: str = "acme", listed: bool = True, **more: Any
) -> str:
    """Write a request that came so many seconds after the others began."""
    facts: dict[str, Any] = {"verdict": "run", "policy": "queue"} | more
    flow, action = facts.pop("flow", "chat"), facts.pop("action", "respond")
    record = RequestRecord(flow, action, status, Instant(BEGAN + number * MICROSECONDS), **facts)
    keys = RequestKeys(space, tenant, f"q-{number:06d}")
    puts = keys.listing(record) if listed else ()
    await space.commit(Put(keys.record, REQUESTS.encode(record)), *puts)
    return keys.id


async def numbers(space: sf.Space, tenant: str = "acme", **filters: Any) -> list[int]:
    """Return the numbers of the requests that are meant, over all pages."""
    found, after = list[int](), None
    while True:
        page = await list_requests(space, tenant, limit=3, after=after, **filters)
        found += [int(each.id.removeprefix("q-")) for each in page.requests]
        after = page.next
        if after is None:
            return found


async def entries(scope: Scope) -> set[RecordKey]:
    """Return the keys of the whole index."""
    return set((await scope.scan(*scope.key("requests").within(), limit=1_000)).records)


async def expected(scope: Scope) -> set[RecordKey]:
    """Return the keys that the index ought to have, by the records of all requests."""
    records = (await scope.scan(*scope.key("request").within(), limit=1_000)).records
    keys = [(RequestKeys(scope, *key.parts[-2:]), REQUESTS.decode(each.value)) for key, each in records.items()]
    return {entry for each, record in keys for entry in each.listed(record)}


@pytest.mark.parametrize("most", [5, 50_000])
async def test_those_of_one_user_are_found_without_reading_the_others(
    space: sf.Space, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """What the index does not say of entries of older versions is read; a page passes over a bounded number."""
    monkeypatch.setattr(lanes, "MOST_SKIPPED", most)
    monkeypatch.setattr(lanes, "PAGE", 4)
    for number in range(60):
        status: Status = "failed" if number % 2 else "completed"
        await write(space, number, status, user="eve" if number in {3, 31} else "bob")
    record = RequestRecord("chat", "respond", "failed", Instant(BEGAN + 61 * MICROSECONDS), user="eve", verdict="run")
    keys = RequestKeys(space, "acme", "q-000061")
    await space.commit(Put(keys.record, REQUESTS.encode(record)), *(Put(key, NOTHING) for key in keys.listed(record)))
    read: list[int] = []
    one = space.read

    async def counted(*wanted: RecordKey) -> Snapshot:
        read.append(len(wanted))
        return await one(*wanted)

    monkeypatch.setattr(space, "read", counted)

    assert await numbers(space, user="eve") == [61, 31, 3]
    assert sum(read) < 40 if most < 60 else sum(read) < 10


@pytest.mark.parametrize(
    ("filters", "meant"),
    [
        ({}, [5, 4, 3, 2, 1, 0]),
        ({"status": ["failed"]}, [4, 1]),
        ({"status": ["failed", "refused"]}, [4, 3, 1]),
        ({"status": ["running"]}, [5]),
        ({"verdict": "queued"}, [3, 2]),
        ({"flow": "shop"}, [4]),
        ({"action": "respond"}, [5, 3, 2, 1, 0]),
        ({"status": ["failed"], "flow": "chat", "action": "respond", "verdict": "run"}, [1]),
        ({"user": "eve"}, [2]),
        ({"received_before": datetime.fromtimestamp(1_750_000_002, UTC)}, [1, 0]),
        ({"received_after": datetime.fromtimestamp(1_750_000_004, UTC)}, [5, 4]),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_indexed", [True, False], ids=["indexed", "older"])
async def test_requests_are_found_by_what_they_are(
    space: sf.Space, filters: dict[str, Any], meant: list[int], *, is_indexed: bool
) -> None:
    """In the order in which they came, the newest first, over all pages; a store without an index answers alike."""
    if not is_indexed:
        marker = space.key("indexed", "requests")
        await space.commit(Delete(marker, (await space.read(marker)).version(marker)))
    await write(space, 0, "completed", listed=is_indexed)
    await write(space, 1, "failed", listed=is_indexed)
    await write(space, 2, "completed", verdict="queued", user="eve", listed=is_indexed)
    await write(space, 3, "refused", verdict="queued", listed=is_indexed)
    await write(space, 4, "failed", flow="shop", action="order", listed=is_indexed)
    await write(space, 5, "running", listed=is_indexed)
    await write(space, 9, "failed", tenant="other", listed=is_indexed)

    assert await numbers(space, **filters) == meant
    assert str(await count_requests(space, "acme", **filters)) == str(len(meant))


async def test_a_count_stops_at_its_bound(space: sf.Space) -> None:
    """It says that there are more."""
    for number in range(5):
        await write(space, number, "failed")

    assert str(await count_requests(space, "acme", status=["failed"], most=3)) == "3+"
    assert str(await count_requests(space, "acme", status=["failed"], most=5)) == "5"


class CountingScope:
    """Counts the records that a space reads."""

    def __init__(self, space: sf.Space) -> None:
        self._space, self.records = space, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._space, name)

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read some."""
        self.records += len(keys)
        return await self._space.read(*keys)

    async def scan(self, *bounds: RecordKey, **options: Any) -> Snapshot:
        """Read a range."""
        seen = await self._space.scan(*bounds, **options)
        self.records += len(seen.records)
        return seen


@pytest.mark.parametrize("filters", [{}, {"status": ["failed"]}, {"action": "respond"}, {"verdict": "run"}], ids=str)
async def test_a_page_costs_what_it_shows(space: sf.Space, filters: dict[str, Any]) -> None:
    """However many others there are: a store with a hundred times as many reads no more records."""
    costs = list[int]()
    for first, last in ((0, 60), (60, 6_000)):
        for number in range(first, last):
            await write(space, number, "completed", action="other", verdict="queued")
        for number in range(last, last + 20):
            await write(space, 10_000 + number, "failed")
        counting: Any = CountingScope(space)
        assert len((await list_requests(counting, "acme", limit=10, **filters)).requests) == 10
        costs.append(counting.records)

    assert costs[1] <= costs[0] + 10


@pytest.mark.parametrize("arbiter", ["local", "shared"])
async def test_the_index_is_what_the_records_say(arbiter: Any) -> None:
    """Whatever becomes of requests: attended, durable, collected, queued, failed, superseded, cancelled, refused."""
    stage = Stage()
    stage.failures["bad"] = 1
    async with sf.Dispatcher("memory://", [stage.flow], arbiter=arbiter) as server:
        stage.hold("a", "b")
        kept = [await server.dispatch(arrival("queued", "a", durable=True))]
        await stage.until_begun("a")
        kept.append(await server.dispatch(arrival("queued", "c", durable=True)))
        kept.append(await server.dispatch(arrival("debounced", "d")))
        kept.append(await server.dispatch(arrival("latest", "b")))
        kept += [await server.dispatch(arrival("latest", name)) for name in ("e", "f")]
        kept.append(await server.dispatch(arrival("limited", "g", idempotency_key="g")))
        kept.append(await server.dispatch(arrival("limited", "h", idempotency_key="h")))
        kept.append(await server.dispatch(arrival("free", "bad", idempotency_key="bad")))
        assert await entries(server.engine.space) == await expected(server.engine.space)
        stage.release("a", "b")
        for handle in kept:
            try:
                await handle.result(SOON)
            except sf.errors.StandfastError:
                continue

        assert await entries(server.engine.space) == await expected(server.engine.space)
        listed = (await list_requests(server.engine.space, "acme")).requests
        assert all(each.has_ended and each.policy and each.verdict for each in listed)


async def test_the_verdict_and_the_policy_are_stored() -> None:
    """What was decided when a request came, for each that has a record."""
    stage = Stage()
    async with sf.Dispatcher("memory://", [stage.flow], arbiter="shared") as server:
        stage.hold("a", "g")
        handles = [await server.dispatch(arrival("queued", name)) for name in ("a", "b")]
        handles.append(await server.dispatch(arrival("free", "c", durable=True)))
        handles.append(await server.dispatch(arrival("debounced", "d")))
        handles += [await server.dispatch(arrival("limited", name, idempotency_key=name)) for name in ("g", "h")]
        stage.release("a", "g")
        for handle in handles:
            await result(handle)
        listed = {each.id: each for each in (await list_requests(server.engine.space, "acme")).requests}

    told = [(listed[each.id].policy, listed[each.id].verdict) for each in handles]
    assert told[:4] == [("queue", "run"), ("queue", "queued"), ("allow", "started"), ("debounce", "collected")]
    assert [verdict for _, verdict in told[4:]] == ["run", "queued"]


async def test_the_end_of_a_run_that_was_cancelled_from_outside_is_written_by_a_server() -> None:
    """A run that had not begun writes nothing of its request: a server finds it in the index of runs."""
    stage, url = Stage(), f"memory://{fresh_name()}"
    async with sf.Dispatcher(sf.Engine(url, drive=False), [stage.flow], arbiter="shared") as server:
        engine = server.engine
        handle = await server.dispatch(arrival("queued", "a", durable=True))
        ends = UnseenEnds(engine.space, ["chat.queued"], engine.runtime.now())
        assert await ends.settle() == 0
        await engine.cancel(handle.id, "it is not needed")
        before = await list_requests(engine.space, "acme", status=["cancelled"])

        assert (before.requests, await ends.settle(), await ends.settle()) == ((), 1, 0)
        after = await list_requests(engine.space, "acme", status=["cancelled"])
        assert [each.id for each in after.requests] == [handle.id]
        with pytest.raises(RequestCancelledError):
            await result(handle)


async def test_requests_of_an_older_store_are_indexed_when_a_server_opens() -> None:
    """Those that wait as well as those that have ended; their records are left as they are."""
    stage, url = Stage(), f"memory://{fresh_name()}"
    async with sf.open(url) as space:
        await write(space, 1, "completed", listed=False, verdict="")
        await write(space, 2, "failed", listed=False, verdict="", tenant="other")
        async with sf.Dispatcher(url, [stage.flow]) as server:
            async with asyncio.timeout(SOON):
                while not await request_list._marker(server.engine.space).is_complete():  # noqa: ASYNC110 -- in the store
                    await asyncio.sleep(0.005)

        assert await entries(space) == await expected(space)
        assert await numbers(space) == [1]
        assert await request_list.index_existing(space, pause=0, again=True) == 0


async def test_a_record_of_before_there_were_verdicts_is_read() -> None:
    """Stored formats only grow."""
    old = b'1:{"flow":"chat","action":"respond","status":"completed","received_at":1750000000000000,"policy":"queue"}'

    record = REQUESTS.decode(old)

    assert (record.verdict, record.policy) == ("", "queue")
    assert b"verdict" not in REQUESTS.encode(record)
    assert REQUESTS.decode(REQUESTS.encode(structs.replace(record, verdict="run"))).verdict == "run"


async def test_a_filter_that_is_none_is_refused(space: sf.Space) -> None:
    """Before anything is read."""
    for filters in ({"status": ["bad"]}, {"verdict": "joined"}, {"received_after": datetime(2025, 1, 1)}):  # noqa: DTZ001 -- that is what is refused
        with pytest.raises(InvalidArgumentError):
            await list_requests(space, "acme", **filters)
    with pytest.raises(InvalidArgumentError, match="next"):
        await list_requests(space, "acme", after="nowhere")


async def test_a_failed_request_is_found_among_the_failed_and_nowhere_else() -> None:
    """The entry moves in the commit that ends it."""
    stage = Stage()
    stage.failures["bad"] = 1
    async with sf.Dispatcher("memory://", [stage.flow], arbiter="shared") as server:
        handle = await server.dispatch(arrival("queued", "bad"))
        with pytest.raises(RequestFailedError):
            await result(handle)
        found = {
            status: len((await list_requests(server.engine.space, "acme", status=[status])).requests)
            for status in request_list.STATUSES
        }

    assert found == dict.fromkeys(request_list.STATUSES, 0) | {"failed": 1}


async def test_requests_whose_server_died_are_listed_as_interrupted(space: sf.Space) -> None:
    """Nothing writes their ends but another server, which looks now and then; those of servers that live are left."""
    async with space.mutex("held").hold():  # so that this process has a presence
        [presence] = (await space.scan(*space.key("presence").within(), limit=2)).records
        await write(space, 1, "running", owner="gone.1")
        await write(space, 2, "waiting", owner="gone.1", tenant="other")
        await write(space, 3, "running", owner=".".join(presence.parts[-2:]))
        before = await numbers(space, status=["interrupted"])
        settled = await request_list.settle_interrupted(space)

        assert (before, settled) == ([], 2)
        assert await numbers(space, status=["interrupted"]) == [1]
        assert await numbers(space, status=["running"]) == [3]
        assert await entries(space) == await expected(space)
        assert await request_list.settle_interrupted(space) == 0


def test_the_end_of_a_request_is_written_soon_after_its_server_is_gone() -> None:
    """The look for those that died is seldom; a process that goes is a reason for one."""

    async def wait() -> list[list[int]]:
        memory = MemoryRecords()
        server, engine = (Space(GroupedStore(MemoryBackend(memory))) for _ in range(2))
        found = list[list[int]]()
        async with sf.Engine(engine, drive=False) as watching:
            keeping = asyncio.ensure_future(keep_index(watching, ()))
            async with server, server.mutex("held").hold():  # so that it has a presence
                [presence] = (await server.scan(*server.key("presence").within(), limit=2)).records
                await write(server, 1, "running", owner=".".join(presence.parts[-2:]))
                await asyncio.sleep(2 * SETTLE_EVERY)
                found.append(await numbers(engine, status=["interrupted"]))
            await asyncio.sleep(2 * SETTLE_EVERY)
            found.append(await numbers(engine, status=["interrupted"]))
            keeping.cancel()
        return found

    assert simulate(1, wait) == [[], [1]]
