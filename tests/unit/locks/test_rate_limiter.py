"""The rate limiter on a store: tokens that all processes share, and a line in front of them."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import (
    DecodeError,
    InvalidArgumentError,
    LockMismatchError,
    RateTimeoutError,
    StoreClosedError,
    StoreError,
)
from standfast.locks import rate_limiter as bucket
from standfast.locks.rate_limiter import RateLimiter
from standfast.scope import Scope
from standfast.stores import Put
from standfast.stores.group_commit import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords, open_memory
from standfast.stores.url import open_store
from standfast.testing import FaultyBackend, VirtualClock, simulate
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from standfast.locks.rate_limiter import Pass, TokenBucket


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that the test moves."""
    return VirtualClock()


@pytest.fixture(params=["memory", "sqlite"])
async def scope(request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Scope]:
    """A scope on each store, by the test's clock."""
    url = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/rates.db"}[request.param]
    store = await open_store(url, clock=clock)
    yield Scope(store)
    await store.aclose()


async def stored(scope: Scope) -> int:
    """Return how many records the limiters have in a scope."""
    return len((await scope.scan(*scope.key("rate").within(), limit=100)).records)


# --- trying ---------------------------------------------------------------------------------------------------------


async def test_a_token_every_thirty_seconds(scope: Scope, clock: VirtualClock) -> None:
    """The worked example holds on a store, by the store's time."""
    limiter = RateLimiter(scope, "vendor", interval="30 seconds")
    assert await limiter.try_acquire()
    clock.advance(1)
    early = await limiter.try_acquire()
    clock.advance(29)
    assert (early.granted, early.position, early.retry_after) == (False, 0, 29)
    assert await limiter.try_acquire()


async def test_a_denied_try_leaves_nothing_behind(scope: Scope) -> None:
    """Who only tries stands in no line, and the record is not even written."""
    limiter = RateLimiter(scope, "vendor", interval="30 seconds")
    await limiter.try_acquire()
    before = await scope.read(scope.key_for("rate", "vendor"))
    assert not await limiter.try_acquire()
    assert (await scope.read(scope.key_for("rate", "vendor"))).records == before.records


async def test_a_named_waiter_keeps_its_place_between_tries(scope: Scope, clock: VirtualClock) -> None:
    """Another object, as in another process, goes on under the same name; a stranger does not pass."""
    limiter = RateLimiter(scope, "vendor", interval="30 seconds")
    await limiter.try_acquire()
    assert (await limiter.try_acquire(waiter="order-7")).keep_within == 120
    clock.advance(30)
    assert (await limiter.try_acquire()).position == 1
    assert await RateLimiter(scope, "vendor", interval="30 seconds").try_acquire(waiter="order-7")


async def test_a_withdrawn_waiter_is_gone(scope: Scope) -> None:
    """It tells whether it stood in line, and doing it twice is harmless."""
    limiter = RateLimiter(scope, "vendor", interval="30 seconds")
    await limiter.try_acquire()
    await limiter.try_acquire(waiter="order-7")
    assert await limiter.withdraw("order-7")
    assert not await limiter.withdraw("order-7")
    assert not (await limiter.inspect()).waiters


async def test_keys_are_limited_apart(scope: Scope) -> None:
    """What one key spends another keeps."""
    assert await RateLimiter(scope, "a", interval=30).try_acquire()
    assert await RateLimiter(scope, "b", interval=30).try_acquire()


async def test_a_bucket_at_rest_leaves_no_record(scope: Scope, clock: VirtualClock) -> None:
    """Once it is full again and those who waited are gone, it is as if it had never been used; nobody cleans up."""
    limiter = RateLimiter(scope, "vendor", capacity=3, interval="10 seconds")
    await limiter.try_acquire(3)
    await limiter.try_acquire(waiter="gone")
    clock.advance(39.9)
    assert await stored(scope) == 1
    clock.advance(0.1)
    assert await stored(scope) == 0
    assert (await limiter.inspect()).tokens == 3


