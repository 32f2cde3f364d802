"""Who waits for a lock: in which order, for how long, and never for itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import monotonic
from standfast.errors import HoldTimeoutError, WaitCycleError, WouldWaitError
from standfast.testing.conformance.locks.cancellation import MOMENTS, Interruption, interrupted
from standfast.testing.conformance.locks.ground import (
    KEY,
    SOON,
    LockGround,
    a_while,
    all_of,
    at_rest,
    entered,
    leftovers,
    look_after,
    passes,
    queued,
    queued_or_done,
    waiters_of,
    waiting,
)
from standfast.testing.conformance.locks.wire import Wire
from standfast.testing.faults import Faults, FaultyStore

if TYPE_CHECKING:
    from standfast.locks.locks import Holding
    from standfast.space import Space
    from standfast.stores import Store
    from standfast.testing.conformance.locks.cancellation import Moment
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace


LOOK = "standfast.locks.registry.POLL_EVERY"
"""How often a process looks by itself. Tests make it never happen, or soon."""


def deaf(store: Store) -> Store:
    """Return the store with every hint lost."""
    return FaultyStore(store, seed=1, faults=Faults(drop_hint=1.0))


def stuttering(store: Store) -> Store:
    """Return the store with every hint heard twice."""
    return FaultyStore(store, seed=1, faults=Faults(double_hint=1.0))


class OrderCases(LockGround):
    """In which order waiters get in, and how they hear of it."""

    async def test_the_first_to_come_is_the_first_to_be_served(self, space: Space, kind: Kind) -> None:
        """Many tasks of one process that ask one after the other get in one after the other."""
        served: list[int] = []

        async def work(n: int) -> None:
            async with kind.alone(space):
                served.append(n)

        async with kind.alone(space):
            tasks = [asyncio.create_task(work(n)) for n in range(20)]
            await queued(space, 20)
        await asyncio.gather(*tasks)
        assert served == list(range(20))

    async def test_processes_are_served_in_the_order_of_their_commits(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """The waiter that joined the line first gets in first, whichever process it is of."""
        served: list[int] = []

        async def work(n: int) -> None:
            async with kind.alone((space, other)[n % 2]):
                served.append(n)

        holder = await entered(kind.alone(other))
        tasks: list[asyncio.Task[None]] = []
        for n in range(6):
            tasks.append(asyncio.create_task(work(n)))
            await queued(space, n + 1)
        await holder.leave()
        await asyncio.gather(*tasks)
        assert served == list(range(6))

    async def test_nobody_overtakes_one_who_was_granted(self, space: Space, other: Space, kind: Kind) -> None:
        """One who asks right after a release comes behind who waited, though that one does not know of it yet."""
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.alone(other))

        await holder.leave()
        with pytest.raises(WouldWaitError):
            await passes(kind.try_one(space))
        late = await waiting(space, kind.one(space))

        await waiter.hold()
        assert not late.is_inside
        await all_of([waiter, late])

    async def test_what_is_free_is_not_taken_past_a_waiter(self, space: Space, other: Space) -> None:
        """Two permits are free, and the first in line needs three: one who needs one does not get in."""
        semaphore = space.semaphore(KEY, permits=3)
        holder = await entered(semaphore.hold(1))
        heavy = await waiting(other, other.semaphore(KEY, permits=3).hold(3))

        with pytest.raises(WouldWaitError):
            await passes(semaphore.try_hold(1))
        await holder.leave()
        await all_of([heavy])

    @pytest.mark.parametrize("position", [0, 1, 2])
    async def test_one_who_gives_up_is_passed_over(self, space: Space, other: Space, kind: Kind, position: int) -> None:
        """Wherever it stood, the others keep their order."""
        holder = await entered(kind.alone(space))
        clients = [await waiting(other, kind.alone(other)) for _ in range(3)]

        await clients.pop(position).end()
        await queued(space, 2)
        await holder.leave()

        await clients[0].hold()
        assert not clients[1].is_inside
        await all_of(clients)

    async def test_a_thousand_waiters_are_served_in_order(self, space: Space) -> None:
        """A long line is served like a short one."""
        served: list[int] = []

        async def work(n: int) -> None:
            async with space.mutex(KEY).hold():
                served.append(n)

        async with space.mutex(KEY).hold():
            tasks = [asyncio.create_task(work(n)) for n in range(1_000)]
            await queued(space, 1_000)
        await asyncio.gather(*tasks)
        assert served == list(range(1_000))
        await at_rest(space)

    async def test_everyone_of_a_crowd_gets_in(self, open_space: OpenSpace, kind: Kind) -> None:
        """Many tasks of several processes ask all at once, again and again: each gets its turns."""
        spaces = [await open_space() for _ in range(4)]
        turns = [0] * 40

        async def work(n: int) -> None:
            for _ in range(3):
                async with kind.alone(spaces[n % 4]):
                    turns[n] += 1

        async with asyncio.timeout(4 * SOON):
            await asyncio.gather(*(work(n) for n in range(40)))
        assert turns == [3] * 40
        await at_rest(spaces[0])

    async def test_one_wake_is_sent_for_a_hand_over(self, open_space: OpenSpace) -> None:
        """With a hundred waiters elsewhere, a release wakes the one that gets in."""
        wire = Wire()
        space, other = await open_space(through=wire.around), await open_space()
        holder = await entered(space.mutex(KEY).hold())
        tasks = [asyncio.create_task(passes(other.mutex(KEY).hold(), 4 * SOON)) for _ in range(100)]
        await queued(space, 100)

        await holder.leave()

        assert len(wire.wakes) == 1
        await asyncio.gather(*tasks)

    async def test_a_hand_over_in_one_process_needs_no_wake(
        self, open_space: OpenSpace, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A waiter in the same process is told directly, though no hint arrives and none polls."""
        monkeypatch.setattr(LOOK, 3_600.0)
        wire = Wire()
        space = await open_space(through=lambda store: wire.around(deaf(store)))
        holder = await entered(kind.alone(space))
        waiter = await waiting(space, kind.alone(space))

        await holder.leave()

        await all_of([waiter])
        assert [wake for wake in wire.wakes if wake.moved is None] == []  # what a store moves, it notifies of by itself

    async def test_a_wake_brings_in_one_who_waits_elsewhere(
        self, space: Space, other: Space, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It does not depend on anybody looking now and then, where the store sends hints."""
        if space.store.capabilities.wakes == "poll":
            pytest.skip("this store sends no hints")
        monkeypatch.setattr(LOOK, 3_600.0)
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))

        await holder.leave()

        await all_of([waiter])

    async def test_a_lost_wake_is_made_up_for(
        self, space: Space, open_space: OpenSpace, kind: Kind, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One who hears nothing finds by itself that it holds."""
        monkeypatch.setattr(LOOK, 0.02)
        other = await open_space(through=deaf)
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))

        await holder.leave()

        await all_of([waiter])

    async def test_a_wake_that_is_heard_twice_lets_nobody_in_twice(
        self, space: Space, open_space: OpenSpace, kind: Kind
    ) -> None:
        """Hints only make a process look: what it sees decides."""
        other = await open_space(through=stuttering)
        holder = await entered(kind.alone(space))
        first, second = [await waiting(other, kind.alone(other)) for _ in range(2)]

        await holder.leave()

        await first.hold()
        assert not second.is_inside
        await all_of([first, second])


