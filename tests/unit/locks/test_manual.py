"""A mutex and a semaphore by hand on a state: who gets in, in which order, until when, and who is refused."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, cast

import pytest

from standfast.clock import Instant, later
from standfast.errors import (
    ArgumentTypeError,
    HoldTimeoutError,
    InvalidArgumentError,
    LockMismatchError,
    StaleWriteError,
    StoreUnavailableError,
)
from standfast.locks import (
    KEEP,
    AtomicState,
    DurableMutex,
    DurableSemaphore,
    LockHolder,
    LockPosition,
    LockRecord,
    LockWaiter,
    PollWarning,
    Slots,
    StateChanged,
    initial_lock_record,
)
from standfast.scope import Scope
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from pathlib import Path

    from standfast.testing import VirtualClock

NAN, INF = float("nan"), float("inf")
MUTEX = DurableMutex(lease=5)


@pytest.fixture
def slot(scope: Scope) -> AtomicState[Any]:
    """Where the lock lies."""
    return Slots(scope).shared("lock", initial=initial_lock_record())


async def now(slot: AtomicState[Any]) -> Instant:
    """Return the time of the store."""
    return await slot.transact(lambda _value, _version, at: (KEEP, at))


async def enter(slot: AtomicState[Any], *names: str, lock: Any = MUTEX) -> list[LockPosition]:
    """Let each of them try once."""
    return [await lock.try_acquire(slot, name) for name in names]


async def lock_in(slot: AtomicState[Any]) -> LockRecord:
    """Return the lock as it lies there."""
    found = await MUTEX.inspect(slot)
    assert found is not None
    return found


async def holding(slot: AtomicState[Any]) -> list[str]:
    """Return who holds."""
    return [holder.holder_id for holder in (await lock_in(slot)).holders]


async def waiting(slot: AtomicState[Any]) -> list[str]:
    """Return who waits, in order."""
    return [waiter.holder_id for waiter in (await lock_in(slot)).waiters]


def napping(clock: VirtualClock) -> Callable[[float], Awaitable[object]]:
    """Return a sleep that lets the time of the store pass, and the others run."""

    async def nap(seconds: float) -> None:
        clock.advance(seconds)
        await asyncio.sleep(0)

    return nap


# --- the algebra, on a slot ---------------------------------------------------------------------------------------


async def test_a_free_lock_is_taken_at_once(slot: AtomicState[Any]) -> None:
    """The first to ask holds until its lease ends, by the time of the store."""
    place = await MUTEX.try_acquire(slot, "a")

    assert (place.acquired, place.position) == (True, -1)
    found = await lock_in(slot)
    assert found.holders == (LockHolder("a", later(await now(slot), 5), place.fence),)
    assert found.waiters == ()


async def test_contenders_stand_in_line_once_each(slot: AtomicState[Any]) -> None:
    """Each is told its place, and asking again keeps it."""
    await MUTEX.try_acquire(slot, "a")
    places = await enter(slot, "b", "c", "b", "c")
    assert [(place.acquired, place.position) for place in places] == [(False, 0), (False, 1)] * 2
    assert await waiting(slot) == ["b", "c"]


async def test_a_free_permit_lets_in_nobody_but_the_front(slot: AtomicState[Any]) -> None:
    """Who is not next is refused even while nobody holds; who is next takes it."""
    await enter(slot, "a", "b", "c")
    await MUTEX.release(slot, "a")
    [c] = await enter(slot, "c")
    assert (c.acquired, c.position, await holding(slot)) == (False, 1, [])

    [b] = await enter(slot, "b")
    assert (b.acquired, await waiting(slot)) == (True, ["c"])


async def test_a_semaphore_lets_in_as_many_as_it_has_permits(slot: AtomicState[Any]) -> None:
    """A newcomer goes behind those who wait though a permit is free."""
    three = DurableSemaphore(3, lease=5)
    places = await enter(slot, "a", "b", "c", "d", lock=three)
    assert [place.acquired for place in places] == [True, True, True, False]
    await three.release(slot, "b")
    [e] = await enter(slot, "e", lock=three)
    assert (e.position, await waiting(slot)) == (1, ["d", "e"])


@pytest.mark.parametrize(("passed", "acquired"), [(4.999999, False), (5, True)])
async def test_a_lease_is_over_at_the_instant_it_ends(
    slot: AtomicState[Any],
    clock: VirtualClock,
    passed: float,
    acquired: bool,  # noqa: FBT001 -- what is expected
) -> None:
    """The last instant is no longer part of the lease."""
    await MUTEX.try_acquire(slot, "a")
    clock.advance(passed)
    assert (await MUTEX.try_acquire(slot, "b")).acquired is acquired


@pytest.mark.parametrize("call", ["try_acquire", "release", "renew", "withdraw", "force_release"])
async def test_whoever_comes_by_drops_the_leases_that_are_over(
    slot: AtomicState[Any], clock: VirtualClock, call: str
) -> None:
    """Every change sweeps, whoever asks for it."""
    await MUTEX.try_acquire(slot, "a")
    clock.advance(5)
    await getattr(MUTEX, call)(slot, "stranger")
    assert "a" not in await holding(slot)


async def test_a_holder_that_asks_again_renews_its_lease(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """It keeps its fence, and the others their places."""
    [first, _] = await enter(slot, "a", "b")
    clock.advance(3)
    again = await MUTEX.try_acquire(slot, "a")
    assert again == first
    assert (await lock_in(slot)).holders[0].lease_expires_at == later(await now(slot), 5)
    assert await waiting(slot) == ["b"]


async def test_a_lapsed_holder_is_a_newcomer(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """It goes behind those who wait."""
    await enter(slot, "a", "b")
    clock.advance(5)
    assert (await MUTEX.try_acquire(slot, "a")).position == 1
    assert (await holding(slot), await waiting(slot)) == ([], ["b", "a"])


async def test_releasing_strips_hold_and_place_and_touches_nobody_else(slot: AtomicState[Any]) -> None:
    """It can be done twice, and by one who only waits."""
    await enter(slot, "a", "b", "c")
    assert not await MUTEX.release(slot, "b")
    assert (await holding(slot), await waiting(slot)) == (["a"], ["c"])
    assert [await MUTEX.release(slot, "a"), await MUTEX.release(slot, "a")] == [True, False]
    assert await waiting(slot) == ["c"]


async def test_a_late_release_does_not_free_a_successor_of_the_same_name(
    slot: AtomicState[Any], clock: VirtualClock
) -> None:
    """With its fence a release, like a renewal, means one hold."""
    first = await MUTEX.try_acquire(slot, "a")
    clock.advance(5)
    await MUTEX.try_acquire(slot, "a")
    assert not await MUTEX.release(slot, "a", fence=first.fence)
    assert not await MUTEX.renew(slot, "a", fence=first.fence)
    assert await holding(slot) == ["a"]


async def test_renewing_counts_from_now(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """The new end is now plus the lease, not the old end plus the lease."""
    await MUTEX.try_acquire(slot, "a")
    clock.advance(2)
    renewal = await MUTEX.renew(slot, "a")
    assert (bool(renewal), renewal.lease_expires_at) == (True, later(await now(slot), 5))


async def test_renewing_a_lease_that_is_over_says_what_became_of_it(
    slot: AtomicState[Any], clock: VirtualClock
) -> None:
    """Free, or taken by whom; it never enqueues the caller."""
    await MUTEX.try_acquire(slot, "a")
    clock.advance(5)
    free = await MUTEX.renew(slot, "a")
    await MUTEX.try_acquire(slot, "b")
    taken = await MUTEX.renew(slot, "a")
    assert [(bool(each), each.free, each.taken_by) for each in (free, taken)] == [
        (False, True, ()),
        (False, False, ("b",)),
    ]
    assert await waiting(slot) == []


async def test_inspecting_changes_nothing(slot: AtomicState[Any], clock: VirtualClock, scope: Scope) -> None:
    """No version, no sweep; a slot that holds nothing is None."""
    await MUTEX.try_acquire(slot, "a")
    before = await slot.read()
    clock.advance(60)
    assert await holding(slot) == ["a"]
    assert await slot.read() == before
    assert await MUTEX.inspect(Slots(scope).shared("nothing")) is None


async def test_the_first_reader_sees_an_empty_lock(slot: AtomicState[Any]) -> None:
    """The initial record of a slot has nobody in it, and reading it writes nothing."""
    assert await MUTEX.inspect(slot) == initial_lock_record() == LockRecord()
    assert (await slot.read()).version == 0


async def test_each_call_is_at_most_one_change_of_the_slot(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """One for each call that changes something, and none for those that do not."""
    changes, counts = list[Any](), list[int]()
    slot.on(StateChanged, changes.append)
    for call in (MUTEX.try_acquire, MUTEX.renew, MUTEX.release, MUTEX.release, MUTEX.withdraw):
        await call(slot, "a")
        counts.append(len(changes))
        clock.advance(1)
    assert counts == [1, 2, 3, 3, 3]


async def test_a_lease_can_be_chosen_for_one_call(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """For acquiring and for renewing; the lock's own is the default."""
    await MUTEX.try_acquire(slot, "a", lease="1 minute")
    clock.advance(59)
    renewal = await MUTEX.renew(slot, "a", lease="2 minutes")
    assert renewal.lease_expires_at == later(await now(slot), 120)


