"""The local arbiter: lines in memory, and the lock that makes its process the sole server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import (
    ArbiterUnavailableError,
    NotTheSoleServerError,
    QueueTimeoutError,
    RequestInterruptedError,
    RequestRejectedError,
    RequestSupersededError,
)
from standfast.flows.arbiter.in_memory import LocalArbiter
from standfast.flows.arbiter.protocol import QueueRules, queue_rules_of
from standfast.policies import Queue
from standfast.space import Space, lines_of
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import simulate
from tests.conformance.arbiter_visits import HASTY, REJECT, SOON, Visit, ask, force_out, fresh_name, putting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def space() -> AsyncIterator[Space]:
    """A space in memory."""
    async with sf.open("memory://", namespace=fresh_name()) as space:
        yield space


@pytest.fixture
async def arbiter(space: Space) -> AsyncIterator[LocalArbiter]:
    """The arbiter of the sole server."""
    async with LocalArbiter(space) as arbiter:
        yield arbiter


# --- lines ------------------------------------------------------------------------------------------------------------


async def test_entering_and_leaving_an_empty_line_awaits_nothing(arbiter: LocalArbiter) -> None:
    """A request that collides with nobody goes through without giving way to anybody."""
    holding = arbiter.hold(ask("r1"))
    with pytest.raises(StopIteration) as entered:
        holding.__aenter__().send(None)
    assert entered.value.value.since > 0
    assert arbiter.keys_in_use == 1
    with pytest.raises(StopIteration):
        holding.__aexit__(None, None, None).send(None)
    assert arbiter.keys_in_use == 0


async def test_giving_a_place_back_twice_does_not_free_the_next_one(arbiter: LocalArbiter) -> None:
    """Not even if nobody was there in between, and the key begins anew."""
    async with arbiter.hold(ask("r1")) as first:
        arbiter.leave(first)
        second = await Visit(arbiter, ask("r2", REJECT)).runs()
        arbiter.leave(first)
    assert (await arbiter.look(ask("").address)).position("r2") == 0
    await second.end()


async def test_nobody_slips_in_at_the_hand_over(arbiter: LocalArbiter) -> None:
    """The key stays taken from one turn to the next, whoever asks in between."""
    async with arbiter.hold(ask("r1")):
        second = await Visit(arbiter, ask("r2")).waits()
    with pytest.raises(RequestRejectedError):
        arbiter.enter(ask("r3", REJECT), REJECT)
    await (await second.runs()).end()


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_that_comes_exactly_when_the_budget_is_over_is_not_accepted(seed: int) -> None:
    """Whichever of the two callbacks comes first; and the one behind it has its turn."""

    async def collide() -> None:
        async with Space(GroupedStore(MemoryBackend(MemoryRecords()))) as space, LocalArbiter(space) as arbiter:
            async with arbiter.hold(ask("r1")):
                late = Visit(arbiter, ask("r2", QueueRules(budget=1.0)))
                await late.waits()
                behind = await Visit(arbiter, ask("r3")).waits()
                await asyncio.sleep(1.0)
            with pytest.raises(QueueTimeoutError):
                await late.ended()
            await (await behind.runs()).end()
            assert arbiter.keys_in_use == 0

    simulate(seed, collide)


async def test_a_commit_under_way_is_waited_for_before_the_next_one_begins(arbiter: LocalArbiter, space: Space) -> None:
    """A restart does not revoke what is being committed: it is either there or not when the new one runs."""
    key = space.key("session", "s-1")
    async with arbiter.hold(ask("r1", HASTY)) as first:
        finishing = asyncio.ensure_future(first.finish(putting(key, b"done")))
        await asyncio.sleep(0)
        second = Visit(arbiter, ask("r2", HASTY))
        await second.runs()
        assert (await space.read(key)).records[key].value == b"done"
        await finishing
    await second.end()


async def test_a_request_stopped_during_its_last_commit_completes(arbiter: LocalArbiter, space: Space) -> None:
    """Once its end is on its way, it counts."""
    visit = await Visit(arbiter, ask("r1"), last=putting(space.key("session", "s"), b"done")).runs()
    ending = asyncio.ensure_future(visit.end())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await ending == "r1"


# --- the sole server --------------------------------------------------------------------------------------------------


async def test_a_second_server_is_refused_with_the_fix(arbiter: LocalArbiter, space: Space) -> None:
    """It says who serves, and what to do; when the first has ended, it may."""
    second = LocalArbiter(space)
    with pytest.raises(NotTheSoleServerError, match='stop that one, or leave out arbiter="local"') as refused:
        await second.__aenter__()
    assert str(refused.value.app) == "app"
    assert refused.value.holder
    async with LocalArbiter(space, app="another"):
        await arbiter.aclose()
        async with second:
            await (await Visit(second, ask("r1")).runs()).end()


async def test_a_second_server_can_wait_for_the_first_to_end(arbiter: LocalArbiter, space: Space) -> None:
    """As in a restart without a pause."""
    second = LocalArbiter(space, patience=SOON)
    opening = asyncio.ensure_future(second.__aenter__())
    line = lines_of(space).line(("server", "app"))
    while not (await line.look()).line.waiters:
        await asyncio.sleep(0)  # looking may be done without ever letting the other one go on
        assert not opening.done()
        await asyncio.sleep(0)  # a store in memory answers at once
    await arbiter.aclose()
    await opening
    await second.aclose()


async def test_a_server_that_loses_its_lock_stops_what_it_has_admitted(arbiter: LocalArbiter, space: Space) -> None:
    """What runs is interrupted and can commit nothing, and those who wait are refused."""
    key = space.key("session", "s-1")
    first = await Visit(arbiter, ask("r1"), stubborn=True, last=putting(key, b"late")).runs()
    second = await Visit(arbiter, ask("r2")).waits()
    await force_out(space)
    with pytest.raises(ArbiterUnavailableError):
        await second.ended()
    with pytest.raises(RequestInterruptedError):
        await first.end()
    assert (await space.read(key)).get(key) is None


async def test_a_server_that_lost_its_lock_serves_again_when_it_has_it_back(
    arbiter: LocalArbiter, space: Space
) -> None:
    """It takes the lock again as soon as nobody else has it."""
    await force_out(space)
    async with asyncio.timeout(SOON):
        while True:
            try:
                await (await Visit(arbiter, ask("r1", queue_rules_of(Queue()))).runs()).end()
            except ArbiterUnavailableError:
                await asyncio.sleep(0.001)
            else:
                break


async def test_closing_ends_those_who_are_there(space: Space) -> None:
    """They are interrupted, and whoever waits is refused; nothing is left of their lines."""
    arbiter = await LocalArbiter(space).__aenter__()
    first = await Visit(arbiter, ask("r1")).runs()
    second = await Visit(arbiter, ask("r2")).waits()
    await arbiter.aclose()
    ended = await asyncio.gather(first.ended(), second.ended(), return_exceptions=True)
    assert [type(each) for each in ended] == [RequestInterruptedError, ArbiterUnavailableError]
    assert arbiter.keys_in_use == 0


async def test_a_superseded_one_that_cleans_up_with_an_error_is_superseded_all_the_same(arbiter: LocalArbiter) -> None:
    """What a cancelled body makes of its cancellation is not mistaken for a failure of the action."""

    async def clumsy() -> None:
        async with arbiter.hold(ask("r1", HASTY)):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise OSError("connection reset") from None

    first = asyncio.ensure_future(clumsy())
    await asyncio.sleep(0)
    await (await Visit(arbiter, ask("r2", HASTY)).runs()).end()
    with pytest.raises(RequestSupersededError):
        await first


async def test_those_whose_place_it_takes_are_not_counted_in_front_of_it(arbiter: LocalArbiter) -> None:
    """Of a policy that keeps the latest, each newcomer is the next one."""
    latest, places = queue_rules_of(sf.Latest()), list[int]()
    holder = await Visit(arbiter, ask("r0", latest)).runs()
    waiting = [
        asyncio.ensure_future(arbiter.hold(ask(f"r{number}", latest, on_waiting=places.append)).__aenter__())
        for number in (1, 2, 3)
    ]
    await asyncio.sleep(0)
    assert places == [1, 1, 1]
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await holder.end()
