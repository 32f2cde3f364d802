"""The keeper renews what is in use, from a thread of its own, and tells those who rely on it when it cannot."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import LeaseTooShortError
from standfast.events import Hooks, PresenceLost, SlowRoundTrip
from standfast.locks.heartbeat import Heartbeat
from standfast.scope import Scope
from standfast.stores.url import open_store
from standfast.testing import VirtualClock, simulate
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from standfast.events import Event
    from standfast.locks.heartbeat import Presence

LEASE = 10.0
MINUTES = 600.0


class Watched:
    """A keeper in a simulated world, what it told, and the wire to its store."""

    def __init__(self, scope: Scope, clock: Any, wire: Wire, heartbeat: float | None = None) -> None:
        self.lost: list[Presence] = []
        self.events: list[Event] = []
        self.wire, self.scope = wire, scope
        self.heartbeat = Heartbeat(scope, clock, Hooks([self.events.append]), heartbeat, self.lost.append)

    async def aclose(self) -> None:
        """Stop keeping."""
        self.wire.mend()
        await self.heartbeat.aclose()
        await self.scope.aclose()


async def watched(heartbeat: float | None = None) -> Watched:
    """Make one on the running loop, which is simulated."""
    clock, wire = VirtualClock(asyncio.get_running_loop()), Wire()
    store = wire.around(await open_store("memory://", clock=clock))
    return Watched(Scope(store), clock, wire, heartbeat)


def test_what_is_in_use_is_renewed_for_ever() -> None:
    """Ten minutes later a lease of ten seconds is as good as new."""

    async def main() -> None:
        world = await watched()
        presence = await world.heartbeat.join(LEASE)
        await asyncio.sleep(MINUTES)
        assert presence.left() > LEASE / 2
        assert not world.lost
        await world.aclose()

    simulate(1, main)


def test_what_is_not_in_use_is_not_renewed() -> None:
    """A process that holds nothing costs nothing."""

    async def main() -> None:
        world = await watched()
        presence = await world.heartbeat.join(LEASE)
        world.heartbeat.leave(presence)
        await asyncio.sleep(2 * LEASE)
        assert presence.left() <= 0
        assert not world.lost, "nobody relied on it"
        await world.aclose()

    simulate(2, main)


def test_one_presence_serves_all_of_one_lease() -> None:
    """However much is held; another lease has another presence."""

    async def main() -> None:
        world = await watched()
        same = await asyncio.gather(*(world.heartbeat.join(LEASE) for _ in range(20)))
        other = await world.heartbeat.join(2 * LEASE)
        assert {each.name for each in same} == {same[0].name}
        assert (same[0].users, other is same[0]) == (20, False)
        await world.aclose()

    simulate(3, main)


def test_a_presence_that_lapsed_unused_is_replaced() -> None:
    """It never comes back: the next one has another name."""

    async def main() -> None:
        world = await watched()
        first = await world.heartbeat.join(LEASE)
        world.heartbeat.leave(first)
        await asyncio.sleep(2 * LEASE)
        second = await world.heartbeat.join(LEASE)
        assert second.name != first.name
        assert second.left() > LEASE / 2
        await world.aclose()

    simulate(4, main)


def test_a_short_outage_loses_nothing() -> None:
    """The store is out of reach for most of the lease, and back in time."""

    async def main() -> None:
        world = await watched()
        presence = await world.heartbeat.join(LEASE)
        world.wire.cut()
        await asyncio.sleep(0.8 * LEASE)
        world.wire.mend()
        await asyncio.sleep(MINUTES)
        assert not world.lost
        assert presence.left() > 0
        await world.aclose()

    simulate(5, main)


def test_a_long_outage_is_told_once_and_in_time() -> None:
    """Before the lease is over by the store's time, whoever relies on it hears of it."""

    async def main() -> None:
        world = await watched()
        presence = await world.heartbeat.join(LEASE)
        world.wire.cut()
        await asyncio.sleep(0.95 * LEASE)
        assert world.lost == [presence]
        await asyncio.sleep(MINUTES)
        assert world.lost == [presence]
        assert sum(isinstance(event, PresenceLost) for event in world.events) == 1
        await world.aclose()

    simulate(6, main)


def test_a_heartbeat_can_be_chosen() -> None:
    """With one a second, the presence is never older than that."""

    async def main() -> None:
        world = await watched(heartbeat=1.0)
        presence = await world.heartbeat.join(LEASE)
        oldest = LEASE
        for _ in range(50):
            await asyncio.sleep(0.7)
            oldest = min(oldest, presence.left())
        assert oldest > 0.9 * LEASE - 1.5
        await world.aclose()

    simulate(7, main)


def test_a_store_that_is_slower_than_the_lease_is_refused() -> None:
    """One round trip takes most of the lease: it could never be kept."""

    async def main() -> None:
        world = await watched()
        update = world.scope.store.update

        async def slow(*asked: Any) -> Any:
            await asyncio.sleep(6)
            return await update(*asked)

        world.scope.store.update = slow  # type: ignore[method-assign, assignment]  # the store of this test
        with pytest.raises(LeaseTooShortError, match="3 round trips to the store in a row"):
            await world.heartbeat.join(LEASE)
        assert [type(event) for event in world.events] == [SlowRoundTrip] * 3
        await world.aclose()

    simulate(8, main)


@pytest.mark.parametrize("seconds", [6, 11, 60])
@pytest.mark.parametrize("slow_ones", [1, 2])
def test_one_slow_round_trip_is_no_mistake_in_the_lease(seconds: float, slow_ones: int) -> None:
    """It is told, and asked again, also if the presence has lapsed meanwhile."""

    async def main() -> None:
        world = await watched()
        update, left = world.scope.store.update, [seconds] * slow_ones

        async def slow(*asked: Any) -> Any:
            answer = await update(*asked)
            await asyncio.sleep(left.pop() if left else 0)
            return answer

        world.scope.store.update = slow  # type: ignore[method-assign, assignment]  # the store of this test
        presence = await world.heartbeat.join(LEASE)
        assert presence.left() > LEASE / 2
        slow_trips = [event for event in world.events if isinstance(event, SlowRoundTrip)]
        assert [round(event.seconds) for event in slow_trips] == [seconds] * slow_ones
        assert {event.lease for event in slow_trips} == {LEASE}
        await world.aclose()

    simulate(8, main)


async def test_it_has_a_thread_of_its_own_and_ends_it() -> None:
    """Between the first presence that is attended to and the end."""
    others = set(threading.enumerate())
    scope = Scope(await open_store("memory://"))
    heartbeat = Heartbeat(scope, SYSTEM_CLOCK, Hooks(), None, lambda _: None)
    await heartbeat.join(LEASE)
    [thread] = [each for each in set(threading.enumerate()) - others if each.name == "standfast-keeper"]
    await heartbeat.aclose()
    thread.join(5)
    assert not thread.is_alive()
    await scope.aclose()
