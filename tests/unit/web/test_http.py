"""Actions over HTTP, as callers see them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

import standfast as sf
from standfast.errors import (
    ForbiddenError,
    IdempotencyMismatchError,
    QueueFullError,
    QueueTimeoutError,
    RequestFailedError,
    RequestRejectedError,
    StandfastError,
    StoreUnavailableError,
)
from standfast.flows.request import Principal, RequestExplanation
from standfast.web.auth import OWNER
from standfast.web.call import HEADER, chain_headers
from standfast.web.limits import AppLimits
from tests.unit.web.fakes import AsgiCall, Served

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from standfast.flows.request import Request

ECHO, POST = "/flows/chat/echo", "/flows/chat/post"
HELLO = {"text": "hello"}


async def test_a_caller_gets_what_the_action_returned() -> None:
    """200, the result as JSON, and the id of the request."""
    app = Served()
    app.dispatching.result = "hello"
    async with app.client() as client:
        answer = await client.post(ECHO, json=HELLO)
    assert (answer.status_code, answer.json(), answer.headers["standfast-request"]) == (200, "hello", "r1")
    [arrival] = app.dispatching.arrivals
    assert (arrival.flow, arrival.action, arrival.inputs) == ("chat", "echo", b'{"text":"hello"}')
    assert (arrival.transport, arrival.attended) == ("http", True)


async def test_headers_say_which_session_and_which_key() -> None:
    """And nothing in the body does."""
    app = Served()
    headers = {"Standfast-Session": "s-1", "Idempotency-Key": '"k-1"'}
    async with app.client() as client:
        await client.post(ECHO, json={"session": "s-2", "tenant": "evil"}, headers=headers)
    [arrival] = app.dispatching.arrivals
    assert (arrival.session, arrival.idempotency_key, arrival.principal) == ("s-1", "k-1", OWNER)
    assert arrival.metadata == {}


async def test_a_replayed_answer_says_so() -> None:
    """The same key gets the same answer, marked."""
    app = Served()
    async with app.client() as client:
        answers = [await client.post(ECHO, json=HELLO, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.headers.get("idempotency-replayed") for answer in answers] == [None, "true"]
    assert answers[0].headers["standfast-request"] == answers[1].headers["standfast-request"]


@pytest.mark.parametrize(
    ("path", "prefer"), [(ECHO, "respond-async"), (POST, ""), (ECHO, "handling=lenient, respond-async")]
)
async def test_what_is_not_waited_for_is_answered_with_where_to_follow_it(path: str, prefer: str) -> None:
    """202 and an address: if the caller prefers it, or the action is durable."""
    app = Served()
    async with app.client() as client:
        answer = await client.post(path, json=HELLO, headers={"Prefer": prefer})
    assert (answer.status_code, answer.headers["location"]) == (202, "/requests/r1")
    assert answer.json() == {"requestId": "r1", "status": "completed"}
    assert not app.dispatching.arrivals[0].attended


async def test_a_caller_may_wait_a_while_for_what_is_durable() -> None:
    """200 if it ends in time, otherwise 202; it is not cancelled in either case."""
    app = Served()
    async with app.client() as client:
        in_time = await client.post(POST, json={}, headers={"Prefer": "wait=5"})
    short = Served(limits=AppLimits(wait="10ms"))
    short.dispatching.answers_at_once = False
    async with short.client() as client:
        late = await client.post(POST, json={}, headers={"Prefer": "wait=500"})
    assert (in_time.status_code, late.status_code) == (200, 202)
    assert short.dispatching.handles["r1"].cancelled_for == []


async def test_whoever_waits_is_told_why() -> None:
    """Who has the key, since when, and the place in the line."""
    app = Served()
    app.dispatching.answers_at_once = False

    async def explained(arrival: Any, *, here: bool = False) -> Any:
        handle = await type(app.dispatching).dispatch(app.dispatching, arrival, here=here)
        handle.position = 2
        handle.explanation = RequestExplanation(key="session 's'", policy="queue", holder="r0", position=2, waiting=3)
        return handle

    app.dispatching.dispatch = explained  # type: ignore[method-assign] # for this test
    async with app.client() as client:
        told = (await client.post(ECHO, json=HELLO, headers={"Prefer": "respond-async"})).json()
    assert (told["position"], told["explanation"]["holder"], told["explanation"]["waiting"]) == (2, "r0", 3)


@pytest.mark.parametrize(
    ("refusal", "status", "facts"),
    [
        (RequestRejectedError("session 's'", "r9"), 409, {"type": "urn:standfast:request-rejected", "requestId": "r9"}),
        (IdempotencyMismatchError("r9"), 422, {"type": "urn:standfast:idempotency-mismatch", "requestId": "r9"}),
        (QueueFullError("session 's'", 100, 2.5), 429, {"type": "urn:standfast:queue-full"}),
        (QueueTimeoutError("session 's'", 30), 503, {"detail": "the turn at session 's' did not come within 30 s"}),
        (ForbiddenError("chat.echo", ("admin",)), 403, {"detail": "chat.echo needs 'admin'"}),
    ],
)
async def test_a_refusal_says_what_and_why_and_what_next(
    refusal: StandfastError, status: int, facts: dict[str, object]
) -> None:
    """A problem as RFC 9457 has it, with the status of the error."""
    app = Served()
    app.dispatching.refusal = refusal
    async with app.client() as client:
        answer = await client.post(ECHO, json=HELLO)
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert problem == problem | facts
    assert problem["title"]
    assert problem["detail"]
    assert problem["next"]
    assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_what_went_wrong_inside_is_not_shown() -> None:
    """Neither what an action raised nor what a store said: only that, and the id to find it by."""
    app = Served()
    for problem, status in [
        (RequestFailedError("r1", "ValueError: canary"), 500),
        (StoreUnavailableError("postgresql://u:canary@db/x", "canary"), 503),
    ]:
        app.dispatching.refusal = problem
        async with app.client() as client:
            answer = await client.post(ECHO, json=HELLO)
        assert answer.status_code == status
        assert "canary" not in answer.text


async def test_a_failed_request_names_its_id() -> None:
    """So it can be found in the log."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        calling = asyncio.ensure_future(client.post(ECHO, json=HELLO))
        await app.dispatching.came.wait()
        app.dispatching.handles["r1"].ending.set_exception(RequestFailedError("r1", "canary"))
        answer = await calling
    assert (answer.status_code, answer.json()["requestId"]) == (500, "r1")
    assert "canary" not in answer.text


