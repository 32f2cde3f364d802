"""Servers that all adversaries share, with limits so short that nobody waits for long."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.adversary.stage import DESK, served
from tests.integration.cli.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.adversary.stage import Stage

DESCRIPTORS: Final = 200
LONG: Final = ("--header-time", "60s", "--idle", "60s")
HEADER_BYTES, HEADERS, CONNECTIONS, PER_ADDRESS = 8_192, 50, 40, 30
LIMITS: Final = (
    *("--header-bytes", str(HEADER_BYTES), "--headers", str(HEADERS), "--header-time", "600ms"),
    *("--body-time", "3s", "--body-grace", "500ms", "--body-rate", "1000", "--idle", "600ms"),
    *("--connections", str(CONNECTIONS), "--connections-per-address", str(PER_ADDRESS)),
)


@pytest.fixture(scope="session")
def proxied() -> Iterator[Stage]:
    """An application that believes a header which the proxy in front of it deletes."""
    with served(f"{DESK}:proxied", *LIMITS) as found:
        yield found


@pytest.fixture(scope="session")
def patient() -> Iterator[Stage]:
    """An application that calls everybody by where they come from; connections may stay, but not more than so many."""
    many = ("--connections", str(CONNECTIONS), "--connections-per-address", str(PER_ADDRESS))
    with served(f"{DESK}:located_without_tools", *LONG, *many) as found:
        yield found


@pytest.fixture(scope="session")
def poor() -> Iterator[Stage]:
    """The same, which may have few files open, and knows of proxies."""
    named = ("--trust-proxy", "10.0.0.0/8", "--trust-proxy", "127.0.0.1")
    with served(f"{DESK}:located_without_tools", *LONG, *named, preexec_fn=_few) as found:
        yield found


def _few() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, DESCRIPTORS))


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal that is closed after the test."""
    opened = Terminal()
    yield opened
    os.close(opened.ours)
    os.close(opened.theirs)


@pytest.fixture(scope="session")
def unguarded() -> Iterator[Stage]:
    """An application without authentication."""
    with served(f"{DESK}:open_app", *LIMITS) as found:
        yield found
