"""A look at a line shows who holds and who waits, and leaves no trace."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import msgspec
import pytest

import standfast as sf
from standfast.clock import later
from standfast.errors import InvalidArgumentError, LeaseLostError, WithdrawnError
from standfast.locks import Explanation
from standfast.space import Space
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.locks import Holding
    from standfast.testing import VirtualClock

JOB = sf.KeyFamily("explain-test-job")


@pytest.fixture
async def space(clock: VirtualClock) -> AsyncIterator[Space]:
    """A space by a clock that the test moves."""
    opened = Space(await open_store("memory://", clock=clock), clock=clock, lease="10 hours")
    yield opened
    await opened.aclose()


@asynccontextmanager
async def waiting(space: Space, key: str, *holdings: Holding) -> AsyncIterator[list[asyncio.Task[None]]]:
    """Let tasks wait in a line, in order."""

    async def wait(holding: Holding) -> None:
        async with holding:
            pass

    tasks: list[asyncio.Task[None]] = []
    before = (await space.explain(key)).waiting
    for number, holding in enumerate(holdings, before + 1):
        tasks.append(asyncio.create_task(wait(holding)))
        while (await space.explain(key)).waiting < number:  # noqa: ASYNC110 -- a line in a store has no event to wait for
            await asyncio.sleep(0)
    yield tasks
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_free_key_is_said_to_be_free(space: Space) -> None:
    """Nobody holds it, nobody waits, and a newcomer would not either."""
    told = await space.mutex("a").explain()

    assert (told.key, told.kind, told.holders, told.waiters, told.estimate) == ("a", "", (), (), 0.0)
    assert told.as_text() == "a is free: it is not held, and none waits for it"


async def test_a_holder_is_shown_with_fence_lease_and_process(space: Space, clock: VirtualClock) -> None:
    """Who holds, for how long, until when at the least, and where it runs."""
    mutex = space.mutex("a")
    async with mutex.hold(lease="20s", max_hold="1h", note="nightly", owner="ann") as hold:
        clock.advance(5)
        [holder] = (await mutex.explain()).holders

    assert (holder.owner, holder.note, holder.fence, holder.slot) == ("ann", "nightly", hold.fence, 0)
    assert (holder.held_for, holder.lease_left, holder.is_alive) == (5.0, 15.0, True)
    assert holder.ends_at == hold.since + 3_600_000_000
    assert holder.process is not None
    assert holder.host


async def test_waiters_are_shown_in_order(space: Space, clock: VirtualClock) -> None:
    """Each waiter has its place, its ticket, and the time that it has waited."""
    mutex = space.mutex("a")
    async with mutex.hold(), waiting(space, "a", mutex.hold(owner="x"), mutex.hold(owner="y")):
        clock.advance(3)
        told = await mutex.explain()

    assert [(each.owner, each.place, each.waited) for each in told.waiters] == [("x", 0, 3.0), ("y", 1, 3.0)]
    assert told.waiters[0].ticket < told.waiters[1].ticket
    assert (told.waiting, told.more) == (2, False)


async def test_a_line_can_be_seen_as_one_record(space: Space) -> None:
    """The same holders, fences and order as a lock by hand keeps them."""
    mutex = space.mutex("a")
    async with mutex.hold(max_hold="1 hour") as hold, waiting(space, "a", mutex.hold(owner="b"), mutex.hold(owner="c")):
        told = await mutex.explain()
        record = told.as_record()

    assert [(each.lease_expires_at, each.fence) for each in record.holders] == [(later(hold.since, 3600), hold.fence)]
    assert [each.holder_id for each in record.waiters] == [each.entry for each in told.waiters]
    assert (record.fence, record.permits) == (hold.fence, 1)


async def test_waiters_beyond_the_limit_are_counted(space: Space) -> None:
    """A page says that there are more, and how many at the most."""
    mutex = space.mutex("a")
    async with mutex.hold(), waiting(space, "a", *(mutex.hold() for _ in range(4))):
        told = await mutex.explain(limit=1)

    assert (len(told.waiters), told.waiting, told.more) == (1, 4, True)
    assert told.as_text().endswith("and up to 3 more waiting")


async def test_without_a_finished_hold_there_is_no_estimate(space: Space) -> None:
    """Nothing is guessed from nothing."""
    async with space.mutex("a").hold():
        told = await space.explain("a")

    assert (told.pace, told.estimate) == (0.0, None)
    assert "not known yet" in told.as_text()


async def test_a_waiters_estimate_counts_those_in_front(space: Space, clock: VirtualClock) -> None:
    """Of two permits with holds of 10 s, two leave at once and the third in line waits for the next pair."""
    limit = space.semaphore("b", permits=2)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(limit.hold())
        async with limit.hold():
            clock.advance(10)
        await stack.enter_async_context(limit.hold())
        clock.advance(4)
        async with waiting(space, "b", limit.hold(), limit.hold(), limit.hold()):
            told = await space.explain("b")

    assert told.pace == 10.0
    assert [each.estimate for each in told.waiters] == [0.0, 6.0, 10.0]
    assert told.estimate == 16.0


async def test_a_holder_that_is_not_heard_of_is_called_dead(clock: VirtualClock) -> None:
    """A lapsed presence is shown as it is; looking drops nobody."""
    store = await open_store("memory://", clock=clock)
    space, other = Space(store, clock=clock), Space(await store.another(), clock=clock, lease="5s")
    holding = other.mutex("a").hold(on_lost="tell")
    await holding.__aenter__()
    clock.advance(3_600)
    told = [await space.explain("a"), await space.explain("a")]

    [holder] = told[1].holders
    assert (holder.is_alive, holder.lease_left, holder.process) == (False, None, None)
    assert told[0].estimate == 0.0
    assert "dead:" in told[0].as_text()
    await holding.__aexit__(None, None, None)
    await other.aclose()
    await space.aclose()


async def test_a_semaphore_says_who_set_its_permits(space: Space) -> None:
    """Permits that an operator set are marked, and modes and weights are told."""
    limit = space.semaphore("b", permits=5)
    await limit.resize(5)
    async with limit.hold(weight=3), space.mode_lock("c", modes=("r",), alone=("w",)).hold("r"):
        b, c = await space.explain("b"), await space.explain("c")

    assert (b.kind, b.permits, b.is_pinned, b.holders[0].weight) == ("semaphore", 5, True, 3)
    assert (c.kind, c.permits, c.alone, c.holders[0].mode) == ("mode lock", None, ("w",), "r")
    assert "of 5 permits (set by an operator)" in b.as_text()


async def test_json_is_the_same_answer(space: Space) -> None:
    """The JSON of an explanation makes the same explanation again."""
    mutex = space.mutex(JOB("1", "x"))
    async with mutex.hold(note="n"):
        told = await mutex.explain()

    assert msgspec.convert(msgspec.json.decode(msgspec.json.encode(told.as_json())), Explanation) == told
    assert (told.key, told.family, told.parts) == ("explain-test-job(1, x)", "explain-test-job", ("1", "x"))


async def test_what_a_terminal_would_obey_is_escaped(space: Space) -> None:
    """A key with control characters is shown on one harmless line."""
    async with space.mutex("a\x1b[2J\nb").hold():
        text = (await space.explain("a\x1b[2J\nb")).as_text()

    assert text.startswith(r"'a\x1b[2J\nb' is a mutex")


@pytest.mark.parametrize("limit", [-1, 1_001, True, "3"])
async def test_a_limit_that_makes_no_sense_is_refused(space: Space, limit: int) -> None:
    """A page is a number of waiters."""
    with pytest.raises(InvalidArgumentError, match="limit"):
        await space.explain("a", limit=limit)


async def test_lines_in_use_are_listed_and_no_others(space: Space) -> None:
    """A line is listed while it is held; families and text are told apart."""
    async with AsyncExitStack() as stack:
        for number in range(120):
            await stack.enter_async_context(space.mutex(f"k{number:03}").hold())
        await stack.enter_async_context(space.mutex(JOB("1")).hold())
        found = [line async for line in space.lines()]

    assert [line.key for line in found] == [*(f"k{number:03}" for number in range(120)), "explain-test-job(1)"]
    assert {(line.kind, line.holders, line.waiting) for line in found} == {("mutex", 1, 0)}
    assert [line async for line in space.lines()] == []


async def test_a_withdrawn_waiter_is_told_and_the_others_move_up(space: Space) -> None:
    """However far back it waits, it leaves for good; its place is given to those behind it."""
    mutex = space.mutex("a")
    async with mutex.hold(), waiting(space, "a", *(mutex.hold() for _ in range(20))) as tasks:
        last = (await mutex.explain()).waiters[-1]

        assert await mutex.withdraw(last.entry)
        with pytest.raises(WithdrawnError, match="operator"):
            await tasks[-1]
        assert (await mutex.explain()).waiting == 19


async def test_a_holder_is_not_withdrawn(space: Space) -> None:
    """Withdrawing turns out waiters only; one that holds by now stays."""
    mutex = space.mutex("a")
    async with mutex.hold() as hold:
        [holder] = (await mutex.explain()).holders

        assert not await mutex.withdraw(holder.entry)
        assert not await mutex.withdraw("nobody")
        hold.check()


async def test_a_waiter_is_released_by_force_however_far_back(space: Space) -> None:
    """``force_release`` finds a waiter behind the first few, too."""
    mutex = space.mutex("a")
    async with mutex.hold(), waiting(space, "a", *(mutex.hold() for _ in range(20))) as tasks:
        assert await mutex.force_release((await mutex.explain()).waiters[-1].entry)
        with pytest.raises(WithdrawnError):
            await tasks[-1]


async def test_a_holder_is_released_by_force(space: Space) -> None:
    """It is told, and its fence is void."""
    mutex = space.mutex("a")
    async with mutex.hold(on_lost="tell") as hold:
        [holder] = (await mutex.explain()).holders
        assert await mutex.force_release(holder.entry)
        await hold.lost.wait()
    with pytest.raises(LeaseLostError):
        hold.check()
    assert not (await mutex.explain()).holders
