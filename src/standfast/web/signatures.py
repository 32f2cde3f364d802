"""How providers sign their webhooks, time and all: each is a verifier that a webhook takes."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast, final

import msgspec

from standfast.clock import MICROSECONDS
from standfast.durations import seconds
from standfast.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from standfast.clock import Instant
    from standfast.durations import Duration


# --- who signed these bytes, and when: pure functions of what came in, the secrets and the time --------------------

TOLERANCE: Final = 300.0
"""Seconds that a signature may be old, or ahead: what Standard Webhooks, Stripe and Slack ask for."""

MOST_CANDIDATES: Final = 16
"""How many signatures of one delivery are looked at."""

_DIGITS: Final = 12  # seconds until the year 33658


class Verified(msgspec.Struct, frozen=True):
    """A delivery whose signature was made with one of the secrets."""

    secret_id: str
    """Which secret: the only thing of it that is ever logged."""
    signature: str
    """The signature that fits: the same for the same content, and for no other."""
    sent_at: int | None = None
    """When it was signed, in seconds since the epoch; ``None`` if the provider does not sign the time."""


class Refused(msgspec.Struct, frozen=True):
    """A delivery that was not signed with a secret, or not recently. The reason is for logs alone."""

    reason: Literal["unsigned", "malformed", "stale", "mismatch", "not-local"]


Verdict: TypeAlias = Verified | Refused
Digest: TypeAlias = "Callable[[hmac.HMAC], bytes]"
"""How a signature is written."""


class Verifier(Protocol):
    """What a provider does to its deliveries. Write one for a provider that there is no preset for.

    Attributes:
        provider: Its name. Deliveries with the same id from the same provider are one delivery.
        signs_time: Whether the time is signed. If not, an old delivery that was kept can be sent again once
            its id is forgotten.
    """

    @property
    def provider(self) -> str: ...  # noqa: D102 -- see the attributes above
    @property
    def signs_time(self) -> bool: ...  # noqa: D102 -- see the attributes above

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Tell who signed a delivery. ``headers`` have names in lower case; ``body`` is what came in, byte for byte."""
        ...

    def delivery_id(self, headers: Mapping[str, str], payload: Any) -> str:  # noqa: ANN401 -- whatever JSON can be
        """Return what tells this delivery from every other of the provider, or ``""``."""
        ...

    def event(self, headers: Mapping[str, str], payload: Any) -> str:  # noqa: ANN401 -- whatever JSON can be
        """Return what kind of event it tells of, or ``""``."""
        ...

    def greeting(self, payload: Any) -> dict[str, str] | None:  # noqa: ANN401 -- whatever JSON can be
        """Return what to answer if this delivery only asks whether the address answers."""
        ...


def signed_by(secrets: Iterable[Secret], content: bytes, candidates: Mapping[bytes, str], digest: Digest) -> Verdict:
    """Tell which secret made one of the signatures of ``content``.

    Every secret is tried on every candidate, whatever the others gave, so the time it takes tells nothing.

    Args:
        secrets: Those that are active.
        content: The bytes that were signed.
        candidates: Each signature that came along, as bytes to compare and as text.
        digest: How a signature is written: as hexadecimal digits or in base64.
    """
    found: Verdict = Refused("mismatch")
    for secret in secrets:
        expected = digest(hmac.new(secret.key, content, sha256))
        for candidate, text in list(candidates.items())[:MOST_CANDIDATES]:
            if hmac.compare_digest(expected, candidate):
                found = Verified(secret.id, text)
    return found


def as_hex(signature: hmac.HMAC, /) -> bytes:
    """Return a signature as hexadecimal digits."""
    return signature.hexdigest().encode()


def as_base64(signature: hmac.HMAC, /) -> bytes:
    """Return a signature in base64."""
    return base64.b64encode(signature.digest())


def as_candidates(texts: Iterable[str]) -> dict[bytes, str]:
    """Return signatures as they can be compared. A header may hold anything, so nothing is decoded."""
    return {text.encode(errors="replace"): text for text in texts if text}


