"""Where the table is, and how it is talked to: read from a URL."""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from standfast.stores.remote.addresses import Address

SHORTEST_LEASE: Final = 10.0
"""Several times the second by which two processes may be apart in what they take for the time."""

_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}", re.ASCII)
_REGION: Final = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)
_HTTPS: Final = 443
_HTTP: Final = 80


class Options(Struct, frozen=True):
    """How a table is opened. Its ``repr`` shows no secret.

    Attributes:
        table: The name of the table.
        name: The store as shown to people.
        region: The region; empty: as the environment says (``AWS_REGION``, the profile).
        endpoint: The URL of a server of one's own; empty: the service.
        access: The access key id; empty: the usual chain of credentials.
        secret: The secret access key.
        tls: How connections are encrypted; None: they are not.
        timeout: How many seconds a request may take.
        connect_timeout: How many seconds connecting may take.
        pool: How many connections there are at most.
        create: Whether the table is created if it is missing.
        shortest_lease: The shortest lease, in seconds, that locks accept on this store. If it is short, opening the
            first handle of a process takes a second longer: the time must be known better.
    """

    table: str
    name: str = "dynamodb://"
    region: str = ""
    endpoint: str = ""
    access: str = ""
    secret: str = ""
    tls: ssl.SSLContext | None = None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 32
    create: bool = False
    shortest_lease: float = SHORTEST_LEASE

    def __repr__(self) -> str:
        return f"Options({self.name})"


def options_of(address: Address) -> Options:
    """Read the options out of a URL, and refuse what makes no sense."""
    tls = address.tls(default=True)
    options = Options(
        table=_table(address),
        name=address.name,
        region=_region(address),
        endpoint=_endpoint(address, tls),
        access=address.user or "",
        secret=address.password or "",
        tls=tls,
        timeout=address.take_seconds("timeout", 5.0),
        connect_timeout=address.take_seconds("connect_timeout", 5.0),
        pool=address.take_count("pool", 32),
        create=address.take_flag("create", default=False),
        shortest_lease=address.take_seconds("shortest_lease", SHORTEST_LEASE),
    )
    address.finish("region", "tls", "tls_ca", "timeout", "connect_timeout", "pool", "create", "shortest_lease")
    if bool(options.access) != bool(options.secret):
        raise address.refuse("give both an access key and its secret, or neither: then the usual chain is asked")
    return options


def _table(address: Address) -> str:
    table = address.path()
    if not _TABLE.fullmatch(table):
        raise address.refuse("name a table: 3 to 255 letters, digits, '_', '-' or '.', as in dynamodb:///standfast")
    return table


def _region(address: Address) -> str:
    default = "us-east-1" if address.has_host else ""
    region = address.take_text("region", default)
    if region and not _REGION.fullmatch(region):
        raise address.refuse("region is the name of a region, for example eu-central-1")
    return region


def _endpoint(address: Address, tls: ssl.SSLContext | None) -> str:
    if not address.has_host:
        return ""
    host, port = address.host(_HTTPS if tls else _HTTP)
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
