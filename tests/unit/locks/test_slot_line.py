"""The line of a semaphore with slots: commits that nobody races for, and the general way beside them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from standfast.clock import Instant
from standfast.errors import StoreBusyError
from standfast.locks.inspect import explain, find_waiter, holders_in
from standfast.locks.line import Entry, Granted, OfPresence, OfRun, Rules, TooHeavy, Waiting
from standfast.locks.line_driver import LineDriver
from standfast.locks.line_records import (
    HEADS,
    SEMAPHORE,
    Enter,
    Head,
    Leave,
    Left,
    LineKeys,
    LockSpec,
    NotGranted,
    Reap,
    Resize,
    WrongKind,
    is_slotted,
    ready_key,
)
from standfast.locks.mutex_line import holder_in, queued_in
from standfast.locks.slot_line import MOST_SLOTS, STREAK, grants_in
from standfast.scope import Scope
from standfast.stores import Conflict, GroupedStore, Put
from standfast.stores.memory import CAPABILITIES, MemoryBackend, MemoryRecords
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from standfast.locks.line import Holder
    from standfast.locks.line_step import Answered, Sight
    from standfast.stores import Record
    from standfast.testing import VirtualClock

ADDRESS = ("1", "", "k")


def permits(number: int, **more: Any) -> LockSpec:
    """Return what a call site says that wants so many permits."""
    return LockSpec(SEMAPHORE, Rules(number), **more)


TWO = permits(2)


class Process:
    """One process's driver of the semaphore "k", and what it was told."""

    def __init__(self, scope: Scope, clock: VirtualClock) -> None:
        self.calls: list[str] = []
        store: Any = Wire().around(scope.store)
        for name in ("read", "scan", "commit", "update", "choose"):
            setattr(store, name, self._counted(name, getattr(store, name)))
        self.scope = Scope(store)
        self.keys = LineKeys(self.scope, ADDRESS).with_slots()
        self.granted: list[Holder] = []
        self.sights: list[Sight] = []
        self.driver = LineDriver(
            self.scope, LineKeys(self.scope, ADDRESS), clock, set(), self.sights.append, self._take
        )

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*args: Any, **options: Any) -> Any:
            answer = await call(*args, **options)
            self.calls.append(name + " refused" * isinstance(answer, Conflict))
            return answer

        return counted

    def _take(self, grant: Record) -> None:
        self.granted.append(holder_in(grant))

    async def enter(self, name: str, spec: LockSpec = TWO, *, run: bool = False, **more: Any) -> Answered:
        """Enter, for a task of this process or for a run."""
        anchor = OfRun(name) if run else OfPresence(f"{self.scope.presence_name}.1")
        known = {each: more.pop(each) for each in ("max_hold", "note", "weight") if each in more}
        return await self.driver.do(Enter(Entry(name, name, anchor, Instant(0), **known), **more), spec)

    async def leave(self, name: str, spec: LockSpec = TWO, **more: Any) -> Left:
        """Leave."""
        answer = (await self.driver.do(Leave(name, **more), spec)).answer
        assert isinstance(answer, Left)
        return answer

    async def give_back(self, held: Answered, spec: LockSpec = TWO) -> Left:
        """Leave as one does who knows its slot and its fence."""
        assert isinstance(held.answer, Granted)
        holder = held.answer.holder
        return await self.leave(holder.entry.id, spec, slot=holder.slot, fence=held.sight.fences[holder.entry.id])

    async def held(self) -> dict[int, str]:
        """Return who holds which slot."""
        return {slot: holder_in(each).entry.id for slot, each in (await grants_in(self.scope, self.keys)).items()}

    async def waiting(self) -> list[str]:
        """Return who waits."""
        page = await self.scope.scan(*self.keys.queue.within(), limit=100)
        return [queued_in(self.keys, record).entry.id for record in page.records.values()]

    async def gate(self) -> str | None:
        """Return how many permits the gate says; None: there is none."""
        page = await self.scope.scan(*self.scope.key("gate").within(), limit=10)
        return next((key.parts[-1] for key in page.records), None)

    async def head(self) -> Head | None:
        """Return the head."""
        record = (await self.scope.read(self.keys.head)).get(self.keys.head)
        return None if record is None else HEADS.decode(record.value)

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


def kinds(*answered: Answered) -> list[type]:
    """Return what was answered."""
    return [type(each.answer) for each in answered]


