"""Fences that grow, and what a lock leaves behind when nothing is held: nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, Put
from standfast.testing.conformance.locks.expiry import evict
from standfast.testing.conformance.locks.ground import (
    KEY,
    SHORT,
    LockGround,
    at_rest,
    entered,
    eventually,
    passes,
    waiting,
)
from standfast.testing.conformance.locks.wire import Wire

if TYPE_CHECKING:
    from standfast.space import Space
    from standfast.testing.conformance.locks.ground import Kind, OpenSpace


class FenceCases(LockGround):
    """Telling a holder from those before it."""

    async def test_fences_grow(self, space: Space, other: Space, kind: Kind) -> None:
        """Each holder has a larger one than all before it, in whichever process, also when the lock was free."""
        fences = [await passes(kind.alone((space, other)[n % 2])) for n in range(6)]
        assert fences == sorted(set(fences))
        await at_rest(space)

    async def test_fences_grow_through_a_line(self, space: Space, other: Space, kind: Kind) -> None:
        """Waiters have larger fences than those that were in front of them."""
        fences: list[int] = []

        async def work(n: int) -> None:
            async with kind.alone((space, other)[n % 2]) as hold:
                fences.append(hold.fence)

        await asyncio.gather(*(work(n) for n in range(8)))
        assert fences == sorted(set(fences))

    async def test_fences_grow_across_a_forced_release(self, space: Space, other: Space, kind: Kind) -> None:
        """The next holder after one that was evicted has a larger fence."""
        late = await entered(kind.alone(space, on_lost="tell"))
        await evict(other, kind)
        assert await passes(kind.alone(other)) > await late.leave()

    async def test_fences_grow_across_openings(self, open_space: OpenSpace, kind: Kind) -> None:
        """A space that is opened after all others were closed goes on from where they were."""
        first = await open_space()
        before = await passes(kind.alone(first))
        second = await open_space()
        await first.aclose()
        assert await passes(kind.alone(second)) > before

    async def test_a_fence_is_a_whole_number(self, space: Space, kind: Kind) -> None:
        """One that every language and store can compare exactly."""
        fence = await passes(kind.one(space))
        assert type(fence) is int
        assert 0 < fence < 2**53

    async def test_a_guarded_write_of_a_holder_happens(self, space: Space, kind: Kind) -> None:
        """A commit with the guard of a hold goes through while it is held, as often as one likes."""
        async with kind.one(space) as hold:
            for n in range(3):
                assert isinstance(await space.commit(Put(space.key("note", str(n)), b""), hold.guard), Commit)

    async def test_a_guarded_write_after_the_block_is_refused(self, space: Space, kind: Kind) -> None:
        """The guard outlives the block, and holds nothing any more."""
        async with kind.one(space) as hold:
            guard = hold.guard
        assert isinstance(await space.commit(Put(space.key("note"), b""), guard), Conflict)

    async def test_a_guarded_write_is_refused_though_the_next_holds(
        self, space: Space, other: Space, kind: Kind
    ) -> None:
        """The successor's grant is not the former one's."""
        late = await entered(kind.alone(space, on_lost="tell"))
        guard = (await late.hold()).guard
        await evict(other, kind)
        successor = await entered(kind.alone(other))

        assert isinstance(await space.commit(Put(space.key("note"), b""), guard), Conflict)

        await late.leave()
        assert isinstance(await other.commit((await successor.hold()).guard), Commit)
        await successor.leave()

    async def test_a_lost_process_cannot_write_when_it_is_back(
        self, open_space: OpenSpace, other: Space, kind: Kind
    ) -> None:
        """It was taken over from, and its guarded write arrives late."""
        wire = Wire()
        space = await open_space(through=wire.around, lease=SHORT)
        late = await entered(kind.alone(space, on_lost="tell"))
        guard = (await late.hold()).guard
        wire.cut()
        await passes(kind.alone(other))
        wire.mend()

        assert isinstance(await space.commit(Put(space.key("note"), b"late"), guard), Conflict)
        await late.leave()

    async def test_a_holder_keeps_its_fence_while_others_come_and_go(self, space: Space, other: Space) -> None:
        """The guard of one permit does not fail because another changes hands."""
        async with space.semaphore(KEY, permits=3).hold() as hold:
            for _ in range(3):
                await passes(other.semaphore(KEY, permits=3).hold(owner="another owner"))
                assert isinstance(await space.commit(hold.guard), Commit)

    async def test_holders_of_one_semaphore_have_grants_of_their_own(self, space: Space) -> None:
        """Each of them is guarded by itself: no two share a slot."""
        holders = [await entered(space.semaphore(KEY, permits=3).hold()) for _ in range(3)]
        grants = {(await holder.hold()).grant for holder in holders}
        assert len(grants) == 3
        for holder in holders:
            await holder.leave()

    async def test_since_when_it_is_held_is_store_time(self, space: Space, kind: Kind) -> None:
        """No client's clock has a say in it."""
        before = (await space.read(space.key("note"))).at
        async with kind.one(space) as hold:
            after = (await space.read(space.key("note"))).at
            assert Instant(before) <= hold.since <= Instant(after)

    @pytest.mark.parametrize("number", [1, 2])
    async def test_the_same_lock_object_can_be_held_again(self, space: Space, kind: Kind, number: int) -> None:
        """A lock is a name; what is held is another thing each time."""
        lock = kind.make(space, KEY)
        fences = [await passes(lock.hold(*kind.whole)) for _ in range(number + 1)]
        assert len(set(fences)) == number + 1


