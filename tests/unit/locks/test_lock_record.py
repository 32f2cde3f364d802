"""The lock by hand in one record: who gets in, in which order, until when, with which fence."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import DecodeError, InvalidArgumentError, LineFullError
from standfast.locks.lock_record import (
    MAX_EXACT,
    MAX_WAITERS,
    LockHolder,
    LockPosition,
    LockRecord,
    LockWaiter,
    force_release,
    initial_lock_record,
    inspect,
    release,
    renew,
    try_acquire,
    withdraw,
)

NAN, INF = float("nan"), float("inf")


def at(seconds: float) -> Instant:
    """Return an instant by its seconds."""
    return Instant(round(seconds * MICROSECONDS))


def take(record: object, who: str, now: float = 1, **options: Any) -> tuple[LockRecord, LockPosition]:
    """Try to acquire at a second, with a lease of five unless told otherwise."""
    return try_acquire(record, who, now=at(now), **{"lease": 5, **options})


def line_of(*names: str, now: float = 1, **options: Any) -> LockRecord:
    """Return the record after each of them has tried once."""
    record = initial_lock_record()
    for name in names:
        record, _ = take(record, name, now, **options)
    return record


def holding(record: LockRecord) -> list[str]:
    """Return who holds."""
    return [holder.holder_id for holder in record.holders]


def waiting(record: LockRecord) -> list[str]:
    """Return who waits, in order."""
    return [waiter.holder_id for waiter in record.waiters]


def test_a_free_lock_is_taken_at_once() -> None:
    """The first to ask holds until its lease ends."""
    record, place = take(None, "a")

    assert place == LockPosition(acquired=True, position=-1, fence=1)
    assert record == LockRecord((LockHolder("a", at(6), 1),), (), 1)


def test_contenders_stand_in_line_in_order_of_arrival() -> None:
    """Each is told how many are in front of it."""
    record = line_of("a")
    record, b = take(record, "b")
    record, c = take(record, "c")

    assert [(b.acquired, b.position), (c.acquired, c.position)] == [(False, 0), (False, 1)]
    assert waiting(record) == ["b", "c"]


def test_asking_again_keeps_the_place() -> None:
    """A waiter that asks again is never enqueued twice."""
    record = line_of("a", "b", "c")
    again, place = take(record, "b")

    assert place.position == 0
    assert waiting(again) == ["b", "c"]


def test_a_free_permit_lets_in_nobody_but_the_front() -> None:
    """Who is not next is refused even while nobody holds; who is next takes it."""
    record, _ = release(line_of("a", "b", "c"), "a", now=at(1))
    record, c = take(record, "c")
    assert (holding(record), c) == ([], LockPosition(acquired=False, position=1))

    record, b = take(record, "b")
    assert (holding(record), waiting(record), b.acquired) == (["b"], ["c"], True)


def test_a_semaphore_lets_in_as_many_as_it_has_permits() -> None:
    """Three of four get in; a newcomer goes behind the fourth though a permit is free."""
    record = line_of("a", "b", "c", "d", permits=3)
    assert (holding(record), waiting(record)) == (["a", "b", "c"], ["d"])

    record, _ = release(record, "a", now=at(1))
    record, newcomer = take(record, "e", permits=3)
    assert (newcomer.position, waiting(record)) == (1, ["d", "e"])


@pytest.mark.parametrize(("now", "acquired"), [(5.999999, False), (6, True)])
def test_a_lease_is_over_at_the_instant_it_ends(now: float, acquired: bool) -> None:  # noqa: FBT001 -- what is expected
    """The last instant is no longer part of the lease."""
    assert take(line_of("a"), "b", now)[1].acquired is acquired


@pytest.mark.parametrize("change", [take, release, renew, withdraw, force_release])
def test_whoever_comes_by_drops_the_leases_that_are_over(change: Any) -> None:
    """Acquire, release, renew and withdraw all sweep, whoever calls them."""
    options = {"lease": 5} if change in (take, renew) else {}
    now = 6 if change is take else at(6)
    record, _ = change(line_of("a", "b", permits=2), "stranger", now=now, **options)
    assert holding(record) == ([] if change is not take else ["stranger"])


def test_a_holder_that_asks_again_renews_its_lease() -> None:
    """It keeps its permit and its fence, and the others their places."""
    record, place = take(line_of("a", "b"), "a", 3)

    assert place == LockPosition(acquired=True, position=-1, fence=1)
    assert record.holders == (LockHolder("a", at(8), 1),)
    assert waiting(record) == ["b"]


def test_a_holder_is_not_also_a_waiter() -> None:
    """Asking again strips a stray place of the caller and no other."""
    record = LockRecord((LockHolder("a", at(6), 1),), (LockWaiter("a", at(9)), LockWaiter("b", at(9))), 1)
    assert waiting(take(record, "a")[0]) == ["b"]


def test_a_lapsed_holder_is_a_newcomer() -> None:
    """It goes behind those who wait, and gets a higher fence when its turn comes."""
    record, place = take(line_of("a", "b"), "a", 6)
    assert (place.position, holding(record), waiting(record)) == (1, [], ["b", "a"])

    alone, again = take(line_of("a"), "a", 6)
    assert (holding(alone), again.fence) == (["a"], 2)


@pytest.mark.parametrize(
    "damaged",
    [
        None,
        7,
        "a",
        [],
        {},
        {"holders": None, "waiters": 3},
        {"holders": "ab", "waiters": {"b": 1}},
        {"holders": [None, 3, {}, NAN]},
        {"waiters": [{"holder_id": "y", "expires_at": NAN}, None, 3, {}, ""]},
    ],
)
def test_a_damaged_record_is_an_empty_lock_with_a_higher_fence(damaged: object) -> None:
    """What cannot be read holds up nobody, and the version of the slot keeps the fence from turning back."""
    record, place = take(damaged, "a", version=41)

    assert (holding(record), waiting(record)) == (["a"], [])
    assert place.fence == record.fence == 42


@pytest.mark.parametrize(
    "unknown",
    [
        {"owner": "x", "until": 10**15},
        {"holders": [{"holder_id": 5, "lease_expires_at": 10**9}]},
        {"holders": [{"holder_id": "x"}]},
        {"holders": [{"holder_id": "x", "lease_expires_at": NAN}]},
        {"holders": [{"holder_id": "x", "lease_expires_at": INF}]},
        {"holders": [{"holder_id": "x", "lease_expires_at": 10**400}]},
        {"holders": [{"holder_id": "x", "lease_expires_at": True}]},
        {"holders": [{"owner": "x", "until": 10**15}]},
        {"holders": ["x"]},
    ],
)
def test_what_may_be_a_held_lock_is_never_taken_for_a_free_one(unknown: object) -> None:
    """A shape that is not known is refused, with what to do; nobody gets in beside one who may hold."""
    with pytest.raises(DecodeError, match=r"initial_lock_record\(\)"):
        take(unknown, "a")
    with pytest.raises(DecodeError):
        inspect(unknown)


def test_records_in_the_other_spelling_are_read() -> None:
    """With holderId, leaseExpiresAt and expiresAt in milliseconds: the holder holds, the waiters wait in order."""
    ends = at(9) // 1000
    other = {
        "holders": [{"holderId": "a", "leaseExpiresAt": ends, "acquiredAt": 1}],
        "waiters": ["b", {"holderId": "c", "expiresAt": ends}],
    }
    record, place = take(other, "d")
    assert (holding(record), waiting(record), place.position) == (["a"], ["b", "c", "d"], 2)
    assert (record.holders[0].lease_expires_at, record.waiters[1].expires_at) == (at(9), at(9))
    assert take(other, "d", 9)[0].holders == ()


@pytest.mark.parametrize("fence", [NAN, INF, -5, "9", None, True, 2**60, 10**400])
def test_a_damaged_fence_does_not_turn_back(fence: object) -> None:
    """The next fence is larger than the slot's version and than those of the holders."""
    holders = [{"holder_id": "a", "lease_expires_at": at(9), "fence": 17}]
    _, place = take({"holders": holders, "fence": fence}, "b", permits=2, version=5)
    assert place.fence == 18


