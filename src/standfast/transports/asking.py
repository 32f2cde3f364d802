"""What the headers of a request ask for. Everything else about it comes from the body, the path and the credentials."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from standfast.errors import InvalidHeaderError, UnsupportedBodyError
from standfast.flows.arrival import Arrival
from standfast.transports.bodies import content_type, is_json
from standfast.transports.chains import read_chain

if TYPE_CHECKING:
    from standfast.flows.action import Action
    from standfast.flows.arrival import Principal
    from standfast.transports.headers import Headers

SESSION: Final = "Standfast-Session"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
_WAIT: Final = re.compile(r'wait\s*=\s*"?([0-9]{1,6})"?')


class Preference(msgspec.Struct, frozen=True):
    """How a caller wants to be answered (RFC 7240)."""

    is_async: bool = False
    wait: float | None = None
    """Seconds to wait for a result before it is answered without one."""


NO_PREFERENCE: Final = Preference()


def read_preference(headers: Headers) -> Preference:
    """Return what ``Prefer`` asks for; what is not known is passed over, as the RFC says."""
    given = headers.get("prefer")
    if given is None:
        return NO_PREFERENCE
    asked = [part.strip().lower() for part in given.split(",")]
    waits = [int(match[1]) for part in asked if (match := _WAIT.fullmatch(part))]
    return Preference("respond-async" in asked, waits[0] if waits else None)


def read_after(headers: Headers, query: str | None) -> int:
    """Return the number of the last event that a caller has seen: ``Last-Event-ID``, or ``after`` in the address."""
    text = headers.get("last-event-id") or query or "0"
    if not (text.isascii() and text.isdigit()) or len(text) > 15:  # noqa: PLR2004 -- more events than there can be
        raise InvalidHeaderError("Last-Event-ID", "is not the number of an event")
    return int(text)


async def arrival_of(
    action: Action[..., Any], headers: Headers, body: bytes, principal: Principal, *, attended: bool
) -> Arrival:
    """Return what a caller asks of an action.

    Raises:
        UnsupportedBodyError: The body is not JSON, or does not say so: then a page elsewhere may have sent it.
        InvalidHeaderError: A header cannot be read.
        InvalidArrivalError: A session or a key has too many characters, or odd ones.
    """
    if body and not is_json(content_type(headers)):
        raise UnsupportedBodyError("the body is not marked as JSON")
    return Arrival(
        flow=action.flow,
        action=action.name,
        inputs=body,  # more than can be read at once on the loop is refused by its length
        principal=principal,
        session=headers.get("standfast-session", ""),
        transport="http",
        idempotency_key=headers.get("idempotency-key", "").strip(' "'),
        attended=attended,
        chain=read_chain(headers.get("standfast-chain", "")),
    )
