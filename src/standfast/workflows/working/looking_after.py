"""Looking after the line in which an unloaded run waits, without loading the run.

While a run waits behind a process, or behind a hold that ends by itself, somebody has to let those fall who are over.
The run's record in the timer index says when, and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from standfast.clock import later
from standfast.locks.driving.run_entries import RunEntries
from standfast.stores.protocol import Delete, Put
from standfast.workflows.storing.records import DUES, LIVES, Due

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.stores.protocol import Change, Record
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.host import Host
    from standfast.workflows.storing.records import RunKeys

EVERY: Final = 1.0
"""Seconds between two looks at the same line for the same run, at the least."""

SEES_DEATH_AFTER: Final = 5.0
"""Seconds after which a look finds that a process in front has died, where the store can see that."""


def due_of(activation: Activation, until: Instant) -> Due:
    """Return what is due at the next instant at which something of a run is: perhaps only a look at one line."""
    instants = [(wait.until, wait.line) for wait in activation.waits if wait.until is not None]
    if activation.header.deadline is not None:
        instants.append((activation.header.deadline, ()))
    lines = {line for at, line in instants if at == until}
    if len(lines) != 1 or () in lines:
        return Due()
    return Due(look_at=lines.pop(), then=min((at for at, _ in instants if at > until), default=None))


async def look_at_line(host: Host, address: tuple[str, ...]) -> Instant | None:
    """Let those fall in a line who are over; return when to look again, None: nobody there falls by time."""
    next_end = await RunEntries(host.lines).look_after(address)
    if next_end is None:
        return None
    soon = later(host.now(), SEES_DEATH_AFTER)
    if any(host.lines.line(address).lifelines.values()):
        next_end = min(next_end, soon)
    return max(next_end, later(host.now(), EVERY))


async def look_after(host: Host, keys: RunKeys, life: Record, timer: Record) -> None:
    """Look after the line that a timer names, and set the timer anew."""
    due = DUES.decode(timer.value)
    look_at = await look_at_line(host, due.look_at)
    until = min((at for at in (look_at, due.then) if at is not None), default=None)
    waits = structs.replace(LIVES.decode(life.value), until=until)
    changes: list[Change] = [Put(keys.life, LIVES.encode_own(waits), life.version), Delete(timer.key, timer.version)]
    if until is not None:
        again = keys.timer(until)
        expected = (await host.space.read(again)).version(again)
        changes.append(Put(again, DUES.encode(due if until == look_at else Due()), expected))
    # If it is refused, the run was taken up or somebody else has looked: then that one has set the timer.
    await host.space.commit(*changes)
