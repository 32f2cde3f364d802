"""Deliveries, from raw bytes to the answer that the provider gets."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from contextlib import nullcontext
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.clock import MICROSECONDS, SYSTEM_CLOCK
from standfast.errors import (
    ArbiterUnavailableError,
    DeclarationError,
    IdempotencyInFlightError,
    InvalidInputError,
    QueueFullError,
    RequestRejectedError,
    StandfastError,
    StoreUnavailableError,
)
from standfast.flows.flow import Flow
from standfast.flows.request import (
    Principal,
    Request,
)
from standfast.web.limits import AppLimits
from standfast.web.signatures import GitHub, Slack, StandardWebhooks, Unsigned
from standfast.web.webhooks import Webhook
from tests.unit.web.fakes import Served, chat, echo, post

if TYPE_CHECKING:
    import httpx

SECRET = base64.b64encode(b"a secret of the tests, long").decode()
KEY = base64.b64decode(SECRET)
JSON = {"content-type": "application/json"}
LETTER = b'{"type":"letter"}'
REFUSALS = [(ArbiterUnavailableError("no"), 503), (QueueFullError("k", 9, 2.5), 429)]
TAKEN = RequestRejectedError("session 's'", "r9")


def signed(body: bytes, delivery: str = "msg_1", off: float = 0.0) -> dict[str, str]:
    """Return the headers of a delivery that was signed a while ago."""
    time = str(int(SYSTEM_CLOCK.wall() / MICROSECONDS + off))
    content = f"{delivery}.{time}.".encode() + body
    signature = base64.b64encode(hmac.new(KEY, content, sha256).digest()).decode()
    return JSON | {"webhook-id": delivery, "webhook-timestamp": time, "webhook-signature": f"v1,{signature}"}


def served(**options: Any) -> Served:
    """Return an application that takes letters."""
    limits = options.pop("limits", None)
    webhook = Webhook("letters", StandardWebhooks(SECRET), options.pop("to", post), **options)
    return Served(webhooks=[webhook], limits=limits)


async def deliver(
    app: Served, body: bytes = b'{"type":"letter"}', headers: dict[str, str] | None = None
) -> httpx.Response:
    """Send a delivery from somewhere."""
    async with app.client("203.0.113.9", "http://hooks.example") as client:
        return await client.post("/webhooks/letters", content=body, headers=headers or signed(body))


async def test_a_delivery_is_accepted_when_it_is_recorded() -> None:
    """202 with the id of the request; the action gets the payload, and nobody waits for it."""
    app = served()
    answer = await deliver(app)
    [arrival] = app.dispatching.arrivals
    assert (answer.status_code, answer.json()) == (202, {"status": "accepted", "requestId": "r1"})
    assert (arrival.flow, arrival.action, arrival.inputs) == ("chat", "post", {"letter": {"type": "letter"}})
    assert (arrival.transport, arrival.attended, arrival.idempotency_key) == ("webhook", False, "webhook:letters:msg_1")
    assert arrival.metadata["webhook"]["deliveryId"] == "msg_1"


async def test_the_same_delivery_again_is_a_duplicate() -> None:
    """200, so that the provider stops, with the id of the first."""
    app = served()
    await deliver(app)
    answer = await deliver(app)
    assert (answer.status_code, answer.json()) == (200, {"status": "duplicate", "requestId": "r1"})


@pytest.mark.parametrize(
    ("refusal", "status", "body"),
    [
        (
            RequestRejectedError("session 's'", "r9"),
            200,
            {"status": "skipped", "reason": "in_flight", "requestId": "r9"},
        ),
        (RequestRejectedError("session 's'", "r9", 0, "running", False), 503, {"status": "busy", "requestId": "r9"}),
        (IdempotencyInFlightError("r9"), 200, {"status": "duplicate", "requestId": "r9"}),
        (InvalidInputError("letter", "is missing"), 400, {"status": "invalid", "reason": "letter: is missing"}),
        (StoreUnavailableError("sqlite:///x", "gone"), 503, {"status": "unavailable"}),
    ],
)
async def test_a_delivery_that_is_not_run_is_answered_as_the_table_says(
    refusal: StandfastError, status: int, body: dict[str, str]
) -> None:
    """Skipped only if whoever has the key is durable; what is not recorded has to come again."""
    app = served()
    app.dispatching.refusal = refusal
    answer = await deliver(app)
    assert (answer.status_code, answer.json()) == (status, body)
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.parametrize(
    ("refusal", "status"), [(ArbiterUnavailableError("no"), 503), (QueueFullError("k", 9, 2.5), 429)]
)
async def test_other_refusals_have_their_own_status(refusal: StandfastError, status: int) -> None:
    """And say when to come again."""
    app = served()
    app.dispatching.refusal = refusal
    answer = await deliver(app)
    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": ""},
        {"webhook-id": "msg_2"},
        {"webhook-timestamp": "1"},
        {"webhook-timestamp": "99999999999"},
        {"webhook-timestamp": "now"},
    ],
)
async def test_every_bad_signature_gets_the_same_answer(change: dict[str, str]) -> None:
    """401 and not a word about what was wrong; nothing is dispatched."""
    app = served()
    body = b'{"type":"letter"}'
    answer = await deliver(app, body, signed(body) | change)
    assert (answer.status_code, answer.json()) == (401, {"title": "Unauthorized", "status": 401})
    assert app.dispatching.arrivals == []


@pytest.mark.parametrize("off", [-301, 302])
async def test_a_replay_from_long_ago_or_far_ahead_is_refused(off: float) -> None:
    """The signature is good, its time is not."""
    app = served()
    body = b"{}"
    assert (await deliver(app, body, signed(body, off=off))).status_code == 401


async def test_the_signature_is_looked_at_before_the_body_is_read() -> None:
    """What is no JSON is 401 if nobody has signed it, and 400 if somebody has."""
    app = served()
    body = b"{not json"
    assert (await deliver(app, body, signed(body) | {"webhook-signature": "v1,AAAA"})).status_code == 401
    answer = await deliver(app, body)
    assert (answer.status_code, answer.json()["status"]) == (400, "invalid")


async def test_deeply_nested_json_is_a_bad_body() -> None:
    """It does not bring the server down."""
    body = b"[" * 100_000
    assert (await deliver(served(), body)).status_code == 400


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", ""])
async def test_only_json_and_forms_are_read(kind: str) -> None:
    """Whatever else is signed is a bad body."""
    body = b"{}"
    assert (await deliver(served(), body, signed(body) | {"content-type": kind})).status_code == 400


async def test_an_event_without_an_action_is_ignored() -> None:
    """202 for what was signed and is not wanted; still 401 for what was not signed."""
    app = served(to={"letter": post})
    body = b'{"type":"parcel"}'
    answer = await deliver(app, body)
    assert (answer.status_code, answer.json()) == (202, {"status": "ignored"})
    assert (await deliver(app, body, JSON)).status_code == 401
    assert app.dispatching.arrivals == []


async def test_the_body_chooses_neither_flow_nor_tenant_nor_session() -> None:
    """They are said where the webhook is declared."""
    app = served(principal=Principal("acme", "post"), session=lambda delivery: f"letters-{delivery.event}")
    body = (
        b'{"type":"letter","flow":"other","tenant":"evil","session":"theirs","metadata":{"webhook":{"deliveryId":"x"}}}'
    )
    await deliver(app, body)
    [arrival] = app.dispatching.arrivals
    assert (arrival.flow, arrival.principal, arrival.session) == ("chat", Principal("acme", "post"), "letters-letter")
    assert arrival.metadata["webhook"]["deliveryId"] == "msg_1"


@pytest.mark.parametrize("part", ["inputs", "session", "principal", "event_time"])
async def test_a_function_of_the_user_that_fails_is_our_fault(part: str) -> None:
    """500, without a word about why; the provider tries again."""

    def fail(delivery: object) -> Any:
        raise KeyError(delivery)

    answer = await deliver(served(**{part: fail}))
    assert (answer.status_code, answer.json()) == (500, {"status": "failed"})


async def test_a_body_that_is_too_large_is_not_read() -> None:
    """413 before anything is verified, whether it says its length or not."""
    app = served(max_body=100)
    body = b"x" * 101
    assert (await deliver(app, body)).status_code == 413

    async def pieces() -> Any:
        for _ in range(101):
            yield b"x"

    async with app.client() as client:
        answer = await client.post("/webhooks/letters", content=pieces(), headers=JSON)
    assert answer.status_code == 413


async def test_a_compressed_body_is_refused() -> None:
    """A few bytes could become gigabytes."""
    body = b"{}"
    assert (await deliver(served(), body, signed(body) | {"content-encoding": "gzip"})).status_code == 415


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    """408 after a while."""
    app, messages = served(limits=AppLimits(body_time="20ms")), []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    scope = {"type": "http", "method": "POST", "path": "/webhooks/letters", "headers": [], "query_string": b""}
    await app.app(scope, receive, send)
    assert messages[0]["status"] == 408


async def test_a_delivery_without_an_id_is_told_apart_by_its_bytes() -> None:
    """So the same bytes are one delivery, and others another."""
    webhook = Webhook("letters", GitHub("a secret of the tests"), post)
    app = Served(webhooks=[webhook])
    for body in (b'{"a":1}', b'{"a":1}', b'{"a":2}'):
        signature = hmac.new(b"a secret of the tests", body, sha256).hexdigest()
        await deliver(app, body, JSON | {"x-hub-signature-256": f"sha256={signature}"})
    keys = [arrival.idempotency_key for arrival in app.dispatching.arrivals]
    assert keys[0] == keys[1] != keys[2]


async def test_an_odd_id_is_taken_by_its_digest() -> None:
    """An id may be as long as a header, and a key may not."""
    app = served()
    for delivery in ("x" * 3000, "with a space"):
        assert (await deliver(app, b"{}", signed(b"{}", delivery))).status_code == 202
    keys = [arrival.idempotency_key for arrival in app.dispatching.arrivals]
    assert all(key.startswith("webhook:letters:sha256-") and len(key) < 200 for key in keys)


async def test_a_form_is_read_and_json_in_it_too() -> None:
    """As Slack and GitHub send them."""
    secret = "a secret of the tests"  # noqa: S105 -- made up for the tests
    app = Served(webhooks=[Webhook("letters", Slack(secret), post)])
    time = str(int(SYSTEM_CLOCK.wall() / MICROSECONDS))
    for body in (b"command=%2Fdeploy&text=now", b"payload=%7B%22a%22%3A1%7D"):
        signature = hmac.new(secret.encode(), f"v0:{time}:".encode() + body, sha256).hexdigest()
        headers = {"x-slack-request-timestamp": time, "x-slack-signature": f"v0={signature}"}
        await deliver(app, body, headers | {"content-type": "application/x-www-form-urlencoded"})
    payloads = [arrival.inputs["letter"] for arrival in app.dispatching.arrivals]  # type: ignore[call-overload] # a mapping here
    assert payloads == [{"command": "/deploy", "text": "now"}, {"a": 1}]


async def test_slack_gets_its_challenge_back() -> None:
    """When its address is entered; only if it is signed."""
    secret, body = "a secret of the tests", b'{"type":"url_verification","challenge":"3eZ"}'
    app = Served(webhooks=[Webhook("letters", Slack(secret), post)])
    time = str(int(SYSTEM_CLOCK.wall() / MICROSECONDS))
    signature = hmac.new(secret.encode(), f"v0:{time}:".encode() + body, sha256).hexdigest()
    headers = JSON | {"x-slack-request-timestamp": time, "x-slack-signature": f"v0={signature}"}
    assert (await deliver(app, body, headers)).json() == {"challenge": "3eZ"}
    assert (await deliver(app, body, JSON)).status_code == 401


async def test_unsigned_deliveries_need_the_credentials_that_all_else_needs() -> None:
    """Whoever sends them from this machine is nobody in particular: a proxy on it sends for anybody."""
    app = Served(webhooks=[Webhook("letters", Unsigned(), post)])
    async with app.client() as client:
        assert (await client.post("/webhooks/letters", json={})).status_code == 202
        assert (await client.post("/webhooks/letters", json={}, headers={"Authorization": ""})).status_code == 401
    assert len(app.dispatching.arrivals) == 1


async def test_logs_name_secrets_by_their_ids(caplog: pytest.LogCaptureFixture) -> None:
    """Neither secrets nor payloads nor signatures are in them."""
    caplog.set_level("INFO", logger="standfast.web.webhooks")
    webhook = Webhook("letters", StandardWebhooks({"2026-06": SECRET}), post)
    body = b'{"type":"letter","text":"canary"}'
    await deliver(Served(webhooks=[webhook]), body)
    await deliver(Served(webhooks=[webhook]), body, JSON)
    assert "event=webhook-accepted webhook=letters secret=2026-06" in caplog.text
    assert "event=webhook-refused webhook=letters reason=unsigned" in caplog.text
    assert "canary" not in caplog.text
    assert SECRET not in caplog.text


async def test_what_is_signed_and_does_not_fit_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The answers that a provider gets are read by no person; what does not fit is told, and not what was sent."""
    webhook = Webhook("letters", StandardWebhooks({"2026-06": SECRET}), post)
    app = Served(webhooks=[webhook])
    await deliver(app, b"{not json, canary")
    app.dispatching.refusal = InvalidInputError("letter", "is missing")
    await deliver(app, b'{"type":"letter","text":"canary"}')
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    begin = "event=webhook-unfit webhook=letters secret=2026-06 status=400 problem="
    assert [line[: len(begin)] for line in told] == [begin, begin]
    assert told[1].endswith('"letter: is missing"')
    assert "canary" not in caplog.text


