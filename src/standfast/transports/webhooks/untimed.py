"""Providers that sign the body and not the time; and nobody, who signs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, final

from standfast.transports.webhooks.secrets import read_secrets
from standfast.transports.webhooks.signing import (
    Refused,
    Verified,
    as_base64,
    as_candidates,
    as_hex,
    signed_by,
    text_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.clock import Instant
    from standfast.transports.webhooks.secrets import Secrets
    from standfast.transports.webhooks.signing import Verdict


@final
class BodySignature:
    """A signature of the body in one header: GitHub, Shopify and many others.

    Neither time nor id is signed. An id that was seen is not taken again for as long as idempotency keys are kept;
    whoever has kept a delivery can send it again after that, or under another id. Let the action be harmless when it
    is done twice.

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
    """Nobody signs, so whoever sends has to show the credentials that every other address of the application needs.

    For trying something out: without ``authenticate``, that is the token that ``standfast serve`` shows.
    """

    signs_time = False
    provider = "unsigned"

    def __repr__(self) -> str:
        return "<Unsigned>"

    def verify(self, headers: Mapping[str, str], body: bytes, now: Instant) -> Verdict:
        """Take whatever comes; the door has looked at its credentials."""
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