def read_seconds(text: str) -> int | None:
    """Return a timestamp in seconds; ``None`` if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def is_timely(sent_at: int, now: Instant, tolerance: float) -> bool:
    """Return True if a signature is neither too old nor from too far ahead."""
    return abs(now / MICROSECONDS - sent_at) <= tolerance


def text_of(payload: object, name: str) -> str:
    """Return a text of a payload; whatever else is there is none."""
    found = part_of(payload, name)
    return found if isinstance(found, str) else ""


def part_of(payload: object, name: str) -> object:
    """Return a part of a payload, or nothing if it is no object or has no such part."""
    return cast("dict[str, object]", payload).get(name) if isinstance(payload, dict) else None


# --- the secrets that a provider signs with. They are named by their ids, and never shown --------------------------

Secrets: TypeAlias = "str | Mapping[str, str]"
"""One secret, or several that are active at the same time, by ids of your own: ``{"2026-05": ..., "2026-06": ...}``."""

SHORTEST: Final = 8
"""Bytes that a secret needs at least. Whatever is shorter can be found by trying."""

MOST: Final = 8
"""How many secrets may be active at a time. Each costs one pass over every body."""


class Secret(msgspec.Struct, frozen=True):
    """One secret."""

    id: str
    """What it is called in logs."""
    key: bytes
    """What the signature is made with."""

    def __repr__(self) -> str:
        return f"<Secret {self.id!r}>"


def read_secrets(where: str, given: Secrets | None, as_key: Callable[[str], bytes] = str.encode) -> tuple[Secret, ...]:
    """Return the secrets; none at all, or an empty one, is refused: an unset variable must not open the door.

    Args:
        where: What is being declared, as the error names it.
        given: What the user handed in.
        as_key: Turns the text of a secret into the key to sign with.
    """
    by_id = {"default": given} if isinstance(given, str) else dict(given or {})
    if not by_id or len(by_id) > MOST:
        problem = f"at most {MOST} secrets can be active" if by_id else "without a secret the sender cannot be known"
        raise DeclarationError(where, problem)
    secrets: list[Secret] = []
    for name, text in by_id.items():
        place = f"{where}, secret {name!r}"
        if not isinstance(text, str) or not text:  # pyright: ignore[reportUnnecessaryIsInstance] -- an unset variable
            raise DeclarationError(place, "it is empty; is its environment variable set?")
        try:
            key = as_key(text.strip())
        except ValueError:
            raise DeclarationError(place, "it is not base64 as it should be") from None  # the cause shows the secret
        if len(key) < SHORTEST:
            raise DeclarationError(place, f"it is shorter than {SHORTEST} bytes, so it can be found by trying")
        secrets.append(Secret(name, key))
    return tuple(secrets)


# --- how providers sign their webhooks, time and all: each is a verifier that a webhook takes ----------------------

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
        raise DeclarationError("tolerance", "without any no delivery is ever in time")
    return length


def _at(verdict: Verdict, sent_at: int) -> Verdict:
    if isinstance(verdict, Refused):
        return verdict
    return Verified(verdict.secret_id, verdict.signature, sent_at)


# --- providers that sign the body and not the time; and none, which signs nothing ----------------------------------


@final
class BodySignature:
    """A signature of the body in one header: GitHub, Shopify and many others.

    Neither time nor id is signed. An id that was seen is not taken again for as long as idempotency keys are kept;
    a program that has kept a delivery can send it again after that, or under another id. Let the action be harmless
    when it is done twice.

    Args:
        secrets: One secret, or several by ids of your own.
        provider: Who sends.
        header: Which header has the signature.
        prefix: What stands before it there.
        encoding: How it is written.
        id_header: Which header has the id of the delivery. Without one the signature tells deliveries apart.
        event_header: Which header has the kind of event. Without one it is the ``type`` of the payload.
    """

    signs_time = False

    def __init__(
        self,
        secrets: Secrets | None,
        *,
        provider: str,
        header: str,
        prefix: str = "",
        encoding: Literal["hex", "base64"] = "hex",
        id_header: str = "",
        event_header: str = "",
    ) -> None:
        self.provider: Final = provider
        self._secrets: Final = read_secrets(f"the webhooks of {provider}", secrets)
        self._header, self._prefix = header.lower(), prefix
        self._id_header, self._event_header = id_header.lower(), event_header.lower()
        self._digest: Final = {"hex": as_hex, "base64": as_base64}[encoding]

    def __repr__(self) -> str:
        return f"<BodySignature of {self.provider!r}>"

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Tell who signed the body."""
        del now
        signature = headers.get(self._header, "")
        if not signature.startswith(self._prefix) or not signature:
            return Refused("unsigned" if not signature else "malformed")
        candidates = as_candidates([signature.removeprefix(self._prefix)])
        return signed_by(self._secrets, body, candidates, self._digest)

    def delivery_id(self, headers: Mapping[str, str], payload: object) -> str:
        """Return what the header says."""
        del payload
        return headers.get(self._id_header, "")

    def event(self, headers: Mapping[str, str], payload: object) -> str:
        """Return what the header says, or the type of the payload."""
        return headers.get(self._event_header, "") if self._event_header else text_of(payload, "type")

    def greeting(self, payload: object) -> None:
        """There is none."""


def GitHub(secrets: Secrets | None) -> BodySignature:  # noqa: N802 -- it makes a verifier, as the classes beside it do
    """GitHub: the body is signed with SHA-256. Time and id are not: see :class:`BodySignature`.

    Args:
        secrets: The webhook's secret, or several by ids of your own.
    """
    return BodySignature(
        secrets,
        provider="github",
        header="X-Hub-Signature-256",
        prefix="sha256=",
        id_header="X-GitHub-Delivery",
        event_header="X-GitHub-Event",
    )


@final
class Unsigned:
    """Nothing is signed, so the sender has to show the credentials that every other address of the application needs.

    For trying something out: without ``authenticate``, that is the token that ``standfast serve`` shows.
    """

    signs_time = False
    provider = "unsigned"

    def __repr__(self) -> str:
        return "<Unsigned>"

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Take every delivery; the gate has checked its credentials."""
        del headers, body, now
        return Verified("unsigned", "")

    def delivery_id(self, headers: Mapping[str, str], payload: object) -> str:
        """Return what the header ``webhook-id`` says."""
        del payload
        return headers.get("webhook-id", "")

    def event(self, headers: Mapping[str, str], payload: object) -> str:
        """Return the ``type`` of the payload."""
        del headers
        return text_of(payload, "type")

    def greeting(self, payload: object) -> None:
        """There is none."""
