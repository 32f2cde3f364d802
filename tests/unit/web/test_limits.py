"""Limits of actions as callers meet them: the answers of each transport, and what callers cannot choose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import httpx
import pytest

import standfast as sf
from standfast.web.signatures import Unsigned
from tests.unit.web.fakes import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ends: list[asyncio.Event] = []
works = sf.Flow("works")


@works.action(limits=sf.Rate(1, "1 minute", key="tenant"))
async def rated(request: sf.Request, text: str = "") -> str:
    """Do it, seldom."""
    del request
    return text


@works.action(limits=sf.Limit(1, on_limit="reject"))
async def strict(request: sf.Request) -> None:
    """Do it alone."""
    request.emit("begun")
    await ends[-1].wait()


@works.action(limits=sf.Limit(1, ttl="20ms"))
async def patient(request: sf.Request) -> None:
    """Do it one after the other."""
    request.emit("begun")
    await ends[-1].wait()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    """A client of the works."""
    ends.append(asyncio.Event())
    hook = sf.web.Webhook("bell", Unsigned(), rated, inputs=lambda _: {})
    async with sf.App("memory://", flows=[works], webhooks=[hook], arbiter="local") as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=shown(app)) as asking:
            yield asking


async def test_more_than_the_rate_is_429_with_the_time_to_come_again(client: httpx.AsyncClient) -> None:
    """In the header for machines, and in the body with the limit in words."""
    first = await client.post("/flows/works/rated", json={})
    second = await client.post("/flows/works/rated", json={})

    assert (first.status_code, second.status_code) == (200, 429)
    assert 60 <= int(second.headers["retry-after"]) <= 90
    assert second.json()["type"] == "urn:standfast:too-many-requests"
    assert second.json()["detail"].startswith("the limit for requests of works.rated for tenant is 1 in 60 s")


async def test_a_delivery_over_the_rate_is_429_so_that_it_is_sent_again(client: httpx.AsyncClient) -> None:
    """A provider tries again later."""
    first = await client.post("/webhooks/bell", json={"a": 1})
    second = await client.post("/webhooks/bell", json={"a": 2})

    assert (first.status_code, second.status_code) == (202, 429)
    assert 60 <= int(second.headers["retry-after"]) <= 90


async def test_a_caller_cannot_choose_a_priority(client: httpx.AsyncClient) -> None:
    """It is no part of the body, and no header means it."""
    answer = await client.post("/flows/works/rated", json={"text": "a", "priority": 9})

    assert answer.status_code == 422


async def test_a_limit_that_does_not_let_wait_is_429(client: httpx.AsyncClient) -> None:
    """With the number of those that run."""
    asking = [asyncio.ensure_future(client.post("/flows/works/strict", json={})) for _ in range(2)]
    done, running = await asyncio.wait(asking, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    ends[-1].set()

    [refused] = [each.result() for each in done]
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert "the limit for running requests at the limit of works.strict is 1" in refused.json()["detail"]
    assert [(await each).status_code for each in running] == [200]


async def test_room_that_does_not_come_in_time_is_503(client: httpx.AsyncClient) -> None:
    """As a turn in a queue."""
    asking = [asyncio.ensure_future(client.post("/flows/works/patient", json={})) for _ in range(2)]
    done, waiting = await asyncio.wait(asking, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    ends[-1].set()

    [late] = [each.result() for each in done]
    assert (late.status_code, late.json()["type"]) == (503, "urn:standfast:queue-timeout")
    assert [(await each).status_code for each in waiting] == [200]
