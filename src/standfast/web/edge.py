"""The edge of a server: how much it takes before it is known who asks, and which proxies it believes."""

from __future__ import annotations

import ipaddress
import logging
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias, final

from standfast.durations import seconds
from standfast.errors import DeclarationError, HttpError
from standfast.log_budget import LogBudget
from standfast.web.limits import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from standfast.durations import Duration

    Pairs: TypeAlias = list[tuple[bytes, bytes]]


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

EDGE: Final = "standfast.edge"
"""Where the scope of a request says that it came over this edge: its headers have no trailers among them."""

OPEN: Final = "open"
PRIVATE: Final = "private"
"""What it says if the request came over a unix socket that only its owner can open, and by no proxy."""

UNIX: Final = "unix"
"""The name of a proxy that connects over a unix socket, which has no address."""

FORWARDED: Final = frozenset(
    {
        *(b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port", b"x-forwarded-prefix"),
        *(b"x-forwarded-proto", b"x-forwarded-server", b"x-real-ip"),
    }
)
"""Headers in which a proxy says where a request comes from. From other clients they are not taken."""

AGAIN: Final = 1.0
"""Seconds after which a refused client may connect again."""

_log: Final = logging.getLogger("standfast.edge")


@final
class EdgeLimits:
    """How much the edge of a server takes from any client.

    Args:
        header_bytes: Bytes of the headers of one request, its first line included.
        headers: How many headers one request has.
        header_time: How long they may take to arrive; and how long a new connection may be silent.
        body_time: How long a body may take to arrive, at any address.
        body_rate: How many bytes of it have to arrive in a second, on average.
        body_grace: Seconds before that is looked at.
        idle: How long a connection may be open between two requests.
        connections: How many are open, in all.
        per_address: How many are open from one address; by default half of them. An IPv6 address counts as its /64.
    """

    __slots__ = (
        "body_grace",
        "body_rate",
        "body_time",
        "connections",
        "header_bytes",
        "header_time",
        "headers",
        "idle",
        "per_address",
    )

    def __init__(  # noqa: PLR0913 -- all of them by name, and none is needed
        self,
        *,
        header_bytes: int = 32_768,
        headers: int = 100,
        header_time: Duration = "10s",
        body_time: Duration = "60s",
        body_rate: int = 500,
        body_grace: Duration = "5s",
        idle: Duration = "75s",
        connections: int = 2_000,
        per_address: int | None = None,
    ) -> None:
        count = partial(whole_number, "EdgeLimits")
        self.header_bytes: Final = count("header_bytes", header_bytes)
        self.headers: Final = count("headers", headers)
        self.header_time: Final = seconds(header_time, what="header_time", minimum=0.001)
        self.body_time: Final = seconds(body_time, what="body_time", minimum=0.001)
        self.body_rate: Final = count("body_rate", body_rate)
        self.body_grace: Final = seconds(body_grace, what="body_grace", minimum=0.001)
        self.idle: Final = seconds(idle, what="idle", minimum=0.001)
        self.connections: Final = count("connections", connections)
        half = max(1, self.connections // 2)
        self.per_address: Final = half if per_address is None else count("per_address", per_address)


@final
class Edge:
    """What all connections of a server share: how many there are, and which proxies are trusted.

    Args:
        limits: How much is taken.
        proxies: Addresses and networks of proxies that say where requests come from, such as ``"10.0.0.0/8"``;
            ``"unix"`` is what connects over a unix socket.
        is_private: Connections come over a unix socket that only its owner can open.

    Raises:
        DeclarationError: One of the proxies is no address and no network.
    """

    def __init__(
        self, limits: EdgeLimits | None = None, proxies: Iterable[str] = (), *, is_private: bool = False
    ) -> None:
        self.limits: Final = limits or EdgeLimits()
        named = tuple(proxies)
        self._proxies: Final = tuple(network(each) for each in named if each != UNIX)
        self._believes_unix: Final = UNIX in named
        self.is_private: Final = is_private and not self._believes_unix
        self._by_address: Final[dict[str, int]] = {}
        self.log: Final = LogBudget(_log)
        self.open = 0

    def enter(self, address: str) -> None:
        """Count one more connection.

        Raises:
            HttpError: There are as many as there may be.
        """
        if self.open >= self.limits.connections:
            raise HttpError(
                "too-many-connections",
                f"there are as many connections as there may be: {self.limits.connections}",
                AGAIN,
            )
        who = _counted(address)
        many = self._by_address.get(who, 0)
        if many >= self.limits.per_address and who and not self.believes(address):
            raise HttpError(
                "too-many-connections",
                f"there are as many connections from this address as there may be: {self.limits.per_address}",
                AGAIN,
            )
        self._by_address[who] = many + 1
        self.open += 1

    def leave(self, address: str) -> None:
        """Count one less."""
        who = _counted(address)
        self.open -= 1
        self._by_address[who] -= 1
        if not self._by_address[who]:
            del self._by_address[who]

    def believes(self, address: str) -> bool:
        """Return True if an address is that of a proxy that was named. A unix socket has none."""
        return _is_in(address, self._proxies) if address else self._believes_unix

    def pass_on(self, scope: Scope) -> None:
        """Put into the scope of a request where it comes from: what a named proxy says, or what the socket says.

        What other clients say about that is removed from the headers, so that nothing behind this can believe it.
        """
        scope[EDGE] = PRIVATE if self.is_private else OPEN
        headers: Pairs = scope["headers"]
        if not any(name in FORWARDED or name == b"via" for name, _ in headers):
            return
        scope[EDGE] = OPEN
        if not self.believes((scope.get("client") or ("",))[0]):
            scope["headers"] = [pair for pair in headers if pair[0] not in FORWARDED]
            return
        said = [(name, value.decode("latin-1")) for name, value in headers if name in FORWARDED]
        origin = ForwardedOrigin.told(said, self._proxies)
        if origin.address:
            scope["client"] = (origin.address, 0)
        if origin.proto in ("http", "https"):
            is_safe = origin.proto == "https"
            scope["scheme"] = ("wss" if is_safe else "ws") if scope["type"] == "websocket" else origin.proto
        if origin.host:
            kept = [pair for pair in headers if pair[0] != b"host"]
            scope["headers"] = [*kept, (b"host", origin.host.encode("latin-1"))]


@final
class ForwardedOrigin:
    """Where a request comes from, as proxies say; what they do not say is empty."""

    __slots__ = ("address", "host", "proto")

    def __init__(self, address: str, proto: str, host: str) -> None:
        self.address, self.proto, self.host = address, proto, host

    @classmethod
    def told(cls, said: Iterable[tuple[bytes, str]], proxies: tuple[Network, ...]) -> ForwardedOrigin:
        """Return what the headers of a request say.

        Each proxy adds the address that it was asked from at the end, so the client is the last one that is not itself
        a named proxy: what stands before it was said by the client. ``Forwarded`` counts if there is no other.
        """
        by_name: dict[bytes, str] = {}
        for name, value in said:
            by_name[name] = f"{by_name[name]},{value}" if name in by_name else value
        if not any(name.startswith(b"x-forwarded-") for name in by_name):
            return _of_forwarded(by_name.get(b"forwarded", ""), proxies)
        hops = [_address(each) for each in by_name.get(b"x-forwarded-for", "").split(",") if each.strip()]
        return cls(
            _client(hops, proxies),
            _last(by_name.get(b"x-forwarded-proto", "")).lower(),
            _last(by_name.get(b"x-forwarded-host", "")),
        )


def _of_forwarded(header: str, proxies: tuple[Network, ...]) -> ForwardedOrigin:
    """Return what RFC 7239 says. Values with a comma or semicolon in quotes are no address and no host, so none is."""
    hops: list[str] = []
    last: dict[str, str] = {}
    for element in header.split(","):
        pairs = [part.partition("=") for part in element.split(";")]
        last = {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
        if "for" in last:
            hops.append(_address(last["for"]))
    return ForwardedOrigin(_client(hops, proxies), last.get("proto", "").lower(), last.get("host", ""))


def _client(hops: list[str], proxies: tuple[Network, ...]) -> str:
    for hop in reversed(hops):
        if not hop or not _is_in(hop, proxies):
            return hop
    return hops[0] if hops else ""


def _last(values: str) -> str:
    return values.rpartition(",")[2].strip()


def _address(text: str) -> str:
    """Return the address in a hop, without its port and brackets; nothing if it is none, such as ``unknown``."""
    text = text.strip().strip('"')
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return ""


def network(text: str) -> Network:
    """Return the network of an address, or of a network.

    Raises:
        DeclarationError: It is neither.
    """
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        problem = f"{text!r:.60} is neither an address nor a network; write 10.0.0.7 or 10.0.0.0/8"
        raise DeclarationError("a trusted proxy", problem) from None


@lru_cache(maxsize=1_024)
def _is_in(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return any(mapped in each for each in networks)


@lru_cache(maxsize=1_024)
def _counted(address: str) -> str:
    """Return what is counted as one address: a host with IPv6 has 2^64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if found.version == 4 or found.ipv4_mapped is not None:  # noqa: PLR2004 -- the version of a protocol
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))