async def test_the_last_to_leave_a_full_bucket_takes_the_record_along(scope: Scope, clock: VirtualClock) -> None:
    """A waiter that withdraws when the tokens are back leaves nothing to expire."""
    limiter = RateLimiter(scope, "vendor", interval="10 seconds")
    await limiter.try_acquire()
    await limiter.try_acquire(waiter="gone")
    clock.advance(10)
    await limiter.withdraw("gone")
    assert await stored(scope) == 0


async def test_a_cost_above_the_capacity_is_refused(scope: Scope) -> None:
    """It would never be there; nothing is written."""
    limiter = RateLimiter(scope, "vendor", capacity=2, interval=1)
    for attempt in (limiter.try_acquire(3), limiter.acquire(3)):
        with pytest.raises(InvalidArgumentError):
            await attempt
    assert await stored(scope) == 0


async def test_a_damaged_record_is_not_taken_for_a_full_bucket(scope: Scope) -> None:
    """What cannot be read is an error, never a free pass."""
    await scope.commit(Put(scope.key_for("rate", "vendor"), b"1:{}"))
    with pytest.raises(DecodeError, match="bucket of a rate limiter"):
        await RateLimiter(scope, "vendor", interval=1).try_acquire()


# --- operating ------------------------------------------------------------------------------------------------------


async def test_a_cool_down_holds_everybody(scope: Scope, clock: VirtualClock) -> None:
    """Nobody passes for the time that the other side asked for, and then they do."""
    limiter = RateLimiter(scope, "vendor", capacity=5, interval=1)
    await limiter.close_for("60s")
    assert (await limiter.try_acquire()).retry_after == 60
    assert (await limiter.inspect()).closed_for == 60
    clock.advance(60)
    assert await limiter.try_acquire()


async def test_a_cool_down_can_be_ended(scope: Scope) -> None:
    """Opening again lets them pass at once, and leaves no record if nothing was used."""
    limiter = RateLimiter(scope, "vendor", interval=1)
    await limiter.close_for("1 hour")
    await limiter.open_again()
    assert await stored(scope) == 0
    assert await limiter.try_acquire()


async def test_the_line_can_be_looked_at(scope: Scope) -> None:
    """Tokens, rate, and who waits for how long, without changing anything."""
    limiter = RateLimiter(scope, "vendor", capacity=2, interval=10)
    await limiter.try_acquire(2)
    await limiter.try_acquire(2, waiter="a")
    await limiter.try_acquire(waiter="b")
    state = await limiter.inspect()
    assert (state.capacity, state.interval, state.tokens, state.closed_for) == (2, 10, 0, 0)
    assert [(each.id, each.cost, each.turn_in, each.expires_in) for each in state.waiters] == [
        ("a", 2, 20, 40),
        ("b", 1, 30, 40),
    ]


async def test_two_sites_that_disagree_are_found_out(scope: Scope) -> None:
    """A limiter in use with another rate is an error with both rates in it; nothing is taken."""
    await RateLimiter(scope, "vendor", capacity=2, interval=10).try_acquire()
    with pytest.raises(LockMismatchError, match="capacity 2 and a token every 10 s, not capacity 3") as caught:
        await RateLimiter(scope, "vendor", capacity=3, interval=10).try_acquire()
    assert "capacity 3" in caught.value.asked
    assert "capacity 2" in caught.value.stored
    assert await RateLimiter(scope, "vendor", capacity=2, interval=10).try_acquire()


async def test_another_rate_does_not_keep_anybody_from_operating(scope: Scope) -> None:
    """Looking, leaving, closing and opening work on a limiter whatever its rate is."""
    used, other = RateLimiter(scope, "vendor", interval=10), RateLimiter(scope, "vendor", interval=20)
    await used.try_acquire()
    await used.try_acquire(waiter="order-7")
    assert await other.withdraw("order-7")
    await other.close_for(1)
    await other.open_again()
    assert (await other.inspect()).interval == 10


