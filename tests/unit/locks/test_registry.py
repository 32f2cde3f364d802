"""When a line is polled by those who wait in it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

import standfast as sf
from standfast.clock import Instant
from standfast.errors import WithdrawnError
from standfast.events import NO_HOOKS
from standfast.locks import registry
from standfast.locks.line import Entry, OfPresence, Rules
from standfast.locks.line_driver import LocalLine, LocalWaiter
from standfast.locks.line_records import LineKeys, LockSpec
from standfast.locks.locks import Mutex
from standfast.locks.registry import FIRST_POLL, FIRST_POLL_AFAR, LATEST_POLL, NEW, PATIENCE, Lines, _first_poll
from standfast.scope import Scope, address_of
from standfast.space import Space
from standfast.stores import GroupedStore, Record
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.testing import VirtualClock, simulate
from tests.conformance.modest import MODEST, ModestBackend


@pytest.fixture
def line(scope: Scope, clock: VirtualClock) -> LocalLine:
    """A line in which this process takes part."""
    return LocalLine(scope, LineKeys(scope, address_of("k")), clock)


@pytest.mark.parametrize(
    ("waited", "polled_after"),
    [(0.0, FIRST_POLL_AFAR), (0.02, FIRST_POLL_AFAR), (0.1, PATIENCE * 0.1), (3.0, LATEST_POLL)],
)
def test_the_first_poll_comes_when_turns_here_would_have_come(
    line: LocalLine, waited: float, polled_after: float
) -> None:
    """Several times as late as turns came lately, never sooner than usual, and after a second at the latest."""
    line.waited = waited
    assert _first_poll(line, PATIENCE) == pytest.approx(polled_after)


def test_where_a_poll_costs_no_round_trip_it_is_not_put_off(line: LocalLine) -> None:
    """On one machine the death of a holder is to be seen at once, and a poll is cheap."""
    line.waited = 3.0
    assert _first_poll(line, 0) == FIRST_POLL


async def test_lines_in_use_do_not_keep_others_from_being_forgotten(
    scope: Scope, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many locks a process holds, those that it has left are forgotten, at the same cost for each new one."""
    monkeypatch.setattr(registry, "REMEMBERED", 20)
    looked: list[str] = []

    def is_idle(line: LocalLine) -> bool:
        looked.append(name := line.driver.keys.head.parts[-1])
        return not name.startswith("held")

    monkeypatch.setattr(LocalLine, "is_idle", property(is_idle))
    lines = registry.Lines(scope, clock, NO_HOOKS, None)
    for number in range(50):
        lines.line(address_of(f"held {number}"))
    for number in range(200):
        lines.line(address_of(f"left {number}"))
    kept = [address[-1] for address in lines._lines]
    assert sum(name.startswith("held") for name in kept) == 50
    assert sum(name.startswith("left") for name in kept) <= 20
    assert len(looked) <= 250 * registry.FORGOTTEN
    assert len(lines._by_head) == len(lines._by_grants) == len(kept)
    await lines.aclose()


async def test_a_line_is_not_read_for_a_lost_notification_while_all_in_it_is_new(
    scope: Scope, clock: VirtualClock
) -> None:
    """Stores say every second that a notification may have got lost: those who have just come are polled for anyway."""
    lines = Lines(scope, clock, NO_HOOKS, None)
    line = lines.line(address_of("k"))
    mutex = Mutex(lines, "k", 30.0)
    async with mutex.hold():
        assert not lines._may_have_missed(line)
        clock.advance(NEW)
        assert lines._may_have_missed(line)
    assert not lines._may_have_missed(line)
    await lines.aclose()


async def test_a_line_is_read_for_a_lost_notification_if_one_has_waited_for_longer_than_usual(
    scope: Scope, clock: VirtualClock
) -> None:
    """Its turn may have come, and the word of it got lost."""
    lines = Lines(scope, clock, NO_HOOKS, None)
    line = lines.line(address_of("k"))
    presence = await lines.heartbeat.join(30.0)
    entry = Entry("e", "o", OfPresence(presence.name), Instant(0))
    wait = line.waits["e"] = LocalWaiter(entry, presence, LockSpec("mutex", Rules(1)), asyncio.get_running_loop())
    assert not lines._may_have_missed(line)
    wait._since = wait.since - _first_poll(line, 0)  # as if it had waited for that long
    assert lines._may_have_missed(line)
    del line.waits["e"]
    lines.heartbeat.leave(presence)
    await lines.aclose()


