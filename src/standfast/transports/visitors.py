"""Who has sent what a server hands over, as far as it is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from standfast.transports.gate import PRINCIPAL
from standfast.transports.places import who_is

if TYPE_CHECKING:
    from starlette.types import Scope

    from standfast.transports.places import Who


def who_asks(scope: Scope) -> Who:
    """Return who has sent a request, or has opened a WebSocket."""
    return who_is(scope[PRINCIPAL], (scope.get("client") or ("",))[0])
