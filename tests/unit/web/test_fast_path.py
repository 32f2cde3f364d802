"""The fast path of plain calls: nobody can tell it from the ordinary one, except by the time it takes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import (
    ForbiddenError,
    QueueFullError,
    RequestFailedError,
    StandfastError,
    StoreUnavailableError,
    TooManyRequestsError,
)
from standfast.flows.request import Principal
from standfast.web import problems
from standfast.web.auth import BearerTokens, token_digest
from standfast.web.limits import AppLimits
from tests.unit.web.fakes import AsgiCall, Served

if TYPE_CHECKING:
    import httpx

ECHO = "/flows/chat/echo"
BODY = b'{"text":"hello"}'
JSON = {"Content-Type": "application/json"}
TOKEN = "sf_a-token-of-the-tests"  # noqa: S105 -- made up for the tests
TOKENS = BearerTokens({token_digest(TOKEN): Principal("acme", "ada")}, failures=1_000)

CALLS: dict[str, dict[str, Any]] = {
    "a plain call": {},
    "in a session": {"headers": JSON | {"Standfast-Session": "s-1"}},
    "in a session that is not printable": {"headers": JSON | {"Standfast-Session": "s\t1"}},
    "in a session that is too long": {"headers": JSON | {"Standfast-Session": "s" * 300}},
    "in two sessions": {"headers": [*JSON.items(), ("Standfast-Session", "s-1"), ("Standfast-Session", "s-2")]},
    "without a body": {"content": b""},
    "a body that is not marked": {"headers": {}},
    "a body that is marked as text": {"headers": {"Content-Type": "text/plain"}},
    "a body that is marked at length": {"headers": {"Content-Type": "application/json; charset=utf-8"}},
    "a body that is marked as a kind of JSON": {"headers": {"Content-Type": "application/ld+json"}},
    "a body that is compressed": {"headers": JSON | {"Content-Encoding": "gzip"}},
    "a body that is too large": {"content": b"x" * 2_000},
    "a body in pieces": {"content": [BODY[:5], BODY[5:]]},
    "pieces that are too large": {"content": [b"x" * 600] * 3},
    "a length that is no number": {"headers": JSON | {"Content-Length": "many"}},
    "a length beyond all limits": {"headers": JSON | {"Content-Length": "9" * 400}},
    "a stream of events": {"headers": JSON | {"Accept": "text/event-stream"}},
    "an answer before the end": {"headers": JSON | {"Prefer": "respond-async"}},
    "an idempotency key": {"headers": JSON | {"Idempotency-Key": '"k"'}},
    "a chain that was made up": {"headers": JSON | {"Standfast-Chain": "made up"}},
    "from a page of its own": {"headers": JSON | {"Origin": "http://localhost"}},
    "from a page elsewhere": {"headers": JSON | {"Origin": "http://evil.example"}},
    "through a proxy": {"headers": JSON | {"X-Forwarded-For": "203.0.113.9"}},
    "for another host": {"headers": JSON | {"Host": "evil.example"}},
    "by another method": {"method": "PUT"},
    "an action that is not there": {"path": "/flows/chat/nothing"},
    "an action that is durable": {"path": "/flows/chat/post"},
    "an address that goes on": {"path": f"{ECHO}/more"},
    "with a query": {"path": f"{ECHO}?text=other"},
}


async def answered(call: dict[str, Any], refusal: StandfastError | None = None, *, fast_path: bool, **app: Any) -> Any:
    """Return what is answered to a call, and what has arrived."""
    served = Served(fast_path=fast_path, limits=AppLimits(body=1_000), **app)
    served.dispatching.refusal = refusal
    content = call.get("content", BODY)
    pieces = content if isinstance(content, bytes) else _pieces(content)
    address = call.get("address", "127.0.0.1")
    async with served.client(address) as client:
        answer: httpx.Response = await client.request(
            call.get("method", "POST"), call.get("path", ECHO), content=pieces, headers=call.get("headers", JSON)
        )
    return answer.status_code, answer.headers.raw, answer.content, served.dispatching.arrivals


async def _pieces(content: list[bytes]) -> Any:
    for each in content:
        yield each


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_both_ways_give_the_same_answer(call: dict[str, Any]) -> None:
    """Status, headers in their order, body, and what is handed to the dispatcher."""
    assert await answered(call, fast_path=True) == await answered(call, fast_path=False)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("token", [TOKEN, "sf_another"])
async def test_both_ways_give_the_same_answer_to_those_with_a_token(call: dict[str, Any], token: str) -> None:
    """From anywhere, if it holds."""
    headers = [*dict(call.get("headers", JSON)).items(), ("Authorization", f"Bearer {token}")]
    sent = call | {"headers": headers, "address": "203.0.113.9"}
    first, second = [await answered(sent, fast_path=each, authenticate=TOKENS) for each in (True, False)]
    assert first == second
    assert (first[0] == 401) == (token != TOKEN) or first[0] == 403


@pytest.mark.parametrize("options", [{"hosts": ("api.example",)}, {"hosts": ("*.example",)}, {"hosts": ("localhost",)}])
async def test_both_ways_know_the_same_hosts(options: dict[str, Any]) -> None:
    """By their names, and all below one."""
    for host in ("localhost", "api.example", "a.b.example:80", "example", "evil.test"):
        call = {"headers": JSON | {"Host": host}}
        assert await answered(call, fast_path=True, **options) == await answered(call, fast_path=False, **options)


@pytest.mark.parametrize(
    "refusal",
    [
        QueueFullError("session 's'", 100, 2.5),
        ForbiddenError("chat.echo", ("admin",)),
        RequestFailedError("r1", "a secret"),
        StoreUnavailableError("memory", "it is away"),
        TooManyRequestsError("requests", 7, 1.0),
    ],
)
async def test_both_ways_refuse_in_the_same_words(refusal: StandfastError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the dispatcher says, but for the moment to come again, which is another one for each."""
    monkeypatch.setattr(problems, "spread", lambda seconds: seconds)
    assert await answered({}, refusal, fast_path=True) == await answered({}, refusal, fast_path=False)


