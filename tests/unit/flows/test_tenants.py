"""What each tenant may have at most, and for how long what it leaves is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    ArbiterUnavailableError,
    DeclarationError,
    ForbiddenError,
    RequestCancelledError,
    StoreUnavailableError,
    TooManyRequestsError,
)
from standfast.flows import tenants
from standfast.flows.records import NOTHING, session_key, unfinished_of
from standfast.flows.server import give_an_end
from standfast.flows.shares import Counts
from standfast.flows.tenants import Census, Owners, count
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.protocol import Put
from standfast.testing import VirtualClock, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.flows.handle import Handle

DAY = 86_400.0
SOON = 15.0
ACME, OTHER = sf.Principal("acme", "ann"), sf.Principal("other", "bob")
BOTH = pytest.mark.parametrize("arbiter", ["local", "shared"])


class Shop:
    """Actions that end when the test says so."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.begun: list[str] = []
        self.flow = sf.Flow("shop")

        async def work(request: sf.Request, name: str = "") -> str:
            self.begun.append(name)
            await self.may_end.wait()
            if request.session_id:
                request.session.append("names", name)
            return name

        async def said(request: sf.Request, names: list[str]) -> int:
            del request
            return len(names)

        self.flow.action(name="queued", concurrency="queue")(work)
        self.flow.action(name="limited", limits=sf.Limit(1))(work)
        self.flow.action(name="free")(work)
        self.flow.action(name="batched", concurrency=sf.Batch(2, "1 hour"))(said)

    def server(self, url: Any = "memory://", arbiter: Any = "shared", **limits: Any) -> sf.Dispatcher:
        """Return a server with such limits."""
        return sf.Dispatcher(url, [self.flow], arbiter=arbiter, tenants=sf.web.TenantLimits(**limits))


@pytest.fixture
def shop() -> Shop:
    """A shop of the test's own."""
    return Shop()


@pytest.fixture
def recounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let limits that are reached be counted anew each time."""
    monkeypatch.setattr(tenants, "AGAIN", 0.0)


def arrival(action: str, name: str = "", **more: Any) -> sf.Call:
    """Return a request of a tenant."""
    more.setdefault("principal", ACME)
    inputs = {"names" if action == "batched" else "name": name}
    return sf.Call(flow="shop", action=action, inputs=inputs, **more)


def user(name: object) -> sf.Principal:
    """Return one of the users of a tenant."""
    return sf.Principal("acme", f"user {name}")


async def unfinished(space: sf.Space) -> int:
    """Count the durable requests of a tenant that have not ended."""
    return (await count(space, unfinished_of(space, "acme"), 10, lambda _: "")).total


async def result(handle: Handle) -> Any:
    """Return what a request came to, soon."""
    return await handle.result(timeout=SOON)


# --- those who wait ---------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("action", ["queued", "limited"])
async def test_no_more_of_a_tenant_wait_than_may(shop: Shop, arbiter: str, action: str) -> None:
    """For their turn or for room; others still do, and when those have ended there is room again."""
    session = {"queued": "s", "limited": ""}[action]
    async with shop.server(arbiter=arbiter, waiting=2) as server:
        handles = [await server.dispatch(arrival(action, str(n), session=session, principal=user(n))) for n in range(3)]
        with pytest.raises(TooManyRequestsError, match="the limit for waiting requests of the tenant is 2"):
            await server.dispatch(arrival(action, "late", session=session))
        others = [
            await server.dispatch(arrival(action, "o", session=session, principal=sf.Principal("other", name)))
            for name in ("bob", "eve")
        ]
        shop.may_end.set()

        assert [await result(each) for each in handles + others] == ["0", "1", "2", "o", "o"]
        assert await result(await server.dispatch(arrival(action, "again", session=session))) == "again"
        assert "late" not in shop.begun


@BOTH
async def test_one_that_is_cancelled_while_it_waits_makes_room(shop: Shop, arbiter: str) -> None:
    """The next one may wait in its place."""
    async with shop.server(arbiter=arbiter, waiting=1) as server:
        first = await server.dispatch(arrival("queued", "a", session="s"))
        second = await server.dispatch(arrival("queued", "b", session="s"))
        await second.cancel()
        with pytest.raises(RequestCancelledError):
            await result(second)
        third = await server.dispatch(arrival("queued", "c", session="s"))
        shop.may_end.set()

        assert [await result(first), await result(third)] == ["a", "c"]


async def test_no_more_keys_of_a_tenant_are_in_use_than_may(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a local arbiter; another tenant has as many, and keys that are free again do not count."""
    monkeypatch.setattr("standfast.flows.arbiter.in_memory.AGAIN", 0.0)
    async with shop.server(arbiter="local", keys=2) as server:
        handles = [
            await server.dispatch(arrival("queued", str(n), session=f"s-{n}", principal=user(n))) for n in range(2)
        ]
        with pytest.raises(TooManyRequestsError, match="the limit for keys in use of the tenant is 2"):
            await server.dispatch(arrival("queued", "late", session="s-2"))
        other = await server.dispatch(arrival("queued", "o", session="s-0", principal=OTHER))
        shop.may_end.set()

        assert [await result(each) for each in (*handles, other)] == ["0", "1", "o"]
        assert await result(await server.dispatch(arrival("queued", "again", session="s-2"))) == "again"