async def test_a_limiter_that_follows_takes_the_rate_in_use(scope: Scope) -> None:
    """During a roll-out old and new sites share the old rate, until it is changed once."""
    old = RateLimiter(scope, "vendor", interval=10, follow=True)
    new = RateLimiter(scope, "vendor", interval=20, follow=True)
    await old.try_acquire()
    assert (await new.try_acquire()).retry_after == 10
    await new.change_rate()
    assert (await old.try_acquire()).retry_after == 20


@pytest.mark.parametrize("options", [{"capacity": 0, "interval": 1}, {"interval": 1, "capacity": "two"}])
async def test_a_rate_that_makes_no_sense_is_refused(scope: Scope, options: Any) -> None:
    """Before anything is read or written."""
    with pytest.raises(InvalidArgumentError):
        RateLimiter(scope, "vendor", **options)


async def test_a_limiter_says_what_it_is(scope: Scope) -> None:
    """Its repr has the key and the rate."""
    assert repr(RateLimiter(scope, "mail", capacity=5, interval="600ms")) == (
        "<RateLimiter mail: 5 at once, one every 0.6 s>"
    )


# --- waiting, in virtual time ---------------------------------------------------------------------------------------


class LineWatcher:
    """Stands beside the pure function and notes who joins the line and who passes from it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.joined: dict[str, None] = {}
        self.passed: list[str] = []
        self._ask = bucket.ask
        monkeypatch.setattr(bucket, "ask", self.ask)

    def ask(self, *args: Any, waiter: str | None, ttl: float, liveness_token: str) -> tuple[TokenBucket, Pass]:
        """Ask, and take a note."""
        after, answer = self._ask(*args, waiter=waiter, ttl=ttl, liveness_token=liveness_token)
        if waiter is not None and answer:
            self.passed.append(waiter)
        elif waiter is not None:
            self.joined[waiter] = None
        return after, answer

    def check(self) -> None:
        """See that those who passed did so in the order in which they joined."""
        gone = set(self.passed)
        assert [waiter for waiter in self.joined if waiter in gone] == self.passed


def in_virtual_time(seed: int, work: Any) -> Any:
    """Run ``work(scope)`` on a memory store whose time is that of a simulated loop."""

    async def main() -> Any:
        clock = VirtualClock(asyncio.get_running_loop())
        async with Scope(open_memory(clock=clock)) as scope:
            return await work(scope)

    return simulate(seed, main)


def passed_at() -> float:
    """Return the virtual time."""
    return round(asyncio.get_running_loop().time(), 3)


def test_waiters_pass_in_order_one_interval_apart(seed: int) -> None:
    """Each of them wakes for its own turn, on time."""

    async def work(scope: Scope) -> list[tuple[int, float]]:
        limiter = RateLimiter(scope, "vendor", interval=10)
        passed: list[tuple[int, float]] = []

        async def one(number: int) -> None:
            await asyncio.sleep(number)
            async with limiter.limited():
                passed.append((number, passed_at()))

        await asyncio.gather(*map(one, range(5)))
        return passed

    assert [(n, round(at)) for n, at in in_virtual_time(seed, work)] == [(n, 10 * n) for n in range(5)]


def test_waiting_does_not_poll(seed: int) -> None:
    """A day in line costs each of ten waiters a few writes, not one a second."""

    async def work(scope: Scope) -> int:
        limiter = RateLimiter(scope, "vendor", interval="1 day")
        await limiter.acquire()
        before = await scope.read(key := scope.key_for("rate", "vendor"))
        crowd = [asyncio.create_task(limiter.acquire()) for _ in range(10)]
        await asyncio.sleep(86_000)
        after = await scope.read(key)
        for waiter in crowd:
            waiter.cancel()
        await asyncio.wait(crowd)
        return after.version(key) - before.version(key)

    assert in_virtual_time(seed, work) <= 20


def test_a_waiter_keeps_its_place_for_as_long_as_it_waits(seed: int) -> None:
    """It asks again well before its place lapses, however far away its turn is."""

    async def work(scope: Scope) -> list[str]:
        limiter = RateLimiter(scope, "vendor", interval="10 minutes", waiter_ttl="3s")
        await limiter.acquire()
        waiters: list[str] = []
        task = asyncio.create_task(limiter.acquire())
        for _ in range(100):
            await asyncio.sleep(1.7)
            waiters += [each.id for each in (await limiter.inspect()).waiters]
        task.cancel()
        await asyncio.wait([task])
        return waiters

    waiters = in_virtual_time(seed, work)
    assert (len(waiters), len(set(waiters))) == (100, 1)


def test_who_runs_out_of_time_leaves_the_line(seed: int) -> None:
    """The error says how long it would have taken, and the next one moves up and passes on time."""

    async def work(scope: Scope) -> float:
        limiter = RateLimiter(scope, "vendor", interval=30)
        await limiter.acquire()
        first = asyncio.create_task(limiter.acquire(timeout="20s"))
        await asyncio.sleep(1)
        second = asyncio.create_task(limiter.acquire())
        with pytest.raises(RateTimeoutError, match="vendor did not come within 20 s") as caught:
            await first
        assert round(caught.value.retry_after) == 10
        assert len((await limiter.inspect()).waiters) == 1
        await second
        return passed_at()

    assert round(in_virtual_time(seed, work)) == 30


def test_a_turn_that_comes_with_the_time_limit_is_taken(seed: int) -> None:
    """The last look is at the end of the time, not before."""

    async def work(scope: Scope) -> None:
        limiter = RateLimiter(scope, "vendor", interval=30)
        await limiter.acquire()
        await limiter.acquire(timeout=30.01)

    in_virtual_time(seed, work)


def test_no_time_to_wait_means_one_look(seed: int) -> None:
    """A time limit of nothing is refused at once and leaves no waiter."""

    async def work(scope: Scope) -> float:
        limiter = RateLimiter(scope, "vendor", interval=30)
        await limiter.acquire(timeout=0)
        with pytest.raises(RateTimeoutError):
            await limiter.acquire(timeout=0)
        assert not (await limiter.inspect()).waiters
        return passed_at()

    assert in_virtual_time(seed, work) < 1


def test_opening_again_wakes_the_line_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who sleep through a cool-down are woken one after the other when it is ended."""
    line = LineWatcher(monkeypatch)

    async def work(scope: Scope) -> float:
        limiter = RateLimiter(scope, "vendor", capacity=4, interval=1)
        await limiter.close_for("1 hour")
        crowd = asyncio.gather(*(limiter.acquire() for _ in range(4)))
        await asyncio.sleep(5)
        await limiter.open_again()
        await crowd
        return passed_at()

    assert in_virtual_time(seed, work) < 5.5
    assert len(line.passed) == 4
    line.check()


