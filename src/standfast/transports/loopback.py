"""Whether a request comes from this machine, and for this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from standfast.transports.headers import raw_headers

if TYPE_CHECKING:
    from starlette.types import Scope

    from standfast.transports.headers import RawHeaders

_FORWARDED: Final = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


def is_local(scope: Scope) -> bool:
    """Tell whether a request was sent on this machine, to a name of this machine, and by nobody in between.

    A proxy on this machine is not enough: what it hands on comes from elsewhere. Nor is the address alone: a page of
    somebody else can let a browser here ask for a name that it has pointed at 127.0.0.1.
    """
    return is_from_here(scope, raw_headers(scope))


def is_from_here(scope: Scope, headers: RawHeaders) -> bool:
    """Tell the same, given the headers."""
    if not is_loopback((scope.get("client") or ("", 0))[0]) or not _FORWARDED.isdisjoint(headers):
        return False
    return _is_own_name(headers.get(b"host", b""))


@lru_cache(maxsize=1_024)
def _is_own_name(header: bytes) -> bool:
    """Tell whether a ``Host`` header names this machine; the same few come again and again."""
    return is_loopback(host_of(header.decode("latin-1")))


@lru_cache(maxsize=1_024)
def is_loopback(address: str) -> bool:
    """Tell whether an address, or the name of a host, is this machine's own. A unix socket has no address."""
    if address == "localhost" or address.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host in a ``Host`` header, without its port and brackets, in small letters."""
    host = header.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
