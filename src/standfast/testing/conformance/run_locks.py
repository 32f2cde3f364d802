"""The promises of run locks as tests."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest
from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, seconds_between
from standfast.errors import RunHeldError
from standfast.events import RunMoved
from standfast.keys import RecordKey
from standfast.locks.heartbeat import remove
from standfast.policies import Limit
from standfast.space import Space
from standfast.stores import Commit, Conflict, Put
from standfast.testing.conformance.ground import Ground, reach, shortest_lease
from standfast.testing.simulation import VirtualClock
from standfast.workflows.capacity import WorkerLimits
from standfast.workflows.claims import presence_key
from standfast.workflows.decorators import workflow
from standfast.workflows.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.clock import Instant
    from standfast.events import Event
    from standfast.locks.run_locks import RunLease, RunLocks
    from standfast.stores import Store
    from standfast.testing.conformance.ground import OpenAnother
    from standfast.workflows.context import Context


FLOW: Final = "checkout"


RUN: Final = "run-1"


OWNER: Final = "owner-1"


OTHER: Final = "owner-2"


BRIEF: Final = 0.3
"""A lease that is waited for in real time, in seconds, if the store takes such a short one."""


class Two(Struct, frozen=True):
    """Two processes on one store, and a way to let its time pass.

    Attributes:
        here: One of them.
        there: The other one.
        brief: A lease that tests wait for, in seconds.
        patience: How long they wait for one at most.
    """

    here: Space
    there: Space
    clock: VirtualClock | None
    brief: float
    patience: float

    async def until(self, instant: Instant, *, always: bool = False) -> None:
        """Return when the store's time is ``instant`` or later; skip the test if that takes too long."""
        if self.clock is None and not always:
            shortest_lease(self.here.store, BRIEF, self.patience)
        await reach(self.here.store, instant, self.clock, self.here.key("time"))

    async def lapsed(self, run_id: str = RUN, *, always: bool = False) -> RunLease:
        """Lease a run here, and let the lease lapse; ``always``: however long that takes on this store."""
        lease = await taken(self.here.run_locks, run_id, lease=self.brief)
        await self.until(lease.expires_at, always=always)
        return lease

    async def leftovers(self) -> list[str]:
        """Return every record of the space, but for presences, which expire."""
        root = RecordKey(self.here.namespace, self.here.tenant)
        page = await self.here.scan(*root.within(), limit=1_000)
        return [str(key) for key in page.records if key.parts[2] not in ("presence", "past")]


async def taken(locks: RunLocks, run_id: str = RUN, *, lease: float | None = None) -> RunLease:
    """Lease a run, and insist on it."""
    found = await locks.try_acquire(FLOW, run_id, lease=lease)
    assert found is not None
    return found


class RunLockGround(Ground):
    """What the cases stand on."""

    @pytest.fixture
    async def two(
        self, store: Store, open_another: OpenAnother, clock: VirtualClock | None, patience: float
    ) -> AsyncGenerator[Two]:
        """Two processes, each with a handle of its own if there can be several."""
        namespace, time = f"runs-{uuid.uuid4().hex}", clock or SYSTEM_CLOCK
        second = store if open_another is None else await open_another()
        brief = 30.0 if clock is not None else max(BRIEF, store.capabilities.shortest_lease)
        async with (
            Space(store, namespace=namespace, clock=time) as here,
            Space(second, namespace=namespace, clock=time) as there,
        ):
            yield Two(here, there, clock, brief, patience)


RACERS: Final = 50


