"""What a run that is held is good for: guarded writes, being seen, and being held for a block."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import RunHeldError
from standfast.stores import Commit, Conflict, Put
from standfast.testing.conformance.runs.ground import FLOW, RUN, RunLockGround, Two, taken

if TYPE_CHECKING:
    from standfast.locks.run_locks import RunLocks


class FencingCases(RunLockGround):
    """Writes that happen only while the run is held."""

    async def test_a_guarded_commit_happens_while_the_run_is_held(self, two: Two) -> None:
        """The guard is part of the commit, and renewing does not move it."""
        lease = await taken(two.here.run_locks)
        await lease.renew()
        written = await two.here.commit(Put(two.here.key("snapshot"), b"1"), lease.guard)

        assert isinstance(written, Commit)

    async def test_a_guarded_commit_of_the_old_holder_is_refused(self, two: Two) -> None:
        """After a take-over a stale snapshot is not written, though its writer knows of nothing."""
        old = await two.lapsed()
        await taken(two.there.run_locks)
        refused = await two.here.commit(Put(two.here.key("snapshot"), b"1"), old.guard)

        assert isinstance(refused, Conflict)
        assert (await two.here.read(two.here.key("snapshot"))).get(two.here.key("snapshot")) is None

    async def test_a_guarded_commit_after_the_release_is_refused(self, two: Two) -> None:
        """Also if the same process has leased the run anew."""
        old = await taken(two.here.run_locks)
        await old.release()
        released = await two.here.commit(Put(two.here.key("snapshot"), b"1"), old.guard)
        await taken(two.here.run_locks)
        leased_anew = await two.here.commit(Put(two.here.key("snapshot"), b"1"), old.guard)

        assert isinstance(released, Conflict)
        assert isinstance(leased_anew, Conflict)

    async def test_fences_grow_whoever_leases(self, two: Two) -> None:
        """Across processes, releases and ways to hold a run."""
        fences: list[int] = []
        for space in (two.here, two.there, two.here):
            lease = await taken(space.run_locks)
            fences.append(lease.fence)
            await lease.release()
            async with space.run_locks.hold(FLOW, RUN) as hold:
                fences.append(hold.fence)

        assert fences == sorted(set(fences))


class InspectionCases(RunLockGround):
    """Who holds a run."""

    async def test_nobody_holds_a_free_run(self, two: Two) -> None:
        """Looking at it is answered with None, and leaves nothing behind."""
        assert await two.here.run_locks.get(FLOW, RUN) is None
        assert await two.leftovers() == []

    async def test_everybody_sees_who_holds_a_run(self, two: Two) -> None:
        """Holder, end and store, from every process."""
        lease = await two.here.run_locks.try_acquire(FLOW, RUN, holder="worker-7")
        info = await two.there.run_locks.get(FLOW, RUN)

        assert lease is not None
        assert info is not None
        assert (info.workflow, info.run_id, info.holder) == (FLOW, RUN, "worker-7")
        assert (info.since, info.expires_at, info.fence) == (lease.since, lease.expires_at, lease.fence)
        assert info.backend == two.there.store.capabilities.backend

    async def test_nobody_holds_a_lapsed_run(self, two: Two) -> None:
        """What is over is not shown, also before somebody sweeps it up."""
        await two.lapsed()

        assert await two.there.run_locks.get(FLOW, RUN) is None


class HoldingCases(RunLockGround):
    """A run held for the length of a block, renewed by itself."""

    async def test_holding_excludes_leasing(self, two: Two) -> None:
        """Both are places in one line."""
        async with two.here.run_locks.hold(FLOW, RUN):
            assert await two.here.run_locks.try_acquire(FLOW, RUN) is None
            assert await two.there.run_locks.try_acquire(FLOW, RUN) is None

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is not None

    async def test_a_run_that_is_leased_is_not_held(self, two: Two) -> None:
        """Entering raises who has it, and until when; nothing waits."""
        lease = await taken(two.here.run_locks)
        with pytest.raises(RunHeldError) as refused:
            await two.there.run_locks.hold(FLOW, RUN).__aenter__()

        error = refused.value
        assert (error.workflow, error.run_id) == (FLOW, RUN)
        assert (error.holder, error.expires_at) == (lease.holder, lease.expires_at)

    async def test_a_run_that_is_held_is_not_held_again(self, two: Two) -> None:
        """Neither by the same task nor by another process; whoever holds it is named."""
        async with two.here.run_locks.hold(FLOW, RUN, owner="worker-7"):
            for locks in (two.here.run_locks, two.there.run_locks):
                with pytest.raises(RunHeldError) as refused:
                    await locks.hold(FLOW, RUN, owner="worker-7").__aenter__()
                assert refused.value.holder == "worker-7"
                assert refused.value.expires_at is not None

    async def test_of_two_who_start_at_once_one_fails(self, two: Two) -> None:
        """Exactly one drives the run."""
        driven: list[int] = []

        async def drive(locks: RunLocks) -> None:
            async with locks.hold(FLOW, RUN) as hold:
                driven.append(hold.fence)
                await both_have_tried.wait()

        both_have_tried = asyncio.Event()
        tasks = [asyncio.create_task(drive(each)) for each in (two.here.run_locks, two.there.run_locks)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        both_have_tried.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)

        assert sorted(type(answer).__name__ for answer in answers) == ["NoneType", "RunHeldError"]
        assert len(driven) == 1

    async def test_a_block_that_fails_gives_the_run_back(self, two: Two) -> None:
        """Whatever it raises arrives, and nothing is left."""
        with pytest.raises(ZeroDivisionError):
            async with two.here.run_locks.hold(FLOW, RUN):
                raise ZeroDivisionError

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is not None

    async def test_a_held_run_guards_commits(self, two: Two) -> None:
        """A snapshot is written while it is held, and not by a holder that has left."""
        async with two.here.run_locks.hold(FLOW, RUN) as hold:
            inside = await two.here.commit(Put(two.here.key("inside"), b"1"), hold.guard)
        outside = await two.here.commit(Put(two.here.key("outside"), b"1"), hold.guard)

        assert isinstance(inside, Commit)
        assert isinstance(outside, Conflict)

    async def test_everybody_sees_who_holds_a_run_for_a_block(self, two: Two) -> None:
        """Its end is that of the holder's presence, which is renewed."""
        async with two.here.run_locks.hold(FLOW, RUN, owner="worker-7") as hold:
            info = await two.there.run_locks.get(FLOW, RUN)

        assert info is not None
        assert (info.holder, info.fence, info.since) == ("worker-7", hold.fence, hold.since)
        assert info.expires_at > info.since
