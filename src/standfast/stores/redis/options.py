"""The options of a Redis URL."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from standfast.stores.remote.addresses import Address

DEFAULT_PORT: Final = 6379
_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)
_KNOWN: Final = (
    "prefix",
    "timeout",
    "connect_timeout",
    "pool",
    "replicas",
    "cluster",
    "durable",
    "unchecked",
    "tls",
    "tls_ca",
)


class Options(Struct, frozen=True):
    """What a URL asks for. It holds no secret."""

    hosts: tuple[tuple[str, int], ...]
    database: int = 0
    prefix: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 8
    replicas: int = 0
    """How many replicas must have a commit before it is answered."""
    cluster: bool = False
    """Whether all keys of a namespace must lie in one slot; found out if the server is a cluster's node."""
    durable: str = "check"
    """Whether to look at the server's persistence, or what to believe of it: ``true``, ``false``."""
    unchecked: bool = False
    """Whether to go on where the server does not tell its eviction policy."""
    tls: ssl.SSLContext | None = None


def read_options(address: Address) -> Options:
    """Read the options of ``address``; raises ``InvalidUrlError``."""
    options = Options(
        hosts=tuple(address.hosts(DEFAULT_PORT)),
        database=_database(address),
        prefix=address.take("prefix", _prefix, "standfast", "a-z, 0-9 and _, up to 31 of them, no digit first"),
        timeout=address.take_seconds("timeout", 5.0),
        connect_timeout=address.take_seconds("connect_timeout", 5.0),
        pool=address.take_count("pool", 8, most=1_000),
        replicas=address.take_count("replicas", 0, most=100),
        cluster=address.take_flag("cluster", default=False),
        durable=address.take_choice("durable", ("check", "true", "false"), "check"),
        unchecked=address.take_flag("unchecked", default=False),
        tls=address.tls(default=address.scheme in {"rediss", "valkeys"}),
    )
    address.finish(*_KNOWN)
    if options.database and options.cluster:
        raise address.refuse("a cluster has database 0 only")
    return options


def _prefix(given: str) -> str:
    if not _PREFIX.fullmatch(given):
        raise ValueError(given)
    return given


def _database(address: Address) -> int:
    path = address.path()
    if not path:
        return 0
    if not (path.isascii() and path.isdigit()):
        raise address.refuse("the database is a number, for example redis://localhost:6379/0")
    return int(path)
