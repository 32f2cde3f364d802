"""Servers to strike at, each with what it is called."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests import services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.services.server import Server

SERVERS = ["postgresql", "pgbouncer", "redis", "mysql", "mongodb", "libsql", "etcd", "dynamodb", "cloudflare"]
"""What is struck at. Of the pooler in front of a PostgreSQL it is the pooler."""


@pytest.fixture(params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server."""
    found: str = request.param
    return found


@contextmanager
def private(kind: str) -> Iterator[Server]:
    """Start a server of that kind for one test; a pooler stands in front of a server that nobody strikes at."""
    if kind != "pgbouncer":
        with services.private(kind) as server:
            yield server
        return
    with services.private("postgresql") as behind, services.private(kind, behind=behind.url) as server:
        yield server


def start_when_ended(server: Server) -> None:
    """Start a server again if it ends by itself, once, as the service manager of a machine does."""
    loop, process = asyncio.get_running_loop(), os.pidfd_open(server.pid)

    def start() -> None:
        loop.remove_reader(process)
        os.close(process)
        if server.pid:  # else the test ended it
            loop.run_in_executor(None, server.restart)

    loop.add_reader(process, start)


def opening(url: str) -> str:
    """Return a URL that makes the table, where a store does not do that by itself."""
    if url.startswith("etcd"):
        return f"{url}?shortest_lease=1s"
    return f"{url}&create=true" if url.startswith("dynamodb") else url


@pytest.fixture
def url(kind: str) -> str:
    """The URL of a shared server of that kind."""
    return opening(services.url(kind))


@pytest.fixture
def impatient() -> Callable[[str], str]:
    """Return a function that makes a URL give up soon, so that tests need not wait for the usual time."""
    return lambda url: f"{url}{'&' if '?' in url else '?'}timeout=2s"
