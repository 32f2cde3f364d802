"""Store time: shared by all handles, moved by no one, and never turned back."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.clock import later
from standfast.stores import Commit, Conflict, Put
from standfast.testing import VirtualClock
from tests.integration.sqlite.programs.talking import key

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.stores import Store
    from tests.integration.sqlite.conftest import Open, Start

HOUR = 3600.0


async def now(store: Store) -> Instant:
    """Return the store's time."""
    return (await store.read(key("any"))).at


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_a_stepped_wall_clock_moves_no_store_time(url: str, opened: Open, step: float) -> None:
    """Setting the time of day neither hastens nor delays anything, also for handles opened later."""
    clock = VirtualClock()
    store = await opened(url, clock=clock)
    before = await now(store)
    await store.commit(Put(key("lease"), b"", expires_at=later(before, 10.0)))

    clock.step_wall(step)
    clock.advance(5.0)

    assert await now(store) == await now(await opened(url, clock=clock)) == later(before, 5.0)
    assert (await store.read(key("lease"))).records
    clock.advance(5.0)
    assert not (await store.read(key("lease"))).records


@pytest.mark.parametrize("step", [-24 * HOUR, -1.0, 0.0, HOUR])
async def test_a_reboot_never_turns_time_back(url: str, opened: Open, step: float) -> None:
    """After a reboot time goes on from the wall clock, or from the last commit if the wall clock is behind it."""
    clock = VirtualClock()
    clock.advance(1000.0)
    store = await opened(url, clock=clock)
    clock.advance(50.0)
    verdict = await store.commit(Put(key("last"), b""))
    await store.aclose()

    clock.step_wall(step)
    clock.reboot()
    store = await opened(url, clock=clock)

    assert await now(store) == max(verdict.at, clock.wall())
    clock.advance(3.0)
    assert await now(store) >= later(verdict.at, 3.0)


async def test_two_handles_agree_after_a_reboot(url: str, opened: Open) -> None:
    """Whoever comes first after a reboot anchors the time for all others."""
    clock = VirtualClock()
    await (await opened(url, clock=clock)).aclose()
    clock.reboot()

    first = await opened(url, clock=clock)
    clock.step_wall(HOUR)
    second = await opened(url, clock=clock)

    assert await now(first) == await now(second)


async def test_a_window_is_judged_by_the_time_of_the_commit(url: str, opened: Open) -> None:
    """A commit that comes too early or too late by the store's own clock is refused, whatever the wall says."""
    clock = VirtualClock()
    store = await opened(url, clock=clock)
    start = await now(store)
    clock.step_wall(-HOUR)
    clock.advance(10.0)

    late = await store.commit(Put(key("late"), b""), before=later(start, 10.0))
    early = await store.commit(Put(key("early"), b""), after=later(start, 10.1))
    timely = await store.commit(Put(key("timely"), b""), after=later(start, 10.0), before=later(start, 10.1))

    assert isinstance(late, Conflict)
    assert isinstance(early, Conflict)
    assert isinstance(timely, Commit)


async def test_processes_share_one_time(url: str, start: Start, opened: Open) -> None:
    """Times told by two processes in turn never go backwards."""
    store = await opened(url)
    other = start("tell_time", url)
    assert other.hear() == ["ready"]
    times: list[int] = []
    for _ in range(100):
        times += [await now(store), int((await asyncio.to_thread(other.ask, "time"))[0])]

    assert times == sorted(times)
