"""A circle is found if every owner that can be reached waits, and only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.locks.deadlock import MOST_OWNERS, find_cycle, give_way
from standfast.locks.heartbeat import PRESENCES, PresenceRecord
from standfast.locks.line import Entry, Holder, OfPresence, Rules, Waiter
from standfast.locks.line_records import HEADS, MARKERS, WAITERS, Head, LineKeys, Marker, marker_key
from standfast.scope import Scope, address_of
from standfast.stores import Delete, Put
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


READ_WRITE = Rules(None, ("write",))


class World:
    """Owners that hold and wait, written down as locks do it."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    async def held(self, key: str, *owners: str, rules: Rules | None = None, mode: str = "") -> None:
        """Write that these hold a key, and that it is full."""
        holders = tuple(Holder(_entry(owner, mode), slot, Instant(1)) for slot, owner in enumerate(owners))
        head = Head("life", "semaphore", rules or Rules(len(owners)), holders, 0, 1)
        await self.scope.commit(Put(LineKeys(self.scope, address_of(key)).head, HEADS.encode(head)))

    async def waits(self, owner: str, key: str, *, ticket: int = 0, mode: str = "") -> None:
        """Write that an owner waits for a key."""
        keys, entry = LineKeys(self.scope, address_of(key)), _entry(owner, mode)
        marker = Marker(keys.address, ticket, entry.id)
        await self.scope.commit(
            Put(keys.ticket(ticket), WAITERS.encode(Waiter(entry, ticket))),
            Put(marker_key(self.scope, owner, entry.id), MARKERS.encode(marker)),
        )

    async def circle_of(self, owner: str) -> list[str]:
        """Return the owners of the circle that one is in, and for what each waits."""
        return [f"{link.owner}:{link.key}" for link in await find_cycle(self.scope, owner)]


