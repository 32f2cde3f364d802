"""Run locks where things go wrong: a store that does not answer, and answers that come late.

What they promise on every store is in the conformance suite.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import MICROSECONDS, later
from standfast.errors import (
    LeaseLostError,
    LeaseTooShortError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from standfast.events import Event, Hooks, LeaseLost, ReleaseDelayed, SlowRoundTrip
from standfast.space import Space
from standfast.stores import Delete
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from standfast.locks import RunLease, RunLocks
    from standfast.testing import VirtualClock

OWNER = "owner-1"


@pytest.fixture
def told() -> list[Event]:
    """What hooks are told."""
    return []


@pytest.fixture
async def space(clock: VirtualClock, told: list[Event]) -> AsyncIterator[Space]:
    """A space on a store in memory, by the test's clock."""
    async with Space(await open_store("memory://", clock=clock), clock=clock, hooks=Hooks([told.append])) as space:
        yield space


@pytest.fixture
def locks(space: Space) -> RunLocks:
    """Its run locks."""
    return space.run_locks


async def taken(locks: RunLocks, **options: Any) -> RunLease:
    """Lease the run of these tests."""
    lease = await locks.try_acquire("checkout", "1", **options)
    assert lease is not None
    return lease


async def is_free(locks: RunLocks) -> bool:
    """Tell whether nobody has the run, once what goes on in the background has had its turns."""
    for _ in range(20):
        await asyncio.sleep(0)
    return await locks.get("checkout", "1") is None


class Trouble:
    """Stands between a space and its store, as long as the block lasts."""

    def __init__(self, space: Space, happens: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]) -> None:
        self._store: Any = space.store
        self._happens = happens

    def __enter__(self) -> None:
        update = self._store.update
        self._store.update = lambda keys, decide: self._happens(lambda: update(keys, decide))

    def __exit__(self, *exc: object) -> None:
        del self._store.update


async def refuse(_: Callable[[], Awaitable[Any]]) -> Any:
    """Do nothing, and say so."""
    raise StoreUnavailableError("memory", "it is down")


async def lose_the_answer(update: Callable[[], Awaitable[Any]]) -> Any:
    """Do it, and say that nothing is known."""
    await update()
    raise OutcomeUnknownError("memory", "the reply was lost")


# --- a store that does not answer -------------------------------------------------------------------------------------


async def test_a_store_that_does_not_answer_leases_nothing(space: Space, locks: RunLocks) -> None:
    """It is an error, not a yes; and the run is free when the store is back."""
    with Trouble(space, refuse), pytest.raises(StoreUnavailableError):
        await locks.try_acquire("checkout", "1")

    assert await is_free(locks)


async def test_a_store_that_does_not_answer_is_not_a_held_run(space: Space, locks: RunLocks) -> None:
    """Whoever holds for a block is told what is wrong."""
    with Trouble(space, refuse), pytest.raises(StoreUnavailableError):
        await locks.hold("checkout", "1").__aenter__()


async def test_a_lease_of_unknown_outcome_is_taken_back(space: Space, locks: RunLocks) -> None:
    """It was written, but nobody has it: it does not keep others out until it lapses."""
    with Trouble(space, lose_the_answer), pytest.raises(OutcomeUnknownError):
        await locks.try_acquire("checkout", "1")

    assert await is_free(locks)


async def test_a_token_of_unknown_outcome_is_left_to_its_owner(space: Space, locks: RunLocks) -> None:
    """Its owner may hold it already, and asks again with the same token."""
    with Trouble(space, lose_the_answer), pytest.raises(OutcomeUnknownError):
        await locks.try_acquire("checkout", "1", token=OWNER)

    assert not await is_free(locks)
    assert not (await taken(locks, token=OWNER)).is_lost


async def test_a_cancelled_attempt_leaves_nothing(space: Space, locks: RunLocks) -> None:
    """Cancelled when it was written and not yet answered: the run is free again."""
    written = asyncio.Event()

    async def answer_never(update: Callable[[], Awaitable[Any]]) -> Any:
        await update()
        written.set()
        await asyncio.Event().wait()

    with Trouble(space, answer_never):
        task = asyncio.create_task(locks.try_acquire("checkout", "1"))
        await written.wait()
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()
    assert await is_free(locks)


