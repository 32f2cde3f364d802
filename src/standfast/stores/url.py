"""From a URL to a store. A driver is imported only when its scheme is asked for."""

from __future__ import annotations

import difflib
import importlib
import ipaddress
import logging
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from standfast.clock import SYSTEM_CLOCK
from standfast.durations import seconds, typed
from standfast.errors import InvalidUrlError, MissingExtraError, StandfastError
from standfast.events import Hooks, StoreNotEncrypted
from standfast.redaction import mask_url
from standfast.stores.memory import open_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from standfast.clock import Clock
    from standfast.events import Hook
    from standfast.stores.encryption import Keyring
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.protocol import Store


# --- what opens a server's door, kept out of its URL and out of sight ----------------------------------------------


@final
class Credentials:
    """A password and a TLS context for a server, so that neither has to stand in a URL. Its ``repr`` shows neither.

    Args:
        password: The password, or a function that returns it: called for every new connection, so that a password
            that is changed now and then, or a token that runs out, is taken up. (MongoDB and DynamoDB: when a store is
            opened.)
        tls: True or False in place of the URL's ``tls=``, or an ``ssl.SSLContext``, for example one with a client's
            certificate. (MongoDB takes no context; see the options of its URL.)

    >>> import standfast as sf
    >>> sf.Credentials(password="hunter2")
    <Credentials with a password>
    """

    __slots__ = ("_password", "tls")

    def __init__(
        self, password: str | Callable[[], str] | None = None, *, tls: ssl.SSLContext | bool | None = None
    ) -> None:
        self._password: Final = password
        self.tls: Final = tls

    def password(self) -> str | None:
        """Return the password to use now."""
        return self._password() if callable(self._password) else self._password

    def __repr__(self) -> str:
        return f"<Credentials with{'out' if self._password is None else ''} a password>"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("credentials are not copied to another process; make them there")


NO_CREDENTIALS: Final = Credentials()

_NO_TLS: Final = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "UNEXPECTED_EOF",
    "rejected SSL upgrade",
    "SSL handshake failed",
)


def tls_error(said: str) -> str:
    """Return what a driver's words mean if they are about TLS, and what to do; empty if they are not.

    Drivers wrap what Python says of a failed handshake in errors of their own, and only the words are left of it.
    """
    if "CERTIFICATE_VERIFY_FAILED" in said:
        if "mismatch" in said:
            return "its certificate is for another name; connect by the name that it has"
        return "its certificate is not trusted; name its authority with ?tls_ca=, or pass a TLS context"
    return "TLS could not be agreed on; does it speak TLS there?" if any(sign in said for sign in _NO_TLS) else ""


# --- the address of a server, read from a URL: what it says, and nothing of it in a log ----------------------------

T = TypeVar("T")

