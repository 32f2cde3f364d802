"""Opening a store by its URL. A driver is imported only when its scheme is asked for."""

from __future__ import annotations

import difflib
import importlib
import logging
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from standfast.clock import SYSTEM_CLOCK
from standfast.durations import seconds, typed
from standfast.errors import InvalidUrlError, MissingExtraError, StandfastError
from standfast.events import StoreNotEncrypted
from standfast.log_hook import with_log
from standfast.stores.address import NO_CREDENTIALS, Address, Credentials, split_url
from standfast.stores.memory import open_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from standfast.clock import Clock
    from standfast.events import Hook, Hooks
    from standfast.stores.encryption import Keyring
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.protocol import Store


# --- opening -------------------------------------------------------------------------------------------------------

_log: Final = logging.getLogger("standfast.stores")

EXAMPLES: Final[Mapping[str, str]] = {
    "sqlite": "sqlite:///standfast.db",
    "memory": "memory://",
    "postgresql": "postgresql://host/database",
    "redis": "redis://host",
    "redis+sentinel": "redis+sentinel://host,host,host/name",
    "mysql": "mysql://host/database",
    "mongodb": "mongodb://host/database",
    "dynamodb": "dynamodb:///table?region=eu-central-1",
    "libsql": "libsql://host",
    "cloudflare": "cloudflare://host",
    "etcd": "etcd://host,host,host/namespace",
}
"""The schemes that can be opened, each with something to type."""

_SERVERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "postgresql": ("postgresql", "postgresql", "asyncpg"),
    "postgres": ("postgresql", "postgresql", "asyncpg"),
    "redis": ("redis", "redis", "redis"),
    "rediss": ("redis", "redis", "redis"),
    "valkey": ("redis", "redis", "redis"),
    "valkeys": ("redis", "redis", "redis"),
    "redis+sentinel": ("redis", "redis", "redis"),
    "rediss+sentinel": ("redis", "redis", "redis"),
    "valkey+sentinel": ("redis", "redis", "redis"),
    "valkeys+sentinel": ("redis", "redis", "redis"),
    "mysql": ("mysql", "mysql", "asyncmy"),
    "mariadb": ("mysql", "mysql", "asyncmy"),
    "mongodb": ("mongodb", "mongodb", "pymongo"),
    "mongodb+srv": ("mongodb", "mongodb", "pymongo"),
    "dynamodb": ("dynamodb", "dynamodb", "aiobotocore"),
    "libsql": ("libsql", "libsql", "aiohttp"),
    "cloudflare": ("cloudflare", "cloudflare", "aiohttp"),
    "etcd": ("etcd", "etcd", "aiohttp"),
}
"""The schemes of servers: the module that opens them, the extra that installs the driver, and the driver."""

_DESIGNED: Final = frozenset({"mssql", "sqlserver"})
"""Schemes of a server that there is a design for, and no store."""

SQLITE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "busy": (),
    "network": ("refuse", "allow"),
    "others": ("refuse", "allow"),
    "commits": ("auto", "loop", "thread"),
    "hints": ("machine", "process"),
    "folder": ("refuse", "create"),
}