async def test_nothing_unknown_is_served() -> None:
    """Neither actions, nor requests, nor addresses, nor methods."""
    async with Served().client() as client:
        assert (await client.post("/flows/chat/nothing", json={})).status_code == 404
        assert (await client.get("/requests/r9")).status_code == 404
        assert (await client.delete("/requests/r9")).status_code == 404
        assert (await client.get("/requests/r9/events")).status_code == 404
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.get(ECHO)).status_code == 405


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_a_body_has_to_say_that_it_is_json(kind: str) -> None:
    """A page elsewhere can send the other kinds without asking first."""
    async with Served().client() as client:
        answer = await client.post(ECHO, content=b"{}", headers={"content-type": kind})
    assert answer.status_code == 415


async def test_a_body_is_limited() -> None:
    """413, whatever it is."""
    async with Served(limits=AppLimits(body=10)).client() as client:
        assert (await client.post(ECHO, json={"text": "x" * 10})).status_code == 413


async def test_only_so_many_requests_are_open() -> None:
    """The next is told to come back."""
    app = Served(limits=AppLimits(requests=1))
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        calling = asyncio.ensure_future(client.post(ECHO, json=HELLO))
        await app.dispatching.came.wait()
        answer = await client.post(ECHO, json=HELLO)
        await app.dispatching.handles["r1"].end()
        assert (answer.status_code, (await calling).status_code) == (429, 200)
        app.dispatching.answers_at_once = True
        assert (await client.post(ECHO, json=HELLO)).status_code == 200


async def test_a_request_can_be_looked_at_and_cancelled() -> None:
    """By its id, by whoever may see it."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        await client.post(POST, json={})
        seen = (await client.get("/requests/r1")).json()
        cancelled = await client.delete("/requests/r1")
    assert seen["requestId"] == "r1"
    assert (seen["status"], seen["receivedAt"]) == ("running", "1970-01-01T00:00:01.000000Z")
    assert (cancelled.status_code, cancelled.json()["status"]) == (202, "cancelled")


# --- callers that go away --------------------------------------------------------------------------------------------


async def test_a_caller_that_goes_away_cancels_its_request() -> None:
    """If the action says so, which is the default."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with AsgiCall(app.app, "POST", ECHO) as call:
        await app.dispatching.came.wait()
        call.hang_up()
        await app.dispatching.handles["r1"].was_cancelled.wait()
    assert app.dispatching.handles["r1"].cancelled_for == ["the caller went away"]