async def test_permits_are_handed_over_in_the_order_of_the_tickets(here: Process, there: Process) -> None:
    """Each slot goes to the first that waits, whoever leaves; the last one leaves nothing behind."""
    a, b = await here.enter("a"), await there.enter("b")
    assert kinds(a, b) == [Granted, Granted]
    assert sorted((await here.held()).values()) == ["a", "b"]
    assert kinds(await here.enter("c"), await there.enter("d")) == [Waiting, Waiting]

    assert await there.give_back(b) == Left(was_holding=True, was_waiting=False)
    assert (sorted((await here.held()).values()), await here.waiting()) == (["a", "c"], ["d"])
    assert [each.entry.id for each in there.granted] == ["c"]
    await here.give_back(a)
    held = await grants_in(here.scope, here.keys)
    assert sorted((await here.held()).values()) == ["c", "d"]
    for slot, record in held.items():
        await here.leave(holder_in(record).entry.id, slot=slot, fence=record.version)
    assert await here.left_behind() == []


async def test_a_hold_is_two_writes_and_no_read(here: Process, there: Process) -> None:
    """With a free permit, without one, and as the last one."""
    a, b = await here.enter("a"), await there.enter("b")
    await here.enter("c")
    await here.give_back(a)
    await there.give_back(b)
    [(slot, grant)] = (await grants_in(there.scope, there.keys)).items()
    await here.leave("c", slot=slot, fence=grant.version)
    assert here.calls == [*["choose"] * 5, "scan", "choose"]  # those of the other process, too; the scan is the test's
    assert await here.left_behind() == []


async def test_every_permit_is_found_however_many_there_are(here: Process, there: Process) -> None:
    """One that tries a few slots, and finds all of them taken, learns from that which are free."""
    spec = permits(MOST_SLOTS)
    held = [await (here, there)[number % 2].enter(f"{number}", spec) for number in range(MOST_SLOTS)]
    assert kinds(*held) == [Granted] * MOST_SLOTS
    assert sorted(await here.held()) == [*range(MOST_SLOTS)]
    assert kinds(await there.enter("late", spec)) == [Waiting]
    assert not {"read", "scan", "update"} & {*there.calls[:-1]}


async def test_a_permit_is_refused_to_one_that_does_not_wait(here: Process, there: Process) -> None:
    """It is told who holds, and stands in no line."""
    a, _ = await here.enter("a"), await here.enter("b")
    refused = (await there.enter("c", waits=False)).answer
    assert isinstance(refused, NotGranted)
    assert sorted(each.entry.id for each in refused.line.holders) == ["a", "b"]
    assert await there.waiting() == []
    await here.give_back(a)
    assert kinds(await there.enter("c", waits=False)) == [Granted]


async def test_one_that_withdraws_leaves_its_ticket_alone(here: Process, there: Process) -> None:
    """In one commit; and if it was granted meanwhile, it gives that back."""
    a, _ = await here.enter("a"), await here.enter("b")
    for name in ("c", "d"):
        await there.enter(name)
    assert await there.leave("c") == Left(was_holding=False, was_waiting=True)
    assert await here.waiting() == ["d"]
    await here.give_back(a)
    assert await there.leave("d") == Left(was_holding=True, was_waiting=False)
    assert [*(await here.held()).values()] == ["b"]


async def test_after_some_that_were_waited_for_only_a_handover_is_tried(here: Process, there: Process) -> None:
    """If none waits after all, that is found out, and nothing is left."""
    spec, last = permits(1), await here.enter("first", permits(1))
    for number in range(STREAK):
        await there.enter(f"{number}", spec)
        await here.give_back(last, spec)
        [grant] = (await grants_in(here.scope, here.keys)).values()
        last = structs.replace(
            last,
            answer=Granted(holder_in(grant)),
            sight=structs.replace(last.sight, fences={f"{number}": grant.version}),
        )
    here.calls.clear()
    await here.give_back(last, spec)
    assert here.calls == ["choose refused", "choose"]
    assert await here.left_behind() == []


# --- what does not fit into slots -----------------------------------------------------------------------------------


