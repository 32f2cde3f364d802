"""What requests of flows tell."""

from __future__ import annotations

from typing import ClassVar

from standfast.events._event import Event, Level


class RequestEvent(Event, frozen=True, kw_only=True):
    """The root of what requests tell. ``request`` is the id of the request, and ``action`` its flow and action."""

    request: str
    action: str


class RequestsOverlap(RequestEvent, frozen=True, kw_only=True):
    """A request began although one that it superseded had not ended within its grace, and may still be at work.

    That one commits nothing any more. What it does outside of Standfast may overlap with what this one does: let
    actions end when they are cancelled, give the policy a longer ``grace``, or guard the resource with a fence.
    """

    level: ClassVar[Level] = "warning"

    key: str
    """The key in words."""
    superseded: tuple[str, ...]
    """The requests whose place it took."""
