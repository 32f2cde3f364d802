"""Every kind of server by the name that tests use."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tests.services.kind import Kind

# A module is imported only when its server is wanted: each brings a driver, which takes its time.
MODULES = {
    "dynamodb": "http",
    "haproxy": "proxies",
    "libsql": "http",
    "mongodb": "mongodb",
    "mysql": "mariadb",
    "nginx": "proxies",
    "pgbouncer": "pgbouncer",
    "postgresql": "postgresql",
    "redis": "valkey",
    "redis7": "valkey",
}

IN_FRONT = frozenset({"haproxy", "nginx"})
"""Those that stand in front of a server of the test's own, and nowhere else: `private(kind, behind=url)`."""


@functools.cache
def kind(name: str) -> Kind:
    """Return a kind of server."""
    module = importlib.import_module(f"tests.services.{MODULES[name]}")
    return cast("Kind", module.KINDS[name])