def descriptors() -> int:
    """Count the open files of this process, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


class RestCases(LockGround):
    """Nothing is left behind."""

    async def test_no_record_is_left(self, space: Space, other: Space, kind: Kind) -> None:
        """After contention in two processes there are presences, which expire, and nothing else."""
        await asyncio.gather(*(passes(kind.one((space, other)[n % 2])) for n in range(10)))
        await at_rest(space)

        page = await space.scan(*RecordKey(space.namespace, space.tenant).within(), limit=100)
        assert all(record.expires_at is not None for record in page.records.values())

    async def test_a_closed_space_leaves_no_record(self, open_space: OpenSpace, other: Space, kind: Kind) -> None:
        """Not even a presence."""
        space = await open_space()
        await passes(kind.one(space))
        await space.aclose()

        page = await other.scan(*RecordKey(other.namespace, other.tenant).within(), limit=100)
        assert page.records == {}

    async def test_a_closed_space_leaves_no_task(self, open_space: OpenSpace, kind: Kind) -> None:
        """Whatever it did before."""
        before = asyncio.all_tasks()
        space, other = await open_space(), await open_space()
        holder = await entered(kind.alone(space))
        waiter = await waiting(other, kind.one(other))
        await holder.leave()
        await waiter.hold()
        await waiter.leave()

        await other.aclose()
        await space.aclose()

        assert asyncio.all_tasks() == before

    async def test_a_closed_space_leaves_no_thread_and_no_file(self, open_space: OpenSpace, kind: Kind) -> None:
        """Its keeper ends, and what it had opened is closed."""
        others = _keepers()  # of spaces that were never closed
        await passes(kind.one(warm := await open_space()))
        await warm.aclose()
        await eventually(lambda: _has_only(others))
        files = descriptors()
        space = await open_space()
        await passes(kind.one(space))

        await space.aclose()

        await eventually(lambda: _has_only(others))
        await eventually(lambda: _has_files(files))  # a connection is let go of a moment after it was closed

    async def test_closing_twice_is_fine(self, open_space: OpenSpace, kind: Kind) -> None:
        """The second time there is nothing to do."""
        space = await open_space()
        await passes(kind.one(space))
        await space.aclose()
        await space.aclose()

    async def test_a_process_forgets_keys_that_are_not_in_use(
        self, space: Space, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many keys it has seen, it keeps few of them in mind."""
        monkeypatch.setattr("standfast.locks.registry.REMEMBERED", 10)
        for n in range(50):
            await passes(space.mutex(f"key-{n}").hold())
        assert len(space._lines._lines) <= 11  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- what it keeps in mind


async def _has_files(most: int) -> bool:
    return descriptors() <= most


def _keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "standfast-keeper"}


async def _has_only(threads: set[threading.Thread]) -> bool:
    return _keepers() <= threads