class LeasingCases(RunLockGround):
    """Taking, keeping and giving up a run."""

    async def test_a_free_run_is_leased(self, two: Two) -> None:
        """The first that asks has it, until an instant of the store's time."""
        lease = await taken(two.here.run_locks, lease=20)

        assert (lease.workflow, lease.run_id) == (FLOW, RUN)
        assert seconds_between(lease.since, lease.expires_at) == 20
        assert not lease.is_lost

    async def test_a_run_that_is_held_is_not_leased(self, two: Two) -> None:
        """The answer is None, at once."""
        await taken(two.here.run_locks)

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None

    async def test_two_activations_of_one_process_exclude_each_other(self, two: Two) -> None:
        """It is the activation that holds a run, not the process, the task or the object."""
        lease = await taken(two.here.run_locks)

        assert await two.here.run_locks.try_acquire(FLOW, RUN) is None
        assert not lease.is_lost

    async def test_a_released_run_is_leased_to_the_next_with_a_higher_fence(self, two: Two) -> None:
        """Releasing frees it for everybody."""
        first = await taken(two.here.run_locks)
        assert await first.release()

        second = await taken(two.there.run_locks)

        assert second.fence > first.fence

    async def test_releasing_twice_does_nothing(self, two: Two) -> None:
        """The second time nothing is held, and that is no error."""
        lease = await taken(two.here.run_locks)

        assert [await lease.release(), await lease.release()] == [True, False]

    async def test_a_released_lease_is_lost_to_its_holder(self, two: Two) -> None:
        """Who has released a run cannot go on with it, nor renew it."""
        lease = await taken(two.here.run_locks)
        await lease.release()

        assert lease.is_lost
        assert lease.lost.is_set()
        assert not await lease.renew()

    async def test_nothing_is_left_of_a_released_run(self, two: Two) -> None:
        """A run that is at rest costs no record."""
        lease = await taken(two.here.run_locks)
        await lease.release()

        assert await two.leftovers() == []

    async def test_runs_are_told_apart_by_workflow_and_id(self, two: Two) -> None:
        """Distinct ids are independent, and so is the same id under another workflow."""
        names = [("a", "1"), ("a", "2"), ("b", "1"), ("a/1", "x"), ("a", "1/x"), ("a", "1\0"), ("a", "1 ")]
        leases = [await two.here.run_locks.try_acquire(*each) for each in names]

        assert all(leases)
        assert [await two.there.run_locks.try_acquire(*each) for each in names] == [None] * len(names)

    async def test_of_many_racers_one_has_a_free_run(self, two: Two) -> None:
        """However many ask at once, here and there, one gets it."""
        locks = [two.here.run_locks, two.there.run_locks]
        answers = await asyncio.gather(*(locks[n % 2].try_acquire(FLOW, RUN) for n in range(RACERS)))

        assert sum(answer is not None for answer in answers) == 1

    async def test_closing_does_not_hand_a_leased_run_over(self, two: Two) -> None:
        """Its activation is told, but may not have stopped yet: others wait for the end of the lease."""
        lease = await taken(two.there.run_locks)
        await two.there.aclose()

        assert lease.is_lost
        if two.there.store is not two.here.store:
            assert await two.here.run_locks.try_acquire(FLOW, RUN) is None