_LAST_PORT: Final = 65_535
_TRUE_OR_FALSE: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@final
class Address:
    """A parsed URL. Its ``repr`` and :attr:`name` show no secret.

    Options are taken one by one; :meth:`finish` refuses those that nobody took.

    Attributes:
        name: The URL, without secrets.
        is_plain: Connections are not encrypted, as far as the options were taken.
    """

    __slots__ = ("_credentials", "_left", "_parts", "_url", "is_plain", "name")

    def __init__(self, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._url: Final = url
        self._parts: Final = urllib.parse.urlsplit(url)
        self._credentials: Final = credentials
        self._left: Final = dict(urllib.parse.parse_qsl(self._parts.query, keep_blank_values=True))
        self.name: Final = mask_url(url)
        self.is_plain = False

    def __repr__(self) -> str:
        return f"<Address {self.name}>"

    def refuse(self, problem: str) -> InvalidUrlError:
        """Return the error that says what is wrong with the URL."""
        return InvalidUrlError(self._url, problem)

    @property
    def scheme(self) -> str:
        """What comes before ``://``."""
        return self._parts.scheme

    @property
    def user(self) -> str | None:
        """The user's name."""
        return None if self._parts.username is None else urllib.parse.unquote(self._parts.username)

    @property
    def password(self) -> str | None:
        """The password to use now: from the credentials, else from the URL. Never show it, and ask each time."""
        given = self._credentials.password()
        if given is not None:
            return given
        return None if self._parts.password is None else urllib.parse.unquote(self._parts.password)

    @property
    def has_host(self) -> bool:
        """Whether a host is named at all."""
        return bool(self._parts.netloc.rpartition("@")[2])

    def hosts(self, default_port: int) -> list[tuple[str, int]]:
        """Return the hosts and ports, one or several with commas between them."""
        hosts = [_host(each, default_port) for each in self._parts.netloc.rpartition("@")[2].split(",")]
        found = [each for each in hosts if each is not None]
        if len(found) != len(hosts):
            raise self.refuse(f"a host is written name:port, for example localhost:{default_port}")
        return found

    def host(self, default_port: int) -> tuple[str, int]:
        """Return the one host and port."""
        hosts = self.hosts(default_port)
        if len(hosts) != 1:
            raise self.refuse("name one host")
        return hosts[0]

    def path(self) -> str:
        """Return what follows the host, without its slash, decoded: a database, mostly."""
        return urllib.parse.unquote(self._parts.path.removeprefix("/"))

    # --- options -----------------------------------------------------------------------------------------------

    def take(self, name: str, read: Callable[[str], T], default: T, expected: str) -> T:
        """Take an option out of the query; ``read`` raises ``ValueError`` for what it does not like."""
        if name not in self._left:
            return default
        given = self._left.pop(name)
        try:
            return read(given)
        except (ValueError, KeyError, StandfastError):
            raise self.refuse(f"{name} is {expected}") from None

    def take_text(self, name: str, default: str = "") -> str:
        """Take an option that is any text."""
        return self.take(name, str, default, "text")

    def take_seconds(self, name: str, default: float) -> float:
        """Take a duration: ``5``, ``500ms``, ``2m``."""
        return self.take(name, lambda given: seconds(typed(given)), default, "a duration, for example 5s or 500ms")

    def take_count(self, name: str, default: int, *, most: int = 1_000) -> int:
        """Take a number from 1 to ``most``."""
        return self.take(name, _between(1, most), default, f"a number from 1 to {most:,}")

    def take_flag(self, name: str, *, default: bool) -> bool:
        """Take yes or no."""
        return self.take(name, lambda given: _TRUE_OR_FALSE[given.lower()], default, "true or false") is True

    def take_choice(self, name: str, choices: Sequence[str], default: str) -> str:
        """Take one of several words."""

        def among(given: str) -> str:
            if given not in choices:
                raise ValueError(given)
            return given

        return self.take(name, among, default, f"one of {', '.join(choices)}")

    def rest(self) -> Mapping[str, str]:
        """Take all options that are left, for a driver that reads them itself."""
        left = dict(self._left)
        self._left.clear()
        return left

    def finish(self, *known: str) -> None:
        """Refuse the options that nobody took, and a fragment."""
        if self._left:
            name = next(iter(self._left))
            raise self.refuse(f"unknown option {name!r}; there are {', '.join(known)}")
        if self._parts.fragment:
            raise self.refuse("a '#' in a URL is written %23")

    def tls(self, *, default: bool) -> ssl.SSLContext | None:
        """Take the options ``tls`` and ``tls_ca``: a context for an encrypted connection, or None for a plain one.

        Certificates and names are checked, unless the caller passed a context that does not.
        """
        authority = self.take_text("tls_ca")
        wanted = self.take_flag("tls", default=default or bool(authority))
        given = self._credentials.tls
        if authority and (given is False or not wanted or isinstance(given, ssl.SSLContext)):
            raise self.refuse(
                "tls_ca names the authority to trust; with tls=false or a TLS context it would be ignored"
            )
        self.is_plain = not (wanted if given is None else given)
        if isinstance(given, ssl.SSLContext):
            return given
        return None if self.is_plain else self._context(authority)

    @property
    def exposed(self) -> tuple[str, ...]:
        """The hosts on other machines that are connected to without TLS."""
        if not self.is_plain or not self.has_host:
            return ()
        return tuple(host for host, _ in self.hosts(0) if not is_this_machine(host))

    def _context(self, authority: str) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=authority or None)
        except OSError as problem:
            raise self.refuse(f"tls_ca names a file with certificates (PEM): {problem.strerror or problem}") from None


def is_this_machine(host: str) -> bool:
    """Return True if what is sent to a host does not leave this machine: a loopback address, or a unix socket."""
    name = urllib.parse.unquote(host).lower()
    if name.startswith("/") or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host(text: str, default_port: int) -> tuple[str, int] | None:
    host, bracket, rest = text.rpartition("]") if text.startswith("[") else ("", "", text)
    name, _, port = (host.removeprefix("["), "", rest.removeprefix(":")) if bracket else rest.partition(":")
    if not port:
        return (name or "localhost"), default_port
    return (name or "localhost", int(port)) if port.isascii() and port.isdigit() and int(port) <= _LAST_PORT else None


def _between(least: int, most: int) -> Callable[[str], int]:
    def read(given: str) -> int:
        number = int(given)
        if not least <= number <= most:
            raise ValueError(given)
        return number

    return read


# --- from a URL to a store. A driver is imported only when its scheme is asked for ---------------------------------

_log: Final = logging.getLogger("standfast.stores")

EXAMPLES: Final[Mapping[str, str]] = {
    "sqlite": "sqlite:///standfast.db",
    "memory": "memory://",
    "postgresql": "postgresql://host/database",
    "redis": "redis://host",
    "mysql": "mysql://host/database",
    "mongodb": "mongodb://host/database",
    "dynamodb": "dynamodb:///table?region=eu-central-1",
    "libsql": "libsql://host",
}
"""The schemes that can be opened, each with something to type."""

