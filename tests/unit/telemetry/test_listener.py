"""The listener for probes, scrapes and autoscalers: five addresses, a token, and bounds."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client import CollectorRegistry

import standfast as sf
from standfast.errors import DeclarationError
from standfast.telemetry import listener as module
from standfast.telemetry.exporters import PrometheusMetrics
from standfast.telemetry.health import Health
from standfast.telemetry.listener import TOKEN, EngineProbes, ProbeListener, place_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def listening(token: str = "", *, metrics: bool = True) -> AsyncGenerator[httpx.AsyncClient]:
    """Listen, and return a client."""
    hooks = [PrometheusMetrics(CollectorRegistry())] if metrics else []
    async with sf.Engine("memory://", hooks=hooks) as engine:
        listener = ProbeListener(EngineProbes(engine, Health(engine)), token)
        async with listener.listening("127.0.0.1", 0), httpx.AsyncClient(base_url=listener.address) as client:
            yield client


async def test_it_answers_probes_scrapes_and_autoscalers() -> None:
    """Each address says what it is for."""
    async with listening() as client:
        answers = {path: await client.get(path) for path in ("/health/live", "/health/ready", "/scale", "/metrics")}
        assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
        assert answers["/scale"].json()["workers"] == 1
        assert "standfast_store_up 1.0" in answers["/metrics"].text
        assert (await client.head("/metrics")).text == ""
        assert (await client.get("/")).status_code == 404
        assert (await client.post("/metrics")).status_code == 405


async def test_with_a_token_only_probes_are_open() -> None:
    """Kubernetes sends no token, Prometheus does."""
    async with listening("s3cret") as client:
        assert (await client.get("/health/ready")).status_code == 200
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/scale", headers={"Authorization": "Bearer wrong"})).status_code == 401
        assert (await client.get("/metrics", headers={"Authorization": "Bearer s3cret"})).status_code == 200


async def test_without_metrics_it_says_what_to_install() -> None:
    """Probes are answered all the same."""
    async with listening(metrics=False) as client:
        answer = await client.get("/metrics")
        assert (answer.status_code, "standfast[metrics]" in answer.text) == (503, True)
        assert (await client.get("/health/live")).status_code == 200


async def test_who_sends_no_request_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow, endless and wrong ones cost no more than a moment."""
    monkeypatch.setattr(module, "WITHIN", 0.05)
    async with listening() as client:
        host, port = client.base_url.host, client.base_url.port
        assert port is not None
        for sent in (b"", b"GET /", b"x" * 40_000):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(sent)
            assert await reader.read() == b""
            writer.close()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_too_many_connections_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood does not use up what runs need."""
    monkeypatch.setattr(module, "MOST", 1)
    async with listening() as client:
        assert client.base_url.port is not None
        _, first = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        reader, second = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        assert await reader.read() == b""
        first.close()
        second.close()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("9464", ("127.0.0.1", 9464)),
        (":9464", ("127.0.0.1", 9464)),
        ("localhost:1", ("localhost", 1)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_without_a_host_it_is_this_machine(text: str, place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is open to strangers unless that is said."""
    monkeypatch.delenv(TOKEN, raising=False)
    assert place_of(text) == place


@pytest.mark.parametrize("text", ["", "nowhere", "host:port", "127.0.0.1:99999"])
def test_what_is_no_place_is_refused(text: str) -> None:
    """Before anything is opened."""
    with pytest.raises(DeclarationError, match="no HOST:PORT"):
        place_of(text)


def test_other_machines_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics tell how much a company sells."""
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(DeclarationError, match=TOKEN):
        place_of("0.0.0.0:9464")
    monkeypatch.setenv(TOKEN, "s3cret")
    assert place_of("0.0.0.0:9464") == ("0.0.0.0", 9464)  # noqa: S104 -- what is tested
