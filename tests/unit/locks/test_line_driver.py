"""A driver folds the requests of one process into steps, in order, and finds the keys that a step needs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.errors import StoreUnavailableError
from standfast.locks.line import Entry, Granted, OfPresence, Rules, Waiting
from standfast.locks.line_driver import MOST_AT_ONCE, LineDriver
from standfast.locks.line_records import (
    WINDOW,
    Enter,
    Leave,
    Left,
    LineKeys,
    LockSpec,
    NotGranted,
    Reap,
    Resize,
    WrongKind,
)
from standfast.scope import Scope
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from standfast.locks.line_step import Sight
    from standfast.testing import VirtualClock

ONE = LockSpec("limit", Rules(1))


class Process:
    """One process's driver of the line of "k", what it saw, and the wire to its store."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.wire = Wire()
        self.scope = Scope(self.wire.around(scope.store))
        self.interest: set[str] = set()
        self.seen: list[Sight] = []
        self.driver = LineDriver(
            self.scope, LineKeys(self.scope, ("1", "", "k")), clock, self.interest, self.seen.append
        )

    def entry(self, name: str, presence: str = "1") -> Entry:
        """Return an entry of this process."""
        return Entry(name, name, OfPresence(f"{self.scope.presence_name}.{presence}"), Instant(0))

    def enter(self, name: str, presence: str = "1", spec: LockSpec = ONE, *, waits: bool = True) -> asyncio.Future[Any]:
        """Ask to enter, and to be told the fence."""
        self.interest.add(name)
        return self.driver.ask(Enter(self.entry(name, presence), waits), spec)

    def leave(self, name: str, ticket: int | None = None) -> asyncio.Future[Any]:
        """Ask to leave."""
        return self.driver.ask(Leave(name, ticket=ticket), ONE)


@pytest.fixture
def here(scope: Scope, clock: VirtualClock) -> Process:
    """One process."""
    return Process(scope, clock)


@pytest.fixture
def there(scope: Scope, clock: VirtualClock) -> Process:
    """Another."""
    return Process(scope, clock)


async def test_requests_of_one_tick_are_one_step(here: Process) -> None:
    """Ten ask at once: one commit, and each has its own answer, in the order of the calls."""
    answers = [each.answer for each in await asyncio.gather(*(here.enter(f"{n}") for n in range(10)))]

    assert isinstance(answers[0], Granted)
    assert [each.ticket for each in answers[1:]] == list(range(9))
    assert len(here.seen) == 1


async def test_a_step_takes_so_many_requests_and_no_more(here: Process) -> None:
    """A crowd is served in several steps, so that their keys fit into a commit; the order stays."""
    crowd = await asyncio.gather(*(here.enter(f"{n}") for n in range(2 * MOST_AT_ONCE + 1)))

    assert [each.answer.ticket for each in crowd[1:]] == list(range(2 * MOST_AT_ONCE))
    assert len(here.seen) == 3


async def test_requests_that_disagree_share_no_step(here: Process) -> None:
    """Another kind of lock is refused by itself, and takes nobody along."""
    asked = here.enter("a"), here.enter("b", spec=LockSpec("semaphore", Rules(1))), here.enter("c")
    first, second, third = [each.answer for each in await asyncio.gather(*asked)]

    assert isinstance(first, Granted)
    assert second == WrongKind("limit")
    assert isinstance(third, Waiting)


async def test_a_request_is_answered_though_nobody_waits_for_it(here: Process) -> None:
    """One who was cancelled after it asked is in the line; leaving is what takes it out."""
    here.enter("a").cancel()
    answer = (await here.leave("a")).answer
    assert answer == Left(was_holding=True, was_waiting=False)


async def test_the_fence_is_the_version_of_the_grant(here: Process) -> None:
    """It is told with the answer, and grows with each holder."""
    fences: list[int] = []
    for name in ("a", "b", "c"):
        fences.append((await here.enter(name)).sight.fences[name])
        grant = here.driver.keys.grant(0)
        assert (await here.scope.read(grant)).version(grant) == fences[-1]
        await here.leave(name)
    assert fences == sorted(set(fences))


