"""Bytes on a wire: what no library for HTTP lets a client send."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Final, final
from urllib.parse import urlsplit

PATIENCE: Final = 20.0
"""Seconds after which a connection that is neither answered nor closed is taken for forgotten."""


@final
class Wire:
    """One connection to a server.

    Args:
        url: Where.
        source: From which address.
    """

    def __init__(self, url: str, source: str = "127.0.0.1") -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        place = (parts.hostname, parts.port)
        self._socket: Final = socket.create_connection(place, PATIENCE, source_address=(source, 0))

    def send(self, data: bytes) -> bool:
        """Send bytes; return False if the other side has hung up."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def some(self) -> bytes:
        """Return what comes next; nothing if the other side has hung up."""
        try:
            return self._socket.recv(65_536)
        except ConnectionError:
            return b""

    def answer(self) -> bytes:
        """Return one answer that says how long it is."""
        heard = b""
        while b"\r\n\r\n" not in heard:
            more = self.some()
            if not more:
                return heard
            heard += more
        head, _, body = heard.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.lower().splitlines() if line.startswith(b"content-length:"))
        while len(body) < length and (more := self.some()):
            body += more
        return head + b"\r\n\r\n" + body

    def is_quiet(self, seconds: float) -> bool:
        """Return True if nothing comes for a while, and nobody hangs up."""
        self._socket.settimeout(seconds)
        try:
            return bool(self._socket.recv(65_536)) and False
        except TimeoutError:
            return True
        finally:
            self._socket.settimeout(PATIENCE)

    def rest(self) -> bytes:
        """Return everything that comes until the other side hangs up."""
        heard = b""
        while more := self.some():
            heard += more
        return heard

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def exchange(url: str, data: bytes, source: str = "127.0.0.1") -> bytes:
    """Send bytes, and return everything that comes until the other side hangs up."""
    with closing(Wire(url, source)) as wire:
        wire.send(data)
        return wire.rest()


def statuses(answer: bytes) -> list[int]:
    """Return the statuses of all answers in what came."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


def post(action: str, *headers: bytes, body: bytes = b'{"text":"seen"}', host: bytes = b"desk.example") -> bytes:
    """Return a call of an action, as its bytes; the headers say how long the body is."""
    lines = [
        b"POST /flows/desk/%s HTTP/1.1" % action.encode(),
        b"Host: %s" % host,
        b"Content-Type: application/json",
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body: bytes = b'{"text":"seen"}', *trailers: bytes) -> bytes:
    """Return a body in one chunk, with what follows it."""
    return b"%x\r\n%s\r\n0\r\n" % (len(body), body) + b"".join(each + b"\r\n" for each in trailers) + b"\r\n"