async def test_a_heavy_one_is_not_passed_and_has_all_it_wants(here: Process, there: Process) -> None:
    """While it waits with a permit free, or holds, there is no gate; then there is one again."""
    a = await here.enter("a")
    assert await here.gate() == "2"
    assert kinds(await there.enter("heavy", weight=2), await here.enter("late")) == [Waiting, Waiting]
    assert (await here.gate(), sorted((await here.held()).values())) == (None, ["a"])
    await here.give_back(a)
    assert (await here.gate(), [*(await here.held()).values()]) == (None, ["heavy"])
    assert await there.leave("heavy") == Left(was_holding=True, was_waiting=False)
    assert (await here.gate(), [*(await here.held()).values()], await here.waiting()) == ("2", ["late"], [])
    await here.leave("late")
    assert await here.left_behind() == []


async def test_a_heavy_one_waits_behind_a_full_line_under_the_gate(here: Process, there: Process) -> None:
    """It is not moved by the store: the one that leaves makes room for it."""
    a, b = await here.enter("a"), await here.enter("b")
    await there.enter("heavy", weight=2)
    assert await here.gate() == "2"
    await here.give_back(a)
    assert ([*(await here.held()).values()], await here.gate()) == (["b"], None)
    await here.give_back(b)
    assert [*(await here.held()).values()] == ["heavy"]


async def test_more_than_there_is_is_refused(here: Process, there: Process) -> None:
    """Whatever lies there."""
    await here.enter("a")
    assert kinds(await there.enter("heavy", weight=3)) == [TooHeavy]
    assert await here.gate() == "2"


async def test_a_heavy_one_that_gives_up_lets_the_others_pass(here: Process, there: Process) -> None:
    """They need not wait until one leaves."""
    await here.enter("a")
    await there.enter("heavy", weight=2)
    await here.enter("b")
    assert await there.leave("heavy") == Left(was_holding=False, was_waiting=True)
    assert (sorted((await here.held()).values()), await here.gate()) == (["a", "b"], "2")


async def test_fewer_permits_are_kept_to_by_those_that_do_not_know_yet(here: Process, there: Process) -> None:
    """One that holds since before gives its permit back, and does not hand it over."""
    a, b = await here.enter("a"), await here.enter("b")
    await here.enter("c")
    await there.driver.do(Resize(1), TWO)
    await here.give_back(a)
    assert ([*(await here.held()).values()], await here.waiting()) == (["b"], ["c"])
    await here.give_back(b)
    assert ([*(await here.held()).values()], await here.waiting()) == (["c"], [])
    await here.leave("c")
    head = await here.head()
    assert head is not None
    assert (head.pinned, head.rules.permits, await here.held()) == (True, 1, {})


async def test_more_permits_let_in_all_that_fit(here: Process, there: Process) -> None:
    """And those that come later find them, though they say another number."""
    await here.enter("a", permits(1))
    for name in ("b", "c", "d"):
        await there.enter(name, permits(1))
    await here.driver.do(Resize(3), permits(1))
    assert (sorted((await here.held()).values()), await here.waiting(), await here.gate()) == (
        ["a", "b", "c"],
        ["d"],
        "3",
    )
    there.calls.clear()
    assert kinds(await there.enter("e", permits(1)), await there.enter("f", permits(1))) == [Waiting, Waiting]
    assert there.calls[-1] == "choose"
    assert there.driver.disagreement is None  # the number was set on purpose


async def test_a_number_that_was_set_goes_back_by_itself(here: Process, there: Process, clock: VirtualClock) -> None:
    """Until then there is no gate: the number is a matter of time."""
    await here.enter("a")
    await there.driver.do(Resize(1, until=Instant(clock.wall() + 10_000_000)), TWO)
    await there.enter("b")
    assert (await here.waiting(), await here.gate()) == (["b"], None)
    clock.advance(10)
    await there.driver.do(Reap(), TWO)
    assert (sorted((await here.held()).values()), await here.gate()) == (["a", "b"], "2")


async def test_a_call_site_that_says_another_number_is_told(here: Process, there: Process) -> None:
    """And the number of the line counts."""
    await here.enter("a", permits(1))
    assert kinds(await there.enter("b", permits(3))) == [Waiting]
    assert there.driver.disagreement is not None
    assert there.driver.disagreement.rules.permits == 1


async def test_a_gate_that_was_half_closed_is_closed_and_opened(here: Process, there: Process) -> None:
    """A process died between the two commits."""
    a, _ = await here.enter("a"), await here.enter("b")
    head = (await here.scope.read(here.keys.head)).records[here.keys.head]
    await here.scope.commit(Put(head.key, head.value, head.version))
    await there.enter("c")
    await here.give_back(a)
    assert (sorted((await here.held()).values()), await here.gate()) == (["b", "c"], "2")


