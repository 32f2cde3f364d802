"""The headers of a request, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import Scope

Headers: TypeAlias = "Mapping[str, str]"
"""Headers by their names in lower case. Of several with one name the first counts, everywhere."""

HEADERS: Final = "holdfast.headers"
"""Where they are kept in the scope."""


def headers_of(scope: Scope) -> Headers:
    """Return the headers of a request or WebSocket."""
    known: Headers | None = scope.get(HEADERS)
    if known is None:
        known = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        scope[HEADERS] = known
    return known