async def test_a_renewal_that_fails_is_an_error_and_the_lease_goes_on(space: Space, locks: RunLocks) -> None:
    """Until its own deadline, it can be tried again."""
    lease = await taken(locks)
    with Trouble(space, refuse), pytest.raises(StoreUnavailableError):
        await lease.renew()

    assert not lease.is_lost
    assert await lease.renew()


async def test_a_longer_lease_that_was_refused_is_not_relied_on(
    space: Space, locks: RunLocks, clock: VirtualClock
) -> None:
    """The deadline stays where it was."""
    lease = await taken(locks, lease="10s")
    with Trouble(space, refuse), pytest.raises(StoreUnavailableError):
        await lease.renew("60s")
    clock.advance(9)

    assert lease.is_lost


@pytest.mark.parametrize("way", ["renew", "again"])
async def test_a_shorter_lease_of_unknown_outcome_is_taken_for_granted(
    space: Space, locks: RunLocks, clock: VirtualClock, way: str
) -> None:
    """The holder stops before the earliest end that the store may know of."""
    lease = await taken(locks, lease="60s", token=OWNER)
    with Trouble(space, lose_the_answer), pytest.raises(OutcomeUnknownError):
        await (lease.renew("5s") if way == "renew" else taken(locks, lease="5s", token=OWNER))
    clock.advance(5)

    assert lease.is_lost