# --- what lies in the store -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("recounted")
@BOTH
async def test_no_more_durable_requests_of_a_tenant_are_unfinished_than_may(shop: Shop, arbiter: str) -> None:
    """When one has ended, the next is taken on."""
    async with shop.server(arbiter=arbiter, durable=2) as server:
        handles = [await server.dispatch(arrival("free", str(n), attended=False, principal=user(n))) for n in range(2)]
        with pytest.raises(TooManyRequestsError, match="the limit for unfinished durable requests of the tenant is 2"):
            await server.dispatch(arrival("free", "late", attended=False))
        other = await server.dispatch(arrival("free", "o", attended=False, principal=OTHER))
        shop.may_end.set()

        assert [await result(each) for each in (*handles, other)] == ["0", "1", "o"]
        assert await result(await server.dispatch(arrival("free", "again", attended=False))) == "again"


@pytest.mark.usefixtures("recounted")
async def test_what_other_servers_have_taken_on_counts(shop: Shop) -> None:
    """A server counts what is there when it first serves a tenant."""
    async with sf.open("memory://many") as space, shop.server("memory://many", durable=2) as one:
        handles = [await one.dispatch(arrival("free", str(n), attended=False, principal=user(n))) for n in range(2)]
        async with shop.server("memory://many", durable=2) as two:
            with pytest.raises(TooManyRequestsError):
                await two.dispatch(arrival("free", "late", attended=False))
            shop.may_end.set()
            assert [await result(each) for each in handles] == ["0", "1"]
            assert await result(await two.dispatch(arrival("free", "b", attended=False))) == "b"
        assert await unfinished(space) == 0


async def test_a_durable_request_that_is_cancelled_while_it_waits_does_not_count(shop: Shop) -> None:
    """Although its step never ran."""
    async with sf.open("memory://gone") as space, shop.server("memory://gone") as server:
        first = await server.dispatch(arrival("queued", "a", session="s", attended=False))
        second = await server.dispatch(arrival("queued", "b", session="s", attended=False))
        await second.cancel()
        assert await unfinished(space) == 1
        shop.may_end.set()
        await result(first)


@pytest.mark.usefixtures("recounted")
async def test_those_that_ended_without_telling_do_not_keep_others_out(shop: Shop) -> None:
    """They are found, and forgotten, when there seem to be too many."""
    async with sf.open("memory://stale") as space, shop.server("memory://stale", durable=1) as server:
        await space.commit(Put(unfinished_of(space, "acme").child("nobody"), NOTHING))
        handle = await server.dispatch(arrival("free", "a", attended=False))
        shop.may_end.set()

        assert await result(handle) == "a"
        assert await unfinished(space) == 0


@pytest.mark.usefixtures("recounted")
async def test_a_burst_counts_once(shop: Shop) -> None:
    """However many requests are in it."""
    async with shop.server(durable=1) as server:
        first = await server.dispatch(arrival("batched", "a", session="s"))
        with pytest.raises(TooManyRequestsError):
            await server.dispatch(arrival("batched", "b", session="other"))
        await first.cancel()
        handles = [await server.dispatch(arrival("batched", "c", session="s"))]
        assert handles[0].is_new


@pytest.mark.usefixtures("recounted")
@BOTH
async def test_no_more_idempotency_keys_of_a_tenant_are_remembered_than_may(shop: Shop, arbiter: str) -> None:
    """Requests that are sent again are answered all the same."""
    shop.may_end.set()
    async with shop.server(arbiter=arbiter, idempotency=2) as server:
        handles = [await server.dispatch(arrival("free", n, idempotency_key=n, principal=user(n))) for n in "ab"]
        assert [await result(each) for each in handles] == ["a", "b"]
        with pytest.raises(TooManyRequestsError, match="the limit for idempotency keys of the tenant is 2"):
            await server.dispatch(arrival("free", "c", idempotency_key="c"))
        again = await server.dispatch(arrival("free", "a", idempotency_key="a", principal=user("a")))

        assert (again.is_replay, await result(again)) == (True, "a")