async def open_store(
    url: str,
    *,
    clock: Clock = SYSTEM_CLOCK,
    hooks: Iterable[Hook] = (),
    credentials: Credentials | None = None,
) -> GroupedStore:
    """Open the store that ``url`` names, on the running event loop.

    Args:
        url: ``sqlite:///standfast.db`` (relative to the working folder), ``sqlite:////srv/standfast.db`` (absolute),
            ``memory://`` or ``memory://name``, or a server: ``postgresql://``, ``redis://``, ``redis+sentinel://``,
            ``mysql://``, ``mongodb://``, ``dynamodb://``, ``libsql://``, ``etcd://``, ``cloudflare://``.
        clock: Where the store's time comes from; for tests. A server's time is its own.
        credentials: For a server: its password and TLS context, where they are not to stand in the URL.
        hooks: Called with what happens in the store: slow commits, unknown outcomes, checkpoints.

    Raises:
        InvalidUrlError: The URL cannot be used; the message says what to type.
        MissingExtraError: The driver is not installed; the message is the command to type.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidUrlError(type(url).__name__, f"a store URL is text, for example {EXAMPLES['sqlite']!r}")
    if url != url.strip(" "):  # a file of that name would be another one, without any error
        raise InvalidUrlError(url, "it begins or ends with a space; leave that out, or write %20 in the name of a file")
    scheme, separator, _ = url.partition("://")
    if not separator or (scheme not in EXAMPLES and scheme not in _SERVERS):
        raise InvalidUrlError(url, _what_to_type(url, scheme))
    try:
        parts = split_url(url)
    except ValueError as error:
        raise InvalidUrlError(url, str(error)) from None
    if scheme in _SERVERS:
        return await _open_server(url, scheme, clock, with_log(hooks), credentials or NO_CREDENTIALS)
    if credentials is not None:
        raise InvalidUrlError(url, "only a server takes credentials")
    if scheme == "memory":
        if parts.path not in {"", "/"} or parts.query:
            raise InvalidUrlError(
                url, "write memory:// for a private store or memory://name for one shared in the process"
            )
        return open_memory(urllib.parse.unquote(parts.netloc), clock=clock, hooks=with_log(hooks))
    return await _open_sqlite(url, parts, clock, with_log(hooks))


async def _open_server(url: str, scheme: str, clock: Clock, hooks: Hooks, credentials: Credentials) -> GroupedStore:
    name, extra, driver = _SERVERS[scheme]
    if clock is not SYSTEM_CLOCK:
        raise InvalidUrlError(url, "a server goes by its own time; no other clock can be given to it")
    try:
        module = importlib.import_module(f"standfast.stores.{name}")  # rule: the name comes from the fixed table above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != driver:
            raise
        raise MissingExtraError(scheme, f"standfast[{extra}]") from error
    address = Address(url, credentials)
    store: GroupedStore = await module.open_address(address, hooks=hooks)
    if address.exposed:
        if hooks:  # the line below says more than the event does in a log
            hooks.emit(StoreNotEncrypted(at=SYSTEM_CLOCK.wall(), store=address.name, hosts=address.exposed))
        _log.warning("%s is on another machine and is used without TLS; add ?tls=true to its URL", address.name)
    return store


def file_of(url: str) -> str | None:
    """Return the file that a URL names, without looking for it; None if it names none.

    Raises:
        InvalidUrlError: The URL of a file cannot be used.
    """
    return _sqlite_path(url, urllib.parse.urlsplit(url)) if url.startswith("sqlite://") else None


def _what_to_type(url: str, scheme: str) -> str:
    if url.startswith("sqlite:") and "://" not in url:
        return f"three slashes are needed: {'sqlite:///' + url.removeprefix('sqlite:')!r}"
    if "://" not in url:
        return f"it has no scheme; for a file write {f'sqlite:///{url}'!r}"
    if scheme.lower() in _DESIGNED:
        return (
            f"{scheme}:// (Microsoft SQL Server) is designed and not shipped; decision record ADR 0067"
            " (docs/adr/0067-sql-server-is-designed-not-shipped.md) says why and what is missing."
            f" Write one of {', '.join(map(repr, EXAMPLES.values()))}"
        )
    close = difflib.get_close_matches(scheme.lower(), EXAMPLES, n=1)
    if close:
        return f"unknown scheme {scheme!r}; did you mean {EXAMPLES[close[0]]!r}?"
    return f"unknown scheme {scheme!r}; write one of {', '.join(map(repr, EXAMPLES.values()))}"


async def _open_sqlite(url: str, parts: urllib.parse.SplitResult, clock: Clock, hooks: Hooks) -> GroupedStore:
    path = _sqlite_path(url, parts)
    chosen: dict[str, Any] = {}
    for name, value in dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True)).items():
        if name not in SQLITE_OPTIONS:
            raise InvalidUrlError(url, f"unknown option {name!r}; there are {', '.join(SQLITE_OPTIONS)}")
        if name == "busy":
            try:
                chosen["busy_seconds"] = seconds(typed(value))
            except StandfastError as error:
                raise InvalidUrlError(url, f"busy: {error}") from error
        elif value not in (choices := SQLITE_OPTIONS[name]):
            raise InvalidUrlError(url, f"{name} is one of {', '.join(choices)}, not {value!r}")
        else:
            chosen[name] = value
    try:
        from standfast.stores import sqlite  # noqa: PLC0415 -- the driver is loaded only when it is asked for
    except ModuleNotFoundError as error:
        if error.name != "apsw":
            raise
        raise MissingExtraError("sqlite", "apsw") from error
    return await sqlite.open_sqlite(path, sqlite.SqliteOptions(**chosen), clock=clock, hooks=hooks)


def _sqlite_path(url: str, parts: urllib.parse.SplitResult) -> str:
    if parts.netloc:
        fixed = f"sqlite:///{parts.netloc.rpartition('@')[2]}{parts.path}"
        raise InvalidUrlError(url, f"a file has no host, so three slashes are needed: {fixed!r}")
    if parts.fragment:
        raise InvalidUrlError(url, "a '#' in a file name is written %23")
    try:
        path = urllib.parse.unquote(parts.path.removeprefix("/"), errors="strict")
        path.encode()
    except UnicodeError:
        raise InvalidUrlError(
            url.encode("ascii", "backslashreplace").decode(), "the name of the file is not text in UTF-8"
        ) from None
    if not path or path.endswith("/") or "\0" in path or ":memory:" in path:
        raise InvalidUrlError(url, f"name a file, for example {EXAMPLES['sqlite']!r}; for memory write 'memory://'")
    return path


def encrypted(store: Store, keyring: Keyring) -> Store:
    """Return a store that keeps everything sealed with some keys."""
    from standfast.stores.encryption import EncryptedStore  # noqa: PLC0415 -- needed only with keys

    return EncryptedStore(store, keyring)
