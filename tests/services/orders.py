"""What a test wants of a server, and what it gets."""

from __future__ import annotations

import msgspec


class Order(msgspec.Struct, frozen=True):
    """A server that is to be kept for as long as its owner lives."""

    kind: str
    folder: str
    """Its data, and everything else it writes; removed when it goes."""
    owner: int
    """The process that it must not outlive."""
    behind: str = ""
    environment: dict[str, str] = {}
    arguments: tuple[str, ...] = ()


class Place(msgspec.Struct, frozen=True):
    """Where a server is found, or why there is none."""

    url: str = ""
    pid: int = 0
    missing: str = ""