async def test_a_step_finds_a_line_that_moved_meanwhile(here: Process, there: Process) -> None:
    """What was last seen is long out of date: it is taken again with the keys that it lacked."""
    await here.enter("a")
    await asyncio.gather(*(there.enter(f"{n}") for n in range(30)))
    await here.leave("a")
    for n in range(20):
        await there.leave(f"{n}")

    assert (await here.enter("z")).answer.ticket == 30
    assert isinstance((await here.leave("z", 30)).answer, Left)


async def test_a_waiter_out_of_sight_leaves_by_its_ticket(here: Process) -> None:
    """Far behind the front it is found all the same, and only it."""
    asked = await asyncio.gather(*(here.enter(f"{n}") for n in range(WINDOW + 10)))
    last = asked[-1].answer.ticket

    answer = (await here.leave(f"{WINDOW + 9}", last)).answer

    assert answer == Left(was_holding=False, was_waiting=True)
    page = await here.scope.scan(*here.driver.keys.tickets_from(0), limit=100)
    assert len(page.records) == WINDOW + 8


async def test_the_dead_are_passed_over_however_many_they_are(here: Process, there: Process) -> None:
    """More than can be seen at once have died at the front: the first living one gets in, in one request."""
    await here.enter("holder")
    await asyncio.gather(*(there.enter(f"{n}", "2") for n in range(3 * WINDOW)))
    await here.enter("next")

    here.driver.dead.add(f"{there.scope.presence_name}.2")
    sight = (await here.leave("holder")).sight

    assert [holder.entry.id for holder in sight.line.holders] == ["next"]
    assert sight.fences["next"] > 0


async def test_the_dead_fall_together_also_while_somebody_holds(here: Process, there: Process) -> None:
    """However many they are, and though nobody moves up by it: one request takes all of them out."""
    await here.enter("holder")
    await asyncio.gather(*(there.enter(f"{n}", "2") for n in range(3 * WINDOW)))
    living = (await here.enter("next")).answer.ticket

    here.driver.dead.add(f"{there.scope.presence_name}.2")
    await here.driver.ask(Reap(), ONE)

    page = await here.scope.scan(*here.driver.keys.tickets_from(0), limit=100)
    assert list(page.records) == [here.driver.keys.ticket(living)]


async def test_looking_writes_nothing(here: Process, there: Process) -> None:
    """It sees who holds and who waits, and whoever of this process holds is told its fence."""
    await there.enter("a")
    await here.enter("b")
    before = (await here.scope.read(here.driver.keys.head)).version(here.driver.keys.head)

    sight = await there.driver.look()

    assert [each.entry.id for each in sight.line.waiters] == ["b"]
    assert set(sight.fences) == {"a"}
    assert (await here.scope.read(here.driver.keys.head)).version(here.driver.keys.head) == before


async def test_a_look_tells_the_fence_that_is_asked_for_first(here: Process) -> None:
    """However many hold here, of whom only so many fences are read at once."""
    many = LockSpec("semaphore", Rules(100))
    await asyncio.gather(*(here.enter(f"{n}", spec=many) for n in range(60)))
    await here.driver.ask(Enter(here.entry("last")), many)
    assert "last" in (await here.driver.look({"last"})).fences