def test_a_dead_waiter_holds_up_those_behind_it_for_its_time_to_live_only(seed: int) -> None:
    """Who vanished in line is passed over once its place has lapsed and somebody looks, a third of that time later."""

    async def work(scope: Scope) -> float:
        limiter = RateLimiter(scope, "vendor", capacity=3, interval=1)
        await limiter.acquire(3)
        for ghost in ("a", "b", "c"):
            await limiter.try_acquire(3, waiter=ghost)
        await asyncio.gather(*(limiter.acquire() for _ in range(3)))
        return passed_at()

    assert 30 <= in_virtual_time(seed, work) < 30 + 10 + 5


@pytest.mark.parametrize("steps", range(12))
def test_cancelling_anywhere_leaves_no_ghost(steps: int) -> None:
    """Wherever the cancellation strikes, nobody is left in line and no more than one token is spent."""

    async def work(scope: Scope) -> None:
        limiter = RateLimiter(scope, "vendor", capacity=2, interval=10)
        await limiter.acquire(2 if steps % 2 else 1)
        task = asyncio.create_task(limiter.acquire())
        for _ in range(steps):
            await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        state = await limiter.inspect()
        assert not state.waiters
        assert state.tokens == (0 if steps % 2 else state.tokens)

    in_virtual_time(steps, work)