async def test_a_process_counts_again_after_a_tenth_of_what_was_left() -> None:
    """Beside the requests, and not for each of them."""
    counted: list[str] = []

    async def look(tenant: str) -> Counts:
        counted.append(tenant)
        return Counts([("bob", 20 * (len(counted) - 1))])

    census = Census("things", 100, look, look)
    for _ in range(9):
        await census.enter("acme", "ann")
        census.settle("acme", "ann", is_there=True)
    assert counted == ["acme"]
    await census.enter("acme", "ann")
    census.settle("acme", "ann", is_there=True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert counted == ["acme", "acme"]
    await census.aclose()


@pytest.mark.usefixtures("recounted")
async def test_many_at_once_are_counted_once_and_none_of_them_passes_a_limit() -> None:
    """Each count takes off what came here before it: two at a time would do so twice."""
    counted: list[str] = []

    async def look(tenant: str) -> Counts:
        counted.append(tenant)
        await asyncio.sleep(0)
        return Counts([("bob", 9)])

    census = Census("things", 100, look, look)
    for number in range(100):
        await census.enter("acme", f"user {number}")
        if number < 9:
            census.settle("acme", f"user {number}", is_there=True)
    refused = await asyncio.gather(*(census.enter("acme", "ann") for _ in range(50)), return_exceptions=True)
    assert {type(each) for each in refused} == {TooManyRequestsError}
    assert len(counted) < 10


async def test_those_who_wait_for_a_count_hear_that_it_failed_or_that_their_server_closes() -> None:
    """A request is not taken on then, and nobody else's cancellation becomes its own."""
    may_go_on = asyncio.Event()

    async def look(_tenant: str) -> Counts:
        await may_go_on.wait()
        raise StoreUnavailableError("memory", "it is away for a moment")

    async def one(_tenant: str) -> Counts:
        return Counts([("ann", 1)])

    census = Census("things", 1, one, look)
    census._tenants["acme"] = known = tenants._TenantCount()
    known.counted.add("ann")
    waiting = [asyncio.ensure_future(census.enter("acme", "ann")) for _ in range(2)]
    await asyncio.sleep(0)
    may_go_on.set()
    assert {type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)} == {StoreUnavailableError}
    may_go_on.clear()
    last = asyncio.ensure_future(census.enter("acme", "ann"))
    await asyncio.sleep(0)
    await census.aclose()
    with pytest.raises(ArbiterUnavailableError):
        await last


# --- users of one tenant ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("action", ["queued", "limited"])
async def test_a_user_leaves_others_of_its_tenant_room_to_wait(shop: Shop, arbiter: str, action: str) -> None:
    """However many it sends; and the refusal says whose share is spent."""
    session = {"queued": "s", "limited": ""}[action]
    async with shop.server(arbiter=arbiter, waiting=6) as server:
        handles = [await server.dispatch(arrival(action, str(n), session=session)) for n in range(4)]
        with pytest.raises(TooManyRequestsError, match="the limit for waiting requests of this user is 3"):
            await server.dispatch(arrival(action, "late", session=session))
        handles += [await server.dispatch(arrival(action, n, session=session, principal=user(n))) for n in "ab"]
        shop.may_end.set()

        assert [await result(each) for each in handles] == ["0", "1", "2", "3", "a", "b"]


@pytest.mark.usefixtures("recounted")
@BOTH
async def test_a_user_leaves_others_of_its_tenant_durable_requests(shop: Shop, arbiter: str) -> None:
    """Over all servers, also those that have just come; webhooks have a share of their own."""
    url = f"memory://users-{arbiter}"
    async with shop.server(url, arbiter=arbiter, durable=6) as server:
        handles = [await server.dispatch(arrival("free", str(n), attended=False)) for n in range(3)]
        with pytest.raises(TooManyRequestsError, match="the limit for unfinished durable requests of this user is 3"):
            await server.dispatch(arrival("free", "late", attended=False))
        hooked = arrival("free", "hook", attended=False, transport="webhook")
        handles += [
            await server.dispatch(each) for each in (hooked, arrival("free", "b", attended=False, principal=user("b")))
        ]
        shop.may_end.set()

        assert [await result(each) for each in handles] == ["0", "1", "2", "hook", "b"]
        assert await result(await server.dispatch(arrival("free", "again", attended=False))) == "again"


@pytest.mark.usefixtures("recounted")
async def test_a_server_that_has_just_come_knows_the_shares_of_users(shop: Shop) -> None:
    """It counts whose requests are there, not only how many."""
    async with shop.server("memory://shares", durable=4) as one:
        handles = [await one.dispatch(arrival("free", str(n), attended=False)) for n in range(2)]
        async with shop.server("memory://shares", durable=4) as two:
            with pytest.raises(TooManyRequestsError, match="of this user"):
                await two.dispatch(arrival("free", "late", attended=False))
            handles.append(await two.dispatch(arrival("free", "b", attended=False, principal=user("b"))))
            shop.may_end.set()
            assert [await result(each) for each in handles] == ["0", "1", "b"]


