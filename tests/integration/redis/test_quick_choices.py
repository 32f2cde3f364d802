"""Choices that have scripts of their own do what the general one does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from standfast.errors import AttemptClosedError, StoreCorruptError, StoreFullError
from standfast.keys import RecordKey
from standfast.stores import Alternative, Append, Count, Delete, Empty, MoveFirst, Present, Put, Stamped
from standfast.stores.redis import server as redis_server
from standfast.stores.redis.records import digits, expiry
from standfast.stores.remote.backend import RemoteBackend
from standfast.stores.remote.server import ChoiceIntent
from tests.integration.alternatives.quick import (
    ASKED,
    GRANT,
    HEAD,
    INBOXES,
    MINE,
    QUEUE,
    STATES,
    enter,
    laid,
    leave,
    outcome,
    use,
)
from tests.integration.faults.proxy import Fault, proxy_to
from tests.integration.redis.test_batches import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis.asyncio

    from standfast.clock import Instant
    from standfast.stores import GroupedStore
    from tests.integration.faults.proxy import Direction
    from tests.integration.redis.conftest import Open
    from tests.services.server import Server

pytestmark = pytest.mark.services


async def _lay(admin: redis.asyncio.Redis, prefix: str, state: str) -> dict[RecordKey, int]:
    """Write records past the store; return their versions."""
    tag, versions = f"{{{prefix}:n}}", dict[RecordKey, int]()
    await admin.delete(f"{tag}:records", f"{tag}:order", f"{tag}:expiries")
    for key, value, version, ends in laid(state):
        at: Instant | None = None if ends is None else ends  # type: ignore[assignment] # pyright: ignore[reportAssignmentType] -- a test's own
        await admin.hset(f"{tag}:records", bytes(key), digits(version) + expiry(at) + value)
        await admin.zadd(f"{tag}:order", {bytes(key): 0})
        if ends is not None:
            await admin.zadd(f"{tag}:expiries", {bytes(key): ends})
        versions[key] = version
    return versions


async def _attempt(admin: redis.asyncio.Redis, prefix: str) -> bytes:
    """Return what is counted, without the number, the time and the versions: how the alternative is noted."""
    stored = cast("dict[bytes, bytes]", await admin.hgetall(f"{prefix}:attempts"))
    [raw] = stored.values()
    assert len(raw) in {33, 49}
    return raw[32:33]


@pytest.mark.parametrize("asked", ASKED)
async def test_a_choice_comes_to_the_same_by_its_own_script_and_by_the_general_one(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answer, records, notification and what is counted are the same in every state of the line."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()
    store = await open_it(liveness="false")
    await use(store)
    async with admin.pubsub() as pubsub:
        await pubsub.subscribe(f"{{{prefix}:n}}:0:".encode() + INBOXES)
        hearing = asyncio.ensure_future(_hear(pubsub, heard))
        for state in STATES.values():
            by_itself = await outcome(store, heard, ASKED[asked](await _lay(admin, prefix, state)))
            counted = await _attempt(admin, prefix)
            assert await is_whole(admin, prefix, GRANT, HEAD) or set(state) & set("ghe")
            with monkeypatch.context() as patch:
                patch.setattr(redis_server, "quick_choice", lambda _: None)
                in_general = await outcome(store, heard, ASKED[asked](await _lay(admin, prefix, state)))

            assert (by_itself, counted) == (in_general, await _attempt(admin, prefix)), state
        hearing.cancel()


async def _hear(pubsub: Any, heard: asyncio.Queue[bytes]) -> None:
    async for message in pubsub.listen():
        if message["type"] == "message":
            heard.put_nowait(message["data"])


async def test_the_scripts_of_choices_are_used_again_when_the_server_has_lost_them(
    open_it: Open, admin: redis.asyncio.Redis
) -> None:
    """The first call sends the script in full; those after it call it by its hash."""
    store = await open_it(liveness="false")
    await use(store)
    await admin.script_flush()
    await use(store)
    await admin.config_resetstat()
    taken: Any = await store.choose(*enter())
    await store.choose(*leave(taken.version, taken.version))
    calls = {name: each["calls"] for name, each in (await admin.info("commandstats")).items()}

    assert calls["cmdstat_evalsha"] == 2
    assert calls["cmdstat_zrangebylex"] == 1
    assert "cmdstat_eval" not in calls
    assert "cmdstat_zcard" not in calls


def _mutex(number: int) -> tuple[tuple[Alternative, ...], Callable[[int], tuple[Alternative, ...]]]:
    """Return how a mutex of its own is taken, and how it is left, by the version that was drawn."""
    grant, head, queue = GRANT.child(str(number)), HEAD.child(str(number)), QUEUE.child(str(number))
    ways = (
        Alternative((Put(head, b"held"), Stamped(grant, MINE))),
        Alternative((Present(head), Append(queue, MINE, stamped=True))),
    )

    def left(version: int) -> tuple[Alternative, ...]:
        return (
            Alternative((MoveFirst(queue, grant, version, INBOXES),)),
            Alternative((Empty(queue), Delete(head, version), Delete(grant, version))),
        )

    return ways, left


async def test_a_mutex_that_is_taken_again_stays_in_the_order_and_the_order_does_not_grow(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """What is free shows in no scan; of however many mutexes a handle leaves the keys of a few, and none in the end."""
    store = await open_it(liveness="false")
    await use(store)
    order = f"{{{prefix}:n}}:order"
    for number in (*range(30), *range(30)):
        ways, left = _mutex(number)
        taken: Any = await store.choose(*ways)
        assert len((await store.scan(*RecordKey("n").within(), limit=5)).records) == 2
        freed: Any = await store.choose(*left(taken.version))
        assert (taken.index, freed.index) == (0, 1)
        assert not (await store.scan(*RecordKey("n").within(), limit=5)).records
        assert 2 * min(number + 1, 2) <= await admin.zcard(order) <= 2 * (redis_server.KEPT_IN_ORDER + 1)

    await store.aclose()
    assert await is_whole(admin, prefix)


async def test_a_mutex_that_is_held_is_not_taken_out_of_the_order(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """Neither by the handle that left it there before another took it, nor by a sweep."""
    store, another = await open_it(liveness="false"), await open_it(liveness="false")
    await use(store)
    [(ways, left), *others] = [_mutex(number) for number in range(redis_server.KEPT_IN_ORDER + 3)]
    taken: Any = await store.choose(*ways)
    await store.choose(*left(taken.version))
    await another.choose(*ways)
    for each, of in others:
        taken = await store.choose(*each)
        await store.choose(*of(taken.version))
    assert len((await store.scan(*RecordKey("n").within(), limit=5)).records) == 2
    await _server_of(store).sweep(500)
    await store.aclose()

    assert len((await another.scan(*RecordKey("n").within(), limit=5)).records) == 2
    assert await is_whole(admin, prefix)


async def test_what_is_left_in_the_order_is_not_counted(open_it: Open, admin: redis.asyncio.Redis, prefix: str) -> None:
    """A mutex that got free is below no prefix: a semaphore of the same key counts the permits that are held."""
    store, held = await open_it(liveness="false"), RecordKey("n", "grant", "k", "2")
    await store.commit(Put(held, b""))
    await admin.zadd(f"{{{prefix}:n}}:order", {bytes(RecordKey("n", "grant", "k", "1")): 0})
    below = RecordKey("n", "grant", "k")

    for least, most, is_so in ((1, 1, True), (2, None, False), (0, 0, False)):
        note = RecordKey("n", "note", f"{least}")
        counted = Alternative((Count(below, least, most), Put(note, b"")))
        chosen: Any = await store.choose(counted, Alternative((Put(note, b""),)))
        assert (chosen.index == 0) is is_so


async def test_a_sweep_takes_out_of_the_order_what_a_dead_process_has_left_there(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """A page at a time, and from the beginning again; records stay."""
    store = await open_it(liveness="false")
    for start in (0, 75):
        await store.commit(*[Put(RecordKey("n", f"{each:03d}"), b"") for each in range(start, start + 75)])
    await admin.zadd(f"{{{prefix}:n}}:order", {bytes(RecordKey("n", f"{each:03d}")): 0 for each in range(0, 300, 3)})
    for _ in range(3):
        await _server_of(store).sweep(500)

    assert await is_whole(admin, prefix)
    assert len((await store.scan(*RecordKey("n").within(), limit=500)).records) == 150

    await admin.zadd(f"{{{prefix}:n}}:order", {bytes(RecordKey("n", "000", "left")): 0})
    await _server_of(store).sweep(500)
    assert await is_whole(admin, prefix)


async def test_an_attempt_is_told_in_whatever_form_it_was_kept(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str
) -> None:
    """By this release, with and without a version of its own, and by an earlier one."""
    store = await open_it(liveness="false")
    await use(store)
    forms = {
        f"{7:016d}{1_000:016d}2": (1_000, (1_000, 1)),
        f"{7:016d}{1_000:016d}1{1_001:016d}": (1_000, (1_001, 0)),
        f"{7:016d}{1_000:016d}{1_001:016d}{0:016d}{1_001:016d}{2:016d}": (1_000, (1_001, 1)),
        f"{7:016d}{1_000:016d}{1_001:016d}{2:016d}": (1_000, (1_001, 1_002)),
    }
    for form, told in forms.items():
        await admin.hset(f"{prefix}:attempts", "another", form)
        landed = await _server_of(store).close_attempt("another", 7, GRANT.namespace)
        assert landed is not None
        assert (landed.at, landed.versions) == told


@pytest.mark.parametrize("direction", ["request", "reply"])
async def test_a_lost_answer_to_a_choice_with_a_script_of_its_own_is_found_out(
    server: Server, open_it: Open, direction: Direction
) -> None:
    """Whether it was done or has to be done again, it is done once."""
    async with proxy_to(server.url) as proxy:
        store = await open_it(proxy.url, liveness="false")

        async def struck(*asked: Any) -> Any:
            await store.read(HEAD)
            proxy.fault = Fault(direction, proxy.carried[direction] + 1, "lose")
            return await store.choose(*asked)

        await use(store)
        taken = await struck(*enter())
        joined = await struck(*enter(b"two"))
        passed = await struck(*leave(taken.version, taken.version))
        freed = await struck(*leave(passed.version, taken.version))

        assert proxy.struck == 4
        assert [each.index for each in (taken, joined, passed, freed)] == [0, 1, 0, 1]
        assert [each.is_settled for each in (taken, joined, passed, freed)] == [direction == "reply"] * 4
        assert not (await store.scan(*RecordKey("n").within(), limit=5)).records
        await store.aclose()


async def test_a_closed_attempt_is_not_made_by_a_script_of_its_own(open_it: Open) -> None:
    """It is refused as by the general one, and nothing is written."""
    store = await open_it(liveness="false")
    await use(store)
    server = _server_of(store)
    namespace = GRANT.namespace
    assert await server.close_attempt("handle", 1, namespace) is None
    answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    intent = ChoiceIntent("handle", 1, (enter(),), ((), ()), "x" * 36, namespace)

    assert server.choose_soon(intent, answer.set_result) is not None
    assert isinstance(await answer, AttemptClosedError)
    with pytest.raises(AttemptClosedError):
        await server.choose(intent)
    assert (await store.read(GRANT, HEAD)).records == {}


def _server_of(store: GroupedStore) -> redis_server.RedisServer:
    assert isinstance(store.backend, RemoteBackend)
    server = store.backend.server
    assert isinstance(server, redis_server.RedisServer)
    return server


async def test_a_full_server_still_frees_a_mutex_and_takes_none(open_it: Open, admin: redis.asyncio.Redis) -> None:
    """What only deletes needs no room; what puts is refused with nothing written."""
    store = await open_it(liveness="false")
    await use(store)
    taken: Any = await store.choose(*enter())
    before = (await store.scan(*RecordKey("n").within(), limit=5)).records
    await admin.config_set("maxmemory", 1)

    with pytest.raises(StoreFullError):
        await store.choose(*enter(b"two"))
    assert (await store.scan(*RecordKey("n").within(), limit=5)).records == before
    freed: Any = await store.choose(*leave(taken.version, taken.version))
    with pytest.raises(StoreFullError):
        await store.choose(*enter())

    assert freed.index == 1
    assert not (await store.scan(*RecordKey("n").within(), limit=5)).records


@pytest.mark.parametrize("name", ["order", "records", "head"])
async def test_a_quick_choice_meets_a_key_that_holds_something_else_before_it_writes(
    open_it: Open, admin: redis.asyncio.Redis, prefix: str, name: str
) -> None:
    """Whichever key another program takes, nothing is written beside it."""
    store = await open_it(liveness="false")
    await use(store)
    taken: Any = await store.choose(*enter())
    await admin.set(f"{{{prefix}:n}}:{name}", "mine")
    before = {key: await admin.dump(key) async for key in admin.scan_iter(f"*{prefix}*")}

    for asked in (enter(b"two"), leave(taken.version, taken.version)):
        with pytest.raises(StoreCorruptError):
            await store.choose(*asked)

    assert {key: await admin.dump(key) async for key in admin.scan_iter(f"*{prefix}*")} == before