async def test_past_holds_are_kept_if_a_call_site_says_so(here: Process, there: Process) -> None:
    """All holds are noted from then on, so there is no gate."""
    a = await here.enter("a")
    await there.enter("b", permits(2, history=5))
    assert await here.gate() is None
    await here.give_back(a)
    told = await explain(here.scope, ADDRESS)
    assert [each.owner for each in told.history] == ["a"]


# --- others than processes that wait ---------------------------------------------------------------------------------


async def test_a_run_is_told_that_it_holds(here: Process, there: Process) -> None:
    """By its ready record, in the commit of the one that leaves."""
    a, _ = await here.enter("a"), await here.enter("b")
    await there.enter("run", run=True)
    ready = ready_key(here.scope, "run")
    assert (await here.scope.read(ready)).get(ready) is None
    await here.give_back(a)
    assert sorted((await here.held()).values()) == ["b", "run"]
    assert (await here.scope.read(ready)).get(ready) is not None
    assert await here.gate() == "2"


async def test_a_line_that_a_run_begins_is_counted(here: Process, there: Process) -> None:
    """And stays so until it is free once."""
    await here.enter("run", run=True)
    head = await here.head()
    assert head is not None
    assert not is_slotted(head)
    b = await there.enter("b")
    assert kinds(b, await there.enter("c")) == [Granted, Waiting]
    await here.leave("run")
    await there.give_back(b)
    await there.leave("c")
    assert await here.left_behind() == []
    await there.enter("d")
    assert (await here.gate(), sorted((await here.held()).values())) == ("2", ["d"])


async def test_a_hold_that_is_over_goes_to_the_first_that_waits(
    here: Process, there: Process, clock: VirtualClock
) -> None:
    """And to a newcomer, if none waits."""
    await here.enter("a")
    await here.enter("b", max_hold=5)
    await there.enter("c")
    clock.advance(6)
    assert kinds(await there.enter("d", max_hold=5)) == [Waiting]
    assert (sorted((await here.held()).values()), await here.waiting()) == (["a", "c"], ["d"])
    await here.leave("a")
    clock.advance(6)
    assert kinds(await there.enter("e", max_hold=5)) == [Granted]
    assert (sorted((await here.held()).values()), await here.gate()) == (["c", "e"], "2")


async def test_the_dead_fall_holding_and_waiting(here: Process, there: Process) -> None:
    """Several at once, and those behind them have their turns."""
    await here.enter("a")
    await here.enter("b")
    await here.enter("c")
    await there.enter("d")
    there.driver.dead.add(f"{here.scope.presence_name}.1")
    await there.driver.do(Reap(), TWO)
    assert (await there.held(), await there.waiting(), await there.gate()) == ({0: "d"}, [], "2")
    assert there.driver.dead == set()


@pytest.mark.parametrize("waiting", [0, 1, 40])
async def test_a_crowd_of_the_dead_falls_however_large(here: Process, there: Process, waiting: int) -> None:
    """All of them, in steps that the store takes, and those behind them have their turns in order."""
    many = permits(MOST_SLOTS)
    for number in range(MOST_SLOTS):
        await here.enter(f"{number}", many)
    held = [await there.enter(f"next {number:02}", many) for number in range(waiting)]
    assert kinds(*held) == [Waiting] * waiting

    there.driver.dead.add(f"{here.scope.presence_name}.1")
    await there.driver.do(Reap(), many)

    assert sorted((await there.held()).values()) == [f"next {number:02}" for number in range(waiting)]
    assert (await there.waiting(), there.driver.dead) == ([], set())
    for slot, grant in (await grants_in(there.scope, there.keys)).items():
        await there.leave(holder_in(grant).entry.id, many, slot=slot, fence=grant.version)
    assert await there.left_behind() == []


async def test_a_crowd_whose_time_is_over_falls_however_large(
    here: Process, there: Process, clock: VirtualClock
) -> None:
    """Also if all of them have the same longest time."""
    many = permits(MOST_SLOTS)
    await here.enter("first", many)
    for number in range(1, MOST_SLOTS):
        await here.enter(f"{number}", many, max_hold=5)
    await there.enter("next", many)

    clock.advance(6)
    await there.driver.do(Reap(), many)

    assert sorted((await there.held()).values()) == ["first", "next"]


