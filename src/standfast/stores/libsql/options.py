"""What the URL of a libSQL server says."""

from __future__ import annotations

import re
import ssl
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from standfast.stores.remote.addresses import Address

SECURE_PORT: Final = 443
PLAIN_PORT: Final = 8080
_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}")
_KNOWN: Final = ("tls", "tls_ca", "timeout", "connect_timeout", "pool", "prefix", "migrate", "durable", "authToken")


class Options(Struct, frozen=True):
    """Where the server is, and how to talk to it. No secret is in it, only the way to one."""

    name: str
    """The URL as it may be shown."""
    url: str
    authorization: Callable[[], str | None]
    """Returns the header that opens the door, as it is now."""
    tls: ssl.SSLContext | None
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 8
    prefix: str = "standfast_"
    migrate: bool = True
    durable: str = "check"


def read_options(address: Address) -> Options:
    """Read a URL: ``libsql://[:token@]host[:port][?tls=false&...]``.

    Raises:
        InvalidUrlError: Something in it cannot be used.
    """
    tls = address.tls(default=True)
    host, port = address.host(PLAIN_PORT if tls is None else SECURE_PORT)
    if address.path():
        raise address.refuse("a libSQL server has one database a host name; leave out what follows the host")
    token = address.take_text("authToken")
    options = Options(
        name=address.name,
        url=f"{'http' if tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}",
        authorization=lambda: _authorization(address, (address.password or token).strip()),
        tls=tls,
        timeout=address.take_seconds("timeout", 5.0),
        connect_timeout=address.take_seconds("connect_timeout", 5.0),
        pool=address.take_count("pool", 8, most=100),
        prefix=address.take("prefix", _prefix, "standfast_", "lower-case letters, digits and _, at most 31"),
        migrate=address.take_flag("migrate", default=True),
        durable=address.take_choice("durable", ("check", "true", "false"), "check"),
    )
    address.finish(*_KNOWN)
    return options


def _prefix(given: str) -> str:
    if _PREFIX.fullmatch(given) is None:
        raise ValueError(given)
    return given


def _authorization(address: Address, secret: str) -> str | None:
    if not secret:
        return None
    if not (secret.isascii() and secret.isprintable()):
        raise address.refuse("the token has characters in it that no header may have; is it the whole file of a key?")
    return f"Basic {b64encode(f'{address.user}:{secret}'.encode()).decode()}" if address.user else f"Bearer {secret}"
