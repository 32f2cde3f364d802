"""What is said over a connection: JSON objects with a ``type``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from standfast.errors import InvalidInputError
from standfast.transports.showing import shown_explanation

if TYPE_CHECKING:
    from standfast.flows.request import Event, RequestInfo
    from standfast.transports.chat.conversation import Entry
    from standfast.transports.seam import Handle

ENDED: Final = "request.ended"
FAILED: Final = "the answer failed"
"""All that is told about what an action raised: the rest is in the log."""

LONGEST_MESSAGE_ID: Final = 64


class Frame(Struct, frozen=True):
    """Something that is sent to a client.

    Attributes:
        body: What is sent.
        entry: The number of the message that it belongs to; 0: none, and it is not told again after a break.
        event: The number of the event of that message's answer; 0: it is the message itself, or none of it.
        is_end: The answer ends with it.
    """

    body: dict[str, Any]
    entry: int = 0
    event: int = 0
    is_end: bool = False


class Open(Struct, frozen=True, tag="open"):
    """The first frame of a client: which session, and how far it has read."""

    session: str = ""
    after: str = ""


class Say(Struct, frozen=True, tag="message"):
    """Somebody wrote something. With the same id it may be sent again: it is taken once."""

    text: str
    id: str = ""


class Cancel(Struct, frozen=True, tag="cancel"):
    """An answer is not wanted any more."""

    request: str


class Pong(Struct, frozen=True, tag="pong"):
    """The client is still there."""


Said: TypeAlias = Open | Say | Cancel | Pong
_decoder: Final[msgspec.json.Decoder[Said]] = msgspec.json.Decoder(Open | Say | Cancel | Pong)


def read_frame(data: str | bytes) -> Said:
    """Return what a client says.

    Raises:
        InvalidInputError: It is none of what a client can say. The error names the place, never the data.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidInputError("the frame", _problem(problem)) from None


def read_message(data: bytes) -> Say:
    """Return the message in a body over HTTP, which needs no ``type``.

    Raises:
        InvalidInputError: It is none.
    """
    try:
        return msgspec.convert({"type": "message"} | msgspec.json.decode(data, type=dict[str, Any]), Say)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as problem:
        raise InvalidInputError("the message", _problem(problem)) from None


def _problem(problem: Exception) -> str:
    """Return what does not fit; what is no JSON at all could be quoted."""
    return str(problem) if isinstance(problem, msgspec.ValidationError) else "is not JSON"


def checked_message(said: Say, most: int) -> Say:
    """Refuse a message that is empty or too long, or has an id that cannot be kept.

    Raises:
        InvalidInputError: It is.
    """
    if not said.text.strip():
        raise InvalidInputError("the message", "is empty")
    if len(said.text.encode("utf-8", "replace")) > most:
        raise InvalidInputError("the message", f"is longer than {most:,} bytes")
    if len(said.id) > LONGEST_MESSAGE_ID or not said.id.isascii() or not said.id.isprintable():
        raise InvalidInputError("the id of the message", f"must be at most {LONGEST_MESSAGE_ID} ASCII characters")
    return said


def message_frame(number: int, entry: Entry) -> Frame:
    """Tell what somebody wrote, and which request answers it."""
    body: dict[str, Any] = {"type": "message", "message": entry.message, "text": entry.text}
    if entry.request:
        return Frame(body | {"request": entry.request}, number)
    return Frame(body | {"problem": entry.problem}, number, is_end=True)


def event_frame(number: int, request: str, event: Event) -> Frame:
    """Tell what the answering request told, or how it has ended."""
    if event.name == ENDED:
        told = event.data if event.data["status"] != "failed" else {"status": "failed", "error": FAILED}
        return Frame({"type": "ended", "request": request, **told}, number, event.number, is_end=True)
    body = {"type": "event", "request": request, "number": event.number, "name": event.name, "data": event.data}
    return Frame(body, number, event.number)


def gone_frame(number: int, request: str) -> Frame:
    """Tell that nothing is known any more about an answer."""
    return Frame({"type": "ended", "request": request, "status": "unknown"}, number, is_end=True)


def status_frame(info: RequestInfo) -> Frame:
    """Tell where an answer stands that has not ended: which position, and what it waits for."""
    body: dict[str, Any] = {"type": "status", "request": info.id, "status": info.status}
    if info.explanation is not None:
        body |= {"position": info.explanation.position, "explanation": shown_explanation(info.explanation)}
    return Frame(body)


def accepted_body(message: str, handle: Handle) -> dict[str, Any]:
    """Acknowledge a message: it is kept, and this request answers it."""
    body: dict[str, Any] = {"type": "accepted", "message": message, "request": handle.id, "status": handle.status}
    if handle.explanation is not None:
        body |= {"position": handle.position, "explanation": shown_explanation(handle.explanation)}
    return body