async def test_tasks_that_enter_at_once_find_slots_of_their_own(here: Process, there: Process) -> None:
    """Most of them in one commit, also while the last permits go; the rest line up. None reads."""
    spec = permits(50)
    await here.enter("first", spec)
    here.calls.clear()

    entered = await asyncio.gather(
        *(here.enter(f"here {number}", spec) for number in range(24)),
        *(there.enter(f"there {number}", spec) for number in range(30)),
    )

    assert sorted(each.__name__ for each in kinds(*entered)) == ["Granted"] * 49 + ["Waiting"] * 5
    assert {*here.calls} <= {"choose", "choose refused"}
    assert here.calls.count("choose refused") <= 27


async def test_one_that_is_evicted_finds_it_lost(here: Process, there: Process) -> None:
    """Its permit goes to the next one, and giving it back changes nothing."""
    a, _ = await here.enter("a"), await here.enter("b")
    await there.enter("c")
    assert await there.leave("a", by_force=True) == Left(was_holding=True, was_waiting=False)
    assert await here.give_back(a) == Left(was_holding=False, was_waiting=False)
    assert sorted((await here.held()).values()) == ["b", "c"]


# --- other kinds, other stores, and people ---------------------------------------------------------------------------


async def test_one_that_takes_it_for_a_mutex_is_told_and_gets_no_permit(here: Process, there: Process) -> None:
    """Its ticket is not among those of the semaphore."""
    a, _ = await here.enter("a"), await here.enter("b")
    mutex = LockSpec("mutex", Rules(1))
    assert kinds(await there.driver.do(Enter(Entry("m", "m", OfPresence("p.1"), Instant(0))), mutex)) == [WrongKind]
    await here.give_back(a)
    assert (sorted((await here.held()).values()), await here.waiting()) == (["b"], [])
    assert [each for each in await here.left_behind() if "queue" in each] == []


async def test_many_permits_and_stores_that_cannot_choose_have_no_slots(here: Process, clock: VirtualClock) -> None:
    """The line is counted."""
    await here.enter("a", permits(MOST_SLOTS + 1))
    head = await here.head()
    assert head is not None
    assert not is_slotted(head)
    able = structs.replace(CAPABILITIES, alternatives=False)
    store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock, capabilities=able)))
    plain = Process(Scope(store), clock)
    await plain.enter("a")
    head = await plain.head()
    assert head is not None
    assert not is_slotted(head)
    await store.aclose()


async def test_what_is_held_while_its_store_is_moved_can_be_left(here: Process, clock: VirtualClock) -> None:
    """To one that cannot choose; one that enters there is refused until then."""
    await here.enter("a")
    able = structs.replace(CAPABILITIES, alternatives=False)
    store = GroupedStore(MemoryBackend(MemoryRecords(clock=clock, capabilities=able)))
    moved = Process(Scope(store), clock)
    page = await here.scope.scan(*here.scope._root.within(), limit=100)
    await store.commit(*[Put(record.key, record.value) for record in page.records.values()])
    with pytest.raises(StoreBusyError):
        await moved.enter("b")
    assert await moved.leave("a") == Left(was_holding=True, was_waiting=False)
    assert await moved.left_behind() == []
    assert kinds(await moved.enter("b")) == [Granted]
    await store.aclose()


async def test_people_see_who_holds_and_who_waits(here: Process, there: Process, clock: VirtualClock) -> None:
    """With fences, and how long holds took lately as the processes say that hold."""
    a, _ = await here.enter("a"), await here.enter("b")
    clock.advance(4)
    await here.give_back(a)
    c = await here.enter("c")
    await there.enter("d")
    told = await explain(here.scope, ADDRESS)
    assert {each.owner: each.fence for each in told.holders}["c"] == c.sight.fences["c"]
    assert ([each.owner for each in told.waiters], told.pace) == (["d"], 4.0)
    assert await find_waiter(here.scope, LineKeys(here.scope, ADDRESS), "d") is not None
    assert sorted(each.entry.id for each in await holders_in(here.scope, ADDRESS)) == ["b", "c"]


async def test_requests_of_one_process_are_answered_in_their_order(here: Process) -> None:
    """One that enters comes after those that were asked to leave before it."""
    a, _ = await here.enter("a"), await here.enter("b")
    assert isinstance(a.answer, Granted)
    leaving = here.driver.ask(Leave("a", slot=a.answer.holder.slot, fence=a.sight.fences["a"]), TWO)
    assert kinds(await here.enter("c")) == [Granted]
    await asyncio.gather(leaving)
