"""An action that raises is one ERROR entry with the user's own lines, whichever way it was called; callers see none."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast.errors import StandfastError
from standfast.ids import new_id
from standfast.web.signatures import Unsigned
from standfast.web.webhooks import Webhook
from tests.unit.web.test_app import client_of

if TYPE_CHECKING:
    from standfast.flows.flow import Action

flow = sf.Flow("shop")


def check(text: str) -> None:
    """Raise, with a secret in the message."""
    raise ValueError(f"{text} token=hunter2")


@flow.action(concurrency="allow")
async def simple(_request: sf.Request, text: str) -> None:
    """Fail without a turn and without a record."""
    check(text)


@flow.action(concurrency="queue")
async def in_turn(_request: sf.Request, text: str) -> None:
    """Fail while it has a key."""
    check(text)


@flow.action(concurrency="allow", durable=True, retry=sf.Retry(attempts=2, delay=0.001))
async def durable(_request: sf.Request, text: str) -> None:
    """Fail twice."""
    check(text)


@flow.action(concurrency=sf.Debounce("1ms"))
async def debounced(_request: sf.Request, text: str) -> None:
    """Fail for the last of a burst."""
    check(text)


@flow.action(concurrency=sf.Batch(1, window="1 hour"))
async def batched(_request: sf.Request, text: list[str]) -> None:
    """Fail for all together."""
    check(text[0])


def key_of(_: sf.Call) -> str:
    """Fail to find a key."""
    check("key")
    return ""


@flow.action(concurrency=sf.Queue(key=key_of))
async def keyed(request: sf.Request, text: str) -> None:
    """Never be called."""


@flow.action(concurrency=sf.Reject(key="session"))
async def waits(request: sf.Request, text: str) -> None:
    """Have the key until it is cancelled."""
    request.emit("waits", text)
    await asyncio.Event().wait()


def session_of(_: Any) -> str:
    """Fail to find the session of a delivery."""
    check("session")
    return ""


WEBHOOKS = [
    Webhook("direct", Unsigned(), simple, inputs=lambda _: {"text": "webhook"}),
    Webhook("broken", Unsigned(), simple, inputs=lambda _: {"text": "x"}, session=session_of),
]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of what was logged as an error."""
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


async def finished(app: sf.App, request_id: str) -> None:
    """Return when a request has ended."""
    handle = await app.dispatcher.find(sf.Principal(roles=frozenset({"operator"})), request_id)
    with contextlib.suppress(StandfastError):
        await handle.result(15)


@pytest.mark.parametrize("arbiter", ["local", "shared"])
@pytest.mark.parametrize("attended", [True, False], ids=["attended", "respond-async"])
@pytest.mark.parametrize("action", [simple, in_turn, durable, debounced, batched], ids=lambda action: action.name)
async def test_an_action_that_raises_is_one_entry(
    action: Action[..., Any], arbiter: Any, caplog: pytest.LogCaptureFixture, *, attended: bool
) -> None:
    """The entry names the request and ends in the line that raised; the caller gets 500, and nothing of it."""
    headers = {"Standfast-Session": "s"} | ({} if attended else {"Prefer": "respond-async"})
    async with sf.App(f"memory://{new_id()}", flows=[flow], arbiter=arbiter) as app, client_of(app) as client:
        answer = await client.post(f"/flows/shop/{action.name}", json={"text": "x"}, headers=headers)
        name = answer.json()["requestId"]
        await finished(app, name)
    assert answer.status_code == (500 if attended and action in (simple, in_turn) else 202)
    assert "check" not in answer.text
    assert "hunter2" not in answer.text
    [entry] = errors(caplog)
    first, *lines = entry.splitlines()
    assert first == f"the request {name!r} of shop.{action.name} failed: ValueError: x token=***"
    assert [line.rpartition(" in ")[2] for line in lines] == [action.name, "check"]


async def test_a_webhook_that_fails_is_one_entry(caplog: pytest.LogCaptureFixture) -> None:
    """Whether its action raises or one of its own functions."""
    async with sf.App(f"memory://{new_id()}", flows=[flow], webhooks=WEBHOOKS) as app, client_of(app) as client:
        taken = await client.post("/webhooks/direct", json={})
        await finished(app, taken.json()["requestId"])
        broken = await client.post("/webhooks/broken", json={})
    assert (taken.status_code, broken.status_code) == (202, 500)
    request, webhook = errors(caplog)
    assert request.splitlines()[-1].endswith("in check")
    assert webhook.splitlines()[0] == "the webhook 'broken' failed: ValueError: session token=***"
    assert webhook.splitlines()[-1].endswith("in check")


async def test_a_key_function_that_raises_is_one_entry(caplog: pytest.LogCaptureFixture) -> None:
    """Its caller is told nothing, so the log has to."""
    async with sf.App(f"memory://{new_id()}", flows=[flow]) as app, client_of(app) as client:
        answer = await client.post("/flows/shop/keyed", json={"text": "x"})
    assert answer.status_code == 500
    [entry] = errors(caplog)
    assert entry.startswith("the key function of flow 'shop', action 'keyed' failed: ValueError: key token=***")
    assert entry.splitlines()[-1].endswith("in check")


def exits(*_: object) -> Any:
    """Call what a library for the command line calls."""
    sys.exit(3)


exiting = sf.Flow("exiting")


@exiting.action(concurrency="allow")
async def action(_request: sf.Request) -> None:
    """Exit."""
    exits()


@exiting.action(concurrency=sf.Queue(key=exits))
async def key(request: sf.Request) -> None:
    """Never be called."""


EXITING = {
    "/flows/exiting/action": "the request",
    "/flows/exiting/key": "the key function",
    "/webhooks/inputs": "the webhook",
}


@pytest.mark.parametrize("path", EXITING)
async def test_a_function_that_exits_fails_its_call_and_the_server_goes_on(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The caller gets 500, and the log has one entry with the line."""
    webhooks = [Webhook("inputs", Unsigned(), action, inputs=exits)]
    async with sf.App(f"memory://{new_id()}", flows=[exiting], webhooks=webhooks) as app, client_of(app) as client:
        answer = await client.post(path, json={})
        assert answer.status_code == 500
        assert (await client.get("/health")).status_code == 200
    [entry] = errors(caplog)
    assert entry.startswith(EXITING[path])
    assert "in exits" in entry


async def test_a_caller_is_answered_if_what_authenticates_it_exits(caplog: pytest.LogCaptureFixture) -> None:
    """It gets the usual problem of an error that is ours."""
    async with sf.App(f"memory://{new_id()}", flows=[exiting], authenticate=exits) as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answer = await client.post("/flows/exiting/action", json={})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    [entry] = errors(caplog)
    assert "in exits" in entry


async def test_refusals_and_cancelled_requests_are_no_errors(caplog: pytest.LogCaptureFixture) -> None:
    """They are told to the caller, and expected."""
    headers = {"Standfast-Session": "s"}
    async with sf.App(f"memory://{new_id()}", flows=[flow]) as app, client_of(app) as client:
        first = await app.dispatcher.dispatch(sf.Call(flow="shop", action="waits", inputs={"text": "x"}, session="s"))
        codes = [
            (await client.post("/flows/shop/waits", json={"text": "x"}, headers=headers)).status_code,
            (await client.post("/flows/shop/simple", json={"texts": "x"})).status_code,
            (await client.post("/flows/shop/nothing", json={})).status_code,
        ]
        await first.cancel()
        await finished(app, first.id)
    assert codes == [409, 422, 404]
    assert errors(caplog) == []