def test_a_store_that_closes_does_not_leave_waiters_hanging(seed: int) -> None:
    """They get the store's error, not a wait without end."""

    async def work(scope: Scope) -> None:
        limiter = RateLimiter(scope, "vendor", interval=30)
        await limiter.acquire()
        waiter = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(1)
        await scope.aclose()
        with pytest.raises(StoreClosedError):
            await waiter

    in_virtual_time(seed, work)


# --- many contenders ------------------------------------------------------------------------------------------------


class Contenders:
    """Tasks on several handles that want tokens, give up and vanish at random; every grant is written down."""

    def __init__(self, scopes: list[Scope], seed: int, intervals: tuple[float, ...] = (0.1, 1, 7)) -> None:
        self._random = random.Random(seed)
        self.capacity, self.interval = self._random.randint(1, 4), self._random.choice(intervals)
        options: Any = {"capacity": self.capacity, "interval": self.interval}
        self._limiters = [RateLimiter(scope, "vendor", **options) for scope in scopes]
        self.grants: list[tuple[float, int]] = []

    async def run(self, tasks: int) -> None:
        """Let them all come at random times."""
        arrivals = [self._one(self._random.uniform(0, 5 * self.interval)) for _ in range(tasks)]
        await asyncio.wait_for(asyncio.gather(*arrivals), 10_000)

    async def _one(self, arrival: float) -> None:
        cost = self._random.randint(1, self.capacity)
        timeout = self._random.choice([None, None, self.interval * self._random.uniform(0, 9)])
        await asyncio.sleep(arrival)
        limiter = self._random.choice(self._limiters)
        try:
            await limiter.acquire(cost, timeout=timeout)
        except (RateTimeoutError, StoreError):
            return
        self.grants.append((asyncio.get_running_loop().time(), cost))

    def check(self, delay: float = 0.05) -> None:
        """See that no window of time saw too many tokens; a reply may be on its way for as long as ``delay``."""
        times = [moment for moment, _ in self.grants]
        for start in times:
            for end in (moment for moment in times if moment >= start):
                tokens = sum(cost for moment, cost in self.grants if start <= moment <= end)
                assert tokens <= self.capacity + (end - start + delay) / self.interval


@pytest.mark.heavy
def test_many_contenders_pass_in_order_and_never_faster_than_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under every seed, on two handles of one store, with some who give up: bounded, in order, and nothing left."""
    line = LineWatcher(monkeypatch)

    async def main(seed: int) -> int:
        memory = MemoryRecords(clock=VirtualClock(asyncio.get_running_loop()))
        stores = [GroupedStore(MemoryBackend(memory)) for _ in range(2)]
        crowd = Contenders([Scope(store) for store in stores], seed)
        await crowd.run(15)
        assert not (await crowd._limiters[0].inspect()).waiters
        crowd.check()
        for store in stores:
            await store.aclose()
        return len(crowd.grants)

    served = [simulate(seed, main, seed) for seed in rounds("seeds of rate limiters", full=2_000, quick=50)]
    assert sum(served) > 5 * len(served)
    assert len(line.passed) > len(served)
    line.check()


@pytest.mark.heavy
def test_a_rough_store_lets_nobody_pass_too_soon_and_keeps_no_ghosts() -> None:
    """With lost replies, failures and lost hints: bounded all the same, and once places have lapsed nobody is left."""

    async def main(seed: int) -> int:
        memory = MemoryRecords(clock=VirtualClock(asyncio.get_running_loop()))
        stores = [GroupedStore(FaultyBackend(MemoryBackend(memory), seed=2 * seed + n)) for n in range(2)]
        crowd = Contenders([Scope(store) for store in stores], seed, intervals=(20, 30))
        await crowd.run(12)
        crowd.check(delay=2)
        await asyncio.sleep(200)  # longer than a place is kept, and than the bucket takes to fill
        async with Scope(GroupedStore(MemoryBackend(memory))) as scope:
            assert await stored(scope) == 0
        for store in stores:
            await store.aclose()
        return len(crowd.grants)

    served = [simulate(seed, main, seed) for seed in rounds("seeds of rough rates", full=2_000, quick=50)]
    assert sum(served) > 3 * len(served)