@pytest.mark.parametrize("fast_path", [True, False])
async def test_both_ways_count_what_is_open_together(*, fast_path: bool) -> None:
    """One that waits takes the room of the next one, whichever way they come."""
    served = Served(fast_path=fast_path, limits=AppLimits(requests=1))
    served.dispatching.answers_at_once = False
    async with AsgiCall(served.app, "POST", ECHO, JSON | {"Content-Length": "0"}):
        await served.dispatching.came.wait()
        async with served.client() as client:
            plain = await client.post(ECHO, content=BODY, headers=JSON)
            unusual = await client.post(ECHO, content=BODY, headers=JSON | {"Prefer": "respond-async"})
    assert (plain.status_code, unusual.status_code) == (429, 429)


async def test_plain_calls_do_not_reach_the_router() -> None:
    """That is what the straight way is for."""
    served = Served()
    served.app._app = _nothing  # type: ignore[attr-defined] # nobody else can tell
    async with served.client() as client:
        answer = await client.post(ECHO, content=BODY, headers=JSON)
    assert (answer.status_code, answer.json()) == (200, "done")


async def _nothing(*_: object) -> None:
    pytest.fail("it came to the router")


async def test_a_caller_that_goes_away_cancels_its_plain_call() -> None:
    """It is watched for as soon as the call has to wait."""
    served = Served()
    served.dispatching.answers_at_once = False
    async with AsgiCall(served.app, "POST", ECHO, JSON | {"Content-Length": "0"}) as call:
        await served.dispatching.came.wait()
        call.hang_up()
        await served.dispatching.handles["r1"].was_cancelled.wait()
    assert served.dispatching.handles["r1"].cancelled_for == ["the caller went away"]


async def test_a_plain_body_that_does_not_come_is_not_waited_for() -> None:
    """408 after a while, although its length was small."""
    served, messages = Served(limits=AppLimits(body_time="20ms")), list[Any]()
    scope = AsgiCall(served.app, "POST", ECHO, JSON | {"Content-Length": "16"}).scope

    async def send(message: Any) -> None:
        messages.append(message)

    await served.app(scope, asyncio.Event().wait, send)  # type: ignore[arg-type] # nothing is ever received
    assert messages[0]["status"] == 408
