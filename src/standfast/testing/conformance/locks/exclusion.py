"""Exclusion: never more inside than fit, in however many processes, and never for longer than the block."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LockMismatchError,
    ReentryError,
    StoreClosedError,
    UsageError,
    WouldWaitError,
)
from standfast.keys import KeyFamily
from standfast.stores import Put
from standfast.testing.conformance.locks.ground import (
    KEY,
    SOON,
    LockGround,
    at_rest,
    entered,
    leftovers,
    passes,
    read_write,
    waiting,
)
from standfast.threads import run_beside

if TYPE_CHECKING:
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace

REPO = KeyFamily("lock-conformance-repo")


class ExclusionCases(LockGround):
    """Who may be inside together, and until when."""

    async def test_what_is_taken_is_waited_for(self, space: Space, other: Space, kind: Kind) -> None:
        """While one process has all of it, another gets no part of it; it gets in as soon as the first has left."""
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))
        assert not waiter.is_inside

        await holder.leave()

        assert (await waiter.hold()).fence > 0
        await waiter.leave()

    async def test_as_many_as_fit_hold_together(self, space: Space, other: Space, kind: Kind) -> None:
        """Nobody waits while there is room, and one more than fits does."""
        holders = [await entered(kind.one((space, other)[n % 2])) for n in range(kind.width)]

        with pytest.raises(WouldWaitError) as caught:
            await passes(kind.make(other, KEY).try_hold(*kind.whole))

        assert len(caught.value.holders) == kind.width
        for holder in holders:
            await holder.leave()

    async def test_never_more_are_inside_than_fit(self, space: Space, other: Space, kind: Kind) -> None:
        """However many ask at once in two processes, and whatever they await inside."""
        inside: list[int] = []
        most = 0

        async def work(n: int) -> None:
            nonlocal most
            async with kind.one((space, other)[n % 2]):
                inside.append(n)
                most = max(most, len(inside))
                await asyncio.sleep(0)
                inside.remove(n)

        await asyncio.gather(*(work(n) for n in range(12)))
        assert 1 <= most <= kind.width
        await at_rest(space)

    async def test_no_change_made_inside_is_lost(self, space: Space, other: Space, kind: Kind) -> None:
        """What is read and written back under the whole lock counts every one, though the writes are unguarded."""
        key = space.key("count")

        async def count(n: int) -> None:
            here = (space, other)[n % 2]
            async with kind.alone(here):
                record = (await here.read(key)).get(key)
                value, version = (b"0", 0) if record is None else (record.value, record.version)
                await asyncio.sleep(0)
                await here.commit(Put(key, b"%d" % (int(value) + 1), version))

        await asyncio.gather(*(count(n) for n in range(10)))
        assert (await space.read(key)).records[key].value == b"10"

    async def test_it_is_given_back_when_the_block_raises(self, space: Space, other: Space, kind: Kind) -> None:
        """The exception of the block comes out as it is, and the next one gets in."""
        with pytest.raises(ZeroDivisionError):
            async with kind.alone(space):
                raise ZeroDivisionError

        assert await leftovers(other) == []
        await passes(kind.alone(other))

    async def test_try_hold_takes_what_is_free(self, space: Space, kind: Kind) -> None:
        """It holds like any other hold does."""
        async with kind.try_one(space) as hold:
            assert not hold.is_lost
        assert await leftovers(space) == []

    async def test_try_hold_does_not_wait(self, space: Space, other: Space, kind: Kind) -> None:
        """It says who is in the way, and leaves nobody in the line."""
        async with kind.alone(space, owner="the holder"):
            with pytest.raises(WouldWaitError, match="the holder"):
                await passes(kind.try_one(other))
        assert await leftovers(space) == []

    async def test_keys_are_independent(self, space: Space, kind: Kind) -> None:
        """Who holds one key keeps nobody from another, nor from the same text in a family."""
        async with kind.alone(space, "a"), kind.alone(space, "b"), space.mutex(REPO("a")).hold():
            await passes(kind.alone(space, "a:b"))
            await passes(space.mutex(REPO("a", "b")).hold())

    async def test_tenants_are_independent(self, open_space: OpenSpace, kind: Kind) -> None:
        """The same key of two tenants is two locks."""
        ours, theirs = await open_space(tenant="ours"), await open_space(tenant="theirs")
        async with kind.alone(ours):
            await passes(kind.alone(theirs))

    async def test_one_holding_serves_one_block_at_a_time(self, space: Space, kind: Kind) -> None:
        """Entering what is entered is refused, and takes nothing away from the block that is inside."""
        holding = kind.one(space)
        async with holding as hold:
            with pytest.raises(UsageError):
                await holding.__aenter__()
            hold.check()

    async def test_one_holding_serves_one_block_after_another(self, space: Space, kind: Kind) -> None:
        """After a block it can be entered anew, with another fence."""
        holding = kind.alone(space)
        assert await passes(holding) < await passes(holding)

    async def test_a_holding_that_was_not_entered_cannot_be_left(self, space: Space, kind: Kind) -> None:
        """It says so, instead of giving back what it does not have."""
        with pytest.raises(UsageError):
            await kind.one(space).__aexit__(None, None, None)

    async def test_a_function_holds_the_lock_while_it_runs(self, space: Space, kind: Kind) -> None:
        """Each call of a decorated function takes it anew; calls at the same time take turns."""
        inside = 0

        @kind.alone(space)
        async def work(number: int) -> int:
            nonlocal inside
            inside += 1
            await asyncio.sleep(0)
            inside -= 1
            return number + inside

        assert await asyncio.gather(*(work(n) for n in range(5))) == [0, 1, 2, 3, 4]
        assert work.__name__ == "work"

    async def test_a_function_that_is_not_async_is_refused(self, space: Space, kind: Kind) -> None:
        """It would be over before the lock was taken."""
        with pytest.raises(ArgumentTypeError):
            kind.one(space)(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] -- refused, whatever the types say

    async def test_who_would_wait_for_itself_is_refused(self, space: Space, kind: Kind) -> None:
        """A task that holds it asks again: it would wait for ever, so it is told at once, and where it took it."""
        async with kind.alone(space):
            with pytest.raises(ReentryError, match=r"since \S+\.py:\d+ and asked for it again at \S+\.py:\d+"):
                await passes(kind.one(space))
        assert await leftovers(space) == []

    async def test_an_owner_is_known_in_every_process(self, space: Space, other: Space, kind: Kind) -> None:
        """Two spaces that act for one owner cannot wait for each other."""
        async with kind.alone(space, owner="order-7"):
            with pytest.raises(ReentryError, match="since somewhere else"):
                await passes(kind.one(other, owner="order-7"))

    async def test_a_key_is_one_kind_of_lock(self, space: Space, other: Space) -> None:
        """While it is in use as a mutex it is no semaphore; when it is free it can be."""
        async with space.mutex(KEY).hold():
            for asked in (other.semaphore(KEY, permits=1).hold(), read_write(other).hold("read")):
                with pytest.raises(LockMismatchError):
                    await passes(asked)
        await passes(other.semaphore(KEY, permits=1).hold())

    async def test_a_mode_lock_keeps_its_modes(self, space: Space, other: Space) -> None:
        """A call site for which writers share would let two in: it is refused."""
        async with read_write(space).hold("write"):
            with pytest.raises(LockMismatchError, match="other modes"):
                await passes(other.mode_lock(KEY, modes=("write",)).hold("write"))

    async def test_an_unknown_mode_is_refused(self, space: Space) -> None:
        """A mode that was not declared is probably misspelt."""
        with pytest.raises(InvalidArgumentError):
            read_write(space).hold("wrote")

    async def test_a_closed_space_gives_no_locks(self, space: Space, kind: Kind) -> None:
        """It says that it was closed."""
        await space.aclose()
        with pytest.raises(StoreClosedError):
            await passes(kind.one(space))

    async def test_a_space_that_is_closed_keeps_nobody_waiting(self, space: Space, other: Space, kind: Kind) -> None:
        """Those who wait in it are told, and are not in the line any more."""
        holder = await entered(kind.alone(other))
        waiter = await waiting(space, kind.one(space))

        await space.aclose()

        with pytest.raises(StoreClosedError):
            await waiter.hold()
        await holder.leave()
        assert await leftovers(other) == []

    async def test_a_space_belongs_to_one_loop(self, space: Space, kind: Kind) -> None:
        """On another loop it is refused, and goes on working on its own."""

        async def elsewhere() -> None:
            with pytest.raises(UsageError):
                await passes(kind.one(space))

        async with asyncio.timeout(SOON):
            await run_beside(elsewhere, "elsewhere")
        await passes(kind.one(space))

    async def test_many_locks_are_held_at_once(self, space: Space, other: Space) -> None:
        """One task may hold many keys; all are given back."""
        async with contextlib.AsyncExitStack() as stack:
            for n in range(50):
                await stack.enter_async_context(space.mutex(f"key-{n}").hold())
            with pytest.raises(WouldWaitError):
                await passes(other.mutex("key-49").try_hold(owner="somebody else"))
        assert await leftovers(other) == []
