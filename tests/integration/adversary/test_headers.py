"""Headers are bounded in bytes, in number and in time, before it is known who sends them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import monotonic
from tests.integration.adversary import wire
from tests.integration.adversary.conftest import HEADER_BYTES, HEADERS

if TYPE_CHECKING:
    from tests.integration.adversary.stage import Stage

pytestmark = pytest.mark.services

GET: Final = b"GET /health HTTP/1.1\r\nHost: desk.example\r\n"
MORE: Final = 40 * HEADER_BYTES

BOMBS: Final = {
    "a long value": GET + b"X-Note: " + b"a" * MORE,
    "a long name": GET + b"a" * MORE,
    "a long address": b"GET /" + b"a" * MORE,
    "a long method": b"A" * MORE,
    "many headers": GET + b"".join(b"X-%d: 1\r\n" % number for number in range(HEADERS + 1)),
    "many bytes": GET + b"X: %s\r\n" % (b"a" * 400) * (HEADERS - 10) + b"\r\n",
    "a long trailer": wire.post("note", b"Transfer-Encoding: chunked", body=b"0\r\nX-Note: " + b"a" * MORE),
    "many trailers": wire.post("note", b"Transfer-Encoding: chunked", body=b"0\r\n" + b"X: 1\r\n" * MORE),
    "a long note on a chunk": wire.post("note", b"Transfer-Encoding: chunked", body=b"1;" + b"a" * MORE),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_more_than_is_taken_is_refused_before_its_end(proxied: Stage, bomb: str) -> None:
    """With 431, or 400 where it cannot become a request; or 401, if it was known before that nobody asks."""
    with closing(wire.Wire(proxied.url)) as line:
        line.send(BOMBS[bomb])
        assert wire.statuses(line.rest()) in ([431], [400], [401])
    assert proxied.is_well()


def test_as_much_as_is_taken_is_taken(proxied: Stage) -> None:
    """In one piece, and in many."""
    pad = b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(HEADERS - 5))
    data = GET + b"Connection: close\r\n" + pad + b"\r\n"
    assert len(data) > HEADER_BYTES // 2
    assert wire.statuses(wire.exchange(proxied.url, data)) == [200]
    with closing(wire.Wire(proxied.url)) as line:
        for start in range(0, len(data), 500):
            line.send(data[start : start + 500])
        assert wire.statuses(line.rest()) == [200]


def test_a_large_body_in_one_piece_with_its_headers_is_taken(proxied: Stage) -> None:
    """It is the headers that are bounded."""
    body = b'{"text":"%s"}' % (b"a" * 200_000)
    data = wire.post("note", b"X-Auth-User: ada", b"Connection: close", b"Content-Length: %d" % len(body), body=body)
    assert wire.statuses(wire.exchange(proxied.url, data)) == [200]


def drip(line: wire.Wire, piece: bytes, every: float) -> float:
    """Send a piece again and again until the other side hangs up; return after how long that was."""
    began = monotonic()
    while line.send(piece) and monotonic() - began < wire.PATIENCE:
        if not line.is_quiet(every):
            break
    return monotonic() - began


@pytest.mark.parametrize(
    "start",
    [b"", b"G", GET, b"POST /mcp HTTP/1.1\r\nHost: a\r\n", b"\r\n"],
    ids=["nothing", "a letter", "a header", "another route", "a line"],
)
@pytest.mark.parametrize("more", [b"", b"X"], ids=["silent", "dripping"])
def test_slow_headers_are_cut_off(proxied: Stage, start: bytes, more: bytes) -> None:
    """Whether nothing more comes, or a letter now and then: the time counts from the first."""
    began = monotonic()
    with closing(wire.Wire(proxied.url)) as line:
        line.send(start)
        if more:
            drip(line, more, 0.1)
        else:
            assert wire.statuses(line.rest()) == ([408] if start.strip() else [])
            assert monotonic() - began > 0.4
    assert monotonic() - began < 5
    assert proxied.is_well()


def test_empty_lines_keep_no_connection_open(proxied: Stage) -> None:
    """They may stand before a request, and are none."""
    with closing(wire.Wire(proxied.url)) as line:
        assert drip(line, b"\r\n", 0.1) < 5


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_connection_is_closed_some_time_after_its_last_request(proxied: Stage, end: bytes) -> None:
    """Also if something comes that is no request."""
    with closing(wire.Wire(proxied.url)) as line:
        line.send(GET + b"\r\n")
        assert b"200 OK" in line.some()
        began = monotonic()
        line.send(end)
        assert b"HTTP/1.1" not in line.rest()
        assert monotonic() - began < 5