def _entry(owner: str, mode: str = "") -> Entry:
    presence = "p.2" if owner.startswith("dead") else "p.1"
    return Entry(f"entry-of-{owner}", owner, OfPresence(presence), Instant(1), mode)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Nobody holds and nobody waits."""
    async with Scope(await open_store("memory://")) as scope:
        present = PRESENCES.encode(PresenceRecord(1, "host", "program", 30.0))
        await scope.commit(Put(scope.key("presence", "p", "1"), present))
        yield World(scope)


async def test_two_who_wait_for_each_other_are_a_circle(world: World) -> None:
    """Each is named with what it waits for, beginning with the one who asks."""
    await world.held("a", "one")
    await world.held("b", "two")
    await world.waits("one", "b")
    await world.waits("two", "a")

    assert await world.circle_of("one") == ["one:b", "two:a"]
    assert await world.circle_of("two") == ["two:a", "one:b"]


async def test_of_two_that_give_way_at_once_one_succeeds(world: World) -> None:
    """However slow they are: the first commit takes the cycle away from the other."""
    await test_two_who_wait_for_each_other_are_a_circle(world)
    seen = {owner: await find_cycle(world.scope, owner) for owner in ("one", "two")}

    outcomes = [await give_way(world.scope, cycle, f"entry-of-{owner}") for owner, cycle in seen.items()]

    assert outcomes == [True, False]
    assert await world.circle_of("two") == []


async def test_of_two_runs_that_give_way_at_once_one_succeeds(world: World) -> None:
    """The one that did can be seen until it has left: its process may die before that."""
    await test_two_who_wait_for_each_other_are_a_circle(world)
    seen = {owner: await find_cycle(world.scope, owner) for owner in ("one", "two")}

    outcomes = [await give_way(world.scope, seen[each], f"entry-of-{each}", survives=True) for each in ("one", "two")]

    assert outcomes == [True, False]
    assert await world.circle_of("two") == ["two:a", "one:b"]


async def test_one_who_waits_for_a_circle_is_not_in_it(world: World) -> None:
    """Those inside are told; it waits until they have sorted it out."""
    await test_two_who_wait_for_each_other_are_a_circle(world)
    await world.waits("three", "a", ticket=1)
    assert await world.circle_of("three") == []


async def test_a_chain_that_ends_with_one_who_goes_on_is_no_circle(world: World) -> None:
    """Somebody will let go."""
    await world.held("a", "one")
    await world.held("b", "two")
    await world.waits("one", "b")
    assert await world.circle_of("one") == []


async def test_one_holder_that_goes_on_is_enough(world: World) -> None:
    """With several permits a wait ends when any of the holders leaves."""
    await world.held("a", "one")
    await world.held("b", "two", "outside")
    await world.waits("one", "b")
    await world.waits("two", "a")
    assert await world.circle_of("one") == []


async def test_if_all_holders_wait_it_is_a_circle(world: World) -> None:
    """Nobody is left to let go."""
    await world.held("a", "one")
    await world.held("b", "two", "three")
    await world.waits("one", "b")
    await world.waits("two", "a")
    await world.waits("three", "a", ticket=1)
    assert "one:b" in await world.circle_of("one")


async def test_a_marker_without_its_waiter_is_not_believed(world: World) -> None:
    """Its process died, or it has just left: it does not wait there any more."""
    await test_two_who_wait_for_each_other_are_a_circle(world)
    ticket = LineKeys(world.scope, address_of("a")).ticket(0)
    record = (await world.scope.read(ticket)).records[ticket]
    await world.scope.commit(Delete(ticket, record.version))
    assert await world.circle_of("one") == []


async def test_a_ticket_of_somebody_else_is_not_taken_for_ones_own(world: World) -> None:
    """Tickets start anew with each life of a line."""
    await test_two_who_wait_for_each_other_are_a_circle(world)
    ticket = LineKeys(world.scope, address_of("a")).ticket(0)
    record = (await world.scope.read(ticket)).records[ticket]
    await world.scope.commit(Put(ticket, WAITERS.encode(Waiter(_entry("stranger"), 0)), record.version))
    assert await world.circle_of("one") == []


async def test_nobody_waits_without_a_marker(world: World) -> None:
    """An owner that waits for nothing is in no circle."""
    assert await world.circle_of("nobody") == []


@pytest.mark.parametrize(("size", "is_found"), [(30, True), (MOST_OWNERS + 5, False)])
async def test_a_circle_is_followed_for_a_while(world: World, size: int, is_found: bool) -> None:  # noqa: FBT001 -- what is expected
    """A very long one is left alone: time-outs end it."""
    for n in range(size):
        await world.held(f"key-{n}", f"owner-{n}")
        await world.waits(f"owner-{n}", f"key-{(n + 1) % size}")
    assert (len(await world.circle_of("owner-0")) == size) == is_found


async def test_a_writer_waits_for_each_reader(world: World) -> None:
    """One reader goes on and leaves; the other waits for the writer, who waits for both: that is a circle."""
    await world.held("k", "free", "reader", rules=READ_WRITE, mode="read")
    await world.held("l", "writer")
    await world.waits("writer", "k", mode="write")
    await world.waits("reader", "l")
    assert await world.circle_of("reader") == ["reader:l", "writer:k"]


async def test_one_who_is_kept_out_by_someone_in_front_is_in_the_circle(world: World) -> None:
    """It would share with the holder, but may not pass the writer who waits for that holder."""
    await world.held("k", "holder", rules=READ_WRITE, mode="read")
    await world.waits("writer", "k", mode="write")
    await world.waits("behind", "k", ticket=1, mode="read")
    await world.held("l", "behind")
    await world.waits("holder", "l")
    assert await world.circle_of("holder") == ["holder:l", "behind:k"]


async def test_the_dead_are_in_no_circle(world: World) -> None:
    """What they hold becomes free, though their records are still there."""
    await world.held("k", "a")
    await world.held("l", "dead")
    await world.waits("dead", "k")
    await world.waits("a", "l")
    assert await world.circle_of("a") == []