async def test_a_user_leaves_others_of_its_tenant_keys_and_idempotency_keys(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them at the most."""
    monkeypatch.setattr("standfast.flows.arbiter.in_memory.AGAIN", 0.0)
    async with shop.server(arbiter="local", keys=4, idempotency=4) as server:
        handles = [await server.dispatch(arrival("queued", str(n), session=f"s-{n}")) for n in range(2)]
        with pytest.raises(TooManyRequestsError, match="the limit for keys in use of this user is 2"):
            await server.dispatch(arrival("queued", "late", session="s-2"))
        handles.append(await server.dispatch(arrival("queued", "b", session="s-b", principal=user("b"))))
        shop.may_end.set()
        assert [await result(each) for each in handles] == ["0", "1", "b"]
        for n in "01":
            await result(await server.dispatch(arrival("free", n, idempotency_key=n)))
        with pytest.raises(TooManyRequestsError, match="the limit for idempotency keys of this user is 2"):
            await server.dispatch(arrival("free", "late", idempotency_key="2"))
        assert (
            await result(await server.dispatch(arrival("free", "b", idempotency_key="0", principal=user("b")))) == "b"
        )


# --- for how long -----------------------------------------------------------------------------------------------------


def space_on(clock: VirtualClock) -> sf.Space:
    """Return a space whose time passes as the test says."""
    return sf.Space(GroupedStore(MemoryBackend(MemoryRecords(clock=clock))), clock=clock, lease="3000 days")


@pytest.fixture
async def old(shop: Shop) -> AsyncIterator[tuple[VirtualClock, sf.Space, sf.Dispatcher]]:
    """A server whose time passes as the test says."""
    shop.may_end.set()
    clock = VirtualClock()
    async with space_on(clock) as space, shop.server(space) as server:
        yield clock, space, server


async def test_a_session_is_kept_for_a_while_after_its_last_use(
    old: tuple[VirtualClock, sf.Space, sf.Dispatcher],
) -> None:
    """Each use puts the end off; then its state and its owner are gone."""
    clock, space, server = old
    key = session_key(space, "acme", "s")
    for _ in range(2):
        await result(await server.dispatch(arrival("queued", "a", session="s", transport="http")))
        clock.advance(29 * DAY)
        assert (await space.read(key)).get(key) is not None
    clock.advance(2 * DAY)

    assert (await space.read(key)).get(key) is None
    await Owners(space).claim(OTHER, "s")


async def test_an_idempotency_key_goes_when_its_request_is_forgotten(
    old: tuple[VirtualClock, sf.Space, sf.Dispatcher],
) -> None:
    """Attended or durable."""
    clock, space, server = old
    for n, attended in enumerate((True, False)):
        await result(await server.dispatch(arrival("free", "a", idempotency_key=str(n), attended=attended)))
    root = space.key("idempotency", "acme")

    assert (await count(space, root, 10, lambda _: "")).total == 2
    clock.advance(3_601)
    assert (await count(space, root, 10, lambda _: "")).total == 0


def test_an_owner_who_comes_again_keeps_the_session() -> None:
    """It is written anew now and then, with the state of the session, and not each time."""

    async def come() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        async with space_on(clock) as space:
            owners, state = Owners(space, 30 * DAY), session_key(space, "acme", "s")
            await space.commit(Put(state, b"1:{}", expires_at=None))
            for _ in range(10):
                if not owners.are_known(ACME, "s"):
                    await owners.claim(ACME, "s")
                await asyncio.sleep(10 * DAY)
            with pytest.raises(ForbiddenError):
                await owners.claim(sf.Principal("acme", "eve"), "s")
            await asyncio.sleep(31 * DAY)
            assert (await space.read(state)).get(state) is None
            await owners.claim(sf.Principal("acme", "eve"), "s")

    simulate(1, come)


async def test_what_was_written_to_be_kept_for_ever_gets_an_end() -> None:
    """Sessions of an earlier version; doing it again changes nothing."""
    clock = VirtualClock()
    async with space_on(clock) as space:
        keys = [space.key(kind, "acme", "s") for kind in ("owner", "session")]
        for key in keys:
            await space.commit(Put(key, NOTHING))

        assert [await give_an_end(space, 30 * DAY), await give_an_end(space, 30 * DAY)] == [2, 0]
        clock.advance(31 * DAY)
        assert not (await space.read(*keys)).records


@pytest.mark.parametrize("what", ["waiting", "durable", "keys", "idempotency", "quarantined"])
def test_a_limit_of_tenants_that_makes_no_sense_is_refused(what: str) -> None:
    """Where it is declared."""
    with pytest.raises(DeclarationError, match=f"TenantLimits: {what} is 0"):
        sf.web.TenantLimits(**{what: 0})
