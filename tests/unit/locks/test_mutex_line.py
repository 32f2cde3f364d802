"""The line of a mutex: commits that nobody races for, and the general way beside them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.errors import StoreBusyError, StoreUnavailableError
from standfast.locks.inspect import explain, find_waiter
from standfast.locks.line import Entry, Granted, Holder, OfPresence, OfRun, Rules, Waiter, Waiting
from standfast.locks.line_driver import LineDriver
from standfast.locks.line_records import (
    HEADS,
    READY,
    WAITERS,
    Enter,
    ExtraChanges,
    Head,
    Leave,
    Left,
    LineKeys,
    LockSpec,
    NotGranted,
    Reap,
    WrongKind,
    ready_key,
)
from standfast.locks.mutex_line import HEAD, SLOT, WINDOW, MutexDriver, holder_in, is_mutex, queued_in
from standfast.scope import Scope
from standfast.stores import Delete, GroupedStore, Put, Record
from standfast.stores.memory import CAPABILITIES, MemoryBackend, MemoryRecords
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.locks.line_step import Answered, Sight
    from standfast.testing import VirtualClock

MUTEX = LockSpec("mutex", Rules(1))
ADDRESS = ("1", "", "k")


class Process:
    """One process's driver of the mutex "k", the grants and sights that it was told of, and the wire to its store."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.wire = Wire()
        self.scope = Scope(self.wire.around(scope.store))
        self.keys = LineKeys(self.scope, ADDRESS)
        self.granted: list[Holder] = []
        self.sights: list[Sight] = []
        self.driver = LineDriver(self.scope, self.keys, clock, set(), self.sights.append, self._take)

    def _take(self, grant: Record) -> None:
        self.granted.append(holder_in(grant))

    async def enter(self, name: str, *, run: bool = False, **more: Any) -> Answered:
        """Enter, for a task of this process or for a run."""
        anchor = OfRun(name) if run else OfPresence(f"{self.scope.presence_name}.1")
        known = {each: more.pop(each) for each in ("max_hold", "note") if each in more}
        return await self.driver.do(Enter(Entry(name, name, anchor, Instant(0), **known), **more), MUTEX)

    async def leave(self, name: str, **more: Any) -> Left:
        """Leave."""
        answer = (await self.driver.do(Leave(name, **more), MUTEX)).answer
        assert isinstance(answer, Left)
        return answer

    async def waiting(self) -> list[str]:
        """Return who waits."""
        page = await self.scope.scan(*self.keys.queue.within(), limit=100)
        return [queued_in(self.keys, record).entry.id for record in page.records.values()]

    async def holder(self) -> str | None:
        """Return who holds."""
        record = (await self.scope.read(self.keys.grant(SLOT))).get(self.keys.grant(SLOT))
        return None if record is None else holder_in(record).entry.id

    async def left_behind(self) -> list[str]:
        """Return all records of the line."""
        page = await self.scope.scan(*self.scope._root.within(), limit=100)
        return [str(key) for key in page.records if key.parts[2] != "past"]


@pytest.fixture
async def here(clock: VirtualClock) -> AsyncIterator[Process]:
    """One process."""
    store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock)))
    yield Process(Scope(store), clock)
    await store.aclose()


@pytest.fixture
def there(here: Process, clock: VirtualClock) -> Process:
    """Another one on the same store."""
    return Process(Scope(here.scope.store), clock)


def fence_of(answered: Answered) -> int:
    """Return the fence of an entry that holds."""
    assert isinstance(answered.answer, Granted)
    return answered.sight.fences[answered.answer.holder.entry.id]


async def test_it_is_handed_over_in_the_order_of_the_tickets(here: Process, there: Process) -> None:
    """Each leaves by its fence, which is the version of its grant; the last one leaves nothing behind."""
    first = fence_of(await here.enter("a"))
    tickets = [(await each.enter(name)).answer for each, name in ((there, "b"), (here, "c"), (there, "d"))]
    assert [type(each) for each in tickets] == [Waiting] * 3
    assert [each.ticket for each in tickets if isinstance(each, Waiting)] == sorted(
        {each.ticket for each in tickets if isinstance(each, Waiting)}
    )

    assert await here.leave("a", slot=0, fence=first) == Left(was_holding=True, was_waiting=False)
    assert (await here.holder(), await here.waiting()) == ("b", ["c", "d"])
    fence = (await there.driver.look()).fences["b"]
    assert fence > first
    for process, name in ((there, "b"), (here, "c"), (there, "d")):
        fence = (await process.driver.look()).fences[name]
        assert await process.leave(name, slot=0, fence=fence) == Left(was_holding=True, was_waiting=False)
    assert await here.left_behind() == []


