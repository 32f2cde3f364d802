"""Stores that nobody has used yet, on every kind of server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tests import services

if TYPE_CHECKING:
    from pathlib import Path

SERVERS = ("postgresql", "redis", "mysql", "mongodb", "libsql", "etcd", "dynamodb", "cloudflare")
KINDS = ("sqlite", *SERVERS)


def fresh_url(kind: str, folder: Path) -> str:
    """Return the URL of an empty store."""
    name = f"m{uuid.uuid4().hex[:12]}"
    if kind == "sqlite":
        return f"sqlite:///{folder}/{name}.db"
    server = services.url(kind)
    if kind == "dynamodb":
        address, _, options = server.partition("?")
        return f"{address.rpartition('/')[0]}/{name}?{options}&create=true&shortest_lease=1s"
    if kind == "etcd":
        return f"{server.rpartition('/')[0]}/{name}?shortest_lease=1s"
    option = "schema" if kind == "postgresql" else "prefix"
    return f"{server}{'&' if '?' in server else '?'}{option}={name}"
