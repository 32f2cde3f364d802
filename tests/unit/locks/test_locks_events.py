"""What hooks hear of locks, rate limiters and fences: who waited how long, and how each hold ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import pytest

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import HoldTimeoutError, LeaseLostError, RateTimeoutError, ReentryError, StaleFenceError
from standfast.events import (
    DeadlockRefused,
    Event,
    FenceRefused,
    LeaseLost,
    LockAcquired,
    LockRefused,
    LockReleased,
    RateClosed,
    RateGranted,
    RateRefused,
)
from standfast.fencing import FenceGate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ORDER = sf.KeyFamily("order-of-events-test")
E = TypeVar("E", bound=Event)


class Everything(list[Event]):
    """A hook that wants all there is."""

    def wants(self, kind: type[Event]) -> bool:
        """Want it."""
        del kind
        return True

    def __call__(self, event: Event, /) -> None:
        """Take note."""
        self.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Return those of one kind."""
        return [event for event in self if isinstance(event, kind)]


@pytest.fixture
def told() -> Everything:
    """What is told."""
    return Everything()


@pytest.fixture
async def space(told: Everything) -> AsyncIterator[sf.Space]:
    """A space whose hook wants everything."""
    async with sf.open("memory://", hooks=[told]) as space:
        yield space


async def test_a_hold_tells_how_long_it_waited_and_was_held(space: sf.Space, told: Everything) -> None:
    """The second waits for the first, and both tell their family and kind."""
    mutex, may_end, held_for = space.mutex(ORDER("7")), asyncio.Event(), 0.0

    async def second() -> int:
        async with mutex.hold() as hold:
            return hold.fence

    async with asyncio.TaskGroup() as tasks, mutex.hold():
        waiting = tasks.create_task(second())
        while not (await mutex.explain()).waiting:  # noqa: ASYNC110 -- the line itself is asked
            await asyncio.sleep(0)
        began = monotonic()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
        await may_end.wait()
        held_for = monotonic() - began
    one, two = told.of(LockAcquired)
    assert (two.family, two.kind, two.fence, two.key) == (ORDER.name, "mutex", waiting.result(), str(ORDER("7")))
    assert one.waited >= 0
    assert two.waited >= held_for >= 0.01
    assert [each.outcome for each in told.of(LockReleased)] == ["released", "released"]
    assert told.of(LockReleased)[0].held >= held_for


async def test_a_mode_is_told(space: sf.Space, told: Everything) -> None:
    """Readers and writers are told apart."""
    async with space.mode_lock("graph", modes=("read",), alone=("write",)).hold("write"):
        pass
    assert [(each.mode, each.kind, each.family) for each in told.of(LockAcquired)] == [("write", "mode lock", "")]


async def test_a_hold_that_an_operator_ends_is_evicted(space: sf.Space, told: Everything) -> None:
    """It is told as lost, and how it ended."""
    mutex = space.mutex(ORDER("7"))

    async def be_evicted() -> None:
        async with mutex.hold():
            [entry] = (await mutex.explain()).holders
            await mutex.force_release(entry.entry)
            await asyncio.Event().wait()

    with pytest.raises(LeaseLostError):
        await be_evicted()
    assert [each.outcome for each in told.of(LockReleased)] == ["evicted"]
    assert [(each.family, each.kind) for each in told.of(LeaseLost)] == [(ORDER.name, "mutex")]


async def test_a_hold_past_its_max_hold_has_expired(space: sf.Space, told: Everything) -> None:
    """Its time was over."""
    with pytest.raises(LeaseLostError):
        async with space.mutex("a").hold(max_hold="10ms"):
            await asyncio.Event().wait()
    assert [each.outcome for each in told.of(LockReleased)] == ["expired"]


async def test_who_does_not_get_a_lock_tells_why(space: sf.Space, told: Everything) -> None:
    """A time-out and a deadlock are two things: the second is a mistake in the program."""
    async with space.mutex("a").hold():
        with pytest.raises(HoldTimeoutError):
            async with space.mutex("a").hold(timeout=0, owner="another"):
                pass
        with pytest.raises(ReentryError):
            async with space.mutex("a").hold():
                pass
    assert [each.reason for each in told.of(LockRefused)] == ["HoldTimeoutError"]
    assert [(each.reason, each.run) for each in told.of(DeadlockRefused)] == [("ReentryError", "")]


async def test_the_lease_of_a_run_is_told_like_a_lock(space: sf.Space, told: Everything) -> None:
    """Whoever takes it with a token of its own is seen as well."""
    lease = await space.run_locks.try_acquire("fulfil", "run-1", lease="30s")
    assert lease is not None
    await lease.renew()
    await lease.release()
    assert [each.kind for each in told.of(LockAcquired)] == ["run lock"]
    assert [(each.outcome, each.fence) for each in told.of(LockReleased)] == [("released", lease.fence)]


async def test_a_rate_limiter_tells_who_passed_and_who_did_not(space: sf.Space, told: Everything) -> None:
    """A caller that waited says how long; one that gave up is refused; a pause is told."""
    limiter = space.rate_limiter(ORDER("mails"), capacity=1, interval="30ms")
    assert await limiter.try_acquire()
    assert not await limiter.try_acquire()
    await limiter.acquire()
    with pytest.raises(RateTimeoutError):
        await limiter.acquire(timeout=0)
    await limiter.close_for("1 minute")
    at_once, later = told.of(RateGranted)
    assert at_once.waited == 0
    assert later.waited is not None
    assert later.waited > 0
    assert [each.family for each in told.of(RateRefused)] == [ORDER.name] * 2
    assert [each.seconds for each in told.of(RateClosed)] == [60]


async def test_a_refused_fence_is_told(space: sf.Space, told: Everything) -> None:
    """A stale writer was stopped: somebody should know."""
    gate = FenceGate(space)
    await gate.admit("invoice-7", 12)
    with pytest.raises(StaleFenceError):
        await gate.admit("invoice-7", 11)
    assert [(each.key, each.fence, each.highest) for each in told.of(FenceRefused)] == [("invoice-7", 11, 12)]