MOST_AWAITS = 200

LONG = 61.5
"""A time-out that a test lets run out by hand, in seconds."""


class _Limits:
    """The time-outs that locks set, so that a test can let the last of them run out in the tick that it chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._last: Any = None
        self._timeout = asyncio.timeout
        monkeypatch.setattr("standfast.locks.acquire.asyncio.timeout", self._note)

    def _note(self, delay: float | None) -> asyncio.Timeout:
        limit = self._timeout(delay)
        if delay == LONG:  # and not one of the test's own
            self._last = limit
        return limit

    def run_out(self, _task: asyncio.Task[Any]) -> None:
        """Let the time be up right now, as the loop's timer would."""
        if self._last is not None and self._last.when() is not None:
            self._last._on_timeout()  # noqa: SLF001 -- there is no public way to choose the tick


class TimeoutCases(LockGround):
    """How long one waits at most."""

    @pytest.mark.parametrize("timeout", [0, 0.02])
    async def test_one_who_gives_up_leaves_the_line(
        self, space: Space, other: Space, kind: Kind, timeout: float
    ) -> None:
        """When it is told, it is gone already; it is told who was in the way."""
        holder = await entered(kind.alone(space, owner="the holder"))
        timeout = await a_while(other, timeout) if timeout else 0

        with pytest.raises(HoldTimeoutError) as caught:
            await passes(kind.one(other, timeout=timeout))

        assert await waiters_of(space) == []
        assert caught.value.holders == ("the holder",)
        await holder.leave()
        assert await leftovers(space) == []

    async def test_a_timeout_of_nothing_takes_what_is_free(self, space: Space, kind: Kind) -> None:
        """It does not wait, and need not."""
        assert await passes(kind.one(space, timeout=0)) > 0

    async def test_a_timeout_does_not_end_the_block(self, space: Space) -> None:
        """The limit is for the wait alone."""
        async with space.mutex(KEY).hold(timeout=0.25) as hold:
            await asyncio.sleep(0.3)
            hold.check()

    async def test_one_who_gives_up_holds_up_nobody(self, space: Space, other: Space, kind: Kind) -> None:
        """Those behind it move up."""
        holder = await entered(kind.alone(space))
        impatient = asyncio.create_task(passes(kind.alone(other, timeout=await a_while(other, 0.05))))
        await queued(space, 1)
        patient = await waiting(space, kind.one(space))

        with pytest.raises(HoldTimeoutError):
            await impatient
        await holder.leave()
        await all_of([patient])

    async def test_a_timeout_is_kept_however_often_one_is_woken(self, space: Space, other: Space, kind: Kind) -> None:
        """Looking at the line again and again does not start it anew."""
        holder, started = await entered(kind.alone(space)), monotonic()
        impatient = asyncio.create_task(passes(kind.one(other, timeout=0.1)))
        while not impatient.done():
            await look_after(other)
            await asyncio.sleep(0)

        with pytest.raises(HoldTimeoutError):
            await impatient
        assert 0.1 <= monotonic() - started < 2
        await holder.leave()

    @pytest.mark.parametrize("moment", MOMENTS)
    async def test_a_timeout_and_a_grant_are_never_both(
        self, space: Space, other: Space, kind: Kind, moment: Moment, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The time is up at each await, also in the tick of the grant: either it got in or it timed out."""
        limits, outcomes = _Limits(monkeypatch), set[str]()
        for number in range(1, MOST_AWAITS):
            holder = await entered(kind.alone(other))
            interruption = Interruption(number, moment, limits.run_out)
            task = asyncio.create_task(_enter_or_give_up(kind.one(space, timeout=LONG), interruption))
            await queued_or_done(space, task)
            await holder.leave()
            outcomes.add(await task)
            await at_rest(other)
            if not interruption.happened:
                break
        assert outcomes == {"got in", "timed out"}

    async def test_a_timeout_is_kept_while_the_store_is_out_of_reach(self, open_space: OpenSpace) -> None:
        """It cannot leave the line at once then; it is told all the same, and leaves when it can."""
        wire = Wire()
        space, other = await open_space(), await open_space(through=wire.around)
        holder = await entered(space.mutex(KEY).hold())
        moment = await a_while(other, 0.5)
        impatient = asyncio.create_task(passes(other.mutex(KEY).hold(timeout=moment), moment + 1.5))
        await queued(space, 1)

        wire.cut()
        with pytest.raises(HoldTimeoutError):
            await impatient
        wire.mend()
        await queued(space, 0)
        await holder.leave()


async def _enter_or_give_up(holding: Holding, interruption: Interruption) -> str:
    try:
        await interrupted(holding.__aenter__(), interruption)
    except HoldTimeoutError:
        return "timed out"
    await holding.__aexit__(None, None, None)
    return "got in"


async def circle(spaces: list[Space], kind: Kind) -> list[object]:
    """Let each hold a key of its own and then ask for the next one's; return what became of each."""
    holds_its_own = [asyncio.Event() for _ in spaces]

    async def work(n: int) -> str:
        async with kind.alone(spaces[n], f"key-{n}", owner=f"owner-{n}"):
            holds_its_own[n].set()
            for event in holds_its_own:
                await event.wait()
            async with kind.alone(spaces[n], f"key-{(n + 1) % len(spaces)}", owner=f"owner-{n}"):
                return "had both"

    async with asyncio.timeout(2 * SOON):
        return await asyncio.gather(*(work(n) for n in range(len(spaces))), return_exceptions=True)


class DeadlockCases(LockGround):
    """Waiting in a circle."""

    @pytest.mark.parametrize("size", [2, 3, 5])
    async def test_one_of_a_circle_is_told(self, open_space: OpenSpace, kind: Kind, size: int) -> None:
        """Processes that wait for each other: exactly one gives way, and its error names everyone in the circle."""
        spaces = [await open_space() for _ in range(size)]

        outcomes = await circle(spaces, kind)

        [error] = [each for each in outcomes if isinstance(each, WaitCycleError)]
        assert outcomes.count("had both") == size - 1
        for n in range(size):
            assert any(f"owner-{n} waits for key-{(n + 1) % size}" in link for link in error.cycle)
        await at_rest(spaces[0])

    async def test_tasks_of_one_process_are_told_too(self, space: Space, kind: Kind) -> None:
        """Also if both are in the same space, and go by the names of their tasks."""
        both = [asyncio.Event(), asyncio.Event()]

        async def work(n: int) -> str:
            async with kind.alone(space, f"key-{n}"):
                both[n].set()
                await both[1 - n].wait()
                async with kind.alone(space, f"key-{1 - n}"):
                    return "had both"

        async with asyncio.timeout(SOON):
            outcomes = await asyncio.gather(work(0), work(1), return_exceptions=True)
        assert sorted(type(each).__name__ for each in outcomes) == ["WaitCycleError", "str"]
        await at_rest(space)

    async def test_a_holder_outside_the_circle_will_let_one_in(self, space: Space, other: Space) -> None:
        """One of two permits is in the circle, the other will be given back: that is no deadlock."""
        outside = await entered(space.semaphore(KEY, permits=2).hold(owner="outside"))
        inside = await entered(space.semaphore(KEY, permits=2).hold(owner="first"))
        second = await entered(other.mutex("m").hold(owner="second"))
        wants_mutex = await waiting(space, space.mutex("m").hold(owner="first"), "m")

        wants_permit = await waiting(other, other.semaphore(KEY, permits=2).hold(owner="second"))

        await outside.leave()
        await wants_permit.hold()
        await wants_permit.leave()
        await second.leave()
        await all_of([wants_mutex])
        await inside.leave()

    async def test_with_all_holders_in_the_circle_one_is_told(self, space: Space, other: Space) -> None:
        """Both permits are held by owners who wait for the third: none would ever let go."""
        semaphore = space.semaphore(KEY, permits=2)
        holders = [await entered(semaphore.hold(owner=owner)) for owner in ("first", "second")]
        third = await entered(other.mutex("m").hold(owner="third"))
        waiters = [await waiting(space, space.mutex("m").hold(owner=owner), "m") for owner in ("first", "second")]

        with pytest.raises(WaitCycleError):
            await passes(other.semaphore(KEY, permits=2).hold(owner="third"))

        await third.leave()
        await all_of(waiters)
        for holder in holders:
            await holder.leave()
        await at_rest(space)

    async def test_a_chain_is_no_circle(self, space: Space, other: Space, kind: Kind) -> None:
        """Who waits for one who waits for a third that goes on is not refused."""
        third = await entered(kind.alone(other, "c", owner="third"))
        second = await entered(kind.alone(space, "b", owner="second"))
        second_waits = await waiting(space, kind.alone(space, "c", owner="second"), "c")
        first = await entered(kind.alone(other, "a", owner="first"))
        first_waits = await waiting(space, kind.alone(other, "b", owner="first"), "b")

        await third.leave()
        await second_waits.hold()
        await second_waits.leave()
        await second.leave()
        await all_of([first_waits, first])
        await at_rest(space)

    async def test_one_who_gave_up_is_in_no_circle(self, space: Space, other: Space, kind: Kind) -> None:
        """It asked for the other's key for a moment only: when it no longer waits, the other may."""
        first = await entered(kind.alone(space, "a", owner="first"))
        second = await entered(kind.alone(other, "b", owner="second"))
        with pytest.raises(HoldTimeoutError):
            await passes(kind.alone(space, "b", owner="first", timeout=0.01))

        waiter = await waiting(other, kind.alone(other, "a", owner="second"), "a")

        await first.leave()
        await all_of([waiter, second])
        await at_rest(space)
