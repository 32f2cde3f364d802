"""A hold and its block: forks, closing, schedules of every kind, and what people see of it."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

import standfast as sf
from standfast.errors import (
    HoldTimeoutError,
    LeaseLostError,
    LockMismatchError,
    StandfastError,
    StoreClosedError,
    StoreUnavailableError,
    UsageError,
    WaitCycleError,
    WouldWaitError,
)
from standfast.keys import RecordKey
from standfast.locks.line_records import HEADS
from standfast.space import Space
from standfast.stores import Delete, GroupedStore, Put
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.url import open_store
from standfast.testing import VirtualClock, simulate
from standfast.testing.conformance.locks.cancellation import MOMENTS, Interruption, interrupted
from standfast.testing.conformance.locks.ground import at_rest, entered, head_of, holders_of, leftovers, queued, waiting
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from standfast.locks.locks import Holding, Mutex
    from standfast.stores.backend import Applied, RiderBatch
    from standfast.testing.conformance.locks.cancellation import Moment


@pytest.fixture
async def space() -> AsyncIterator[sf.Space]:
    """A space in memory."""
    async with sf.open("memory://") as opened:
        yield opened


def in_a_forked_child(work: Callable[[], str]) -> str:
    """Run ``work`` in a forked child, and return the text that it returns."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads is what is tested
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def attempted(work: Callable[[], object]) -> str:
    """Return the name of the error that ``work`` raises, and what it says."""
    try:
        work()
    except StandfastError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def first_step_of(work: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine up to its first await."""
    try:
        work.send(None)
    finally:
        work.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_forked_child_holds_nothing(tmp_path: Path, kind: str) -> None:
    """The parent does: the child is told when it checks, and when it asks; the parent goes on undisturbed."""
    url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path / 'f.db'}"
    async with sf.open(url) as space, space.mutex("k").hold() as hold:
        again = space.mutex("other").hold()
        for work in (hold.check, lambda: first_step_of(again.__aenter__())):
            said = in_a_forked_child(functools.partial(attempted, work))
            assert re.fullmatch("StoreClosedError: .*: it was opened before this process was forked; .*", said)
        hold.check()


async def test_what_people_see(space: sf.Space) -> None:
    """Key, fence and state; of what is only about to be held, the key."""
    holding = space.mutex("account-7").hold()
    assert repr(holding) == "<Holding account-7>"
    async with holding as hold:
        assert repr(hold) == f"<Hold account-7 fence={hold.fence} held>"
        assert (hold.key, hold.mode) == ("account-7", "")
    assert repr(space.mutex("account-7")).startswith("<Mutex account-7 in <Space default/default on")


async def test_a_decorated_function_that_loses_its_lock_raises(space: sf.Space) -> None:
    """Each call has a hold of its own, and is cancelled with it."""

    @space.mutex("k").hold(max_hold=0.05)
    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    for _ in range(2):
        with pytest.raises(LeaseLostError, match="max_hold"):
            await work()


async def test_a_hold_that_ended_cannot_be_lost(space: sf.Space) -> None:
    """Its timer is stopped: nobody is cancelled for a block that is over."""
    async with space.mutex("k").hold(max_hold=0.05) as hold:
        pass
    await asyncio.sleep(0.06)
    assert not hold.lost.is_set()


class Spaces:
    """Two processes on one memory."""

    def __init__(self, clock: VirtualClock | None = None) -> None:
        memory = MemoryRecords() if clock is None else MemoryRecords(clock=clock)
        options: dict[str, Any] = {} if clock is None else {"clock": clock}
        self.here, self.there = (Space(GroupedStore(MemoryBackend(memory)), **options) for _ in range(2))

    async def aclose(self) -> None:
        """Close both."""
        await self.here.aclose()
        await self.there.aclose()


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_space_that_is_closed_while_somebody_enters_leaves_nothing(moment: Moment) -> None:
    """At each await of taking a free lock: it is told, by one error or the other, and the lock is free."""
    for number in range(1, 100):
        spaces = Spaces()
        closing: list[asyncio.Task[None]] = []
        close = functools.partial(begin_closing, spaces.here, closing)
        interruption = Interruption(number, moment, close)
        outcome = await enter_and_wait(spaces.here.mutex("k").hold(), interruption)
        await asyncio.gather(*closing)
        assert outcome in ("StoreClosedError", "LeaseLostError") or not interruption.happened
        assert await leftovers(spaces.there) == []
        await spaces.aclose()
        if not interruption.happened:
            return


def begin_closing(space: Space, closing: list[asyncio.Task[None]], _task: asyncio.Task[Any]) -> None:
    """Close a space in the background."""
    closing.append(asyncio.create_task(space.aclose()))


async def enter_and_wait(holding: Holding, interruption: Interruption) -> str:
    """Enter with an interruption, stay inside for a while, and return what it came to."""
    try:
        await interrupted(holding.__aenter__(), interruption)
    except StoreClosedError as error:
        return type(error).__name__
    try:
        if interruption.happened:
            await asyncio.wait_for(asyncio.get_running_loop().create_future(), 5)
    except asyncio.CancelledError as cancelled:
        try:
            await holding.__aexit__(type(cancelled), cancelled, None)
        except LeaseLostError as error:
            return type(error).__name__
    else:
        await holding.__aexit__(None, None, None)
    return "held"


@pytest.mark.heavy
def test_a_timeout_in_the_tick_of_the_grant_is_one_or_the_other() -> None:
    """On every schedule: the holder leaves at the very moment at which the waiter gives up."""
    seeds = rounds("time-outs at the moment of a grant", full=2_000, quick=60)
    outcomes = {simulate(seed, _grant_and_time_out, seed % 12 / 1_000) for seed in seeds}
    assert outcomes == {"granted", "timed out"}


async def _grant_and_time_out(earlier: float) -> str:
    spaces = Spaces(VirtualClock(asyncio.get_running_loop()))
    holder = await entered(spaces.there.mutex("k").hold())
    asyncio.get_running_loop().call_later(1.0 - earlier, holder._may_leave.set)

    async def impatient() -> str:
        try:
            async with spaces.here.mutex("k").hold(timeout=1.0) as hold:
                hold.check()
                return "granted"
        except HoldTimeoutError:
            return "timed out"

    outcome = await impatient()
    await holder.task
    assert await leftovers(spaces.there) == []
    async with spaces.there.mutex("k").hold(timeout=0.5):
        pass
    await spaces.aclose()
    return outcome


@pytest.mark.heavy
def test_a_hold_is_lost_on_every_schedule_when_it_is_turned_out() -> None:
    """Whenever the operator strikes: the block is cancelled, the next gets in, and nothing is left."""
    for seed in rounds("forced releases", full=2_000, quick=60):
        simulate(seed, _turn_out)


async def _turn_out() -> None:
    spaces = Spaces(VirtualClock(asyncio.get_running_loop()))
    holder = await entered(spaces.here.mutex("k").hold())
    waiter = await waiting(spaces.there, spaces.there.mutex("k").hold(), "k")
    [held] = await holders_of(spaces.there, "k")
    assert await spaces.there.mutex("k").force_release(held.entry.id)
    with pytest.raises(LeaseLostError):
        await holder.task
    await waiter.hold()
    await waiter.leave()
    await at_rest(spaces.there)
    await spaces.aclose()


async def test_two_spaces_on_one_store_are_two_processes(space: sf.Space) -> None:
    """Each has a presence of its own, unlike any before it, also if it is opened again at once."""
    other = Space(space.store)
    async with space.mutex("a").hold(), other.mutex("b").hold():
        page = await space.scan(*RecordKey("default", "default", "presence").within(), limit=10)
        assert len(page.records) == 2
    await other._lines.aclose()


async def test_a_hold_whose_block_was_left_is_no_longer_held(space: sf.Space) -> None:
    """Whoever kept it is told, and nobody is told that anything was lost."""
    async with space.mutex("k").hold() as hold:
        hold.check()
    assert hold.is_lost
    assert not hold.lost.is_set()
    assert "given back" in repr(hold)
    with pytest.raises(LeaseLostError, match="its block was left"):
        hold.check()


async def test_an_old_hold_cannot_cancel_the_next_block() -> None:
    """One lock object, two blocks: when the lease of the first is over by now, that is no concern of the second."""
    clock = VirtualClock()
    space = Space(await open_store("memory://", clock=clock), clock=clock, lease=30)
    holding = space.mutex("k").hold()
    async with holding as old:
        pass
    clock.advance(60)
    async with holding as hold:
        assert old.is_lost
        await asyncio.sleep(0)
        hold.check()
    await space.aclose()


async def test_permits_are_set_for_no_other_kind_of_lock(space: sf.Space) -> None:
    """A mutex that is asked to be a semaphore of three stays a mutex."""
    async with space.mutex("k").hold(owner="a"):
        with pytest.raises(LockMismatchError):
            await space.semaphore("k", permits=3).resize(3)
        with pytest.raises(LockMismatchError):
            await space.semaphore("k", permits=3).forget_size()
        with pytest.raises(WouldWaitError):
            await space.mutex("k").try_hold(owner="b").__aenter__()


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/state.db"])
async def test_a_task_that_was_cancelled_while_it_left_can_ask_again_at_once(url: str, tmp_path: Path) -> None:
    """What it is still about to leave is not in its own way."""
    async with sf.open(url.format(tmp_path)) as space:
        task = asyncio.current_task()
        assert task is not None
        with pytest.raises(asyncio.CancelledError):
            async with space.mutex("k").hold():
                asyncio.get_running_loop().call_soon(task.cancel)
        task.uncancel()
        async with space.mutex("k").hold(timeout=0):
            pass


async def test_a_line_that_was_left_halfway_moves_on(space: sf.Space) -> None:
    """Whoever let go died before it had found the next in line: that one finds out by itself."""
    other = Space(await space.store.another())
    holder = await entered(other.mutex("k").hold(on_lost="tell"))
    waiter = await waiting(space, space.mutex("k").hold(), "k")
    head = await head_of(space, "k")
    assert head is not None

    nobody = HEADS.encode(structs.replace(head, holders=()))
    key = space.key_for("line", "k")
    version = (await space.read(key)).version(key)
    await space.commit(Put(key, nobody, version), Delete((await holder.hold()).grant, (await holder.hold()).fence))

    await waiter.hold()
    await waiter.leave()
    await holder.end()
    await other._lines.aclose()


async def test_of_two_that_close_a_circle_in_one_instant_one_gives_way() -> None:
    """Also if the first of them, which came too early to see the circle, has the larger number."""
    clock = VirtualClock()
    space = Space(await open_store("memory://", clock=clock), clock=clock)
    space._lines._entered = 6  # the holds are 7 and 8, the waits 9 and 10: as text, 9 is the larger
    first, second = asyncio.Event(), asyncio.Event()

    async def cross(one: str, two: str, may_go: asyncio.Event) -> None:
        async with space.mutex(one).hold():
            await may_go.wait()
            async with space.mutex(two).hold():
                pass

    tasks = [asyncio.create_task(cross("a", "b", first)), asyncio.create_task(cross("b", "a", second))]
    first.set()
    await queued(space, 1, "b")
    for _ in range(100):
        await asyncio.sleep(0)  # until it has looked for a circle
    second.set()
    async with asyncio.timeout(5):
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [type(None), WaitCycleError]
    await space.aclose()


async def test_a_block_that_ends_while_it_is_lost_and_cancelled_still_gives_back(space: sf.Space) -> None:
    """Both cancellations wait for the next await, which is a part of leaving: the other one's wins, nothing stays."""
    mutex = space.mutex("m")

    async def body() -> None:
        async with mutex.hold() as hold:
            hold.lose("a test says so")
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(body())

    async with mutex.hold(timeout=5):
        assert len(space._lines.line(mutex._address).holds) == 1
    assert space._lines.held == 0


@pytest.mark.parametrize("waits", [True, False])
async def test_a_task_whose_release_is_late_does_not_hold_it_any_more(
    waits: bool,  # noqa: FBT001 -- a case of pytest
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks again while the store still lists it: it waits for its own release, and is not told that it holds it."""
    refusals, apply_now = list[str](), MemoryBackend.apply_now

    def refusing(backend: MemoryBackend, batch: RiderBatch) -> Applied | None:
        if refusals:
            raise StoreUnavailableError("memory", refusals.pop())
        return apply_now(backend, batch)

    monkeypatch.setattr(MemoryBackend, "apply_now", refusing)
    async with Space(GroupedStore(MemoryBackend(MemoryRecords()))) as space, asyncio.timeout(5):
        mutex = space.mutex("a")
        async with mutex.hold() as first:
            refusals += ["the release is refused", "and the next try"]
        while refusals:  # noqa: ASYNC110 -- nothing tells it
            await asyncio.sleep(0)
        if waits:
            async with mutex.hold() as second:
                assert second.fence > first.fence
        else:
            with pytest.raises(WouldWaitError):
                await mutex.try_hold().__aenter__()


async def test_a_lock_of_another_event_loop_is_refused() -> None:
    """Its space belongs to the loop that it was opened in; nothing is asked of the store from elsewhere."""

    async def hold(mutex: Mutex) -> None:
        async with mutex.hold():
            pass

    async with sf.open("memory://") as space:
        mutex = space.mutex("k")
        await hold(mutex)  # so that the store knows the keys of its line
        with pytest.raises(UsageError, match="belongs to another event loop"):
            await asyncio.to_thread(asyncio.run, hold(mutex))
        await hold(mutex)


async def test_what_tells_of_a_loss_is_made_when_it_is_asked_for() -> None:
    """``hold.lost`` is the same event each time, and is set if it is first asked for after the loss."""
    async with sf.open("memory://") as space:
        mutex = space.mutex("k")
        async with mutex.hold(on_lost="tell") as early:
            lost = early.lost
            assert not lost.is_set()
            await mutex.force_release((await mutex.explain()).holders[0].entry)
            await lost.wait()
            assert early.lost is lost
        async with mutex.hold(on_lost="tell") as late:
            await mutex.force_release((await mutex.explain()).holders[0].entry)
            while not late.is_lost:  # noqa: ASYNC110 -- no event is to be asked for before
                await asyncio.sleep(0)
            assert late.lost.is_set()
        async with mutex.hold() as kept:
            pass
        assert not kept.lost.is_set()


async def test_a_lock_that_is_entered_itself_says_how_to_hold_it(space: sf.Space) -> None:
    """Forgetting ``hold`` takes nothing, with either statement."""
    locks: dict[str, Any] = {
        "the mutex a": space.mutex("a"),
        "the semaphore b": space.semaphore("b", permits=2),
        "the mode lock c": space.mode_lock("c", modes=("read",)),
    }
    for what, lock in locks.items():
        name, mode = what.split(" ", 1)[1][:-2].replace(" ", "_"), "mode" if "mode" in what else ""
        said = rf"^{what} is not held by entering it; write async with {name}\.hold\({mode}\) as hold$"
        with pytest.raises(UsageError, match=said):
            async with lock:
                pass
        with pytest.raises(UsageError, match=said), lock:
            pass
        assert not (await lock.explain()).holders
