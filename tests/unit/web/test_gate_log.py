"""What callers are refused is in the log: as a warning if they may not ask it, else as information."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast.errors import ForbiddenError, WaitsForItselfError
from standfast.ids import new_id
from standfast.log_budget import BURST

if TYPE_CHECKING:
    from collections.abc import Iterable

TOKEN = "sf_a-token-of-the-tests"  # noqa: S105 -- made up for the tests
ADA = sf.Principal("acme", "ada")
TOKENS = sf.web.BearerTokens({sf.web.token_digest(TOKEN): ADA})
shop = sf.Flow("shop")


@shop.action(concurrency="allow", roles={"clerk"})
async def refund(request: sf.Request) -> None:
    """Pay back, which not everybody may."""


@shop.action(concurrency=sf.Reject(key="tenant"))
async def pack(request: sf.Request) -> str:
    """Say what happens in the log of the request."""
    request.log.info("packing %d", 3, extra={"order": 7})
    inner = sf.Call(flow="shop", action="pack", principal=request.principal)
    try:
        await request.metadata["dispatch"](inner)
    except WaitsForItselfError as refused:
        return type(refused).__name__
    return ""


def served(**options: Any) -> sf.App:
    """Return an application that takes tokens."""
    return sf.App(f"memory://{new_id()}", flows=[shop], authenticate=TOKENS, **options)


def client_of(app: sf.App, address: str = "203.0.113.9") -> httpx.AsyncClient:
    """Return a caller from an address."""
    transport = httpx.ASGITransport(app=app, client=(address, 1))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return httpx.AsyncClient(transport=transport, base_url="http://api.example", headers=headers)


def told(records: Iterable[logging.LogRecord], event: str) -> list[tuple[int, dict[str, Any]]]:
    """Return the level and the fields of the records of an event."""
    found = [(each.levelno, vars(each).get("standfast")) for each in records]
    return [(level, fields) for level, fields in found if fields is not None and fields.get("event") == event]


async def test_a_caller_without_the_role_is_one_warning_with_its_address(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks after the application sees who tries what."""
    async with served() as app, client_of(app) as client:
        answer = await client.post("/flows/shop/refund", json={})
    assert answer.status_code == 403
    [(level, fields)] = told(caplog.records, "request-forbidden")
    assert level == logging.WARNING
    assert fields == {
        "event": "request-forbidden",
        "address": "203.0.113.9",
        "path": "/flows/shop/refund",
        "tenant": "acme",
        "user": "ada",
        "status": 403,
    }
    assert TOKEN not in caplog.text


async def test_a_page_that_is_not_trusted_and_a_wrong_host_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """They are refused before it is known who asks."""
    async with served(site=sf.web.Site(hosts=["api.example"])) as app, client_of(app) as client:
        await client.get("/openapi.json", headers={"Origin": "https://evil.example"})
        await client.get("/openapi.json", headers={"Host": "evil.example"})
    assert [fields["status"] for _, fields in told(caplog.records, "request-forbidden")] == [403, 421]


async def test_a_flood_of_forbidden_requests_fills_no_disk(caplog: pytest.LogCaptureFixture) -> None:
    """The next line after a pause says how many there were."""
    async with served() as app, client_of(app) as client:
        for _ in range(100):
            await client.post("/flows/shop/refund", json={})
    assert BURST <= len(told(caplog.records, "request-forbidden")) <= BURST + 2


async def test_a_forbidden_request_that_is_not_of_http_is_a_warning_too(caplog: pytest.LogCaptureFixture) -> None:
    """Such as one of a chat or of a language model, whose answers have no status."""
    async with served() as app:
        with pytest.raises(ForbiddenError):
            await app.dispatcher.dispatch(sf.Call(flow="shop", action="refund", principal=ADA, transport="mcp"))
    [(level, fields)] = told(caplog.records, "request-forbidden")
    assert (level, fields["action"], fields["transport"], fields["user"]) == (
        logging.WARNING,
        "shop.refund",
        "mcp",
        "ada",
    )


async def test_a_refusal_by_a_policy_is_one_line_of_information(caplog: pytest.LogCaptureFixture) -> None:
    """It is the caller's to come again, and whoever looks can see it; the log of a request has its fields."""
    caplog.set_level(logging.INFO)
    async with served() as app:
        call = sf.Call(
            flow="shop", action="pack", principal=ADA, metadata={"dispatch": app.dispatcher.dispatch}, attended=True
        )
        handle = await app.dispatcher.dispatch(call)
        assert await handle.result() == "WaitsForItselfError"
    [(level, fields)] = told(caplog.records, "request-refused")
    assert level == logging.INFO
    assert (fields["action"], fields["reason"]) == ("shop.pack", "WaitsForItselfError")
    [said] = [each for each in caplog.records if each.getMessage() == "packing 3"]
    assert said.name == __name__
    assert vars(said)["order"] == 7
    assert vars(said)["standfast"] == {"request": handle.id, "action": "shop.pack", "attempt": 1}