async def test_only_post_is_taken() -> None:
    """There is nothing to see."""
    async with served().client() as client:
        assert (await client.get("/webhooks/letters")).status_code == 405
        assert (await client.post("/webhooks/other")).status_code == 404


@pytest.mark.parametrize(
    ("name", "verifier", "to"),
    [
        ("Letters!", Unsigned(), post),
        ("letters", None, post),
        ("letters", Unsigned(), {}),
        ("letters", Unsigned(), chat),
        ("letters", Unsigned(), echo),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(name: str, verifier: Any, to: Any) -> None:
    """The last one is an action with two parameters, and nothing says how to call it."""
    with pytest.raises(DeclarationError):
        Webhook(name, verifier, to)


def test_a_delivery_must_not_be_forgotten_while_its_signature_holds() -> None:
    """Otherwise it could be sent again in between."""
    flow = Flow("forgetful")

    @flow.action(idempotency_window="1 minute")
    async def forget(request: Request, event: dict[str, Any]) -> None:
        del request, event

    with pytest.raises(DeclarationError, match="idempotency_window"):
        Webhook("letters", Unsigned(), forget)


async def test_a_large_delivery_is_read_beside_the_loop() -> None:
    """Ten megabytes, if they are allowed."""
    body = json.dumps({"type": "letter", "text": "x" * 10_000_000}).encode()
    app = served(max_body=20_000_000)
    assert (await deliver(app, body)).status_code == 202
    assert (await deliver(served(), body)).status_code == 413


@pytest.mark.parametrize("policy", [sf.Queue(), sf.Reject(), sf.Debounce("1s"), sf.Restart(), sf.Join(), sf.Latest()])
def test_a_webhook_whose_deliveries_have_no_key_is_refused_where_it_is_declared(policy: Any) -> None:
    """The policy of its action would do nothing; the error says what to write."""
    flow, name = sf.Flow("letters"), type(policy).__name__

    @flow.action(concurrency=policy)
    async def take(request: sf.Request, letter: str) -> None:
        del request, letter

    with pytest.raises(DeclarationError, match=f'session=lambda delivery: .*sf.{name}\\(key="tenant"\\)'):
        Webhook("letters", Unsigned(), take)
    Webhook("letters", Unsigned(), take, session=lambda delivery: delivery.id)


@pytest.mark.parametrize(("user", "is_taken"), [("", False), ("shop", True)])
def test_a_webhook_of_nobody_is_refused_where_users_collide(user: str, *, is_taken: bool) -> None:
    """Unless its principal has a name, which it has if none is given."""
    flow = sf.Flow("letters")

    @flow.action(concurrency=sf.Queue(key="user"))
    async def take(request: sf.Request, letter: str) -> None:
        del request, letter

    Webhook("letters", Unsigned(), take)
    with nullcontext() if is_taken else pytest.raises(DeclarationError, match="by user"):
        Webhook("letters", Unsigned(), take, principal=sf.Principal("acme", user))
