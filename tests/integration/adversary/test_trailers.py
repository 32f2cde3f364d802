"""Trailers are never headers: what a proxy has deleted does not come back at the end of a body."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.integration.adversary import wire
from tests.integration.adversary.stage import DESK, FRONTS, under_uvicorn

if TYPE_CHECKING:
    from tests.integration.adversary.stage import Stage

pytestmark = pytest.mark.services

CHUNKED = (b"Transfer-Encoding: chunked", b"Connection: close")
FORGED = wire.post("note", *CHUNKED, body=wire.chunked(b'{"text":"forged"}', b"X-Auth-User: root"))


@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("pieces", [1, 7, 40])
def test_a_trailer_names_no_user_however_the_request_is_cut(proxied: Stage, front: str, pieces: int) -> None:
    """Sent in one piece with the headers, which is when servers mix them up; or bit by bit."""
    size = len(FORGED) // pieces + 1
    with closing(wire.Wire(proxied.behind(front))) as line:
        for start in range(0, len(FORGED), size):
            line.send(FORGED[start : start + size])
        assert wire.statuses(line.rest()) == [401]
    assert "forged" not in proxied.call("noted").json()


def test_a_chunked_body_with_trailers_is_taken_from_a_known_user(proxied: Stage) -> None:
    """They are dropped, and nothing else is: the user stays who the header said."""
    body = wire.chunked(b'{"text":"plain"}', b"X-Auth-User: root", b"X-Checksum: 1")
    answer = wire.exchange(proxied.url, wire.post("note", b"X-Auth-User: ada", *CHUNKED, body=body))
    assert wire.statuses(answer) == [200]
    assert answer.endswith(b'"ada"')


@pytest.mark.parametrize(
    ("http", "status"), [("httptools", 411), ("h11", 411), ("standfast.web.protocol:HttpProtocol", 401)]
)
def test_a_uvicorn_of_ones_own_lets_no_trailer_pass_for_a_header(http: str, status: int) -> None:
    """Where it may mix them up, a chunked body is refused; with our protocol it is taken, and the trailers dropped."""
    known = wire.post("noted", b"X-Auth-User: ada", b"Content-Length: 2", b"Connection: close", body=b"{}")
    with under_uvicorn(f"{DESK}:proxied_without_tools", http) as url, services.private("haproxy", behind=url) as front:
        assert wire.statuses(wire.exchange(front.url, FORGED)) == [status]
        assert wire.statuses(wire.exchange(url, FORGED)) == [status]
        assert wire.exchange(url, known).endswith(b"[]")
