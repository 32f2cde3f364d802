"""Answers of alternatives that get lost, records that are too long to be sent along, and keys that come and go."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from standfast.errors import StoreMovedError
from standfast.keys import RecordKey
from standfast.stores import (
    Alternative,
    Append,
    Choice,
    Commit,
    Conflict,
    Delete,
    Empty,
    MoveFirst,
    Present,
    Put,
    Stamped,
)
from standfast.stores.url import open_store
from tests.integration.faults.proxy import Fault, proxy_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from standfast.stores import GroupedStore
    from tests.integration.faults.proxy import Direction, Proxy

pytestmark = pytest.mark.services

GRANT, TICKETS, INBOXES = RecordKey("n", "grant"), RecordKey("n", "ticket"), RecordKey("n", "inbox")
TAKE = Alternative((Stamped(GRANT, b"me"),))
JOIN = Alternative((Present(GRANT), Append(TICKETS, b"you", RecordKey("you"))))


def leave(fence: int) -> tuple[Alternative, ...]:
    """Pass it on, or free it."""
    return (
        Alternative((MoveFirst(TICKETS, GRANT, fence, INBOXES),)),
        Alternative((Empty(TICKETS), Delete(GRANT, fence))),
    )


@pytest.fixture(params=["postgresql", "redis"])
def url(request: pytest.FixtureRequest) -> str:
    """An address where nothing is yet."""
    option = "schema" if request.param == "postgresql" else "prefix"
    return f"{request.getfixturevalue(f'{request.param}_url')}?{option}=t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """A wire to the server that can be cut."""
    async with proxy_to(url) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: Proxy) -> AsyncIterator[GroupedStore]:
    """A store behind the wire, whose connections are open."""
    store = await open_store(f"{proxy.url}&liveness=false")
    await store.commit(Put(RecordKey("n", "x"), b""))
    yield store
    await store.aclose()


async def strike(store: GroupedStore, proxy: Proxy, direction: Direction) -> None:
    """Lose the next thing that travels in a direction, and the connection with it; it is open, and all is prepared."""
    await store.choose(Alternative((Present(RecordKey("n", "x")),)))
    await store.read(RecordKey("n", "x"))  # it takes its turn behind whatever else was asked for
    proxy.fault = Fault(direction, proxy.carried[direction] + 1, "lose")


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_a_lost_answer_is_found_out(store: GroupedStore, proxy: Proxy, direction: Direction) -> None:
    """Whether it was done or has to be done again, it is done once, and the answer says which one and its version."""
    await strike(store, proxy, direction)
    taken: Any = await store.choose(TAKE, JOIN)
    await strike(store, proxy, direction)
    joined: Any = await store.choose(TAKE, JOIN)
    [ticket] = (await store.scan(*TICKETS.within(), limit=5)).records.values()
    await strike(store, proxy, direction)
    passed: Any = await store.choose(*leave(taken.version))
    holder = (await store.read(GRANT)).get(GRANT)
    await strike(store, proxy, direction)
    freed: Any = await store.choose(*leave(passed.version))

    assert proxy.struck == 4
    assert [each.index for each in (taken, joined, passed, freed)] == [0, 1, 0, 1]
    assert (joined.appended, joined.version) == (ticket.key, ticket.version)
    assert holder is not None
    assert (holder.value[16:], holder.version, passed.versions) == (b"you", passed.version, {GRANT: passed.version})
    assert taken.version < joined.version < passed.version
    assert [each.is_settled for each in (taken, joined, passed, freed)] == [direction == "reply"] * 4
    assert (await store.read(GRANT)).records == {}


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_a_lost_answer_to_several_is_found_out(store: GroupedStore, proxy: Proxy, direction: Direction) -> None:
    """Each has its own verdict; one that wrote nothing is asked again."""

    async def several() -> Any:
        return await asyncio.gather(
            store.choose(TAKE, JOIN),
            store.choose(TAKE, JOIN),
            store.commit(Put(RecordKey("n", "a"), b"")),
            store.choose(Alternative((Empty(TICKETS), Put(RecordKey("n", "b"), b"")))),
            store.commit(Put(RecordKey("n", "x"), b"")),
            store.choose(*leave(7)),
        )

    await strike(store, proxy, direction)
    taken, joined, put, not_empty, there, not_mine = await several()

    assert proxy.struck == 1
    assert (taken.index, joined.index) == (0, 1)
    assert [type(each) for each in (put, not_empty, there, not_mine)] == [Commit, Conflict, Conflict, Conflict]
    assert not_empty.current.keys() == {joined.appended}
    assert not_mine.current[GRANT].version == taken.version


async def test_a_cut_in_the_middle_of_many_loses_and_doubles_nothing(store: GroupedStore, proxy: Proxy) -> None:
    """However often the wire is cut while records are appended, each is there once."""
    appended: list[RecordKey] = []
    for n in range(12):
        if n % 3 == 0:
            await strike(store, proxy, "reply" if n % 2 else "request")
        done = await asyncio.gather(
            *(store.choose(Alternative((Append(TICKETS, b"%d.%d" % (n, m)),))) for m in range(5))
        )
        appended += [each.appended for each in done if isinstance(each, Choice) and each.appended is not None]

    found = (await store.scan(*TICKETS.within(), limit=100)).records
    assert sorted(appended) == list(found)
    assert len({record.value for record in found.values()}) == 60


@pytest.mark.parametrize(("size", "is_heard"), [(5_000, True), (6_000, False)])
async def test_a_record_that_is_too_long_is_moved_and_its_inbox_told_without_it(
    url: str, size: int, *, is_heard: bool
) -> None:
    """Its reader looks for itself."""
    here, there = await open_store(url), await open_store(url)
    try:
        async with here.watch(INBOXES.child("you")) as watch:
            taken: Any = await there.choose(TAKE)
            await here.choose(Alternative((Append(TICKETS, b"x" * size, RecordKey("you")),)))
            passed: Any = await there.choose(*leave(taken.version))
            async with asyncio.timeout(10):
                while (heard := await watch.wait()) is None or GRANT not in heard.about:
                    assert heard is None or not heard.moved
        assert heard.moved == ((passed.moved,) if is_heard else ())
    finally:
        await here.aclose()
        await there.aclose()


async def test_a_key_that_comes_and_goes_meanwhile_leaves_a_lower_version(postgresql_url: str) -> None:
    """A create that has drawn its version and then waits draws another one."""
    schema = f"t{uuid.uuid4().hex[:12]}"
    records = f"{schema}.records"
    store = await open_store(f"{postgresql_url}?schema={schema}")
    other = await asyncpg.connect(postgresql_url)
    try:
        await other.execute(f"BEGIN; INSERT INTO {records} VALUES (decode('{GRANT.hex()}', 'hex'), '', 1)")  # noqa: S608 -- a name of ours
        taking = asyncio.create_task(store.choose(TAKE))
        waits = (
            "SELECT count(*) FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid"
            " WHERE NOT l.granted AND a.query LIKE $1"
        )
        while not await other.fetchval(waits, f'%"{schema}".choose%'):  # noqa: ASYNC110 -- a session on the server
            await asyncio.sleep(0.01)
        draw = f"UPDATE {records} SET version = nextval('{schema}.versions') RETURNING version"  # noqa: S608 -- a name of ours
        gone = await other.fetchval(draw)
        await other.execute(f"DELETE FROM {records}; COMMIT")  # noqa: S608 -- a name of ours
        taken: Any = await taking
    finally:
        await other.close()
        await store.aclose()

    assert taken.version > gone


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql", "redis"])
async def test_a_frozen_store_makes_no_choice(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A choice that would write is refused, and one that only looks is made."""
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    option = "schema" if kind == "postgresql" else "prefix"
    url = urls.get(kind) or f"{request.getfixturevalue(f'{kind}_url')}?{option}=t{uuid.uuid4().hex[:12]}"
    store = await open_store(url)
    try:
        await store.choose(TAKE)
        await store.transfer().freeze(1)
        with pytest.raises(StoreMovedError):
            await store.choose(TAKE, JOIN)
        if kind != "redis":  # there the head of the namespace is all that a script looks at
            assert isinstance(await store.choose(Alternative((Present(GRANT),))), Choice)
        await store.transfer().thaw()
        assert isinstance(await store.choose(TAKE, JOIN), Choice)
    finally:
        await store.aclose()
