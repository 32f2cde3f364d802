"""What an exclusion looks like at one moment, as frozen values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from standfast.clock import Instant, later
from standfast.keys import Key
from standfast.local._line import Line

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.local._entry import Entry


class Holder(Struct, frozen=True):
    """A task that holds a key."""

    task: str
    """The name of the task; give yours names with ``asyncio.create_task(..., name=...)``."""
    mode: str | None
    taken_at: Instant
    site: str
    """Where the key was asked for: ``file:line``."""


class Waiter(Struct, frozen=True):
    """A task that waits for a key."""

    task: str
    mode: str | None
    asked_at: Instant
    place: int
    """Its place in the line; 1 comes next."""
    site: str
    """Where the key was asked for: ``file:line``."""


class KeyState(Struct, frozen=True):
    """Who holds a key and who waits for it, in order. A key that nobody wants has neither."""

    key: Key
    holders: tuple[Holder, ...]
    waiters: tuple[Waiter, ...]


def key_state(key: Key, place: Entry | Line | None, when: Callable[[float], Instant]) -> KeyState:
    """Picture what the table says about a key."""
    if place is None:
        return KeyState(key, (), ())
    if isinstance(place, Line):
        holders = tuple(_holder(entry, when) for entry in place.holders())
        waiters = tuple(_waiter(entry, number, when) for number, entry in enumerate(place.waiters, 1))
        return KeyState(key, holders, waiters)
    return KeyState(key, (_holder(place, when),), ())


def wall_time(now: float, wall: Instant) -> Callable[[float], Instant]:
    """Return what turns a moment of a steady clock that now shows ``now`` into the time of day."""
    return lambda moment: later(wall, moment - now)


def _holder(entry: Entry, when: Callable[[float], Instant]) -> Holder:
    return Holder(entry.task.get_name(), entry.mode, when(entry.at), entry.site)


def _waiter(entry: Entry, place: int, when: Callable[[float], Instant]) -> Waiter:
    return Waiter(entry.task.get_name(), entry.mode, when(entry.at), place, entry.site)