async def test_one_who_lost_it_leaves_the_next_alone(here: Process, there: Process) -> None:
    """By a fence that is void nothing is given back, and nobody is put out."""
    void = fence_of(await here.enter("a"))
    await there.enter("b")
    assert await there.leave("a", by_force=True) == Left(was_holding=True, was_waiting=False)
    assert await here.holder() == "b"

    assert await here.leave("a", slot=0, fence=void) == Left(was_holding=False, was_waiting=False)
    assert await here.holder() == "b"


@pytest.mark.parametrize("is_known", [True, False])
async def test_one_who_gives_up_leaves_the_queue(here: Process, there: Process, *, is_known: bool) -> None:
    """With its ticket or without it, however far back; the others keep their places."""
    await here.enter("a")
    for number in range(WINDOW + 3):
        await there.enter(f"w{number}")
    answer = (await here.enter("far")).answer
    assert isinstance(answer, Waiting)
    ticket = answer.ticket if is_known else None
    if ticket is None:
        here.driver.mutex._tickets.clear()
        found = await find_waiter(here.scope, here.keys, "far")
        assert found is not None
        ticket = found.ticket

    assert await here.leave("far", ticket=ticket) == Left(was_holding=False, was_waiting=True)
    assert await here.waiting() == [f"w{number}" for number in range(WINDOW + 3)]


async def test_one_who_gives_up_too_late_passes_it_on(here: Process, there: Process) -> None:
    """It was granted meanwhile, and the next one has it at once."""
    fence = fence_of(await here.enter("a"))
    answer = (await here.enter("b")).answer
    assert isinstance(answer, Waiting)
    await there.enter("c")
    await there.leave("a", slot=0, fence=fence)

    assert await here.leave("b", ticket=answer.ticket) == Left(was_holding=True, was_waiting=False)
    assert await here.holder() == "c"


async def test_nobody_waits_who_did_not_want_to(here: Process, there: Process) -> None:
    """It is told who holds."""
    await here.enter("a")
    answer = (await there.enter("b", waits=False)).answer
    assert isinstance(answer, NotGranted)
    assert [each.entry.id for each in answer.line.holders] == ["a"]
    assert await here.waiting() == []


async def test_asking_again_is_the_same_acquisition(here: Process, there: Process) -> None:
    """A holder keeps its grant, a waiter its place, by whatever presence it asks."""
    fence = fence_of(await here.enter("a"))
    waiting = (await there.enter("b")).answer
    assert isinstance(waiting, Waiting)
    assert fence_of(await here.enter("a", is_new=False)) == fence
    again = Entry("b", "b", OfPresence(f"{there.scope.presence_name}.2"), Instant(0))
    answer = (await there.driver.do(Enter(again, ticket=waiting.ticket, is_new=False), MUTEX)).answer
    assert answer == waiting
    await here.leave("a", slot=0, fence=fence)
    record = (await here.scope.read(here.keys.grant(SLOT))).get(here.keys.grant(SLOT))
    assert record is not None
    assert holder_in(record).entry.anchor == again.anchor


async def test_a_run_is_told_of_its_turn_by_its_ready_record(here: Process, there: Process) -> None:
    """Between runs and processes it is handed over in order: the store moves these, and the leaver grants those."""
    fence = fence_of(await here.enter("a"))
    await there.enter("run", run=True)
    await there.enter("b")
    await here.leave("a", slot=0, fence=fence)

    key = ready_key(here.scope, "run")
    record = (await here.scope.read(key)).get(key)
    assert record is not None
    assert record.value == READY
    assert await here.holder() == "run"
    assert await there.leave("run") == Left(was_holding=True, was_waiting=False)
    assert await here.holder() == "b"


async def test_extra_changes_are_committed_with_the_answer(here: Process, there: Process) -> None:
    """With a grant, with a place in the queue, and with leaving; what they rest on is guarded."""
    key = here.scope.key("x")

    def note(answer: object, seen: Any) -> list[Put]:
        return [Put(key, type(answer).__name__.encode(), seen.version(key))]

    extra = ExtraChanges[Any]((key,), note)
    for process, name, expected in ((here, "a", b"Granted"), (there, "b", b"Waiting")):
        await process.enter(name, run=True, extra_changes=extra)
        assert (await here.scope.read(key)).records[key].value == expected
    await here.leave("a", extra_changes=extra)
    assert (await here.scope.read(key)).records[key].value == b"Left"
    assert await here.holder() == "b"


async def test_a_request_that_its_extra_changes_refuse_has_not_happened(here: Process) -> None:
    """Nothing of it is in the line."""

    def refuse(answer: object, _: object) -> list[Put]:
        raise ValueError(type(answer).__name__)

    with pytest.raises(ValueError, match="Granted"):
        await here.enter("a", run=True, extra_changes=ExtraChanges[Any]((), refuse))
    assert await here.left_behind() == []


