"""Looking after lines in which only durable requests wait: nobody waits there in any process, so nobody else looks.

A request that is attended holds its place by its process. If that dies, whoever waits in another process lets it fall.
A run that waits is in no process at all. So every server goes round, and looks at the lines in which somebody waits
behind a process.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from standfast.errors import StandfastError
from standfast.flows.arbiters.protocol import KIND
from standfast.locks.algebra.entries import OfRun
from standfast.locks.driving.records import HEADS, LineKeys
from standfast.locks.driving.run_entries import RunEntries

if TYPE_CHECKING:
    from standfast.flows.arbiters.protocol import Address
    from standfast.locks.driving.lines import Lines
    from standfast.space import Space

EVERY: Final = 1.0
"""Seconds between two rounds at the least; a process is missed after its lease, so there is no need to hurry."""

PAUSE: Final = 0.01
"""Seconds between two lines, so that many of them do not keep the store busy."""


async def go_round_for_ever(space: Space, lines: Lines) -> None:
    """Go round now and then. A store that does not answer is asked again in the next round."""
    while True:
        await asyncio.sleep(max(EVERY, space.lease))
        with suppress(StandfastError):
            await go_round(space, lines)


async def go_round(space: Space, lines: Lines) -> None:
    """Look at each line in which somebody waits behind a process, and let that one fall if it is gone."""
    start, end = space.key("ticket", KIND).within()
    while True:
        page = await space.scan(start, end, limit=1)
        if not page.records:
            return
        ticket = next(iter(page.records))
        address = ticket.parts[3:-1]
        if await _is_held_by_a_process(lines, address):
            await RunEntries(lines).look_after(address)
        start = space.key("ticket", *address).within()[1]
        await asyncio.sleep(PAUSE)


async def _is_held_by_a_process(lines: Lines, address: Address) -> bool:
    key = LineKeys(lines.scope, address).head
    record = (await lines.scope.read(key)).get(key)
    holders = () if record is None else HEADS.decode(record.value).holders
    return any(not isinstance(each.entry.anchor, OfRun) for each in holders)
