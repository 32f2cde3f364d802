"""Holders and waiters that are killed: the next in line goes on at once, in turn, and nothing stale is written."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import monotonic
from tests.integration.locks.conftest import spread
from tests.integration.locks.kills import all_come_in, kill_the_first_waiters, kill_the_holder
from tests.sizes import remark, rounds

if TYPE_CHECKING:
    from tests.integration.locks.conftest import Gather

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has a lock")

CREW: Final = 5
AT_ONCE: Final = 1.0
"""Seconds within which the next in line takes over from a process whose death can be seen; the lease is 30."""


@pytest.mark.heavy
async def test_the_next_in_line_takes_over_at_once_from_a_killed_holder(gather: Gather) -> None:
    """Killed in the middle of its hold, idle or writing, a process makes way within a second, whatever its lease."""
    crew, took = gather(CREW), list[float]()
    for seed in rounds("kills of holders", full=100, quick=3):
        took.append(await kill_the_holder(crew, random.Random(seed)))
        crew.fill_up(CREW)
        remark("kills of holders", spread(took))

    assert max(took) < AT_ONCE


@pytest.mark.heavy
async def test_killed_waiters_hold_up_nobody_behind_them(gather: Gather) -> None:
    """Killed before, while or after the mutex becomes theirs, those at the head make way within a second."""
    crew, took = gather(CREW), list[float]()
    for seed in rounds("kills of waiters at the head", full=100, quick=3):
        took.append(await kill_the_first_waiters(crew, random.Random(seed)))
        crew.fill_up(CREW)
        remark("kills of waiters at the head", spread(took))

    assert max(took) < AT_ONCE


async def test_a_killed_waiter_that_starts_again_joins_at_the_end(gather: Gather) -> None:
    """Its place died with it: the same program under the same name is another one in line."""
    crew = gather(4)
    holder, *others = crew.members
    holder.tell("stay")
    fence = holder.held().fence
    for member in others:
        member.tell("pass")
    first, *rest = await crew.lined_up(*others)
    first.kill()
    crew.fill_up(3)
    await crew.lined_up(*rest)

    [again] = crew.start_as(first.name)
    again.tell("pass")
    line = await crew.lined_up(*rest, again)
    holder.tell("go")

    assert line == [*rest, again]
    await all_come_in(crew, line, fence, [first])


async def test_after_a_crash_of_all_the_next_to_come_gets_in_at_once(gather: Gather) -> None:
    """Holders and waiters that died together leave nothing behind that a fresh start would have to wait for."""
    crew = gather(4)
    holder, *others = crew.members
    holder.tell("work")
    fence = holder.held().fence
    for member in others:
        member.tell("pass")
    dead = [holder, *await crew.lined_up(*others)]
    for member in dead:
        member.kill()
    crew.fill_up(1)

    asked_at = monotonic()
    crew.members[0].tell("pass")

    assert await all_come_in(crew, crew.members, fence, dead) - asked_at < AT_ONCE
