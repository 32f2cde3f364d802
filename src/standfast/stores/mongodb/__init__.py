"""MongoDB: a replica set as a store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.stores.mongodb.server import MongoServer
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.url import Address

__all__ = ["MongoServer", "open_address"]


# --- the options of a MongoDB URL ----------------------------------------------------------------------------------

DEFAULT_PORT: Final = 27_017
_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)
_DATABASE: Final = re.compile(r"[^/\\. \"$*<>:|?\0]{1,63}")
_DRIVERS: Final = (
    "replicaSet",
    "directConnection",
    "authSource",
    "authMechanism",
    "tlsCAFile",
    "tlsCertificateKeyFile",
)
_KNOWN: Final = ("prefix", "timeout", "connect_timeout", "pool", "migrate", "reads", "tls", "tls_ca", *_DRIVERS)


class MongoOptions(Struct, frozen=True):
    """What a URL asks for. It holds no secret."""

    hosts: tuple[str, ...]
    database: str
    is_srv: bool = False
    prefix: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 10
    migrate: bool = True
    linearizable: bool = False
    """Whether a read makes sure that the server that answers is still the primary."""
    tls: bool = False
    driver: dict[str, Any] = {}
    """What the driver reads itself: the name of the replica set, where users are kept, certificates."""


def read_options(address: Address) -> MongoOptions:
    """Read the options of ``address``; raises ``InvalidUrlError``."""
    is_srv, driver = address.scheme == "mongodb+srv", _for_the_driver(address)
    options = MongoOptions(
        hosts=tuple([f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in _hosts(address)]),
        database=_database(address),
        is_srv=is_srv,
        prefix=address.take("prefix", _prefix, "standfast", "a-z, 0-9 and _, up to 31 of them, no digit first"),
        timeout=address.take_seconds("timeout", 5.0),
        connect_timeout=address.take_seconds("connect_timeout", 5.0),
        pool=address.take_count("pool", 10),
        migrate=address.take_flag("migrate", default=True),
        linearizable=address.take_choice("reads", ("majority", "linearizable"), "majority") == "linearizable",
        tls=_tls(address, default=is_srv or "tlsCAFile" in driver),
        driver=driver,
    )
    address.finish(*_KNOWN)
    return options


def _hosts(address: Address) -> list[tuple[str, int]]:
    if address.scheme != "mongodb+srv":
        return address.hosts(DEFAULT_PORT)
    host, port = address.host(0)
    if port:
        raise address.refuse("mongodb+srv:// names a domain without a port")
    return [(host, DEFAULT_PORT)]


def _database(address: Address) -> str:
    database = address.path()
    if not _DATABASE.fullmatch(database):
        raise address.refuse("name a database after the host, for example mongodb://localhost:27017/standfast")
    return database


def _prefix(given: str) -> str:
    if not _PREFIX.fullmatch(given):
        raise ValueError(given)
    return given


def _tls(address: Address, *, default: bool) -> bool:
    context = address.tls(default=default)
    # Asked twice, a context of the caller's is the same one. The driver makes its own and takes none.
    if context is not None and context is address.tls(default=True):
        raise address.refuse("MongoDB's driver takes no TLS context; write ?tls_ca= and ?tlsCertificateKeyFile=")
    return context is not None


def _for_the_driver(address: Address) -> dict[str, Any]:
    given: dict[str, Any] = {name: text for name in _DRIVERS if (text := address.take_text(name))}
    authority = address.take_text("tls_ca")
    if authority:
        given["tlsCAFile"] = authority
    if "directConnection" in given:
        given["directConnection"] = given["directConnection"].lower() == "true"
    return given


# --- mongoDB: a replica set as a store -----------------------------------------------------------------------------


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the store at ``address``, on the running loop."""
    return open_remote(await MongoServer.connect(address, read_options(address)), hooks)
