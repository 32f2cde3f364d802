"""What a URL says about a MySQL or MariaDB server, and the names of the tables there."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self

from msgspec import Struct

if TYPE_CHECKING:
    from standfast.stores.remote.addresses import Address

PORT: Final = 3306
KNOWN: Final = ("prefix", "timeout", "connect_timeout", "pool", "migrate", "tls", "tls_ca")
LONGEST_TIMEOUT: Final = 300.0

_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)
_UNFIT: Final = re.compile(r"[`\x00-\x1f]")


class Names(Struct, frozen=True):
    """The tables, quoted, as they stand in statements."""

    records: str
    attempts: str
    facts: str
    plain: tuple[str, ...]
    """The same without quotes."""

    @classmethod
    def of(cls, prefix: str) -> Self:
        """Return the names that begin with ``prefix``, which was checked."""
        plain = (f"{prefix}_records", f"{prefix}_attempts", f"{prefix}_facts")
        records, attempts, facts = (f"`{name}`" for name in plain)
        return cls(records, attempts, facts, plain)


class Options(Struct, frozen=True):
    """Where the server is and how to treat it. Its ``repr`` shows no secret."""

    name: str
    """The URL, without secrets."""
    host: str
    port: int
    user: str
    password: Callable[[], str]
    """Asked for every new connection."""
    database: str
    prefix: str
    timeout: float
    connect_timeout: float
    pool: int
    migrate: bool
    tls: ssl.SSLContext | None

    def __repr__(self) -> str:
        return f"<Options {self.name}>"

    @property
    def names(self) -> Names:
        """The tables."""
        return Names.of(self.prefix)


def read_options(address: Address) -> Options:
    """Take everything that a URL may say.

    Raises:
        InvalidUrlError: It says something else, or not enough.
    """
    host, port = address.host(PORT)
    database, user = address.path(), address.user
    if not user:
        raise address.refuse("name the user, in front of the host and an @")
    if not database or "/" in database or _UNFIT.search(database):
        raise address.refuse("name the database, behind the host: /database")
    options = Options(
        name=address.name,
        host=host,
        port=port,
        user=user,
        password=lambda: address.password or "",
        database=database,
        prefix=address.take("prefix", _prefix, "standfast", "a lower-case name of at most 31 letters, digits and _"),
        timeout=_limited(address, "timeout"),
        connect_timeout=_limited(address, "connect_timeout"),
        pool=address.take_count("pool", 4, most=100),
        migrate=address.take_flag("migrate", default=True),
        tls=address.tls(default=False),
    )
    address.finish(*KNOWN)
    return options


def _limited(address: Address, name: str) -> float:
    given = address.take_seconds(name, 5.0)
    if not 0 < given <= LONGEST_TIMEOUT:
        raise address.refuse(f"{name} is a duration of at most {LONGEST_TIMEOUT:g} s, for example 5s")
    return given


def _prefix(given: str) -> str:
    if not _PREFIX.fullmatch(given):
        raise ValueError(given)
    return given
