"""Bodies are bounded in time at every address, whoever sends them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import monotonic
from tests.integration.adversary import wire
from tests.integration.adversary.stage import FRONTS
from tests.integration.adversary.test_headers import drip

if TYPE_CHECKING:
    from tests.integration.adversary.stage import Stage

pytestmark = pytest.mark.services

PATHS: Final = (
    "/flows/desk/note",
    "/chat/desk/messages",
    "/mcp",
    "/webhooks/letters",
    "/webhooks/unsigned",
    "/requests/r1",
    "/openapi.json",
    "/health",
    "/nothing",
)
"""One of every kind of address that there is, and one that is none."""


def head(path: str, *headers: bytes) -> bytes:
    """Return the headers of a body that is to follow."""
    accepted = b"Accept: application/json, text/event-stream"
    lines = [b"POST %s HTTP/1.1" % path.encode(), b"Host: desk.example", b"X-Auth-User: ada", accepted]
    return b"\r\n".join([*lines, b"Content-Type: application/json", *headers]) + b"\r\n\r\n"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("framing", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_stops_is_not_waited_for(proxied: Stage, path: str, framing: bytes) -> None:
    """It is answered with 408, or was answered before; and then the connection is closed."""
    began = monotonic()
    with closing(wire.Wire(proxied.url)) as line:
        line.send(head(path, framing) + (b"" if b"chunked" not in framing else b"ffff\r\n{"))
        statuses = wire.statuses(line.rest())
    assert len(statuses) == 1
    assert statuses[0] == 408 or path in {"/requests/r1", "/openapi.json", "/health", "/nothing"}
    assert monotonic() - began < 10


@pytest.mark.parametrize("path", ["/flows/desk/note", "/mcp", "/webhooks/letters"])
def test_a_body_that_drips_is_not_waited_for(proxied: Stage, path: str) -> None:
    """Some progress is not enough: it has to be as much as a slow line makes."""
    with closing(wire.Wire(proxied.url)) as line:
        line.send(head(path, b"Content-Length: 100000"))
        assert drip(line, b"x", 0.05) < 5


def test_a_body_that_comes_fast_enough_ends_in_time_or_not_at_all(proxied: Stage) -> None:
    """There is a limit for the whole of it, too."""
    with closing(wire.Wire(proxied.url)) as line:
        line.send(head("/flows/desk/note", b"Content-Length: 1000000"))
        assert 2 < drip(line, b"x" * 500, 0.05) < 10


def test_a_slow_line_is_no_attack(proxied: Stage) -> None:
    """A body that makes progress is taken, in whatever pieces it comes."""
    body = b'{"text":"%s"}' % (b"a" * 20_000)
    data = head("/flows/desk/note", b"Connection: close", b"Content-Length: %d" % len(body)) + body
    with closing(wire.Wire(proxied.url)) as line:
        for start in range(0, len(data), 2_000):
            line.send(data[start : start + 2_000])
            assert start + 2_000 >= len(data) or line.is_quiet(0.05)
        assert wire.statuses(line.rest()) == [200]


@pytest.mark.parametrize("front", FRONTS[1:])
def test_a_slow_body_behind_a_proxy_leaves_the_server_well(proxied: Stage, front: str) -> None:
    """However long the proxy itself waits."""
    with closing(wire.Wire(proxied.behind(front))) as line:
        line.send(head("/webhooks/letters", b"Content-Length: 100000", b"Connection: close") + b"x")
        assert wire.statuses(line.answer()) in ([408], [502], [504])
    assert proxied.is_well()
