"""Probes of an application are open; its metrics are for its own token, or for a role that is given on purpose."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client import CollectorRegistry

import standfast as sf
from standfast.web.auth import token_digest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

FLOW = sf.Flow("desk-of-probes")


@FLOW.action
async def echo(_request: sf.Request, text: str) -> str:
    """Say it again."""
    return text


@asynccontextmanager
async def serving(app: sf.App) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve an application."""
    async with app, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


async def test_the_owner_of_the_token_reads_metrics_and_a_stranger_does_not() -> None:
    """Probes take no credentials, and tell nothing."""
    app = sf.App("memory://", flows=[FLOW], hooks=[sf.admin.PrometheusMetrics(CollectorRegistry())])
    mine = {"Authorization": f"Bearer {app.token}"}
    async with serving(app) as client:
        assert (await client.get("/health/live")).json() == {"status": "ok"}
        assert (await client.get("/health/ready")).json() == {"status": "ok"}
        assert [(await client.get(path)).status_code for path in ("/metrics", "/scale")] == [401, 401]
        await client.post("/flows/desk-of-probes/echo", json={"text": "a"}, headers=mine)
        metrics = await client.get("/metrics", headers=mine)
        assert (await client.get("/scale", headers=mine)).json()["ready"] == 0
    assert metrics.headers["content-type"].startswith("text/plain")
    assert 'standfast_requests_ended_total{action="echo",flow="desk-of-probes",outcome="completed"' in metrics.text


@pytest.mark.parametrize(("role", "status"), [("metrics", 200), ("operator", 403), ("viewer", 403), ("", 403)])
async def test_only_the_role_for_it_reads_metrics_of_all_tenants(role: str, status: int) -> None:
    """An operator is one of a tenant; metrics are of all tenants together."""
    token = sf.web.new_token()
    principal = sf.Principal("acme", "prometheus", frozenset({role}))
    app = sf.App(
        "memory://",
        flows=[FLOW],
        authenticate=sf.web.BearerTokens({token_digest(token): principal}),
        hooks=[sf.admin.PrometheusMetrics(CollectorRegistry())],
    )
    async with serving(app) as client:
        for path in ("/metrics", "/scale"):
            assert (await client.get(path, headers={"Authorization": f"Bearer {token}"})).status_code == status


async def test_an_application_without_metrics_says_how_to_get_them() -> None:
    """The answer names the hook."""
    app = sf.App("memory://", flows=[FLOW])
    async with serving(app) as client:
        answer = await client.get("/metrics", headers={"Authorization": f"Bearer {app.token}"})
    assert answer.status_code == 404
    assert "PrometheusMetrics" in answer.text


async def test_an_application_that_closes_is_alive_and_not_ready() -> None:
    """A load balancer looks elsewhere, and nothing starts the process anew."""
    app = sf.App("memory://", flows=[FLOW])
    async with serving(app) as client:
        app.drain()
        assert (await client.get("/health/ready")).status_code == 503
        assert (await client.get("/health/live")).status_code == 200