_SERVERS: Final[Mapping[str, tuple[str, str, str]]] = {
    "postgresql": ("postgresql", "postgresql", "asyncpg"),
    "postgres": ("postgresql", "postgresql", "asyncpg"),
    "redis": ("redis", "redis", "redis"),
    "rediss": ("redis", "redis", "redis"),
    "valkey": ("redis", "redis", "redis"),
    "valkeys": ("redis", "redis", "redis"),
    "mysql": ("mysql", "mysql", "asyncmy"),
    "mariadb": ("mysql", "mysql", "asyncmy"),
    "mongodb": ("mongodb", "mongodb", "pymongo"),
    "mongodb+srv": ("mongodb", "mongodb", "pymongo"),
    "dynamodb": ("dynamodb", "dynamodb", "aiobotocore"),
    "libsql": ("libsql", "libsql", "aiohttp"),
}
"""The schemes of servers: the module that opens them, the extra that installs the driver, and the driver."""

_DESIGNED: Final = frozenset({"mssql", "sqlserver"})
"""Schemes of a server that there is a design for, and no store."""

_SQLITE_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
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
            ``memory://`` or ``memory://name``, or a server: ``postgresql://``, ``redis://``, ``mysql://``,
            ``mongodb://``, ``dynamodb://``, ``libsql://``.
        clock: Where the store's time comes from; for tests. A server's time is its own.
        credentials: For a server: its password and TLS context, where they are not to stand in the URL.
        hooks: Called with what happens in the store: slow commits, unknown outcomes, checkpoints.

    Raises:
        InvalidUrlError: The URL cannot be used; the message says what to type.
        MissingExtraError: The driver is not installed; the message is the command to type.
    """
    if not isinstance(url, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidUrlError(type(url).__name__, f"a store URL is text, for example {EXAMPLES['sqlite']!r}")
    scheme, separator, _ = url.partition("://")
    if not separator or (scheme not in EXAMPLES and scheme not in _SERVERS):
        raise InvalidUrlError(url, _what_to_type(url, scheme))
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as problem:
        raise InvalidUrlError(url, str(problem)) from None
    if scheme in _SERVERS:
        return await _open_server(url, scheme, clock, Hooks(hooks), credentials or NO_CREDENTIALS)
    if credentials is not None:
        raise InvalidUrlError(url, "only a server takes credentials")
    if scheme == "memory":
        return open_memory(_memory_name(url, parts), clock=clock, hooks=Hooks(hooks))
    return await _open_sqlite(url, parts, clock, Hooks(hooks))


async def _open_server(url: str, scheme: str, clock: Clock, hooks: Hooks, credentials: Credentials) -> GroupedStore:
    name, extra, driver = _SERVERS[scheme]
    if clock is not SYSTEM_CLOCK:
        raise InvalidUrlError(url, "a server goes by its own time; no other clock can be given to it")
    try:
        module = importlib.import_module(f"standfast.stores.{name}")  # rule: the name comes from the fixed table above
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != driver:
            raise
        raise MissingExtraError(scheme, f"standfast[{extra}]") from problem
    address = Address(url, credentials)
    store: GroupedStore = await module.open_address(address, hooks=hooks)
    if address.exposed:
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


def _memory_name(url: str, parts: urllib.parse.SplitResult) -> str:
    if parts.path not in {"", "/"} or parts.query:
        raise InvalidUrlError(url, "write memory:// for a private store or memory://name for one shared in the process")
    return urllib.parse.unquote(parts.netloc)


async def _open_sqlite(url: str, parts: urllib.parse.SplitResult, clock: Clock, hooks: Hooks) -> GroupedStore:
    path = _sqlite_path(url, parts)
    chosen = _sqlite_options(url, parts.query)
    try:
        from standfast.stores import sqlite  # noqa: PLC0415 -- the driver is loaded only when it is asked for
    except ModuleNotFoundError as problem:
        if problem.name != "apsw":
            raise
        raise MissingExtraError("sqlite", "apsw") from problem
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


def _sqlite_options(url: str, query: str) -> dict[str, Any]:
    given = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
    chosen: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _SQLITE_OPTIONS:
            raise InvalidUrlError(url, f"unknown option {name!r}; there are {', '.join(_SQLITE_OPTIONS)}")
        if name == "busy":
            chosen["busy_seconds"] = _busy(url, value)
        elif value not in (choices := _SQLITE_OPTIONS[name]):
            raise InvalidUrlError(url, f"{name} is one of {', '.join(choices)}, not {value!r}")
        else:
            chosen[name] = value
    return chosen


def _busy(url: str, value: str) -> float:
    try:
        return seconds(typed(value))
    except StandfastError as problem:
        raise InvalidUrlError(url, f"busy: {problem}") from problem


def encrypted(store: Store, keyring: Keyring) -> Store:
    """Return a store that keeps everything sealed with some keys."""
    from standfast.stores.encryption import EncryptedStore  # noqa: PLC0415 -- needed only with keys

    return EncryptedStore(store, keyring)
