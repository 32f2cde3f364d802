"""Limits in one process: what is kept of them, what changes with another version, and what they cost others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import (
    ForbiddenError,
    InvalidInputError,
    QueueTimeoutError,
    RequestKeyError,
    RequestSupersededError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from standfast.flows import concurrency_limits as limiting
from standfast.flows.concurrency_limits import SPARE, ConcurrencyLimits, LocalPermits, PermitWaiters, SharedPermits
from standfast.flows.tenants import Owners
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.flows.handle import Handle
    from standfast.policies import Limit, Rate

SOON = 15.0


def flow_with(*limits: Limit | Rate, **options: Any) -> tuple[sf.Flow, asyncio.Event, list[str]]:
    """Return a flow with one action that ends when the test says so, and who has begun."""
    flow, may_end, begun = sf.Flow("f"), asyncio.Event(), list[str]()

    @flow.action(limits=limits, **options)
    async def work(request: sf.Request) -> None:
        begun.append(request.user)
        await may_end.wait()

    return flow, may_end, begun


def arrival(user: str = "ann", **more: Any) -> sf.Call:
    """Return a request of a user."""
    return sf.Call(flow="f", action="work", principal=sf.Principal(user=user), **more)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that needs no time but turns of the loop."""
    async with asyncio.timeout(SOON):
        while not holds():  # noqa: ASYNC110 -- nothing tells of it
            await asyncio.sleep(0)


async def has_its_turn(server: sf.Dispatcher, handle: Handle) -> None:
    """Wait until a request is the first in the line of its key."""
    async with asyncio.timeout(SOON):
        while True:
            holder = (await server.arbiter.look(handle.record.address)).holder
            if holder is not None and holder.id == handle.id:
                return
            await asyncio.sleep(0)


@pytest.mark.parametrize("arbiter", ["local", "shared"])
async def test_nothing_is_kept_of_a_limit_that_nobody_uses(arbiter: Any) -> None:
    """However many users have come by."""
    flow, may_end, _ = flow_with(sf.Limit(1, key="user"))
    async with sf.Dispatcher("memory://", [flow], arbiter=arbiter) as server:
        handles = [await server.dispatch(arrival(f"user {n // 2}")) for n in range(20)]
        limits = server._serving().limits
        assert limits.in_use == 10
        may_end.set()
        for each in handles:
            await each.result(timeout=SOON)
        await until(lambda: limits.in_use == 0)


async def test_a_limit_of_another_version_counts_from_its_first_request_on() -> None:
    """As in a deployment; nothing has to be changed by hand."""
    old, end_old, _ = flow_with(sf.Limit(1))
    new, end_new, begun = flow_with(sf.Limit(3))
    async with sf.Dispatcher("memory://versions", [old]) as before, sf.Dispatcher("memory://versions", [new]) as after:
        handles = [await before.dispatch(arrival())]
        handles += [await after.dispatch(arrival("bob")) for _ in range(3)]
        assert (begun, handles[-1].status) == (["bob", "bob"], "waiting")
        end_old.set()
        end_new.set()
        for each in handles:
            await each.result(timeout=SOON)


async def test_a_rate_of_another_version_counts_from_its_first_request_on() -> None:
    """What was spent stays spent, and more is earned as the new rate says."""
    old, end_old, _ = flow_with(sf.Rate(1, "1 hour"))
    new, _, _ = flow_with(sf.Rate(4, "1 minute"))
    end_old.set()
    async with sf.Dispatcher("memory://rates", [old]) as before, sf.Dispatcher("memory://rates", [new]) as after:
        await (await before.dispatch(arrival())).result(timeout=SOON)
        with pytest.raises(TooManyRequestsError) as refused:
            await after.dispatch(arrival())
        assert (refused.value.limit, 0 < refused.value.retry_after <= 15) == (4, True)


async def test_a_stranger_does_not_use_up_the_rate_of_a_session() -> None:
    """Whose session it is is looked at first, and nothing is claimed by one who comes too often."""
    flow, may_end, _ = flow_with(sf.Rate(1, "1 hour", key="session"))
    may_end.set()
    async with sf.open("memory://owned") as space, sf.Dispatcher("memory://owned", [flow]) as server:
        await Owners(space).claim(sf.Principal(user="ann"), "s")
        with pytest.raises(ForbiddenError):
            await server.dispatch(arrival("eve", session="s", transport="http"))
        await (await server.dispatch(arrival("ann", session="s", transport="http"))).result(timeout=SOON)