async def test_dead_waiters_fall_together(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """However many ghosts are in front, the first who is alive is next after one time to live."""
    lock = DurableMutex(lease=5, waiter_ttl=10)
    await enter(slot, "a", *(f"ghost-{number}" for number in range(20)), lock=lock)
    clock.advance(9)
    assert (await lock.try_acquire(slot, "b")).position == 20
    clock.advance(1)
    assert (await lock.try_acquire(slot, "b")).acquired


async def test_an_operator_turns_out_a_holder_and_a_waiter(slot: AtomicState[Any]) -> None:
    """From a handle of its own, by what it found there."""
    [first, _, _] = await enter(slot, "a", "ghost", "c")
    assert await MUTEX.force_release(slot, (await lock_in(slot)).holders[0].holder_id)
    assert await MUTEX.force_release(slot, "ghost")
    assert not await MUTEX.force_release(slot, "nobody")
    [c] = await enter(slot, "c")
    assert c.acquired
    assert c.fence > first.fence


async def test_withdrawing_leaves_the_line_and_keeps_a_hold(slot: AtomicState[Any]) -> None:
    """It takes a waiter out and nobody else."""
    await enter(slot, "a", "b", "c")
    assert [await MUTEX.withdraw(slot, "b"), await MUTEX.withdraw(slot, "a")] == [True, False]
    assert (await holding(slot), await waiting(slot)) == (["a"], ["c"])


# --- what was stored ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damaged", [None, 7, [], {}, {"holders": 3, "waiters": None}, {"holders": [None]}])
async def test_a_damaged_record_is_repaired_without_turning_the_fence_back(scope: Scope, damaged: Any) -> None:
    """What cannot be read holds up nobody, and the next fence is higher than every one before."""
    slot = Slots(scope).shared("lock")
    [first] = await enter(slot, "a")
    await slot.set(damaged)
    [second] = await enter(slot, "b")
    assert second.acquired
    assert second.fence > first.fence
    assert (await holding(slot), await waiting(slot)) == (["b"], [])


async def test_a_damaged_record_in_a_typed_slot_is_repaired_too(scope: Scope, slot: AtomicState[Any]) -> None:
    """The lock reads the slot as data, so it works where a typed read fails."""
    await Slots(scope).shared("lock").set({"holders": "damaged"})
    assert (await MUTEX.try_acquire(slot, "a")).acquired
    assert await slot.get() == await MUTEX.inspect(slot)


async def test_fences_grow_across_a_delete_of_the_slot(slot: AtomicState[Any]) -> None:
    """The marker that a delete leaves behind carries the version on."""
    fences = []
    for name in "abc":
        fences.append((await MUTEX.try_acquire(slot, name)).fence)
        await slot.delete()
    assert fences == sorted(set(fences))


async def test_old_shapes_are_read(scope: Scope) -> None:
    """Bare waiters, holders without a fence and a lock without permits are taken over as they stand."""
    slot = Slots(scope).shared("lock")
    ends_at = later(await now(slot), 5)
    await slot.set({"holders": [{"holder_id": "a", "lease_expires_at": ends_at}], "waiters": ["ghost"]})
    assert (await DurableSemaphore(1).try_acquire(slot, "b")).position == 1
    found = await lock_in(slot)
    assert (found.permits, found.waiters[0]) == (1, LockWaiter("ghost", later(await now(slot), 30)))


async def test_two_places_that_disagree_about_permits_are_found_out(slot: AtomicState[Any]) -> None:
    """While anyone holds or waits the stored number stands; the other place is refused and changes nothing."""
    two, three = DurableSemaphore(2, lease=5), DurableSemaphore(3, lease=5)
    await enter(slot, "a", lock=two)
    before = await slot.read()
    with pytest.raises(LockMismatchError, match="permits=2, not permits=3"):
        await three.try_acquire(slot, "b")
    assert await slot.read() == before
    assert await three.renew(slot, "a", lease=6)
    with pytest.raises(LockMismatchError):
        await three.try_acquire(slot, "b")
    assert await three.release(slot, "a")


async def test_an_idle_lock_takes_the_permits_of_whoever_comes(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """Nobody holds and nobody waits, also because their time is over: there is nothing to disagree about."""
    await enter(slot, "a", "b", lock=DurableSemaphore(1, lease=5))
    clock.advance(30)
    places = await enter(slot, "c", "d", lock=DurableSemaphore(2, lease=5))
    assert [place.acquired for place in places] == [True, True]


async def test_an_operator_changes_the_permits_of_a_busy_semaphore(slot: AtomicState[Any]) -> None:
    """Those who come with the new number get in, those with the old one are refused."""
    one, two = DurableSemaphore(1, lease=5), DurableSemaphore(2, lease=5)
    await enter(slot, "a", lock=one)
    assert await two.resize(slot) == 1
    assert (await two.try_acquire(slot, "b")).acquired
    with pytest.raises(LockMismatchError):
        await one.try_acquire(slot, "c")


# --- what is refused ----------------------------------------------------------------------------------------------


def test_the_defaults() -> None:
    """One permit for 30 seconds; a mutex has no number of permits to choose."""
    assert (DurableSemaphore().permits, DurableSemaphore().lease) == (1, 30)
    assert (DurableMutex().permits, DurableMutex().lease) == (1, 30)
    assert (repr(DurableMutex()), repr(DurableSemaphore(2))) == (
        "DurableMutex(lease=30)",
        "DurableSemaphore(2, lease=30)",
    )
    with pytest.raises(TypeError, match="permits"):
        DurableMutex(permits=1)  # type: ignore[call-arg] # the mistake under test


@pytest.mark.parametrize("permits", [0, -1, 1.5, NAN, INF, True, "1", None])
def test_impossible_permits_are_refused(permits: Any) -> None:
    """Permits are a whole number from 1 on."""
    with pytest.raises(InvalidArgumentError, match="permits"):
        DurableSemaphore(permits)


@pytest.mark.parametrize("lease", [0, -1, NAN, INF, True, "soon", 90_000])
async def test_impossible_leases_are_refused_before_anything_is_written(slot: AtomicState[Any], lease: Any) -> None:
    """By the constructor and by each call."""
    for make in (DurableMutex, DurableSemaphore):
        with pytest.raises(InvalidArgumentError, match="lease"):
            make(lease=lease)
    for call in (MUTEX.try_acquire, MUTEX.renew, MUTEX.acquire):
        with pytest.raises(InvalidArgumentError, match="lease"):
            await call(slot, "a", lease=lease)
    assert (await slot.read()).version == 0


@pytest.mark.parametrize("holder_id", ["", 5, None])
async def test_a_holder_without_a_name_is_refused(slot: AtomicState[Any], holder_id: Any) -> None:
    """And nothing is written."""
    for call in (MUTEX.try_acquire, MUTEX.acquire, MUTEX.renew, MUTEX.release, MUTEX.withdraw, MUTEX.force_release):
        with pytest.raises(InvalidArgumentError, match="holder id"):
            await call(slot, holder_id)
    assert (await slot.read()).version == 0


def test_nobody_can_say_what_time_it_is() -> None:
    """No call takes a time: it is the slot's own, so that nobody takes a lock by lying about it."""
    for name, call in inspect.getmembers(DurableSemaphore, inspect.iscoroutinefunction):
        assert not {"now", "at", "time"} & set(inspect.signature(call).parameters), name


class Operation:
    """Something that can be awaited and is no coroutine, as inside a workflow."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from asyncio.sleep(0).__await__()
        return self._answer


class Recorded:
    """A slot of another kind: a value in memory, changed by operations."""

    def __init__(self) -> None:
        self.value: Any = None
        self.version = 0

    def transact(self, decide: Callable[[Any, int, Instant], tuple[Any, Any]]) -> Any:
        """Change the value at once, and let the answer be awaited."""
        value, answer = decide(self.value, self.version, Instant(1_000_000))
        if value is not KEEP:
            self.value, self.version = value, self.version + 1
        return Operation(answer)


async def test_the_same_calls_drive_a_slot_of_another_kind() -> None:
    """Whatever changes as a whole and answers with something to await holds a lock."""
    slot = Recorded()
    assert (await MUTEX.try_acquire(slot, "a")).acquired
    assert (await MUTEX.try_acquire(slot, "b")).position == 0
    assert await MUTEX.renew(slot, "a")
    assert await MUTEX.release(slot, "a")
    assert (await MUTEX.acquire(slot, "b")).acquired
    assert (await MUTEX.inspect(slot) or LockRecord()).holders[0].lease_expires_at == 6_000_000


class Immediate:
    """Almost a slot: what it answers cannot be awaited."""

    def transact(self, _decide: object) -> int:
        """Answer at once."""
        return 1


@pytest.mark.parametrize("thing", [None, 5, {}, LockRecord(), Immediate()])
async def test_what_is_no_slot_is_refused(thing: Any) -> None:
    """With a TypeError that says what is wanted."""
    with pytest.raises(ArgumentTypeError, match="awaitable transact") as refused:
        await MUTEX.try_acquire(thing, "a")
    assert isinstance(refused.value, TypeError)


# --- waiting ------------------------------------------------------------------------------------------------------


async def test_waiters_get_in_one_by_one_in_order(scope: Scope, clock: VirtualClock) -> None:
    """Each through a handle of its own; never two at once."""
    inside: list[str] = []
    order: list[str] = []

    async def work(name: str) -> None:
        slot = Slots(scope).shared("lock")
        await MUTEX.acquire(slot, name, poll=0.01, sleep=napping(clock))
        inside.append(name)
        order.append(name)
        await asyncio.sleep(0)
        assert inside == [name]
        inside.remove(name)
        assert await MUTEX.release(slot, name)

    await asyncio.gather(*(work(name) for name in "abcde"))
    assert order == list("abcde")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_two_openings_of_a_store_share_one_lock(kind: str, tmp_path: Path, clock: VirtualClock) -> None:
    """What one handle holds the other waits for, and gets with a higher fence."""
    url = f"memory://{tmp_path.name}" if kind == "memory" else f"sqlite:///{tmp_path / 'lock.db'}"
    async with Scope(await open_store(url, clock=clock)) as ours, Scope(await open_store(url, clock=clock)) as theirs:
        mine, yours = Slots(ours).shared("lock"), Slots(theirs).shared("lock")
        first = await MUTEX.try_acquire(mine, "a")
        assert (await MUTEX.try_acquire(yours, "b")).position == 0
        await MUTEX.release(mine, "a")
        second = await MUTEX.acquire(yours, "b")
    assert second.fence > first.fence


async def test_a_waiter_takes_over_when_the_lease_of_the_dead_ends(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """A holder that never releases is waited out, and its fence is lower."""
    [first] = await enter(slot, "dead")
    began = await now(slot)
    place = await MUTEX.acquire(slot, "b", sleep=napping(clock))
    assert place.fence > first.fence
    assert await now(slot) == later(began, 5)


@pytest.mark.parametrize("timeout", [0, "1s", 0.3])
async def test_one_who_waited_too_long_leaves_nothing_behind(
    slot: AtomicState[Any], clock: VirtualClock, timeout: Any
) -> None:
    """It raises, names the holders, and no longer stands in line."""
    await enter(slot, "a")
    with pytest.raises(HoldTimeoutError) as refused:
        await MUTEX.acquire(slot, "b", timeout=timeout, sleep=napping(clock))
    assert refused.value.holders == ("a",)
    assert await waiting(slot) == []
    assert isinstance(refused.value, TimeoutError)


async def test_the_last_try_is_at_the_end_of_the_time(slot: AtomicState[Any], clock: VirtualClock) -> None:
    """A permit that becomes free in the last instant is taken."""
    await enter(slot, "a")
    assert (await MUTEX.acquire(slot, "b", timeout=5, poll=2, sleep=napping(clock))).acquired


async def test_one_who_is_cancelled_while_it_waits_leaves_nothing_behind(slot: AtomicState[Any]) -> None:
    """Its place goes with it."""
    await enter(slot, "a")
    asleep = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        asleep.set()
        await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(MUTEX.acquire(slot, "b", sleep=sleep))
    await asleep.wait()
    assert await waiting(slot) == ["b"]
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert await waiting(slot) == []


@pytest.mark.parametrize("steps", range(12))
async def test_one_who_is_cancelled_anywhere_holds_nothing(slot: AtomicState[Any], steps: int) -> None:
    """Whether the change was made or not: either it returned with the lock, or there is nothing of it."""
    task = asyncio.create_task(MUTEX.acquire(slot, "a"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert await holding(slot) == ([] if task.cancelled() else ["a"])
    assert await waiting(slot) == []


@pytest.mark.parametrize("steps", range(12))
async def test_a_hold_from_before_survives_a_cancelled_renewal(slot: AtomicState[Any], steps: int) -> None:
    """Who already held when it asked still holds."""
    await enter(slot, "a")
    task = asyncio.create_task(MUTEX.acquire(slot, "a"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert await holding(slot) == ["a"]


async def test_an_error_while_waiting_leaves_nothing_behind(slot: AtomicState[Any]) -> None:
    """The first trouble is what is raised, and the place is given up."""
    await enter(slot, "a")

    async def sleep(_seconds: float) -> None:
        raise StoreUnavailableError("memory", "gone for a while")

    with pytest.raises(StoreUnavailableError):
        await MUTEX.acquire(slot, "b", sleep=sleep)
    assert await waiting(slot) == []


@pytest.mark.parametrize("poll", [0, -1, 16, "1 minute", NAN])
async def test_a_poll_that_would_lose_the_place_is_refused(slot: AtomicState[Any], poll: Any) -> None:
    """A waiter asks again at least twice in its time to live."""
    with pytest.raises(InvalidArgumentError, match="poll"):
        await MUTEX.acquire(slot, "a", poll=poll)


# --- guarded writes -----------------------------------------------------------------------------------------------


async def test_a_holder_writes_under_its_guard(scope: Scope, slot: AtomicState[Any], clock: VirtualClock) -> None:
    """Also after it renewed and others came: the guard means the hold, not a version of the lock."""
    place, balance = await MUTEX.try_acquire(slot, "a"), Slots(scope).shared("balance", type=int)
    guard = MUTEX.guard(slot, "a", place.fence)
    await balance.set(1, guard=guard)
    clock.advance(4)
    await MUTEX.renew(slot, "a")
    await enter(slot, "b")
    clock.advance(4)
    assert await balance.update(lambda value: (value or 0) + 1, guard=guard) == 2


@pytest.mark.parametrize("how", ["lapsed", "released", "forced out", "taken over", "held again", "deleted"])
async def test_the_write_of_one_who_no_longer_holds_is_refused(
    scope: Scope, slot: AtomicState[Any], clock: VirtualClock, how: str
) -> None:
    """In the very commit, whatever ended the hold."""
    place, balance = await MUTEX.try_acquire(slot, "a"), Slots(scope).shared("balance", initial=0)
    if how in ("lapsed", "taken over", "held again"):
        clock.advance(5)
    if how in ("taken over", "held again"):
        await MUTEX.try_acquire(slot, "b" if how == "taken over" else "a")
    ends: dict[str, Callable[[], Awaitable[object]]] = {
        "released": lambda: MUTEX.release(slot, "a"),
        "forced out": lambda: MUTEX.force_release(slot, "a"),
        "deleted": slot.delete,
    }
    if how in ends:
        await ends[how]()
    guard = MUTEX.guard(slot, "a", place.fence)
    for write in (balance.set(1, guard=guard), balance.update(lambda _: 1, guard=guard), balance.delete(guard=guard)):
        with pytest.raises(StaleWriteError, match="guard"):
            await write
    assert (await balance.read()).version == 0


async def test_only_a_state_of_a_space_can_guard(scope: Scope) -> None:
    """Another slot cannot be looked at in the commit of a write."""
    with pytest.raises(ArgumentTypeError, match="is in no space"):
        MUTEX.guard(Recorded(), "a", 1)  # type: ignore[arg-type] # the mistake under test
    assert MUTEX.guard(Slots(scope).shared("lock"), "a", 1).fence == 1


async def test_a_lease_that_lapses_between_two_polls_is_warned_of(slot: AtomicState[Any]) -> None:
    """Polling every five seconds against a lease of one second, permits would only ever lapse."""
    with pytest.warns(PollWarning, match=r"a lease of 1 s is shorter than two polls of 5 s") as told:
        await MUTEX.acquire(slot, "a", lease="1s", poll="5s")
    assert told[0].filename == __file__


async def test_a_slow_waiter_is_told_in_its_answer(scope: Scope, clock: VirtualClock) -> None:
    """Its place was given up, so it stands at the end. A record of which nothing was lost is no longer for it."""
    slot = Slots(scope).shared("lock", initial=initial_lock_record())
    lock = DurableMutex(lease="1 hour", waiter_ttl="10s")
    await lock.try_acquire(slot, "a")
    assert "lapsed" not in cast("dict[str, Any]", await Slots(scope).shared("lock").get())
    await lock.try_acquire(slot, "slow")
    clock.advance(11)
    await lock.try_acquire(slot, "b")

    place = await lock.try_acquire(slot, "slow")

    assert (place.position, place.requeued) == (1, True)
    assert not (await lock.try_acquire(slot, "slow")).requeued