class TokenCases(RunLockGround):
    """A lease named by a token of the caller's choice."""

    async def test_the_same_token_leases_again_and_prolongs(self, two: Two) -> None:
        """An activation that asks again keeps its lease and its fence, from now on."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER, lease="10s")
        again = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER, lease="60s")

        assert first is not None
        assert again is first
        assert seconds_between(first.since, first.expires_at) >= 60

    async def test_a_token_counts_in_every_process(self, two: Two) -> None:
        """A process with the token goes on with the lease: with the same fence, and able to release."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)
        second = await two.there.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert first is not None
        assert second is not None
        assert second.fence == first.fence
        assert await two.there.run_locks.release(FLOW, RUN, token=OWNER)

    async def test_another_token_waits_for_the_release(self, two: Two) -> None:
        """No, until the owner lets go; then yes."""
        locks = two.there.run_locks
        await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert await locks.try_acquire(FLOW, RUN, token=OTHER) is None
        assert await two.here.run_locks.release(FLOW, RUN, token=OWNER)
        assert await locks.try_acquire(FLOW, RUN, token=OTHER) is not None

    async def test_another_token_releases_nothing(self, two: Two) -> None:
        """Only the holder's own lease is given up."""
        lease = await taken(two.here.run_locks)

        assert not await two.here.run_locks.release(FLOW, RUN, token=OTHER)
        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None
        assert await lease.renew()

    async def test_another_token_renews_nothing(self, two: Two) -> None:
        """Only the holder's own lease is prolonged."""
        lease = await taken(two.here.run_locks, lease=20)
        answer = await two.there.run_locks.renew(FLOW, RUN, token=OTHER, lease="10 minutes")
        info = await two.there.run_locks.get(FLOW, RUN)

        assert (bool(answer), answer.taken_by) == (False, (lease.holder,))
        assert info is not None
        assert info.expires_at == lease.expires_at

    async def test_a_released_token_begins_anew(self, two: Two) -> None:
        """A token can be used again; it is another lease then, with a higher fence."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)
        assert first is not None
        await first.release()
        second = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert second is not None
        assert second.fence > first.fence
        assert [first.is_lost, second.is_lost] == [True, False]

    async def test_a_lapsed_token_begins_anew(self, two: Two) -> None:
        """After the end the same token is another lease, with a higher fence; the old one stays lost."""
        first = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER, lease=two.brief)
        assert first is not None
        await two.until(first.expires_at)
        second = await two.here.run_locks.try_acquire(FLOW, RUN, token=OWNER)

        assert second is not None
        assert second.fence > first.fence
        assert first.is_lost
        assert not second.is_lost


class LapsingCases(RunLockGround):
    """Leases that end, and what their holders can still do."""

    async def test_a_lapsed_run_is_taken_over_with_a_higher_fence(self, two: Two) -> None:
        """The first that asks after the end has it."""
        old = await two.lapsed(always=True)
        new = await taken(two.there.run_locks)

        assert new.fence > old.fence
        assert old.is_lost

    async def test_a_lease_lasts_until_its_instant_and_not_a_moment_longer(self, two: Two) -> None:
        """One microsecond before the end it is held; at the end it is free."""
        if two.clock is None:
            pytest.skip("needs a clock that can be stopped: no clock fixture")
        await taken(two.here.run_locks, lease=two.brief)
        two.clock.advance(two.brief - 0.000_001)
        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None
        two.clock.advance(0.000_001)

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is not None

    async def test_of_many_racers_one_takes_over(self, two: Two) -> None:
        """A lease that a dead process has left is taken over in one step: there are no two winners."""
        await two.lapsed()
        locks = [two.here.run_locks, two.there.run_locks]
        answers = await asyncio.gather(*(locks[n % 2].try_acquire(FLOW, RUN) for n in range(RACERS)))

        assert sum(answer is not None for answer in answers) == 1

    async def test_the_old_holder_releases_nothing_after_a_take_over(self, two: Two) -> None:
        """Its release is for a lease that is over."""
        old = await two.lapsed()
        new = await taken(two.there.run_locks)

        assert not await old.release()
        assert await new.renew()

    async def test_the_old_holder_renews_nothing_after_a_take_over(self, two: Two) -> None:
        """It is told who has the run now."""
        old = await two.lapsed()
        new = await taken(two.there.run_locks)
        answers = [await old.renew(), await two.here.run_locks.renew(FLOW, RUN, token=old.token)]

        assert [bool(answer) for answer in answers] == [False, False]
        assert [answer.taken_by for answer in answers] == [(new.holder,)] * 2

    async def test_a_lapsed_lease_is_not_renewed_even_if_the_run_is_free(self, two: Two) -> None:
        """What is over is over; the answer says that the run can be leased again."""
        old = await two.lapsed()
        by_hand = await two.here.run_locks.renew(FLOW, RUN, token=old.token)
        by_lease = await old.renew()

        assert (bool(by_hand), by_hand.free) == (False, True)
        assert (bool(by_lease), by_lease.free) == (False, True)
        assert await two.here.run_locks.get(FLOW, RUN) is None

    async def test_a_renewed_lease_lasts_longer_and_keeps_its_fence(self, two: Two) -> None:
        """Renewing counts from the store's present time, and nothing that churns can fence its own holder."""
        lease = await taken(two.here.run_locks, lease=two.brief)
        fence, before = lease.fence, lease.expires_at
        answer = await lease.renew("10 minutes")
        info = await two.there.run_locks.get(FLOW, RUN)

        assert answer
        assert (answer.fence, lease.fence) == (fence, fence)
        assert answer.lease_expires_at == lease.expires_at > before
        assert info is not None
        assert (info.expires_at, info.fence) == (lease.expires_at, fence)

    async def test_a_renewed_lease_outlives_its_first_end(self, two: Two) -> None:
        """Others go by the new end."""
        lease = await taken(two.here.run_locks, lease=two.brief)
        first_end = lease.expires_at
        await lease.renew("10 minutes")
        await two.until(first_end)

        assert await two.there.run_locks.try_acquire(FLOW, RUN) is None
        assert not lease.is_lost

    async def test_a_lease_can_be_made_shorter(self, two: Two) -> None:
        """Renewing sets the end, it does not add to it."""
        lease = await taken(two.here.run_locks, lease=600)
        assert await lease.renew(two.brief)
        await two.until(lease.expires_at)

        assert lease.is_lost
        assert await two.there.run_locks.try_acquire(FLOW, RUN) is not None

    async def test_nothing_is_left_after_a_take_over_and_release(self, two: Two) -> None:
        """A lease that a dead process has left is swept up by the process that takes over."""
        await two.lapsed()
        await (await taken(two.there.run_locks)).release()

        assert await two.leftovers() == []


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
        """What is over is not shown, also before it is swept up."""
        await two.lapsed()

        assert await two.there.run_locks.get(FLOW, RUN) is None


