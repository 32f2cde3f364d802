"""What exclusion in one process tells."""

from __future__ import annotations

from typing import ClassVar

from standfast.events._event import Event, Level
from standfast.keys import Key  # noqa: TC001 -- a field of a struct


class LockOrderInverted(Event, frozen=True, kw_only=True):
    """Two keys were taken in both orders: one day two tasks will wait for each other for ever.

    Decide which of them comes first and declare it, ``KeyFamily(..., after=(FIRST,))``.
    """

    level: ClassVar[Level] = "warning"

    held: Key
    """The key that the task holds."""
    wanted: Key
    """The key that it asked for on top of it."""
    held_from: str
    """Where ``held`` was taken: file and line."""
    wanted_from: str
    """Where ``wanted`` was asked for."""
    opposite_held_from: str
    """Where, earlier, ``wanted`` was taken first."""
    opposite_wanted_from: str
    """Where, earlier, ``held`` was asked for on top of it."""