async def test_an_action_may_go_on_without_its_caller() -> None:
    """Then nobody even looks whether the caller is there."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with AsgiCall(app.app, "POST", "/flows/chat/stay") as call:
        await app.dispatching.came.wait()
        call.hang_up()
        await app.dispatching.handles["r1"].end()
        assert await call.started() == 200
    assert app.dispatching.handles["r1"].cancelled_for == []


# --- events ----------------------------------------------------------------------------------------------------------


async def test_events_are_sent_as_they_come() -> None:
    """Each with its number, until the request has ended."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        await client.post(POST, json={})
    handle = app.dispatching.handles["r1"]
    await handle.tell({"n": 1})
    async with AsgiCall(app.app, "GET", "/requests/r1/events") as call:
        assert await call.started() == 200
        assert call.headers["content-type"].startswith("text/event-stream")
        assert await call.piece() == 'id: 1\nevent: message\ndata: {"n":1}\n\n'
        await handle.tell("line\nbreak")
        assert await call.piece() == 'id: 2\nevent: message\ndata: "line\\nbreak"\n\n'
        await handle.end("x")
        assert await call.piece() == 'id: 3\nevent: request.ended\ndata: {"status":"completed","result":"x"}\n\n'
        assert await call.piece() == ""


async def test_whoever_was_cut_off_goes_on_after_the_last_number() -> None:
    """No event is lost, and none comes twice."""
    app = Served()
    async with app.client() as client:
        await client.post(POST, json={})
        handle = app.dispatching.handles["r1"]
        handle.status = "running"
        for n in range(5):
            await handle.tell(n)
        await handle.end()
        for after in ({"headers": {"Last-Event-ID": "3"}}, {"params": {"after": "3"}}):
            answer = await client.get("/requests/r1/events", **after)  # type: ignore[arg-type] # either way
            assert [line for line in answer.text.splitlines() if line.startswith("id:")] == [
                f"id: {n}" for n in range(4, len(handle.told) + 1)
            ]


async def test_a_browser_is_told_when_there_is_nothing_more() -> None:
    """204, after which it stops asking."""
    app = Served()
    async with app.client() as client:
        await client.post(POST, json={})
        last = str(len(app.dispatching.handles["r1"].told))
        answer = await client.get("/requests/r1/events", headers={"Last-Event-ID": last})
        odd = await client.get("/requests/r1/events", headers={"Last-Event-ID": "-1"})
    assert (answer.status_code, odd.status_code) == (204, 400)


async def test_a_quiet_stream_says_that_it_is_alive() -> None:
    """So nobody in between hangs up."""
    app = Served(limits=AppLimits(heartbeat="5ms"))
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        await client.post(POST, json={})
    async with AsgiCall(app.app, "GET", "/requests/r1/events") as call:
        await call.started()
        assert await call.piece() == ": still here\n\n"


async def test_streams_end_when_the_application_closes() -> None:
    """Their callers come back to another server, with the last number they saw."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        await client.post(POST, json={})
    async with AsgiCall(app.app, "GET", "/requests/r1/events") as call:
        await call.started()
        app.closing.set()
        told = await call.piece()
        assert told.startswith("event: stream.closed\ndata: ")
        assert "this server is closing" in told
        assert await call.piece() == ""
        await call.task


async def test_a_stream_of_a_request_that_runs_here_ends_with_it_when_the_application_closes() -> None:
    """Nobody else knows how it ended, so its caller is told before the server goes."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with app.client() as client:
        await client.post(POST, json={})
    handle = app.dispatching.handles["r1"]
    handle.runs_here = True
    async with AsgiCall(app.app, "GET", "/requests/r1/events") as call:
        await call.started()
        app.closing.set()
        await handle.tell("last")
        await handle.end()
        told = ""
        while piece := await call.piece():
            told += piece
        await call.task
    assert "last" in told
    assert "request.ended" in told
    assert "stream.closed" not in told