def test_the_last_fence_is_refused_rather_than_rounded() -> None:
    """A fence that no store keeps exact is never given out."""
    with pytest.raises(InvalidArgumentError, match="larger than every store"):
        take(LockRecord(fence=MAX_EXACT), "a")


def test_a_bare_text_is_an_old_waiter_that_ages_out() -> None:
    """It keeps its place, is stamped at the first change, and is gone one time to live later."""
    old = {"holders": [{"holder_id": "a", "lease_expires_at": at(6)}], "waiters": ["ghost"]}
    record, b = take(old, "b", waiter_ttl=10)
    assert (b.position, record.waiters[0]) == (1, LockWaiter("ghost", at(11)))

    assert take(record, "b", 10.999999, waiter_ttl=10)[1].position == 1
    assert take(record, "c", 11, waiter_ttl=10)[1].acquired


def test_a_holder_from_before_fences_gets_one() -> None:
    """Its next renewal, and any other change, gives it a fence of its own."""
    old = {"holders": [{"holder_id": "a", "lease_expires_at": at(6)}], "waiters": []}
    _, place = take(old, "a", version=3)
    assert place == LockPosition(acquired=True, position=-1, fence=4)


def test_of_two_holds_by_one_name_the_longer_counts() -> None:
    """A record with a holder or a waiter twice has it once, until its later end, and at its first place."""
    holders = [{"holder_id": "a", "lease_expires_at": at(end)} for end in (4, 9, 6)]
    found = inspect({"holders": holders, "waiters": ["b", "c", "b"]})
    assert found == LockRecord((LockHolder("a", at(9)),), (LockWaiter("b"), LockWaiter("c")))