class RunLockHoldingCases(RunLockGround):
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
        """Neither by the same task nor by another process; the holder is named."""
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


SHIP: Final = "ship"


HELD: Final = "its run lock, held by"


RACES: Final = 20


class Dock:
    """What the runs of a test do, and where they can be stopped."""

    def __init__(self) -> None:
        self.shipped: list[str] = []
        self.leased: set[str] = set()
        self.has_begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.is_suspended, self.is_awaiting = asyncio.Event(), asyncio.Event()

        @workflow(name=SHIP)
        async def ship(ctx: Context) -> str:
            return await ctx.step(self._load, ctx.run_id)

        @workflow(name="answer")
        async def answer(ctx: Context) -> str:
            return str(await ctx.wait_signal("go"))

        @workflow(name="in_turn", concurrency=Limit(1, on_limit="queue"))
        async def in_turn(ctx: Context) -> str:
            return await ctx.step(self._load, ctx.run_id)

        self.ship, self.answer, self.in_turn = ship, answer, in_turn

    async def _load(self, run_id: str) -> str:
        assert run_id not in self.leased, "it is driven while its run lock is held"
        self.shipped.append(run_id)
        self.has_begun.set()
        await self.may_end.wait()
        return run_id

    def hook(self, event: Event) -> None:
        """Hear that a run was suspended, or found to be leased."""
        if isinstance(event, RunMoved) and event.about.startswith(HELD):
            self.is_awaiting.set()
        elif isinstance(event, RunMoved) and event.status == "suspended":
            self.is_suspended.set()

    @asynccontextmanager
    async def engine(self, space: Space, *, drive: bool = True) -> AsyncGenerator[Engine]:
        """Open an engine that knows the runs; a worker, or one that only starts them."""
        workflows = [self.ship, self.answer, self.in_turn]
        async with Engine(
            space, workflows=workflows, drive=drive, worker=WorkerLimits(linger=0), hooks=[self.hook]
        ) as engine:
            yield engine


