"""The headers of a request, read once, and those of every answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

Headers: TypeAlias = "Mapping[str, str]"
"""Headers by their names in lower case. Of several with one name the first counts, everywhere."""

RawHeaders: TypeAlias = "Mapping[bytes, bytes]"
"""The same, as they came."""

SECURITY: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""What browsers are told with every answer."""

HEADERS: Final = "holdfast.headers"
RAW: Final = "holdfast.raw-headers"
"""Where they are kept in the scope."""


def headers_of(scope: Scope) -> Headers:
    """Return the headers of a request or WebSocket."""
    known: Headers | None = scope.get(HEADERS)
    if known is None:
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers_of(scope).items()}
        scope[HEADERS] = known
    return known


def raw_headers_of(scope: Scope) -> RawHeaders:
    """Return them as they came: most requests are let in or refused without one of them becoming text."""
    known: RawHeaders | None = scope.get(RAW)
    if known is None:
        known = scope[RAW] = dict(reversed(scope["headers"]))
    return known