def test_releasing_strips_hold_and_place_and_touches_nobody_else() -> None:
    """It can be done twice, and by one who only waits."""
    record = line_of("a", "b", "c", "d", permits=2)
    record, held = release(record, "a", now=at(1))
    again, held_again = release(record, "a", now=at(1))
    without, _ = release(record, "c", now=at(1))

    assert (held, held_again, again) == (True, False, record)
    assert (holding(without), waiting(without)) == (["b"], ["d"])


def test_a_late_release_does_not_free_a_successor_of_the_same_name() -> None:
    """With its fence a release means one hold, not whoever goes by the id."""
    record, second = take(line_of("a"), "a", 6)
    record, held = release(record, "a", now=at(6), fence=1)
    assert (held, holding(record)) == (False, ["a"])

    record, held = release(record, "a", now=at(6), fence=second.fence)
    assert (held, holding(record)) == (True, [])


def test_renewing_counts_from_now() -> None:
    """The new end is now plus the lease, not the old end plus the lease."""
    record, renewal = renew(line_of("a"), "a", now=at(2), lease=3)

    assert renewal
    assert (renewal.fence, renewal.lease_expires_at) == (1, at(5))
    assert record.holders == (LockHolder("a", at(5), 1),)


def test_renewing_a_lease_that_is_over_says_that_the_permit_is_free() -> None:
    """It is refused though nobody has taken over, and enqueues nobody."""
    record, renewal = renew(line_of("a"), "a", now=at(6), lease=5)

    assert not renewal
    assert (renewal.free, renewal.taken_by) == (True, ())
    assert record == LockRecord(fence=1)


def test_renewing_a_lease_that_is_over_says_who_took_the_permit() -> None:
    """The holders of today are named; a permit that others wait for is not free."""
    lapsed = line_of("a", "b")
    assert not renew(lapsed, "a", now=at(6), lease=5)[1].free

    taken, _ = take(lapsed, "b", 6)
    _, renewal = renew(taken, "a", now=at(7), lease=5)
    assert (renewal.renewed, renewal.free, renewal.taken_by) == (False, False, ("b",))


def test_renewing_with_an_old_fence_is_refused() -> None:
    """A pause over the end of a lease cannot be bridged by a later hold of the same id."""
    record, _ = take(line_of("a"), "a", 6)
    assert not renew(record, "a", now=at(7), lease=5, fence=1)[1]
    assert renew(record, "a", now=at(7), lease=5, fence=2)[1]


def test_inspecting_changes_nothing() -> None:
    """It shows what lies there, also what is long over; an empty slot is None."""
    record = line_of("a", "b")
    assert inspect(record) == record
    assert inspect(msgspec.to_builtins(record)) == record
    assert inspect({"waiters": ["ghost"]}) == LockRecord(waiters=(LockWaiter("ghost"),))
    assert inspect(None) is None


def test_each_lock_starts_empty() -> None:
    """The record of a new slot has nobody in it, and nothing done to one changes another."""
    first = initial_lock_record()
    take(first, "a")
    assert first == initial_lock_record() == LockRecord((), (), 0)


def test_dead_waiters_fall_together() -> None:
    """However many ghosts are in front, the first who is alive is next after one time to live."""
    record = line_of("a", *(f"ghost-{n}" for n in range(20)), lease=40)
    record, place = take(record, "b", 20, lease=40)
    assert place.position == 20
    assert take(record, "b", 41, lease=40)[1].acquired


def test_a_waiter_that_asks_stays_alive_in_its_place() -> None:
    """Each time it asks its time to live starts anew; by default that is the lease, at least 30 seconds."""
    record = line_of("a", "b", "c", lease=100, waiter_ttl=10)
    record, place = take(record, "c", 10, lease=100, waiter_ttl=10)
    assert (place.position, record.waiters[1]) == (1, LockWaiter("c", at(20)))

    assert line_of("a", "b").waiters == (LockWaiter("b", at(31)),)
    assert line_of("a", "b", lease=100).waiters == (LockWaiter("b", at(101)),)


def test_a_waiter_that_was_late_goes_to_the_end() -> None:
    """One whose time to live is over has left; the others keep their order."""
    record = line_of("a", "b", lease=100, waiter_ttl=5)
    record, _ = take(record, "c", 4, lease=100, waiter_ttl=5)
    record, b = take(record, "b", 6, lease=100, waiter_ttl=5)
    assert (b.position, waiting(record)) == (1, ["c", "b"])


