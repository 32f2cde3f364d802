"""Who signed these bytes, and when: pure functions of what came in, the secrets and the time."""

from __future__ import annotations

import base64
import hmac
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, cast

import msgspec

from standfast.clock import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from standfast.clock import Instant
    from standfast.transports.webhooks.secrets import Secret

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
    """A delivery that nobody with a secret has signed, or not recently. The reason is for logs alone."""

    reason: Literal["unsigned", "malformed", "stale", "mismatch", "not-local"]


Verdict: TypeAlias = Verified | Refused
Digest: TypeAlias = "Callable[[hmac.HMAC], bytes]"
"""How a signature is written."""


class Verifier(Protocol):
    """What a provider does to its deliveries. Write one for a provider that there is no preset for.

    Attributes:
        provider: Its name. Deliveries with the same id from the same provider are one delivery.
        signs_time: Whether the time is signed. If not, an old delivery that somebody has kept can be sent again once
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
        """Return what to answer if this delivery only asks whether somebody is there."""
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
    """Tell whether a signature is neither too old nor from too far ahead."""
    return abs(now / MICROSECONDS - sent_at) <= tolerance


def text_of(payload: object, name: str) -> str:
    """Return a text of a payload; whatever else is there is none."""
    found = part_of(payload, name)
    return found if isinstance(found, str) else ""


def part_of(payload: object, name: str) -> object:
    """Return a part of a payload, or nothing if it is no object or has no such part."""
    return cast("dict[str, object]", payload).get(name) if isinstance(payload, dict) else None
