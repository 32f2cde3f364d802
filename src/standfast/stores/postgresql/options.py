"""Where a PostgreSQL server is, and how it is to be used: what a URL says."""

from __future__ import annotations

import re
import ssl
import urllib.parse
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, structs

if TYPE_CHECKING:
    from standfast.stores.remote.addresses import Address

PORT: Final = 5432
KNOWN: Final = ("schema", "timeout", "connect_timeout", "pooler", "listen", "migrate", "lifeline", "tls", "tls_ca")

_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)


class Target(Struct, frozen=True):
    """Where to connect, and as whom. Its ``repr`` shows no password."""

    host: str
    port: int
    user: str | None
    password: str | Callable[[], str] | None
    database: str | None
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"Target({self.host}:{self.port}/{self.database})"


class Options(Struct, frozen=True):
    """How to use the server.

    Attributes:
        target: Where it is; perhaps a pooler in front of it.
        listening: Where to listen for hints: without a pooler in between. None: as ``target``.
        schema: The schema that everything of this store lies in.
        timeout: The most seconds that a call may take.
        connect_timeout: The most seconds that connecting may take.
        pooler: ``transaction`` if sessions end with transactions; ``auto`` finds out.
        migrate: Whether to create or change the schema where that is needed; otherwise it is only looked at.
        lifeline: Whether others may see by a session of this process that it has died, where there is a direct one.
    """

    target: Target
    listening: Target | None = None
    schema: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pooler: Literal["auto", "none", "transaction"] = "auto"
    migrate: bool = True
    lifeline: bool = True

    def __post_init__(self) -> None:
        """Refuse a name that would have to be escaped, or that PostgreSQL would cut off."""
        if not _IDENTIFIER.fullmatch(self.schema):
            raise ValueError("a schema is up to 31 of a-z, 0-9 and _, and begins with no digit")


def read_options(address: Address) -> Options:
    """Read the URL of a server."""
    host, port = address.host(PORT)
    password = None if address.password is None else lambda: address.password or ""  # asked for each connection
    target = Target(host, port, address.user, password, address.path() or None, address.tls(default=False))
    listen = address.take_text("listen")
    pooler = address.take_choice("pooler", ("auto", "none", "transaction"), "auto")
    options = Options(
        target,
        _listening(address, target, listen) if listen else None,
        address.take("schema", _identifier, "standfast", "up to 31 of a-z, 0-9 and _, beginning with no digit"),
        _limit(address, "timeout"),
        _limit(address, "connect_timeout"),
        "transaction" if pooler == "transaction" else "none" if pooler == "none" else "auto",
        address.take_flag("migrate", default=True),
        address.take_flag("lifeline", default=True),
    )
    address.finish(*KNOWN)
    return options


def _limit(address: Address, name: str) -> float:
    given = address.take_seconds(name, 5.0)
    if given <= 0:
        raise address.refuse(f"{name} is longer than nothing")
    return given


def _identifier(given: str) -> str:
    if not _IDENTIFIER.fullmatch(given):
        raise ValueError(given)
    return given


def _listening(address: Address, target: Target, listen: str) -> Target:
    """Return the target of ``listen=``: ``host:port``, or a URL whose parts replace those of the main one."""
    try:
        parts = urllib.parse.urlsplit(listen if "://" in listen else f"//{listen}")
        direct = structs.replace(target, host=parts.hostname or target.host, port=parts.port or PORT)
    except ValueError:
        raise address.refuse("listen is host:port, or a URL") from None
    if parts.username is not None:
        direct = structs.replace(direct, user=urllib.parse.unquote(parts.username))
    if parts.password is not None:
        direct = structs.replace(direct, password=urllib.parse.unquote(parts.password))
    database = urllib.parse.unquote(parts.path.removeprefix("/"))
    return structs.replace(direct, database=database) if database else direct
