"""Turning somebody out of a line, as an operator: a holder by force, or a waiter.

A waiter that finds itself gone asks again, since it may have been taken for dead by mistake. So one that is turned out
on purpose finds a note, which is there before it is gone, and is woken when it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import later
from standfast.locks.driving.records import presences_of
from standfast.locks.driving.requests import Leave, Left
from standfast.locks.explaining.reading import find_waiter
from standfast.stores.protocol import Decision, Put, Wake

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.keys import RecordKey
    from standfast.locks.driving.local_line import LocalLine
    from standfast.locks.driving.records import Site
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot

NOTED_FOR: Final = 86_400.0
"""For how many seconds the note stays: longer than a process sleeps that is still to find it."""

_NOTE: Final = b"1:true"


def _note_key(scope: Scope, entry_id: str) -> RecordKey:
    return scope.key("turned-out", entry_id)


def entry_of(scope: Scope, key: RecordKey) -> str | None:
    """Return the entry that a note is about; None if it is no note."""
    return key.parts[-1] if key.startswith(scope.key("turned-out")) else None


async def turn_out(scope: Scope, line: LocalLine, site: Site, entry_id: str, *, only_waiting: bool = False) -> bool:
    """Take an entry out of a line for good; tell whether it was there, and waiting if that is asked for."""
    keys = line.driver.keys
    holder = (await line.look()).line.holder(entry_id)
    waiter = None if holder is not None else await find_waiter(scope, keys, entry_id)
    if waiter is not None:
        await _note(scope, entry_id)
    slot, ticket = None if holder is None else holder.slot, None if waiter is None else waiter.ticket
    leave = Leave(entry_id, slot, ticket, by_force=True, only_waiting=only_waiting)
    answer = (await line.driver.ask(leave, site)).answer
    if not isinstance(answer, Left):
        return False
    if answer.was_waiting and waiter is not None:
        await _note(scope, entry_id, [keys.presence(name) for name in presences_of([waiter.entry])])
    return answer.was_waiting or (answer.was_holding and not only_waiting)


async def was_turned_out(scope: Scope, entry_id: str) -> bool:
    """Tell whether a waiter that is gone was turned out on purpose."""
    key = _note_key(scope, entry_id)
    return (await scope.read(key)).get(key) is not None


async def _note(scope: Scope, entry_id: str, tell: Iterable[RecordKey] = ()) -> None:
    key = _note_key(scope, entry_id)
    wakes = tuple(Wake(presence, key) for presence in tell)

    def decide(seen: Snapshot) -> Decision[None]:
        put = Put(key, _NOTE, seen.version(key), expires_at=later(seen.at, NOTED_FOR))
        return Decision(None, (put,), wake=wakes)

    await scope.update([key], decide)