async def test_a_glance_is_one_read_however_far_the_line_has_moved(
    here: Process, there: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was woken is told its fence by it, and sees nobody whom it has not looked at."""
    await asyncio.gather(*(there.enter(f"{n}") for n in range(20)))
    ticket = (await here.enter("me")).answer.ticket
    await asyncio.gather(*(there.enter(f"{n}") for n in range(20, 30)))
    for n in range(20):
        await there.leave(f"{n}")
    monkeypatch.setattr(here.scope, "read", read := Mock(side_effect=here.scope.read))

    sight = await here.driver.poll_front({"me": ticket})

    read.assert_called_once()
    assert sight.fences == {"me": (await there.driver.look({"me"})).fences["me"]}
    assert (sight.line.front, sight.line.horizon) == (ticket + 1, ticket + 2)


async def test_a_glance_finds_out_who_is_gone(here: Process, there: Process) -> None:
    """One who neither holds nor waits was turned out: the line is looked at as a whole."""
    await there.enter("holder")
    ticket = (await here.enter("me")).answer.ticket
    await there.leave("me", ticket)

    sight = await here.driver.poll_front({"me": ticket})

    assert sight.line.horizon is None
    assert not sight.line.waiters


async def test_a_gap_behind_the_first_holds_nobody_up(here: Process, there: Process) -> None:
    """Those behind it were turned out while the first was waited for: the next living one has its turn."""
    asked = await asyncio.gather(*(there.enter(f"{n}") for n in range(3 * WINDOW)))
    for n in range(2, 3 * WINDOW - 1):
        await here.leave(f"{n}", asked[n].answer.ticket)

    await there.leave("0")
    sight = (await there.leave("1")).sight
    assert [holder.entry.id for holder in sight.line.holders] == [f"{3 * WINDOW - 1}"]


async def test_only_other_processes_are_woken(here: Process, there: Process) -> None:
    """Who waits here is told by the step itself; who waits there gets one wake, about the line."""
    await here.enter("a")
    await here.enter("b")
    await there.enter("c")
    await here.leave("a")
    assert here.wire.wakes == []

    await here.leave("b")
    assert [wake.about for wake in here.wire.wakes] == [here.driver.keys.head]


async def test_an_error_is_told_to_whoever_asked_and_the_line_goes_on(here: Process) -> None:
    """Everyone in the step gets it; the next step is taken."""
    here.wire.cut()
    problems = await asyncio.gather(here.enter("a"), here.enter("b"), return_exceptions=True)
    assert [type(each) for each in problems] == [StoreUnavailableError] * 2

    here.wire.mend()
    assert isinstance((await here.enter("c")).answer, Granted)


async def test_an_idle_line_needs_no_task(here: Process) -> None:
    """A request to a line at rest is answered in the caller's own task."""
    here.interest.add("a")
    before = asyncio.all_tasks()
    asking = asyncio.create_task(here.driver.do(Enter(here.entry("a")), ONE))
    await asyncio.sleep(0)
    assert asyncio.all_tasks() - before <= {asking}

    assert isinstance((await asking).answer, Granted)
    assert here.driver.is_idle


async def test_finishing_waits_for_all_that_was_asked(here: Process) -> None:
    """Then the driver is idle."""
    asked = [here.enter(f"{n}") for n in range(40)]
    assert not here.driver.is_idle
    await here.driver.finish()
    assert all(each.done() for each in asked)
    assert here.driver.is_idle


async def test_one_who_does_not_want_to_wait_joins_no_line(here: Process) -> None:
    """It is refused with the line that it saw."""
    await here.enter("a")
    answer = (await here.enter("b", waits=False)).answer
    assert isinstance(answer, NotGranted)
    assert answer.line.waiters == ()
    assert (await here.scope.read(here.driver.keys.ticket(0))).records == {}


async def test_a_crowd_of_dead_holders_falls_however_large(here: Process, there: Process) -> None:
    """A hundred held by a presence that is gone: one request lets all of them fall, in steps that a store takes."""
    many = LockSpec("semaphore", Rules(101))
    await asyncio.gather(*(here.enter(f"{n}", spec=many) for n in range(100)))

    there.driver.dead.add(f"{here.scope.presence_name}.1")
    answered = await there.enter("next", spec=many)

    assert [holder.entry.id for holder in answered.sight.line.holders] == ["next"]
    grants = await here.scope.scan(*here.scope.key("grant").within(), limit=100)
    assert len(grants.records) == 1


async def test_a_crowd_whose_time_is_over_falls_however_large(
    here: Process, there: Process, clock: VirtualClock
) -> None:
    """A hundred with a longest time: none is left when it is over."""
    many = LockSpec("semaphore", Rules(100))
    entries = (structs.replace(here.entry(f"{n}"), max_hold=10.0) for n in range(100))
    await asyncio.gather(*(here.driver.ask(Enter(entry), many) for entry in entries))

    clock.advance(11)
    answered = await there.enter("next", spec=many)

    assert [holder.entry.id for holder in answered.sight.line.holders] == ["next"]


async def test_a_number_of_permits_is_set_for_no_other_kind_of_lock(here: Process) -> None:
    """A mutex stays one, whoever wants to resize it as a semaphore."""
    await here.enter("a")
    answer = (await here.driver.ask(Resize(3), LockSpec("semaphore", Rules(3)))).answer
    assert answer == WrongKind("limit")
    assert isinstance((await here.enter("b")).answer, Waiting)