async def test_dead_waiters_fall_together_however_many_they_are(here: Process, there: Process) -> None:
    """The first that lives has its turn when the holder leaves."""
    fence = fence_of(await here.enter("a"))
    for number in range(3 * WINDOW):
        await there.enter(f"dead {number}")
    await here.enter("b", run=True)
    here.driver.dead.add(f"{there.scope.presence_name}.1")

    await here.driver.do(Reap(), LockSpec("", Rules(1)))
    await here.leave("a", slot=0, fence=fence)
    assert (await here.holder(), await here.waiting()) == ("b", [])


async def test_a_dead_holder_and_all_who_waited_leave_nothing(here: Process, there: Process) -> None:
    """It is free, and the next one takes it."""
    await there.enter("a")
    await there.enter("b")
    here.driver.dead.add(f"{there.scope.presence_name}.1")
    await here.driver.do(Reap(), LockSpec("mutex", Rules(1)))
    assert await here.left_behind() == []
    assert fence_of(await here.enter("c"))


async def test_a_hold_that_is_over_is_taken_by_the_next_who_asks(here: Process, there: Process, clock: Any) -> None:
    """``max_hold`` bounds it, whether or not anybody waited."""
    await here.enter("a", max_hold=5.0)
    clock.advance(6)
    assert fence_of(await there.enter("b", run=True))
    assert await here.leave("a", slot=0) == Left(was_holding=False, was_waiting=False)


