"""Every kind of server by the name that tests use."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tests.services.kind import Kind

# A module is imported only when its server is wanted: each brings a driver, which takes its time.
MODULES = {
    "cloudflare": "workerd",
    "dynamodb": "http",
    "etcd": "etcd",
    "haproxy": "proxies",
    "haproxy-primary": "proxies",
    "libsql": "http",
    "mongodb": "mongodb",
    "mongodb-member": "mongodb",
    "mysql": "mariadb",
    "nginx": "proxies",
    "pgbouncer": "pgbouncer",
    "postgresql": "postgresql",
    "prometheus": "prometheus",
    "redis": "valkey",
    "redis-node": "valkey",
    "redis7": "valkey",
    "sentinel": "valkey",
    "standby": "postgresql",
}

IN_FRONT = frozenset(
    {"haproxy", "haproxy-primary", "mongodb-member", "nginx", "prometheus", "redis-node", "sentinel", "standby"}
)
"""Those that belong to a server of the test's own, and nowhere else: `private(kind, behind=url)`.

Prometheus stands behind nothing: it looks at what the settings name that are passed as ``behind``.
"""


@functools.cache
def kind(name: str) -> Kind:
    """Return a kind of server."""
    module = importlib.import_module(f"tests.services.{MODULES[name]}")
    return cast("Kind", module.KINDS[name])
