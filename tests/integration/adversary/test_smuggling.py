"""Requests in requests: what two readers may take for two different things is refused by the second of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.adversary import wire
from tests.integration.adversary.stage import FRONTS

if TYPE_CHECKING:
    from tests.integration.adversary.stage import Stage

pytestmark = pytest.mark.services

HIDDEN: Final = wire.post("note", b"X-Auth-User: root", b"Content-Length: 17", body=b'{"text":"hidden"}')
"""What must not be taken for a request: no proxy has looked at it."""

INSIDE: Final = b"0\r\n\r\n" + HIDDEN
LENGTH: Final = b"Content-Length: %d" % len(INSIDE)

SHAPES: Final = {
    "a length and chunks": (LENGTH, b"Transfer-Encoding: chunked"),
    "chunks and a length": (b"Transfer-Encoding: chunked", LENGTH),
    "two lengths": (LENGTH, b"Content-Length: 5"),
    "two equal lengths": (LENGTH, LENGTH),
    "a list of lengths": (b"Content-Length: 5, 5",),
    "a length with a sign": (b"Content-Length: +5",),
    "a length with letters": (b"Content-Length: 0x5",),
    "a length and nothing": (b"Content-Length:", LENGTH),
    "two codings": (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity"),
    "an unknown coding": (LENGTH, b"Transfer-Encoding: xchunked"),
    "a coding in a list": (b"Transfer-Encoding: gzip, chunked",),
    "a space before the colon": (LENGTH, b"Transfer-Encoding : chunked"),
    "a space before the name": (LENGTH, b" Transfer-Encoding: chunked"),
    "a tab in the coding": (LENGTH, b"Transfer-Encoding:\x0bchunked"),
    "a folded coding": (LENGTH, b"Transfer-Encoding:\r\n chunked"),
    "a folded header": (LENGTH, b"X-Note: a\r\n\tTransfer-Encoding: chunked"),
    "a bare line feed": (b"X-Note: a\nTransfer-Encoding: chunked", LENGTH),
    "a bare carriage return": (b"X-Note: a\rTransfer-Encoding: chunked", LENGTH),
    "a NUL": (b"X-Note: a\0b", LENGTH, b"Transfer-Encoding: chunked"),
    "two hosts": (LENGTH, b"Host: other.example", b"Transfer-Encoding: chunked"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_can_be_read_in_two_ways_is_refused(proxied: Stage, shape: str) -> None:
    """The connection is closed, so that nothing that follows is read at all."""
    answer = wire.exchange(proxied.url, wire.post("note", b"X-Auth-User: ada", *SHAPES[shape], body=INSIDE))
    assert wire.statuses(answer) == [400]
    assert "hidden" not in proxied.call("noted").json()


@pytest.mark.parametrize("front", FRONTS[1:])
@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_is_smuggled_past_a_proxy(proxied: Stage, front: str, shape: str) -> None:
    """Whatever the proxy makes of it: what it has not seen as a request is not run as one."""
    data = wire.post("note", b"Connection: close", *SHAPES[shape], body=INSIDE)
    answered = wire.statuses(wire.exchange(proxied.behind(front), data))
    assert answered in ([], [400], [401], [413], [422], [501]), answered
    assert "hidden" not in proxied.call("noted").json()


def test_old_and_odd_requests_are_refused(proxied: Stage) -> None:
    """Chunks in HTTP/1.0, no host, no HTTP at all, and HTTP/2 without being asked."""
    for data in (
        wire.post("note", b"Transfer-Encoding: chunked", body=INSIDE).replace(b"HTTP/1.1", b"HTTP/1.0"),
        b"GET /health HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
    ):
        assert wire.statuses(wire.exchange(proxied.url, data)) == [400], data
    assert proxied.is_well()


def test_a_request_after_a_refused_one_is_not_answered(proxied: Stage) -> None:
    """Those before it are, in their order."""
    health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    refused = wire.post("note", b"Content-Length: 1", b"Content-Length: 2", body=b"")
    with_answer = wire.exchange(proxied.url, health)
    assert wire.statuses(with_answer) == [200]
    assert wire.statuses(wire.exchange(proxied.url, refused + health)) == [400]


def test_a_long_row_of_requests_is_cut_off(proxied: Stage) -> None:
    """A few may be sent before the first is answered; not thousands, each of which takes memory."""
    health = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    assert wire.statuses(wire.exchange(proxied.url, health * 10)) == [200] * 10
    assert len(wire.statuses(wire.exchange(proxied.url, health * 4_000))) < 100
    assert proxied.is_well()


def test_an_upgrade_to_something_else_is_answered_and_closed(proxied: Stage) -> None:
    """What follows is not read, neither as that nor as a request."""
    upgrade = b"GET /health HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"
    assert wire.statuses(wire.exchange(proxied.url, upgrade + HIDDEN)) == [200]
    assert "hidden" not in proxied.call("noted").json()