def test_where_the_store_polls_what_it_finds_is_looked_at_at_once() -> None:
    """Such a store never says more than that something may have changed: a waiter does not put off its look."""

    async def take() -> float:
        memory, loop = MemoryRecords(capabilities=MODEST), asyncio.get_running_loop()
        here, there = (Space(GroupedStore(ModestBackend(memory)), clock=VirtualClock(loop)) for _ in range(2))
        waits = list[float]()
        async with here, there:
            for _ in range(5):
                other = there.mutex("k").hold()
                async with here.mutex("k").hold():
                    entering = asyncio.ensure_future(other.__aenter__())
                    await asyncio.sleep(0.05)
                left_at = loop.time()
                await entering
                waits.append(loop.time() - left_at)
                await other.__aexit__(None, None, None)
        return max(waits)

    assert simulate(1, take) < FIRST_POLL


@pytest.mark.parametrize("permits", [0, 1, 3, 40])
async def test_an_operator_need_not_know_what_kind_of_lock_a_key_has(permits: int) -> None:
    """The commands for people take a key: a mutex, a semaphore with slots or one that is counted, they act on it."""
    async with sf.open("memory://") as space:
        lock: Any = space.semaphore("k", permits=permits) if permits else space.mutex("k")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(max(1, permits)):
                await stack.enter_async_context(lock.hold(on_lost="tell"))
            waiter = asyncio.create_task(lock.hold().__aenter__())
            async with space.watch(space.key("line")) as watch:
                while not (told := await space.explain("k")).waiting:
                    await watch.wait(1)
            by_another_name: Any = space.mutex("k") if permits else space.semaphore("k", permits=2)

            assert await by_another_name.withdraw(told.waiters[0].entry)
            assert not (await space.explain("k")).waiting
            with pytest.raises(WithdrawnError):
                await waiter
            assert await by_another_name.force_release(told.holders[0].entry)
            assert (await space.explain("k")).holding == max(1, permits) - 1


@pytest.mark.parametrize("permits", [0, 2])
async def test_a_notice_that_shows_the_grant_is_taken_where_it_arrives(
    monkeypatch: pytest.MonkeyPatch, permits: int
) -> None:
    """The task that listens has nothing left to do: the waiter is the next to run."""
    left_over: list[object] = []
    monkeypatch.setattr(Lines, "_take_shown", lambda _, record: left_over.append(record))
    memory = MemoryRecords()
    here, there = (Space(GroupedStore(MemoryBackend(memory))) for _ in range(2))
    async with here, there, contextlib.AsyncExitStack() as others:
        held, wanted = (each.semaphore("k", permits=permits) if permits else each.mutex("k") for each in (here, there))
        for _ in range(permits - 1):
            await others.enter_async_context(held.hold())
        async with held.hold():
            entering = asyncio.ensure_future(wanted.hold().__aenter__())
            while not (await here.explain("k")).waiting:  # noqa: ASYNC110 -- another space makes it so
                await asyncio.sleep(0)
        holding = await entering
        assert not holding.is_lost
        assert not left_over


async def test_a_notice_that_cannot_be_read_is_left_to_the_listener(scope: Scope, clock: VirtualClock) -> None:
    """Another version may have written it; what is of no line here, or of no mutex, is the listener's as well."""
    lines = Lines(scope, clock, NO_HOOKS, None)
    line = lines.line(address_of("k"))
    presence = await lines.heartbeat.join(30.0)
    entry = Entry("e", "o", OfPresence(presence.name), Instant(0))
    line.waits["e"] = LocalWaiter(entry, presence, LockSpec("mutex", Rules(1)), asyncio.get_running_loop())
    grant = line.driver.keys.grant(0)
    assert not lines._take_granted(Record(grant, b"%016d9:nobody knows" % 1, 1))
    assert not lines._take_granted(Record(LineKeys(scope, address_of("other")).grant(0), b"%016d1:{}" % 1, 1))
    assert not lines._take_granted(Record(grant, b"1:{}", 1))
    assert not line.waits["e"].turn.done()
    del line.waits["e"]
    lines.heartbeat.leave(presence)
    await lines.aclose()
