"""What the URL of a server says, and the secrets that are kept out of it and out of sight."""

from __future__ import annotations

import ipaddress
import math
import re
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Final, TypeVar, final

from standfast.durations import seconds, typed
from standfast.errors import InvalidUrlError, StandfastError
from standfast.redaction import mask_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

# --- credentials ---------------------------------------------------------------------------------------------------


@final
class Credentials:
    """A password and a TLS context for a server, so that neither has to stand in a URL. Its ``repr`` shows neither.

    Args:
        password: The password, or a function that returns it: called for every new connection, so that a password
            that is changed now and then, or a token that runs out, is taken up. (MongoDB and DynamoDB: when a store is
            opened.)
        tls: True or False in place of the URL's ``tls=``, or an ``ssl.SSLContext``, for example one with a client's
            certificate. (MongoDB takes no context; see the options of its URL.)
        sentinel_password: The password that sentinels of Redis have for themselves, or a function that returns it.

    >>> import standfast as sf
    >>> sf.admin.Credentials(password="hunter2")
    <Credentials with a password>
    """

    __slots__ = ("_password", "_sentinel_password", "tls")

    def __init__(
        self,
        password: str | Callable[[], str] | None = None,
        *,
        tls: ssl.SSLContext | bool | None = None,
        sentinel_password: str | Callable[[], str] | None = None,
    ) -> None:
        self._password: Final = password
        self._sentinel_password: Final = sentinel_password
        self.tls: Final = tls

    def password(self) -> str | None:
        """Return the password to use now."""
        return self._password() if callable(self._password) else self._password

    def sentinel_password(self) -> str | None:
        """Return the password of the sentinels to use now."""
        return self._sentinel_password() if callable(self._sentinel_password) else self._sentinel_password

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


# --- the address of a server ---------------------------------------------------------------------------------------

T = TypeVar("T")

_LAST_PORT: Final = 65_535
_AFTER_AUTHORITY: Final = re.compile(r"[/?#]")
_TRUE_OR_FALSE: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def split_url(url: str) -> urllib.parse.SplitResult:
    """Take the URL of a store apart: as the library of Python does, which checks a URL as if it named one host at most.

    Raises:
        ValueError: It is no URL, or one of its hosts is none.
    """
    scheme, separator, rest = url.partition("://")
    authority = _AFTER_AUTHORITY.split(rest, maxsplit=1)[0]
    if "," not in authority:
        return urllib.parse.urlsplit(url)
    for host in authority.rpartition("@")[2].split(","):
        urllib.parse.urlsplit(f"//{host}")
    return urllib.parse.urlsplit(f"{scheme}{separator}{rest[len(authority) :]}")._replace(netloc=authority)


@final
class Address:
    """A parsed URL. Its ``repr`` and :attr:`name` show no secret.

    Options are taken one by one; :meth:`finish` refuses those that are left.

    Attributes:
        name: The URL, without secrets.
        is_plain: Connections are not encrypted, as far as the options were taken.
    """

    __slots__ = ("_credentials", "_left", "_parts", "_url", "is_plain", "name")

    def __init__(self, url: str, credentials: Credentials = NO_CREDENTIALS) -> None:
        self._url: Final = url
        self._parts: Final = split_url(url)
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
    def sentinel_password(self) -> str | None:
        """The password that sentinels have for themselves, if the credentials have one. Never show it."""
        return self._credentials.sentinel_password()

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

    # --- options ---------------------------------------------------------------------------------------------

    def take(self, name: str, read: Callable[[str], T], default: T, expected: str) -> T:
        """Take an option out of the query; ``read`` raises ``ValueError`` for a value that it refuses."""
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

    def take_limit(self, name: str, *, longest: float = math.inf) -> float:
        """Take a time limit, five seconds by default; it must be positive."""
        given = self.take_seconds(name, 5.0)
        if not 0 < given <= longest:
            at_most = "" if longest == math.inf else f" and at most {longest:g} s"
            raise self.refuse(f"{name} must be positive{at_most}, for example 5s")
        return given

    def take_identifier(self, name: str, default: str) -> str:
        """Take a name that needs no quoting in any server."""
        given = self.take_text(name, default)
        if not is_identifier(given):
            raise self.refuse(f"{name} is up to 31 of a-z, 0-9 and _, beginning with no digit")
        return given

    def take_count(self, name: str, default: int, *, most: int = 1_000) -> int:
        """Take a number from 1 to ``most``."""

        def counted(given: str) -> int:
            number = int(given)
            if not 1 <= number <= most:
                raise ValueError(given)
            return number

        return self.take(name, counted, default, f"a number from 1 to {most:,}")

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
        """Refuse the options that were not taken, and a fragment."""
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
        if self.is_plain:
            return None
        try:
            return ssl.create_default_context(cafile=authority or None)
        except OSError as error:
            raise self.refuse(f"tls_ca names a file with certificates (PEM): {error.strerror or error}") from None

    @property
    def exposed(self) -> tuple[str, ...]:
        """The hosts on other machines that are connected to without TLS."""
        if not self.is_plain or not self.has_host:
            return ()
        return tuple(host for host, _ in self.hosts(0) if not is_this_machine(host))


_IDENTIFIER: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)


def is_identifier(name: str) -> bool:
    """Return True if a name is up to 31 of a-z, 0-9 and _, beginning with no digit: it needs no quoting."""
    return _IDENTIFIER.fullmatch(name) is not None


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
