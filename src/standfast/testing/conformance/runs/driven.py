"""Runs of an engine: of a run lock and the workers, one has the run."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import RunHeldError
from standfast.events import RunMoved
from standfast.locks.heartbeat import remove
from standfast.policies import Limit
from standfast.space import Space
from standfast.testing.conformance.runs.ground import RunLockGround, Two
from standfast.workflows.claims import presence_key
from standfast.workflows.definition import workflow
from standfast.workflows.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.events import Event
    from standfast.locks.run_locks import RunLease
    from standfast.workflows.context import Context

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
        async with Engine(space, workflows=workflows, drive=drive, linger=0, hooks=[self.hook]) as engine:
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
        """Whoever comes first, the other one waits: no run is driven while its lock is held."""
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
