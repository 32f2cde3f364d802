"""Where a request comes from is what the socket says, unless a proxy says it that was named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.adversary import wire
from tests.integration.adversary.stage import FRONTS

if TYPE_CHECKING:
    from tests.integration.adversary.stage import Stage

pytestmark = pytest.mark.services

FORGED = {
    "X-Forwarded-For": b"X-Forwarded-For: 203.0.113.9",
    "X-Forwarded-Proto": b"X-Forwarded-Proto: https",
    "X-Forwarded-Host": b"X-Forwarded-Host: evil.example",
    "Forwarded": b"Forwarded: for=203.0.113.9;proto=https;host=evil.example",
    "X-Real-IP": b"X-Real-IP: 203.0.113.9",
}
ME = "127.0.0.7"


def seen(url: str, *headers: bytes) -> list[str]:
    """Return where a request seems to come from, by which scheme, to which host, and by which proxies."""
    data = wire.post("note", b"Connection: close", b"Content-Length: 15", *headers)
    answer = wire.exchange(url, data, ME)
    assert wire.statuses(answer) == [200], answer
    return answer.rpartition(b"\r\n")[2].decode().strip('"').split(" ")


@pytest.mark.parametrize("header", FORGED)
def test_nobody_says_where_they_come_from(patient: Stage, poor: Stage, header: str) -> None:
    """Whoever asks directly is no proxy, and what they say is not even seen."""
    for stage in (patient, poor):
        assert seen(stage.url, FORGED[header]) == [ME, "http", "desk.example", "nothing"]


@pytest.mark.parametrize("front", FRONTS[1:])
def test_a_proxy_that_was_not_named_is_a_client_like_any_other(patient: Stage, front: str) -> None:
    """So everybody behind it has its address."""
    assert seen(patient.behind(front), *FORGED.values())[0] == "127.0.0.1"
    assert seen(patient.behind(front), *FORGED.values())[3] == "nothing"


@pytest.mark.parametrize("front", FRONTS[1:])
@pytest.mark.parametrize("header", FORGED)
def test_a_proxy_that_was_named_is_believed_and_nobody_behind_it(poor: Stage, front: str, header: str) -> None:
    """It adds the address that it was asked from; what stands before that was said by the client."""
    assert seen(poor.behind(front), FORGED[header])[:3] == [ME, "http", "desk.example"]
