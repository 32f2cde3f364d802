"""Servers to strike at, each with what it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services

if TYPE_CHECKING:
    from collections.abc import Callable

SERVERS = ["postgresql", "redis", "mysql", "mongodb", "libsql", "dynamodb"]


@pytest.fixture(params=SERVERS)
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of server."""
    found: str = request.param
    return found


def opening(url: str) -> str:
    """Return a URL that makes the table, where a store does not do that by itself."""
    return f"{url}&create=true" if url.startswith("dynamodb") else url


@pytest.fixture
def url(kind: str) -> str:
    """The URL of a shared server of that kind."""
    return opening(services.url(kind))


@pytest.fixture
def impatient() -> Callable[[str], str]:
    """Return a function that makes a URL give up soon, so that tests need not wait for the usual time."""
    return lambda url: f"{url}{'&' if '?' in url else '?'}timeout=2s"
