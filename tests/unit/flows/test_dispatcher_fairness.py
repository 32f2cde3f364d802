"""A tenant with very many requests does not keep those of others waiting."""

from __future__ import annotations

import asyncio
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.clock import SYSTEM_CLOCK
from tests.conformance.arbiter_visits import fresh_name
from tests.sizes import size

if TYPE_CHECKING:
    from standfast.flows.handle import Handle
    from standfast.policies import Limit

ACME, OTHER = sf.Principal("acme"), sf.Principal("other")
SOON = 30.0
AT_ONCE = 8
TIMES, FLOOR = 3.0, 0.02


class Mill:
    """Where one tenant has very many durable requests, each in a session of its own, that end when the test says so."""

    def __init__(self, *limits: Limit, max_loaded: int = 10_000) -> None:
        self.may_end, self._numbers = asyncio.Event(), count()
        flow = sf.Flow("mill")

        @flow.action(concurrency=sf.Queue(timeout=None), limits=limits)
        async def grind(request: sf.Request) -> str:
            if request.tenant == "acme":
                await self.may_end.wait()
            return request.tenant

        engine = sf.Engine(f"memory://{fresh_name()}", worker=sf.admin.WorkerLimits(max_loaded=max_loaded))
        self.dispatcher = sf.Dispatcher(engine, [flow], tenants=sf.web.TenantLimits(durable=100_000))

    async def send(self, principal: sf.Principal) -> Handle:
        """Send one in a session that nobody else uses."""
        session = f"s-{next(self._numbers)}"
        sent = sf.Call(flow="mill", action="grind", principal=principal, session=session, attended=False)
        return await self.dispatcher.dispatch(sent)

    async def send_many(self, number: int) -> None:
        """Let the tenant send very many."""
        for _ in range(0, number, AT_ONCE):
            await asyncio.gather(*(self.send(ACME) for _ in range(AT_ONCE)))

    async def seconds(self) -> float:
        """Return how long a request of another tenant takes, from its dispatch to its result."""
        took: list[float] = []
        for _ in range(11):
            began = SYSTEM_CLOCK.elapsed()
            assert await (await self.send(OTHER)).result(timeout=SOON) == "other"
            took.append((SYSTEM_CLOCK.elapsed() - began) / 1e6)
        return median(took)


@pytest.mark.heavy
async def test_a_tenant_with_thousands_of_requests_at_its_limit_does_not_hold_up_another() -> None:
    """Those of the other one take at most three times as long as if it were alone: what waits is not looked at."""
    mill = Mill(sf.Limit(4, key="tenant"))
    async with mill.dispatcher:
        await mill.seconds()
        alone = await mill.seconds()
        await mill.send_many(size(full=20_000, quick=400))
        beside = await mill.seconds()
        assert len(mill.dispatcher.engine.runtime.loaded) < 10
        mill.may_end.set()
        await mill.dispatcher.aclose(grace=0)

    assert beside <= max(TIMES * alone, FLOOR), f"{alone * 1e3:.1f} ms alone, {beside * 1e3:.1f} ms beside the others"


async def test_of_very_many_at_once_none_is_refused_for_want_of_a_place_at_the_limit() -> None:
    """They enter its line one after the other, whatever their sessions."""
    mill = Mill(sf.Limit(4, key="tenant"), sf.Limit(5))
    async with mill.dispatcher:
        mill.may_end.set()
        handles = await asyncio.gather(*(mill.send(who) for who in (ACME, OTHER) * 75))
        results = [await each.result(timeout=SOON) for each in handles]
    assert results == ["acme", "other"] * 75


async def test_a_tenant_at_its_limit_leaves_room_in_a_small_worker() -> None:
    """What waits at a limit is not in memory, so it takes up none of the room."""
    mill = Mill(sf.Limit(2, key="tenant"), max_loaded=4)
    async with mill.dispatcher:
        await mill.send_many(24)
        assert await (await mill.send(OTHER)).result(timeout=SOON) == "other"
        mill.may_end.set()


async def test_without_a_limit_another_tenant_waits_for_room_in_a_full_worker() -> None:
    """It is not lost: it has its turn when there is room."""
    mill = Mill(max_loaded=8)
    async with mill.dispatcher:
        await mill.send_many(16)
        handle = await mill.send(OTHER)
        with pytest.raises(sf.errors.ResultTimeoutError):
            await handle.result(timeout=0.05)
        mill.may_end.set()
        assert await handle.result(timeout=SOON) == "other"