async def test_a_newcomer_that_takes_what_is_over_passes_none_that_joins_meanwhile(
    here: Process, there: Process, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read that the hold is over and that none waits; then one joins, and comes first."""
    await here.enter("a", max_hold=5.0)
    clock.advance(6.0)
    commit = MutexDriver._commit

    async def late(driver: MutexDriver, *decided: Any) -> Any:
        monkeypatch.setattr(MutexDriver, "_commit", commit)
        await there.enter("b")
        return await commit(driver, *decided)

    monkeypatch.setattr(MutexDriver, "_commit", late)
    assert isinstance((await here.enter("c", run=True)).answer, Waiting)
    assert await here.holder() == "b"
    assert await here.waiting() == ["c"]


async def test_the_one_that_takes_a_mutex_says_how_long_its_holds_took(here: Process, clock: Any) -> None:
    """So that the wait of a newcomer can be estimated, and nothing is written for it."""
    for _ in range(2):
        fence = fence_of(await here.enter("a"))
        clock.advance(2.0)
        await here.leave("a", fence=fence)
    assert fence_of(await here.enter("a"))
    assert (await explain(here.scope, ADDRESS)).pace == pytest.approx(2.0)


async def test_one_joins_while_the_next_takes_what_is_over(here: Process, there: Process, clock: Any) -> None:
    """The hand-over to the one that waits is a commit of its own: the newcomer's ticket is drawn after it."""
    await here.enter("a", run=True, max_hold=5.0)
    await there.enter("b", run=True)
    clock.advance(6.0)
    assert isinstance((await here.enter("c", run=True, ticket=None)).answer, Waiting)
    assert await here.holder() == "b"
    assert await here.waiting() == ["c"]


async def test_a_waiter_leaves_though_the_hold_before_it_is_over(here: Process, there: Process, clock: Any) -> None:
    """It has its turn by then, and gives it back: nothing is left."""
    await here.enter("a", run=True, max_hold=5.0)
    await there.enter("b", run=True)
    clock.advance(6.0)
    await there.leave("b")
    assert not [each for each in await here.left_behind() if "ready" not in each]


async def test_another_kind_of_lock_on_the_key_is_refused_and_left_alone(here: Process, there: Process) -> None:
    """Neither side puts the other one out, and no ticket stays behind."""
    semaphore = LockSpec("semaphore", Rules(2))
    await here.enter("a")
    other = Entry("b", "b", OfPresence(f"{there.scope.presence_name}.1"), Instant(0))
    assert (await there.driver.do(Enter(other), semaphore)).answer == WrongKind("mutex")
    assert await here.holder() == "a"
    await here.leave("a")

    await there.driver.do(Enter(other), semaphore)
    assert (await here.enter("a")).answer == WrongKind("semaphore")
    assert await here.waiting() == []


async def test_a_line_from_before_is_driven_as_it_lies(here: Process) -> None:
    """A mutex that was held when this layout came is handed over as it was before, until it is free once."""
    old = Entry("old", "old", OfRun("old"), Instant(1))
    head = Head("life", "mutex", Rules(1), (Holder(old, 0, Instant(1)),))
    granted = b'1:{"entry":"old","owner":"old","granted_at":1}'
    await here.scope.commit(Put(here.keys.head, HEADS.encode(head)), Put(here.keys.grant(0), granted))

    assert isinstance((await here.enter("a")).answer, Waiting)
    assert await here.waiting() == []
    await here.leave("old")
    assert (await here.driver.look()).line.holder("a") is not None
    await here.leave("a")
    await here.enter("b")
    record = (await here.scope.read(here.keys.head)).records[here.keys.head]
    assert is_mutex(HEADS.decode(record.value))


async def test_people_see_who_holds_and_who_waits(here: Process, there: Process) -> None:
    """As of every line."""
    await here.enter("a", note="first")
    for number in range(3):
        await there.enter(f"b{number}")
    told = await explain(here.scope, ADDRESS, limit=2)
    assert [each.entry for each in told.holders] == ["a"]
    assert [each.entry for each in told.waiters] == ["b0", "b1"]
    assert (told.kind, told.waiting, told.more) == ("mutex", 3, True)


async def test_a_waiter_joins_and_is_granted_without_a_read(
    clock: VirtualClock, scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit to join and one to leave, and nothing is read: the grant comes with the notice."""
    here, there = Process(scope, clock), Process(scope, clock)
    for process, operation in itertools.product((here, there), ("read", "scan", "commit", "update")):
        monkeypatch.setattr(process.scope, operation, _refuse)
    fence = fence_of(await here.enter("a"))
    async with there.scope.watch(there.scope.presence) as watch:
        await there.enter("b")
        await here.leave("a", slot=0, fence=fence)
        heard = await watch.wait(5)
        assert heard is not None
        [grant] = heard.moved
        assert holder_in(grant).entry.id == "b"
        await there.leave("b", slot=0, fence=grant.version)
    monkeypatch.undo()
    assert await here.left_behind() == []


def _refuse(*_: object, **__: object) -> None:
    pytest.fail("all that it takes is to choose")


async def test_one_who_enters_comes_after_what_was_asked_before(here: Process) -> None:
    """A task that was cancelled asks to leave and does not wait: it does not find itself in its own way."""
    fence = fence_of(await here.enter("a"))
    leaving = here.driver.ask(Leave("a", slot=0, fence=fence), MUTEX)
    assert fence_of(await here.enter("b")) > fence
    assert leaving.done()


async def test_what_the_store_does_not_answer_is_told(here: Process) -> None:
    """And nothing is held."""
    here.wire.cut()
    with pytest.raises(StoreUnavailableError):
        await here.enter("a")
    here.wire.mend()
    assert await here.left_behind() == []


async def test_a_grant_that_is_gone_under_its_head_is_made_again(here: Process, there: Process) -> None:
    """Should a process have died halfway, by whatever way: the first one has its turn."""
    await here.enter("a")
    await there.enter("b")
    grant = here.keys.grant(SLOT)
    await here.scope.commit(Delete(grant, (await here.scope.read(grant)).version(grant)))
    await here.driver.do(Reap(), LockSpec("", Rules(1)))
    assert await here.holder() == "b"


async def test_a_ticket_says_when_it_was_drawn_and_a_grant_when_it_was_made(scope: Scope) -> None:
    """The store writes both times before the entry."""
    keys = LineKeys(scope, ADDRESS)
    entry = Entry("a", "a", OfRun("a"), Instant(0))
    body = WAITERS.encode(Waiter(entry))
    ticket = Record(keys.queued(7), b"%016d%b" % (5, body), 7)
    assert (queued_in(keys, ticket).ticket, queued_in(keys, ticket).entry.entered_at) == (7, 5)
    holder = holder_in(Record(keys.grant(0), b"%016d%b" % (9, ticket.value), 8))
    assert (holder.granted_at, holder.entry.entered_at) == (9, 5)


async def test_where_the_store_does_not_choose_a_mutex_is_a_counted_line(clock: VirtualClock) -> None:
    """Each way has its own layout, and a holder that came with a moved store can still leave."""
    can = structs.replace(CAPABILITIES, alternatives=False)
    store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock, capabilities=can)))
    here = Process(Scope(store), clock)
    await here.enter("a")
    record = (await here.scope.read(here.keys.head)).records[here.keys.head]
    assert not is_mutex(HEADS.decode(record.value))
    await here.leave("a")

    entry = Entry("moved", "moved", OfRun("moved"), Instant(0))
    grant = b"%016d%b" % (5, WAITERS.encode(Waiter(entry)))
    await here.scope.commit(Put(here.keys.head, HEAD), Put(here.keys.grant(SLOT), grant))
    with pytest.raises(StoreBusyError, match="moved here"):
        await here.enter("b")
    assert await here.leave("moved") == Left(was_holding=True, was_waiting=False)
    assert await here.left_behind() == []
    assert fence_of(await here.enter("b"))
    await store.aclose()