async def test_renewals_of_one_lease_take_turns(space: Space, locks: RunLocks, clock: VirtualClock) -> None:
    """An earlier answer does not make up for a later one that was lost."""
    lease, number = await taken(locks, lease="10s"), 0

    async def lose_the_second(update: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal number
        number += 1
        return await (update() if number == 1 else lose_the_answer(update))

    with Trouble(space, lose_the_second):
        first, second = await asyncio.gather(lease.renew("60s"), lease.renew("5s"), return_exceptions=True)
    clock.advance(5)

    assert (bool(first), type(second)) == (True, OutcomeUnknownError)
    assert lease.is_lost


async def test_a_release_that_fails_is_an_error_and_the_lease_is_over(space: Space, locks: RunLocks) -> None:
    """Whoever gave it up does not use it any more; releasing again is possible."""
    lease = await taken(locks)
    with Trouble(space, refuse), pytest.raises(StoreUnavailableError):
        await lease.release()

    assert lease.is_lost
    assert await lease.release()


async def test_a_block_ends_well_though_the_run_cannot_be_given_back(
    space: Space, locks: RunLocks, told: list[Event]
) -> None:
    """What it did stays done; giving back goes on by itself, and hooks are told."""
    async with locks.hold("checkout", "1"):
        trouble = Trouble(space, refuse)
        trouble.__enter__()
    trouble.__exit__()

    assert [type(event) for event in told if isinstance(event, ReleaseDelayed)] == [ReleaseDelayed]


# --- losing it --------------------------------------------------------------------------------------------------------


async def test_a_holder_stops_before_the_store_lets_others_in(locks: RunLocks, clock: VirtualClock) -> None:
    """Its own deadline comes a tenth of the lease before the store's."""
    lease = await taken(locks, lease="10s")
    clock.advance(9)

    assert lease.is_lost
    assert await locks.try_acquire("checkout", "1") is None


async def test_a_lost_lease_does_not_come_back(locks: RunLocks, clock: VirtualClock) -> None:
    """Not even while the store still keeps it; then the run is neither free nor taken by another."""
    lease = await taken(locks, lease="10s")
    clock.advance(9)
    early = await lease.renew()
    clock.advance(1)
    late = await lease.renew()

    assert (bool(early), early.free, early.taken_by) == (False, False, ())
    assert (bool(late), late.free, late.taken_by) == (False, True, ())


async def test_a_lost_lease_is_told(locks: RunLocks, clock: VirtualClock, told: list[Event]) -> None:
    """By ``check``, by the event to wait for, and to hooks; once."""
    lease = await taken(locks, lease="10s")
    clock.advance(10)
    for _ in range(2):
        with pytest.raises(LeaseLostError, match="not renewed in time"):
            lease.check()

    assert lease.lost.is_set()
    assert [event.fence for event in told if isinstance(event, LeaseLost)] == [lease.fence]


async def test_a_lapse_is_told_without_being_asked_for() -> None:
    """By real time: whoever waits for ``lost`` wakes at the deadline."""
    async with Space(await open_store("memory://")) as space:
        lease = await taken(space.run_locks, lease="150ms")
        async with asyncio.timeout(5):
            await lease.lost.wait()

        assert not await lease.renew()


async def test_who_is_taken_over_in_the_same_process_is_told(locks: RunLocks, clock: VirtualClock) -> None:
    """The line itself says so, before the old holder asks."""
    old = await taken(locks, lease="10s")
    clock.advance(10)
    await taken(locks)

    assert old.lost.is_set()
    assert "lapsed" in old.reason


async def test_releasing_is_no_loss(locks: RunLocks, told: list[Event]) -> None:
    """Hooks are not told of what was meant to happen; going on is refused all the same."""
    lease = await taken(locks)
    lease.check()
    await lease.release()

    assert not [event for event in told if isinstance(event, LeaseLost)]
    with pytest.raises(LeaseLostError, match="released"):
        lease.check()


async def test_a_deadline_counts_from_before_the_request(space: Space, locks: RunLocks, clock: VirtualClock) -> None:
    """A slow answer makes it too early, never too late."""
    asked_at = clock.elapsed()

    async def answer_slowly(update: Callable[[], Awaitable[Any]]) -> Any:
        clock.advance(2)
        answer = await update()
        clock.advance(2)
        return answer

    with Trouble(space, answer_slowly):
        lease = await taken(locks, lease="10s")

    assert lease.deadline == asked_at + 9 * MICROSECONDS


async def test_a_lease_that_is_over_when_it_is_answered_is_refused(
    space: Space, locks: RunLocks, clock: VirtualClock
) -> None:
    """Nobody gets a lease that they cannot use; it is taken back."""

    async def answer_late(update: Callable[[], Awaitable[Any]]) -> Any:
        answer = await update()
        clock.advance(9.5)
        return answer

    with Trouble(space, answer_late), pytest.raises(LeaseTooShortError):
        await locks.try_acquire("checkout", "1", lease="10s")

    assert await is_free(locks)


async def test_one_late_answer_is_no_mistake_in_the_lease(
    space: Space, locks: RunLocks, clock: VirtualClock, told: list[Event]
) -> None:
    """It is told, and the run is leased by asking again, whether or not the first lease has lapsed meanwhile."""
    for late in (9.5, 11.0):
        waits = [late]

        async def answer_late(update: Callable[[], Awaitable[Any]], waits: list[float] = waits) -> Any:
            answer = await update()
            clock.advance(waits.pop() if waits else 0)
            return answer

        with Trouble(space, answer_late):
            lease = await taken(locks, lease="10s")
        assert not lease.is_lost
        assert await lease.release()
    slow = [event for event in told if isinstance(event, SlowRoundTrip)]
    assert [event.seconds for event in slow] == [9.5, 11.0]
    assert not any(isinstance(event, LeaseLost) for event in told)


async def test_a_renewal_that_is_answered_too_late_is_none(space: Space, locks: RunLocks, clock: VirtualClock) -> None:
    """The lease was lost meanwhile; what the store has prolonged is taken back."""
    lease = await taken(locks, lease="10s")

    async def answer_late(update: Callable[[], Awaitable[Any]]) -> Any:
        answer = await update()
        clock.advance(9.5)
        return answer

    with Trouble(space, answer_late):
        assert not await lease.renew()

    assert lease.is_lost
    assert await is_free(locks)


async def test_a_run_of_a_process_that_ended_is_free_at_once(space: Space, clock: VirtualClock) -> None:
    """A block's hold falls with the presence of its process; nobody waits for a lease."""
    other = Space(space.store, clock=clock)
    async with other.run_locks.hold("checkout", "1", on_lost="tell") as hold:
        key = hold.presence.key
        await space.commit(Delete(key, (await space.read(key)).version(key)))

        assert await space.run_locks.get("checkout", "1") is None
        assert (await taken(space.run_locks)).fence > hold.fence


async def test_a_hold_is_shown_to_end_when_it_will_be_taken_away(locks: RunLocks) -> None:
    """Its longest time counts, however often it is renewed."""
    async with locks.hold("checkout", "1", lease="30s", max_hold="5s") as hold:
        info = await locks.get("checkout", "1")

    assert info is not None
    assert info.expires_at == later(hold.since, 5)