def test_withdrawing_leaves_the_line_and_keeps_a_hold() -> None:
    """It takes a waiter out and nobody else."""
    record = line_of("a", "b", "c")
    record, left = withdraw(record, "b", now=at(1))
    assert (left, holding(record), waiting(record)) == (True, ["a"], ["c"])
    assert withdraw(record, "a", now=at(1)) == (record, False)


def test_an_operator_turns_out_a_holder_and_the_fence_moves() -> None:
    """What the old holder still writes is older than the lock's fence, before anyone else gets a permit."""
    record, done = force_release(line_of("a", "b"), "a", now=at(1))
    assert (done, holding(record), waiting(record), record.fence) == (True, [], ["b"], 2)
    assert take(record, "b")[1].fence == 3


def test_an_operator_turns_out_a_waiter() -> None:
    """The fence does not move for one who never had any."""
    record, done = force_release(line_of("a", "b"), "b", now=at(1))
    assert (done, holding(record), waiting(record), record.fence) == (True, ["a"], [], 1)


def test_lowering_the_permits_turns_nobody_out() -> None:
    """With fewer permits nobody new gets in until enough have left."""
    record = line_of("a", "b", "c", permits=3)
    record, _ = take(record, "d", permits=1)
    record, _ = release(record, "a", now=at(1))
    assert not take(record, "d", permits=1)[1].acquired
    assert holding(record) == ["b", "c"]


def test_a_full_line_refuses_newcomers_and_nobody_else() -> None:
    """The record is bounded; those who wait may still ask."""
    waiters = tuple(LockWaiter(f"w{n}", at(99)) for n in range(MAX_WAITERS))
    record = LockRecord((LockHolder("a", at(99), 1),), waiters, 1)
    with pytest.raises(LineFullError, match="1,000 wait"):
        take(record, "one-too-many")
    assert take(record, "w999")[1].position == 999


@pytest.mark.parametrize("permits", [0, -1, 1.5, NAN, INF, True, "1", None])
def test_impossible_permits_are_refused(permits: Any) -> None:
    """Permits are a whole number from 1 on."""
    with pytest.raises(InvalidArgumentError, match="permits"):
        take(None, "a", permits=permits)


@pytest.mark.parametrize("lease", [0, -1, NAN, INF, True, None, "soon", 90_000])
@pytest.mark.parametrize("call", [try_acquire, renew])
def test_impossible_leases_are_refused(call: Any, lease: Any) -> None:
    """A lease has a length; one that was probably meant in milliseconds needs a unit."""
    with pytest.raises(InvalidArgumentError, match="lease"):
        call(None, "a", now=at(1), lease=lease)


@pytest.mark.parametrize(("who", "now"), [("", 1), (5, 1), (None, 1), ("a", 1.5), ("a", True), ("a", None)])
def test_impossible_names_and_times_are_refused(who: Any, now: Any) -> None:
    """A holder has a name; time is an instant, never a float of seconds."""
    with pytest.raises(InvalidArgumentError, match="of a lock"):
        release(None, who, now=now)


def test_a_waiter_that_asks_too_rarely_is_told_that_it_lost_its_place() -> None:
    """Whether it finds its own place lapsed, or others have swept it away meanwhile; others are told nothing."""
    record, _ = take(line_of("a", lease=100), "slow", waiter_ttl=10)
    record, second = take(record, "quick", 5, waiter_ttl=10)
    assert (second.position, second.requeued) == (1, False)

    assert take(record, "slow", 11, waiter_ttl=10)[1] == LockPosition(acquired=False, position=1, requeued=True)

    record, moved = take(record, "quick", 14, waiter_ttl=10)
    assert (moved.position, moved.requeued, record.lapsed) == (0, False, ("slow",))
    record, told = take(record, "slow", 20, waiter_ttl=10)
    assert (told.position, told.requeued, record.lapsed) == (1, True, ())
    assert not take(record, "slow", 21, waiter_ttl=10)[1].requeued


def test_who_lost_its_place_is_forgotten_when_it_leaves_or_the_line_is_empty() -> None:
    """A record at rest remembers nobody."""
    record, _ = take(line_of("a", lease=100), "slow", waiter_ttl=10)
    swept, _ = take(record, "b", 20, waiter_ttl=10)
    assert swept.lapsed == ("slow",)
    assert withdraw(swept, "slow", now=at(20))[0].lapsed == release(swept, "slow", now=at(20))[0].lapsed == ()
    alone, _ = release(withdraw(swept, "b", now=at(20))[0], "a", now=at(20))
    assert alone.lapsed == ()
