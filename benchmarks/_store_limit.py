"""The limit for a server: the same rows, written just as durably, by a plain loop over its driver.

A transaction has one guarded put for each task, the attempt that Standfast counts, and the counter of versions where
the server has one. The tables are Standfast's, made by opening a store beside the one that is measured.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import standfast as sf
from benchmarks._sqlite_limit import key_of, value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from standfast.keys import RecordKey

TABLES: Final = "bare"
TASKS: Final = len(key_of)
MODULES: Final = {
    "postgresql": "_store_limit_sql",
    "mysql": "_store_limit_sql",
    "libsql": "_store_limit_sql",
    "redis": "_store_limit_other",
    "mongodb": "_store_limit_other",
    "dynamodb": "_store_limit_other",
    "cloudflare": "_store_limit_cloudflare",
    "etcd": "_store_limit_etcd",
}


class Bare(Protocol):
    """A server without Standfast."""

    async def commit(self, tasks: range) -> None:
        """Commit once for each task, all in one transaction, each guarded by the version of its record."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


class Opener(Protocol):
    """What opens one."""

    async def __call__(self, url: str) -> Bare:
        """Connect to a store whose tables are there, and make the record of every task."""
        ...


class Counting:
    """What every limit keeps: the version of each record, and how many transactions there were."""

    def __init__(self) -> None:
        self.versions: list[int] = [0] * TASKS
        self.number = 0

    def puts(self, tasks: range) -> Iterator[tuple[RecordKey, int, bytes]]:
        """Return the key of each task, the version that it must be at, and a value that was never written before."""
        self.number += 1
        for task in tasks:
            yield key_of[task], self.versions[task], value(task, self.number)


def beside(url: str) -> str:
    """Return the URL of a store beside another one on the same server: with tables of its own."""
    parts = urlsplit(url)
    given = dict(parse_qsl(parts.query))
    if parts.scheme == "dynamodb":
        return urlunsplit(parts._replace(path=f"/{TABLES}"))
    if parts.scheme == "etcd":
        return urlunsplit(parts._replace(path=f"/{TABLES}"))
    name = {"postgresql": "schema"}.get(parts.scheme, "prefix")
    return urlunsplit(parts._replace(query=urlencode({**given, name: TABLES})))


async def open_bare(url: str) -> Bare:
    """Let Standfast make tables beside those at ``url``, and open them without it."""
    where = beside(url)
    async with sf.open(where):
        pass
    scheme = urlsplit(url).scheme
    opener: Opener = getattr(importlib.import_module(f"benchmarks.{MODULES[scheme]}"), f"open_{scheme}")
    return await opener(where)
