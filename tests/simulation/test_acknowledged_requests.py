"""What was acknowledged before it ran has its turn, however long the ones before it take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.errors import QueueTimeoutError
from standfast.flows.dispatcher import Dispatcher
from standfast.stores.memory import MemoryRecords
from standfast.testing import VirtualClock, simulate
from tests.simulation.lock_process import Process

if TYPE_CHECKING:
    from standfast.flows.dispatcher import ArbiterKind
    from standfast.policies import Policy

EACH = 60.0
"""Seconds that a request runs: longer than a caller waits for its turn."""


def ends_of(policy: Policy, arbiter: ArbiterKind, *, attended: bool) -> list[str]:
    """Return how three requests of one session end, which come at once."""
    return simulate(1, _ends, policy, arbiter, attended)


async def _ends(policy: Policy, arbiter: ArbiterKind, attended: bool) -> list[str]:  # noqa: FBT001 -- passed on by position
    flow = sf.Flow("chat")

    @flow.action(concurrency=policy)
    async def respond(request: sf.Request) -> str:
        del request
        await asyncio.sleep(EACH)
        return "answered"

    process = Process("server", 0, MemoryRecords(clock=VirtualClock(asyncio.get_running_loop())), lambda *_: None)
    process.calm_down()
    async with process.open(5.0) as space, Dispatcher(sf.Engine(space), [flow], arbiter=arbiter) as dispatcher:
        calls = [sf.Call(flow="chat", action="respond", session="s-1", attended=attended) for _ in range(3)]
        handles = [await dispatcher.dispatch(each) for each in calls]

        async def end_of(number: int) -> str:
            try:
                return str(await handles[number].result(timeout=600))
            except QueueTimeoutError:
                return "too late"

        return list(await asyncio.gather(*map(end_of, range(3))))


ARBITERS = pytest.mark.parametrize("arbiter", ["shared", "local"])


@ARBITERS
def test_a_queued_request_that_was_acknowledged_runs_however_long_it_waits(arbiter: ArbiterKind) -> None:
    """Nobody is there to be told that its time is over, so by default there is none."""
    assert ends_of(sf.Queue(), arbiter, attended=False) == ["answered"] * 3


@ARBITERS
def test_a_queued_request_whose_caller_waits_is_told_after_a_while(arbiter: ArbiterKind) -> None:
    """A caller does not wait for more than half a minute for its turn, if nothing else was said."""
    assert ends_of(sf.Queue(), arbiter, attended=True) == ["answered", "too late", "too late"]


@ARBITERS
def test_a_time_that_is_declared_holds_for_acknowledged_requests_too(arbiter: ArbiterKind) -> None:
    """Work that is worth nothing later says so, and is refused then."""
    ends = ends_of(sf.Queue(timeout="90s"), arbiter, attended=False)
    assert ends == ["answered", "answered", "too late"]
