"""Processes that are stopped past their lease and go on: somebody else holds what they held, and they are refused."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.locks.conftest import spread
from tests.sizes import remark, rounds

if TYPE_CHECKING:
    from tests.integration.locks.conftest import Gather
    from tests.integration.locks.crew import Crew

CREW: Final = 4
LEASE: Final = 1.0
SLACK: Final = 0.5
"""Seconds on top of the lease that a busy machine may take to see that it has lapsed."""


async def stop_the_holder(crew: Crew, chooser: random.Random) -> float:
    """Stop whoever holds the mutex, and wake it when another one does; return how long it took to take over."""
    holder, *others = crew.shuffled(chooser)
    holder.tell("freeze")
    fence = holder.held().fence
    assert holder.child.hear() == ["frozen"]
    for member in others:
        member.tell("stay")
    line = await crew.lined_up(*others)

    stopped_at = await crew.stop_outside_a_transaction(holder)
    took_over = line[0].held()
    holder.tell("go")
    holder.child.send(signal.SIGCONT)

    assert took_over.fence > fence
    assert [holder.child.hear() for _ in range(3)] == [["ledger", "refused"], ["store", "Conflict"], ["lost"]]
    assert await crew.resource() == took_over.fence
    line[0].tell("go")
    line[0].left()
    for member in line[1:]:
        member.held()
        member.tell("go")
        member.left()
    assert crew.check_ledger([holder]) == [holder.name, *(member.name for member in line)]
    return took_over.at - stopped_at


@pytest.mark.heavy
async def test_a_holder_that_was_stopped_past_its_lease_is_refused(gather: Gather) -> None:
    """Within a lease the next takes over; going on, the stopped one writes nothing and gets LeaseLostError."""
    crew, took = gather(CREW, lease=LEASE), list[float]()
    for seed in rounds("stops of holders", full=100, quick=3):
        took.append(await stop_the_holder(crew, random.Random(seed)))
        remark("stops of holders", spread(took))

    assert max(took) < LEASE + SLACK


async def test_a_waiter_that_was_stopped_past_its_lease_joins_at_the_end(gather: Gather) -> None:
    """Those behind it go on within a lease of their turn; going on, it waits anew behind all who came meanwhile."""
    crew = gather(CREW, lease=LEASE)
    holder, *others = crew.members
    holder.tell("stay")
    holder.held()
    for member in others:
        member.tell("stay")
    first, second, third = await crew.lined_up(*others)
    stopped_at = await crew.stop_outside_a_transaction(first)
    holder.tell("go")
    holder.left()

    assert second.held().at - stopped_at < LEASE + SLACK
    first.child.send(signal.SIGCONT)
    assert await crew.lined_up(third, first) == [third, first]

    for member, following in ((second, third), (third, first), (first, None)):
        member.tell("go")
        member.left()
        if following is not None:
            following.held()
    assert crew.check_ledger([first]) == [member.name for member in (holder, second, third, first)]


async def test_a_holder_that_was_stopped_within_its_lease_loses_nothing(gather: Gather) -> None:
    """A pause that is shorter than the lease is no reason to take anything away."""
    crew = gather(2, lease=30.0)
    holder, other = crew.members
    holder.tell("freeze")
    holder.held()
    assert holder.child.hear() == ["frozen"]
    other.tell("pass")
    await crew.lined_up(other)

    await crew.stop_outside_a_transaction(holder)
    assert other.child.is_silent(0.5)
    holder.tell("go")
    holder.child.send(signal.SIGCONT)

    assert [holder.child.hear() for _ in range(2)] == [["ledger", "accepted"], ["store", "Commit"]]
    holder.left()
    other.held()