async def test_the_events_of_a_call_can_be_its_answer() -> None:
    """With ``Accept: text/event-stream``; whoever hangs up cancels it, as with any other call."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with AsgiCall(app.app, "POST", ECHO, {"accept": "text/event-stream"}) as call:
        assert await call.started() == 200
        assert call.headers["standfast-request"] == "r1"
        await app.dispatching.handles["r1"].tell("word")
        assert "word" in await call.piece()
        call.hang_up()
        await app.dispatching.handles["r1"].was_cancelled.wait()


async def test_a_stream_that_cannot_be_sent_is_one_whose_caller_has_gone() -> None:
    """Some servers say so by raising, before they tell that the caller has hung up."""
    app = Served()
    app.dispatching.answers_at_once = False
    call = AsgiCall(app.app, "POST", ECHO, {"accept": "text/event-stream"})

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            raise OSError

    receive = asyncio.Queue[dict[str, Any]]()
    receive.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    answering = asyncio.ensure_future(app.app(call.scope, receive.get, send))
    await app.dispatching.came.wait()
    await app.dispatching.handles["r1"].tell("word")
    await asyncio.gather(answering, return_exceptions=True)
    assert app.dispatching.handles["r1"].cancelled_for == ["the caller went away"]


async def test_a_request_whose_stream_ends_because_the_application_closes_goes_on() -> None:
    """Its caller has not gone away: it has as long to end as all the others."""
    app = Served()
    app.dispatching.answers_at_once = False
    async with AsgiCall(app.app, "POST", ECHO, {"accept": "text/event-stream"}) as call:
        assert await call.started() == 200
        app.closing.set()
        assert "stream.closed" in await call.piece()
        assert await call.piece() == ""
        await call.task
    assert app.dispatching.handles["r1"].cancelled_for == []


# --- chains ----------------------------------------------------------------------------------------------------------


class Chained:
    """As much of a request as there has to be."""

    chain = (("request", "default", "session", "s-1"), ("request", "default", "custom", "f", "ü"))
    signed_chain = tuple(("signed", "by us", *address) for address in chain)


async def test_the_keys_of_those_who_wait_travel_in_a_header() -> None:
    """What an action sends along comes out at the other end."""
    app, request = Served(), Chained()
    headers = chain_headers(request)  # type: ignore[arg-type] # enough of one
    async with app.client() as client:
        await client.post(ECHO, json=HELLO, headers=headers)
    assert app.dispatching.arrivals[0].chain == request.signed_chain


@pytest.mark.parametrize("odd", ["!", "e30=", "W1siYSJd", "x" * 9000])
async def test_a_chain_that_cannot_be_read_is_refused(odd: str) -> None:
    """400, and nothing is started."""
    app = Served()
    async with app.client() as client:
        answer = await client.post(ECHO, json=HELLO, headers={HEADER: odd})
    assert (answer.status_code, app.dispatching.arrivals) == (400, [])


def test_no_chain_is_no_header() -> None:
    """A request that nobody waits for sends nothing along."""

    class Free:
        chain = ()

    request: Request = Free()  # type: ignore[assignment] # enough of one
    assert chain_headers(request) == {}


# --- the description -------------------------------------------------------------------------------------------------


async def test_the_description_has_every_action() -> None:
    """With what it takes and returns, and no reference that leads nowhere."""
    async with Served().client() as client:
        described = (await client.get("/openapi.json")).json()
    operation = described["paths"]["/flows/chat/echo"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert set(described["paths"]) >= {"/flows/chat/echo", "/flows/chat/post", "/flows/chat/stay", "/requests/{id}"}
    assert (set(schema["properties"]), schema["required"]) == ({"text", "times"}, ["text"])
    assert operation["description"] == "Say it again."
    for ref in _refs(described):
        assert ref.removeprefix("#/components/schemas/") in described["components"]["schemas"]


class Ledger(msgspec.Struct):
    """What only some may know of."""

    secret_account: str


async def close(request: sf.Request, ledger: Ledger) -> None:
    """Close the books."""
    del request, ledger


async def greet(request: sf.Request) -> str:
    """Say hello."""
    return request.user


async def test_the_description_shows_callers_what_they_may_call() -> None:
    """Neither the address, nor the words, nor the types of an action that is for others."""
    flow = sf.Flow("desk")
    flow.action(roles=["clerk", "boss"])(close)
    flow.action(greet)
    given = {"ann": frozenset({"clerk"}), "bob": frozenset({"viewer"}), "eve": frozenset[str]()}
    app = sf.App(
        "memory://",
        flows=[flow],
        authenticate=lambda asked: Principal("acme", user := asked.headers["x-user"], given[user]),
    )
    shown = dict[str, str]()
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for user in (*given, *reversed(given)):
            shown[user] = (await client.get("/openapi.json", headers={"x-user": user})).text

    assert all("/flows/desk/greet" in text for text in shown.values())
    assert [user for user, text in shown.items() if "/flows/desk/close" in text] == ["ann"]
    assert [user for user, text in shown.items() if "secret_account" in text or "Close the books" in text] == ["ann"]


def _refs(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [ref for value in part.values() for ref in _refs(value)]
    return [ref for value in part for ref in _refs(value)] if isinstance(part, list) else []
