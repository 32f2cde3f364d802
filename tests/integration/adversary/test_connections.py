"""Connections are bounded in number, and running out of descriptors neither stops a server nor fills its log."""

from __future__ import annotations

import base64
import resource
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from standfast.cli.http_server import KEPT
from standfast.clock import monotonic
from tests.integration.adversary import wire
from tests.integration.adversary.conftest import CONNECTIONS, DESCRIPTORS, PER_ADDRESS

if TYPE_CHECKING:
    from tests.integration.adversary.stage import Stage

pytestmark = pytest.mark.services

GET = b"GET /health HTTP/1.1\r\nHost: desk.example\r\n\r\n"


def until_well(stage: Stage, source: str = "127.0.0.1") -> None:
    """Wait until an ordinary request is answered."""
    last, deadline = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), monotonic() + wire.PATIENCE
    while wire.statuses(wire.exchange(stage.url, last, source)) != [200]:
        assert monotonic() < deadline


def test_one_address_cannot_take_all_connections(patient: Stage) -> None:
    """More than its share are refused at once; others are served, and so is it when it hangs up."""
    with ExitStack() as stack:
        lines = [stack.enter_context(closing(wire.Wire(patient.url, "127.0.0.2"))) for _ in range(PER_ADDRESS + 5)]
        for line in lines[PER_ADDRESS:]:
            answer = line.rest()
            assert wire.statuses(answer) == [503]
            assert b"connections from this address" in answer
            assert b"retry-after: " in answer
        assert patient.is_well()
    until_well(patient)


def test_all_addresses_together_cannot_take_more_than_there_are(patient: Stage) -> None:
    """What is more is refused at once, and not left waiting."""
    with ExitStack() as stack:
        for number in range(CONNECTIONS):
            stack.enter_context(closing(wire.Wire(patient.url, f"127.0.1.{number + 1}")))
        assert wire.statuses(wire.exchange(patient.url, b"")) == [503]
    until_well(patient)


def test_a_websocket_is_a_connection(patient: Stage) -> None:
    """It is counted for as long as it is open, and not longer."""
    key = base64.b64encode(b"sixteen letters.")
    upgrade = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 13")
    lines = (b"GET /chat/desk HTTP/1.1", b"Host: desk.example", *upgrade, b"Sec-WebSocket-Key: " + key)
    for _ in range(2):
        with ExitStack() as stack:
            for number in range(PER_ADDRESS):
                line = stack.enter_context(closing(wire.Wire(patient.url, "127.0.0.3")))
                if number < 10:  # as many as a chat lets one user have
                    line.send(b"\r\n".join(lines) + b"\r\n\r\n")
                    assert b" 101 " in line.some()
            assert wire.statuses(wire.exchange(patient.url, b"", "127.0.0.3")) == [503]
        until_well(patient, "127.0.0.3")


def test_refusals_do_not_fill_the_log(patient: Stage) -> None:
    """A few lines, and then how many more there were."""
    before = patient.log().count("\n")
    for _ in range(200):
        assert wire.statuses(wire.exchange(patient.url, b"no HTTP\r\n\r\n", "127.0.0.4")) == [400]
    lines = patient.log().count("\n") - before
    assert 0 < lines < 40
    assert "Traceback" not in patient.log()


def test_without_descriptors_a_server_pauses_and_goes_on(poor: Stage) -> None:
    """Connections wait for a while; requests on those that there are go on, and one line in the log says why."""
    with closing(wire.Wire(poor.url)) as line:
        call = wire.post("hoard", b"X-Auth-User: ada", b"Content-Length: 2", body=b"{}")
        held = b""
        while True:  # connections of tests before it may still be closing, and leave descriptors
            line.send(call)
            answer = line.answer()
            assert b"200 OK" in answer
            if held == (held := answer.rpartition(b"\r\n")[2]):
                break
        with closing(wire.Wire(poor.url)) as waiting:
            waiting.send(GET)
            assert waiting.is_quiet(2.0)
            line.send(wire.post("noted", b"X-Auth-User: ada", b"Content-Length: 2", body=b"{}"))
            assert b"200 OK" in line.answer()
            line.send(wire.post("let_go", b"X-Auth-User: ada", b"Content-Length: 2", body=b"{}"))
            assert b"200 OK" in waiting.answer()
    told = [text for text in poor.log().splitlines() if "descriptors-spent" in text]
    assert 1 <= len(told) <= 25
    assert "Traceback" not in poor.log()


def test_the_limit_of_open_files_is_raised_and_connections_stay_below_it(poor: Stage) -> None:
    """As far as the system lets it be, with some left for everything else."""
    limits = resource.prlimit(poor.program.process.pid, resource.RLIMIT_NOFILE)
    assert limits == (DESCRIPTORS, DESCRIPTORS)
    told = f"event=connections-lowered wanted=2000 connections={DESCRIPTORS - KEPT} descriptors={DESCRIPTORS}"
    assert told in poor.log()
