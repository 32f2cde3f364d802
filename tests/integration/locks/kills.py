"""Kills of holders and waiters, and what has to come of them wherever the store is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.clock import monotonic

if TYPE_CHECKING:
    import random

    from tests.integration.locks.crew import Crew, Member


async def all_come_in(crew: Crew, line: list[Member], after: int, gone: list[Member]) -> float:
    """Check that those in line hold one after another, each with a higher fence; return when the first did."""
    helds = [(member.held(), member.left())[0] for member in line]
    fences = [held.fence for held in helds]
    assert fences == sorted(fences), "they came in in another order than they stood in line"
    assert after < fences[0]
    assert crew.check_ledger(gone)[-len(line) :] == [member.name for member in line]
    assert await crew.resource() == fences[-1]
    return helds[0].at


async def kill_the_holder(crew: Crew, chooser: random.Random) -> float:
    """Kill whoever holds the mutex, while the others wait; return how long it took until the next held it."""
    holder, *others = crew.shuffled(chooser)
    holder.tell(chooser.choice(["stay", "work"]))
    fence = holder.held().fence
    for member in others:
        member.tell("pass")
    line = await crew.lined_up(*others)

    killed_at = monotonic()
    holder.kill()

    return await all_come_in(crew, line, fence, [holder]) - killed_at


async def kill_the_first_waiters(crew: Crew, chooser: random.Random) -> float:
    """Kill one or two at the head of the line about when it moves; return how long the first survivor waited."""
    holder, *others = crew.shuffled(chooser)
    holder.tell("stay")
    fence = holder.held().fence
    for member in others:
        member.tell("pass")
    line = await crew.lined_up(*others)
    number = chooser.choice([1, 1, 2])
    victims, survivors = line[:number], line[number:]

    deeds = [lambda: holder.tell("go"), *(victim.kill for victim in victims)]
    chooser.shuffle(deeds)
    for deed in deeds:
        deed()
    done_at = monotonic()

    came_at = await all_come_in(crew, survivors, fence, victims)
    holder.left()
    return came_at - done_at