async def test_a_key_function_that_returns_none_exempts_a_request() -> None:
    """One that fails is told as those of policies are."""

    def by(arrival: sf.Call) -> str | None:
        return {"ann": "a", "bob": None}[arrival.user]

    flow, may_end, _ = flow_with(sf.Rate(1, "1 hour", key=by))
    may_end.set()
    async with sf.Dispatcher("memory://", [flow], arbiter="local") as server:
        for user in ("ann", "bob", "bob"):
            await server.dispatch(arrival(user))
        with pytest.raises(TooManyRequestsError):
            await server.dispatch(arrival("ann"))
        with pytest.raises(RequestKeyError):
            await server.dispatch(arrival("eve"))


async def test_those_without_a_name_count_together() -> None:
    """Nobody gets past a limit by not saying who they are."""
    flow, may_end, _ = flow_with(sf.Rate(1, "1 hour", key="user"))
    may_end.set()
    async with sf.Dispatcher("memory://", [flow], arbiter="local") as server:
        await server.dispatch(arrival(""))
        with pytest.raises(TooManyRequestsError):
            await server.dispatch(arrival("", session="another"))


async def test_buckets_in_memory_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are full again are dropped, and if all are in use the oldest."""
    monkeypatch.setattr(limiting, "MOST_BUCKETS", 5)
    flow, may_end, _ = flow_with(sf.Rate(2, "1 hour", key="user"))
    may_end.set()
    async with sf.Dispatcher("memory://", [flow], arbiter="local") as server:
        for n in range(20):
            await server.dispatch(arrival(f"user {n}"))
        buckets = server._serving().limits._buckets
        assert len(buckets) == 5


async def test_buckets_are_looked_through_seldom_and_whoever_keeps_coming_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many others come: each look goes through all of them."""
    monkeypatch.setattr(limiting, "MOST_BUCKETS", 50)
    looks, look = list[ConcurrencyLimits](), ConcurrencyLimits._drop_full_buckets

    def counted(self: ConcurrencyLimits) -> None:
        looks.append(self)
        look(self)

    monkeypatch.setattr(ConcurrencyLimits, "_drop_full_buckets", counted)
    flow, may_end, _ = flow_with(sf.Rate(1, "1 hour", key="user"))
    may_end.set()
    async with sf.Dispatcher("memory://", [flow], arbiter="local") as server:
        await server.dispatch(arrival("ann"))
        for n in range(200):
            await server.dispatch(arrival(f"user {n}"))
            with pytest.raises(TooManyRequestsError):
                await server.dispatch(arrival("ann"))
    assert 0 < len(looks) <= 200 / 5


async def test_those_who_have_left_a_gate_do_not_pile_up() -> None:
    """However many come and go while one runs."""
    permits = LocalPermits(1)
    await permits.try_take()
    for _ in range(10 * SPARE):
        waiting = asyncio.ensure_future(permits.take(0))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert permits.waiting == 0
    assert len(permits._waiters._heap) <= SPARE + 1


async def test_a_permit_that_comes_as_its_waiter_is_cancelled_goes_to_the_next() -> None:
    """None is lost."""
    permits = LocalPermits(1)
    await permits.try_take()
    first, second = asyncio.ensure_future(permits.take(1)), asyncio.ensure_future(permits.take(0))
    await asyncio.sleep(0)
    permits.give_back(None)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(second, SOON)
    permits.give_back(None)
    assert permits.is_idle


