"""Places on shared servers that no other test uses."""

from __future__ import annotations

from typing import Final

from standfast.ids import new_id
from tests import services

_SCHEMAS: Final = ("postgresql", "pgbouncer")


def place(kind: str) -> str:
    """Return the URL of a fresh place on the shared server of a kind."""
    return place_on(services.url(kind), kind)


def place_on(url: str, kind: str) -> str:
    """Return the URL of a fresh place on a server."""
    if kind == "etcd":
        return f"{url.rpartition('/')[0]}/f{new_id().replace('-', '')[-16:]}?shortest_lease=2s"
    option = "schema" if kind in _SCHEMAS else "prefix"
    return f"{url}{'&' if '?' in url else '?'}{option}=f{new_id().replace('-', '')[-16:]}"