async def leased(space: Space, run_id: str, workflow_name: str = SHIP, *, lease: float = 600) -> RunLease:
    """Lease a run, and insist on it."""
    found = await space.run_locks.try_acquire(workflow_name, run_id, lease=lease)
    assert found is not None
    return found


class DrivenRunCases(RunLockGround):
    """A worker that drives a run holds it, and a run that is leased is driven by none."""

    @pytest.fixture
    async def dock(self) -> Dock:
        """Return the runs of the test."""
        return Dock()

    async def test_a_run_that_a_worker_drives_is_not_leased(self, two: Two, dock: Dock) -> None:
        """Neither with a lease nor for a block, in any process; once it has ended its lock is free."""
        async with dock.engine(two.here) as engine:
            run = await engine.start(dock.ship)
            await dock.has_begun.wait()

            assert await two.there.run_locks.try_acquire(SHIP, run.id) is None
            with pytest.raises(RunHeldError) as refused:
                await two.there.run_locks.hold(SHIP, run.id).__aenter__()
            assert refused.value.expires_at is not None

            dock.may_end.set()
            assert await run.result() == run.id
            assert await two.there.run_locks.get(SHIP, run.id) is None
            await leased(two.there, run.id)

    async def test_everybody_sees_which_worker_drives_a_run(self, two: Two, dock: Dock) -> None:
        """Its presence, since when, until when it is taken for alive, and the fence that guards its writes."""
        async with dock.engine(two.here) as engine:
            run = await engine.start(dock.ship)
            await dock.has_begun.wait()
            info, shown = await two.there.run_locks.get(SHIP, run.id), await engine.get(run.id)
            dock.may_end.set()
            await run.result()

        assert info is not None
        assert info.worker == shown.owner
        assert info.worker in info.holder
        assert info.fence > 0
        assert info.expires_at > info.since

    async def test_a_leased_run_is_driven_when_it_is_released(self, two: Two, dock: Dock) -> None:
        """No worker touches it before, and says why it waits; the release tells them."""
        dock.may_end.set()
        async with dock.engine(two.here, drive=False) as client:
            run = await client.start(dock.ship)
            lease = await leased(two.here, run.id)
            async with dock.engine(two.there):
                await dock.is_awaiting.wait()
                shown = await client.get(run.id)
                assert (shown.owner, dock.shipped) == ("", [])
                assert shown.waits_for == f"{HELD} {lease.holder}"
                assert await lease.renew()
                await lease.release()

                assert await run.result(timeout=20) == run.id

    async def test_a_run_that_is_held_for_a_block_is_driven_after_it(self, two: Two, dock: Dock) -> None:
        """Leaving the block tells the workers, too."""
        dock.may_end.set()
        async with dock.engine(two.here, drive=False) as client:
            run = await client.start(dock.ship)
            async with two.here.run_locks.hold(SHIP, run.id), dock.engine(two.there):
                await dock.is_awaiting.wait()
                assert dock.shipped == []
            async with dock.engine(two.there):
                assert await run.result(timeout=20) == run.id

    async def test_a_leased_run_is_driven_when_its_lease_lapses(self, two: Two, dock: Dock) -> None:
        """A holder that has died holds nothing up for longer than its lease."""
        dock.may_end.set()
        async with dock.engine(two.here, drive=False) as client:
            run = await client.start(dock.ship)
            lease = await leased(two.here, run.id, lease=two.brief)
            async with dock.engine(two.there) as worker:
                await two.until(lease.expires_at)
                assert worker.worker is not None
                worker.worker.poll_now()

                assert await run.result(timeout=20) == run.id
                assert await two.here.run_locks.try_acquire(SHIP, run.id) is not None
                assert not await lease.renew()

    async def test_news_for_a_leased_run_wait_for_its_release(self, two: Two, dock: Dock) -> None:
        """A run that waits can be leased; what comes for it meanwhile is not lost."""
        async with dock.engine(two.here) as engine:
            run = await engine.start(dock.answer)
            await dock.is_suspended.wait()
            lease = await leased(two.there, run.id, "answer")
            await run.signal("go", "tea")
            await dock.is_awaiting.wait()
            assert (await engine.get(run.id)).owner == ""
            await lease.release()

            assert await run.result(timeout=20) == "tea"

    async def test_a_leased_run_takes_its_turn_and_is_not_driven(self, two: Two, dock: Dock) -> None:
        """A run that waits for its turn among others can be leased; when its turn comes it waits for the lock."""
        async with dock.engine(two.here) as engine:
            first = await engine.start(dock.in_turn)
            second = await engine.start(dock.in_turn)
            lease = await leased(two.there, second.id, "in_turn")
            dock.may_end.set()
            assert await first.result(timeout=20) == first.id
            await dock.is_awaiting.wait()
            assert dock.shipped == [first.id]
            await lease.release()

            assert await second.result(timeout=20) == second.id

    async def test_the_claim_of_a_worker_that_is_gone_is_void(self, two: Two, dock: Dock) -> None:
        """Its run is leased at once, and what it still writes is refused; after the release a worker begins anew."""
        async with dock.engine(two.there) as engine:
            run = await engine.start(dock.ship)
            await dock.has_begun.wait()
            owner = (await run.info()).owner
            await remove(two.here.store, presence_key(two.here, owner))  # as its end does, or who sees it die
            lease = await leased(two.here, run.id)
            dock.may_end.set()
            await dock.is_awaiting.wait()
            assert not (await run.info()).has_ended
            await lease.release()

            assert await run.result(timeout=20) == run.id
        assert dock.shipped == [run.id] * 2

    async def test_of_a_worker_and_a_lock_one_has_the_run(self, two: Two, dock: Dock) -> None:
        """Whichever comes first, the other one waits: no run is driven while its lock is held."""
        dock.may_end.set()
        async with dock.engine(two.here, drive=False) as client, dock.engine(two.there):

            async def race(number: int) -> None:
                run = await client.start(dock.ship)
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                lease = await two.here.run_locks.try_acquire(SHIP, run.id)
                if lease is not None:
                    is_ahead = run.id not in dock.shipped
                    dock.leased |= {run.id} if is_ahead else set()
                    await two.here.run_locks.get(SHIP, run.id)
                    dock.leased.discard(run.id)
                    await lease.release()
                assert await run.result(timeout=20) == run.id

            await asyncio.gather(*(race(number) for number in range(RACES)))
        assert len(dock.shipped) == RACES

    async def test_the_lock_of_another_tenant_holds_nothing_up(self, two: Two, dock: Dock) -> None:
        """Runs of one name in two tenants are two runs."""
        dock.may_end.set()
        store, namespace = two.there.store, two.there.namespace
        async with Space(store, namespace=namespace, tenant="other", clock=two.clock or SYSTEM_CLOCK) as other:
            await leased(other, "order-7")
            async with dock.engine(two.here) as engine:
                run = await engine.start(dock.ship, id="order-7")
                assert await run.result(timeout=20) == run.id


class RunLockConformance(
    LeasingCases, TokenCases, LapsingCases, FencingCases, InspectionCases, RunLockHoldingCases, DrivenRunCases
):
    """The promises of run locks as tests: subclass it and provide a ``store`` fixture.

    A store that passes :class:`~standfast.testing.conformance.StoreConformance` passes it too. It takes the same
    fixtures: ``store``, and if it can be, ``open_another`` and ``clock``. The data need not be empty. Where the
    shortest lease is longer than the ``patience`` fixture says, 2 seconds by default, one test waits for it, and the
    others are skipped.
    """