async def test_waiters_go_by_priority_and_then_by_arrival() -> None:
    """The highest first; of equal ones, the one that has waited for longer."""
    waiters = PermitWaiters()
    added = {name: waiters.add(priority) for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", 5)]}
    popped = [waiters.pop() for _ in added]
    assert popped == [added[name] for name in "bdac"]
    assert waiters.pop() is None


@pytest.mark.parametrize("priority", [101, -101, 1.5, True])
def test_a_priority_of_an_arrival_is_a_small_whole_number(priority: Any) -> None:
    """Whatever else is refused."""
    with pytest.raises(InvalidInputError, match="the priority: it must be an int from -100 to 100"):
        arrival(priority=priority)


def shared_gate(space: sf.Space) -> SharedPermits:
    """Return one in the store, for one at a time."""
    return SharedPermits(space, ("limit", "l"), "the limit", 1, "f.work", lambda: None)


@pytest.mark.parametrize("turns", range(12))
async def test_whoever_leaves_at_the_moment_when_its_permit_comes_takes_nobody_elses_place_along(turns: int) -> None:
    """At whichever turn of the loop that is: the next one gets it."""
    async with sf.open("memory://") as space:
        permits = shared_gate(space)
        _, first = await permits.try_take()
        leaving, staying = (asyncio.ensure_future(permits.take(0)) for _ in range(2))
        await until(lambda: permits.waiting == 2)
        permits.give_back(first)
        for _ in range(turns):
            await asyncio.sleep(0)
        if not leaving.cancel():
            permits.give_back(leaving.result())
        permits.give_back(await asyncio.wait_for(staying, SOON))
        await until(lambda: permits.is_idle)


async def test_places_that_are_being_left_are_not_counted_for_those_who_wait() -> None:
    """Whoever has come after them keeps its own."""
    async with sf.open("memory://") as space:
        permits = shared_gate(space)
        _, first = await permits.try_take()
        one, two = (asyncio.ensure_future(permits.take(0)) for _ in range(2))
        await until(lambda: permits.waiting == 2)
        two.cancel()
        three, four = (asyncio.ensure_future(permits.take(0)) for _ in range(2))
        await asyncio.sleep(0)
        four.cancel()
        permits.give_back(first)
        for each in (one, three):
            permits.give_back(await asyncio.wait_for(each, SOON))
        await until(lambda: permits.is_idle)


@pytest.mark.parametrize("attended", [True, False])
@pytest.mark.parametrize("arbiter", ["local", "shared"])
async def test_a_durable_request_does_not_wait_for_room_that_it_has_itself(arbiter: Any, attended: bool) -> None:  # noqa: FBT001 -- it has a name
    """Nobody waits for it, but it would wait for its own request, and that for its room."""
    flow, room, refused = sf.Flow("f"), sf.Limit(1, name="room", ttl=None), list[str]()

    @flow.action(limits=room)
    async def inner(_request: sf.Request) -> None:
        """Need the same room."""

    @flow.action(limits=room, durable=True)
    async def work(_request: sf.Request) -> None:
        try:
            await (await server.dispatch(sf.Call(flow="f", action="inner"))).result(timeout=SOON)
        except WaitsForItselfError as problem:
            refused.append(problem.key)

    async with sf.Dispatcher("memory://", [flow], arbiter=arbiter) as server:
        await (await server.dispatch(arrival(attended=attended))).result(timeout=2 * SOON)
    assert refused == ["the limit 'room'"]


@pytest.mark.parametrize("durable", [False, True])
async def test_a_request_that_waits_for_room_after_its_turn_came_has_not_begun_and_overlaps_with_nobody(
    durable: bool,  # noqa: FBT001 -- it has a name
) -> None:
    """However long that takes: those whose place it took had ended before."""
    flow, room, clock = sf.Flow("f"), sf.Limit(1, name="room", ttl=None), VirtualClock()
    may_end = asyncio.Event()

    @flow.action(limits=room)
    async def block(_request: sf.Request) -> None:
        await may_end.wait()

    @flow.action(limits=room, concurrency=sf.Restart(grace="1s"), durable=durable)
    async def work(_request: sf.Request) -> None:
        """Do nothing."""

    store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock)))
    async with sf.Space(store, clock=clock, lease="1 hour") as space, sf.Dispatcher(space, [flow]) as server:
        await server.dispatch(sf.Call(flow="f", action="block"))
        older, newer = [await server.dispatch(arrival(session="s")) for _ in range(2)]
        with pytest.raises(RequestSupersededError):
            await older.result(timeout=SOON)
        await has_its_turn(server, newer)
        clock.advance(10)
        assert ((await newer.info()).status, (await newer.info()).started_at) == ("waiting", 0)
        may_end.set()
        await newer.result(timeout=SOON)
        info = await newer.info()
    assert (info.superseded, info.overlap) == ((older.id,), False)


@pytest.mark.parametrize("sessions", [("s-1", "s-2"), ("s-1", "s-1")], ids=["at the limit", "at the key"])
async def test_a_durable_request_whose_time_is_over_before_it_began_is_refused(sessions: tuple[str, str]) -> None:
    """The time of its queue runs on while it waits for room, and it hears which of the two did not come."""
    room = sf.Limit(1, name="room")
    flow, may_end, begun = flow_with(room, concurrency=sf.Queue(timeout="50ms"), durable=True)
    async with sf.Dispatcher("memory://", [flow], arbiter="shared") as server:
        first = await server.dispatch(arrival(session=sessions[0]))
        await until(lambda: bool(begun))
        second = await server.dispatch(arrival("bob", session=sessions[1]))
        with pytest.raises(QueueTimeoutError) as caught:
            await second.result(timeout=SOON)
        assert caught.value.key == ("session 's-1'" if sessions[0] == sessions[1] else "the limit 'room'")
        assert (await second.info()).status == "refused"
        may_end.set()
        await first.result(timeout=SOON)
    assert begun == ["ann"]
