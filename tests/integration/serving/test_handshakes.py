"""Handshakes of WebSockets that are refused: they are answered, and fill no log."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tests.integration.cli.programs import PATIENCE

if TYPE_CHECKING:
    from tests.integration.serving.conftest import Servers

HANDSHAKE: Final = (
    b"GET /chat/support HTTP/1.1\r\nHost: %b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def test_a_handshake_without_credentials_is_answered_and_not_taken_for_an_error_of_the_server(servers: Servers) -> None:
    """What is logged of it is within the budget of refusals, which anybody can use up."""
    program, url = servers.start()
    place = urlsplit(url)
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE) as connection:
        connection.sendall(HANDSHAKE % place.netloc.encode())
        answer = connection.makefile("rb").read()
    program.process.kill()
    said = b"".join(each for each in program.process.communicate(timeout=PATIENCE) if each)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"handshake" not in said
