"""The root of all events."""

from __future__ import annotations

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct

from standfast.clock import Instant

Level: TypeAlias = Literal["debug", "info", "warning", "error"]


class Event(Struct, frozen=True, kw_only=True):
    """The root of all events. ``at`` is when it happened, by the clock of whoever tells."""

    level: ClassVar[Level] = "info"

    at: Instant
