"""How providers sign their webhooks, time and all: each is a verifier that a webhook takes."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, final

from standfast.durations import seconds
from standfast.errors import InvalidFlowError
from standfast.transports.webhooks.secrets import read_secrets
from standfast.transports.webhooks.signing import (
    TOLERANCE,
    Refused,
    Verified,
    as_base64,
    as_candidates,
    as_hex,
    is_timely,
    part_of,
    read_seconds,
    signed_by,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.transports.webhooks.secrets import Secrets
    from standfast.transports.webhooks.signing import Verdict

LONGEST_TOLERANCE: Final = 1_800.0
"""A delivery may come from as far ahead as it may be old, and its id is kept for an hour: for as long as it holds."""


@final
class StandardWebhooks:
    """The scheme of Standard Webhooks, which Svix and many providers use: id, time and body are signed.

    Args:
        secrets: One secret, or several by ids of your own while you change over; with or without ``whsec_``.
        provider: Who sends, if you take webhooks of several that use this scheme.
        tolerance: How old a signature may be, or how far ahead.
    """

    signs_time = True

    def __init__(self, secrets: Secrets | None, *, provider: str = "standard", tolerance: Duration = TOLERANCE) -> None:
        self.provider: Final = provider
        self._secrets: Final = read_secrets(f"the webhooks of {provider}", secrets, _standard_key)
        self._tolerance: Final = _tolerance(tolerance)

    def __repr__(self) -> str:
        return f"<StandardWebhooks of {self.provider!r}>"

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Tell who signed ``id.time.body``."""
        prefix = _prefix(headers)
        delivery, time = headers.get(f"{prefix}-id", ""), headers.get(f"{prefix}-timestamp", "")
        signatures = headers.get(f"{prefix}-signature", "")
        if not delivery or not signatures:
            return Refused("unsigned")
        if (sent_at := read_seconds(time)) is None:
            return Refused("malformed")
        if not is_timely(sent_at, now, self._tolerance):
            return Refused("stale")
        candidates = as_candidates(text[3:] for text in signatures.split(" ") if text.startswith("v1,"))
        content = f"{delivery}.{time}.".encode("latin-1", "replace") + body  # headers are bytes, shown as latin-1
        return _at(signed_by(self._secrets, content, candidates, as_base64), sent_at)

    def delivery_id(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the id that is signed."""
        del payload
        return headers.get(f"{_prefix(headers)}-id", "")

    def event(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the ``type`` of the payload."""
        del headers
        return text_of(payload, "type")

    def greeting(self, payload: object) -> None:
        """There is none."""


@final
class Stripe:
    """Stripe: time and body are signed; the id of the event is in the body.

    Args:
        secrets: The endpoint's signing secret (``whsec_...``, used as it is), or several by ids of your own.
        tolerance: How old a signature may be, or how far ahead.
    """

    signs_time = True
    provider = "stripe"

    def __init__(self, secrets: Secrets | None, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets: Final = read_secrets("the webhooks of Stripe", secrets)
        self._tolerance: Final = _tolerance(tolerance)

    def __repr__(self) -> str:
        return "<Stripe>"

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Tell who signed ``time.body``."""
        pairs = [part.strip().partition("=")[::2] for part in headers.get("stripe-signature", "").split(",")]
        times = [value for name, value in pairs if name == "t"]
        if not times:
            return Refused("unsigned")
        if len(times) > 1 or (sent_at := read_seconds(times[0])) is None:
            return Refused("malformed")
        if not is_timely(sent_at, now, self._tolerance):
            return Refused("stale")
        candidates = as_candidates(value for name, value in pairs if name == "v1")
        return _at(signed_by(self._secrets, f"{times[0]}.".encode() + body, candidates, as_hex), sent_at)

    def delivery_id(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the id of the event: Stripe sends one event again under the same id."""
        del headers
        return text_of(payload, "id")

    def event(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the type of the event: ``invoice.paid``."""
        del headers
        return text_of(payload, "type")

    def greeting(self, payload: object) -> None:
        """There is none."""


@final
class Slack:
    """Slack: time and body are signed. Events have an id in the body, commands and buttons a trigger.

    Args:
        secrets: The app's signing secret, or several by ids of your own.
        tolerance: How old a signature may be, or how far ahead.
    """

    signs_time = True
    provider = "slack"

    def __init__(self, secrets: Secrets | None, *, tolerance: Duration = TOLERANCE) -> None:
        self._secrets: Final = read_secrets("the webhooks of Slack", secrets)
        self._tolerance: Final = _tolerance(tolerance)

    def __repr__(self) -> str:
        return "<Slack>"

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Tell who signed ``v0:time:body``."""
        time, signature = headers.get("x-slack-request-timestamp", ""), headers.get("x-slack-signature", "")
        if not time or not signature:
            return Refused("unsigned")
        if (sent_at := read_seconds(time)) is None or not signature.startswith("v0="):
            return Refused("malformed")
        if not is_timely(sent_at, now, self._tolerance):
            return Refused("stale")
        content = f"v0:{time}:".encode() + body
        return _at(signed_by(self._secrets, content, as_candidates([signature[3:]]), as_hex), sent_at)

    def delivery_id(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the id of the event, or the trigger of a command."""
        del headers
        return text_of(payload, "event_id") or text_of(payload, "trigger_id")

    def event(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the type of the event inside (``message``), or the command (``/deploy``), or the outer type."""
        del headers
        inside = part_of(payload, "event")
        return text_of(inside, "type") or text_of(payload, "command") or text_of(payload, "type")

    def greeting(self, payload: object) -> dict[str, str] | None:
        """Answer the challenge that Slack sends when the address is entered."""
        if text_of(payload, "type") != "url_verification":
            return None
        return {"challenge": text_of(payload, "challenge")}


def _standard_key(text: str) -> bytes:
    return base64.b64decode(text.removeprefix("whsec_"), validate=True)


def _prefix(headers: Mapping[str, str]) -> str:
    """Return how the three headers begin. All of them are of one kind: they are never mixed."""
    return "webhook" if "webhook-id" in headers else "svix"


def _tolerance(given: Duration) -> float:
    length = seconds(given, what="tolerance", maximum=LONGEST_TOLERANCE)
    if length <= 0:
        raise InvalidFlowError("tolerance", "without any no delivery is ever in time")
    return length


def _at(verdict: Verdict, sent_at: int) -> Verdict:
    if isinstance(verdict, Refused):
        return verdict
    return Verified(verdict.secret_id, verdict.signature, sent_at)
