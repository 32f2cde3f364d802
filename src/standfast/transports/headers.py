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

FOR_DATA: Final = ((b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin"))
"""What browsers are told with what an action returned. It is data, which then never becomes a page or a part of one."""

SECURITY: Final = (
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    *FOR_DATA,
)
"""What they are told with every other answer."""

HEADERS: Final = "standfast.headers"
"""Where the headers of a request are kept in its scope."""


def raw_headers(scope: Scope) -> RawHeaders:
    """Return the headers of a request or WebSocket as they came. Most are answered before any of them becomes text."""
    return dict(reversed(scope["headers"]))


def headers_of(scope: Scope) -> Headers:
    """Return the headers of a request or WebSocket as text."""
    known: Headers | None = scope.get(HEADERS)
    if known is None:
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw_headers(scope).items()}
        scope[HEADERS] = known
    return known
