"""Names of this machine. They say where a server listens; nobody is let in because of one."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


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
