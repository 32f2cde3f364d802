"""Refusals over HTTP explain themselves: who has the key, since when, what it does, and what took a place."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast.errors import QueueFullError, QueueTimeoutError, RequestRejectedError, RequestSupersededError
from standfast.web.problems import problem_of
from tests.unit.web.fakes import shown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import HTTPConnection

SESSION = {"Standfast-Session": "s"}
FIRST = "1970-01-01T00:00:00.000001Z"
INSTANT = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Desk:
    """Actions that begin, and end when the test says so."""

    def __init__(self) -> None:
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()
        self.flow = sf.Flow("desk")
        for name, policy in (
            ("rejected", sf.Reject()),
            ("queued", sf.Queue(max_waiting=1)),
            ("hasty", sf.Queue(timeout="20ms")),
        ):
            self.flow.action(name=name, concurrency=policy)(self._work)

    async def _work(self, request: sf.Request) -> str:
        self.begun.set()
        await self.may_end.wait()
        return request.id


@pytest.fixture(params=["shared", "local"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Desk, httpx.AsyncClient]]:
    """A client of the desk."""
    desk = Desk()
    app = sf.App("memory://", flows=[desk.flow], arbiter=request.param)
    transport = httpx.ASGITransport(app=app)
    given = SESSION | shown(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=given) as client:
        yield desk, client


@contextlib.asynccontextmanager
async def held(desk: Desk, client: httpx.AsyncClient) -> AsyncIterator[dict[str, str]]:
    """Have somebody hold the key; yield what others are to be told, and fill in its id in the end."""
    holding = asyncio.ensure_future(client.post("/flows/desk/rejected"))
    await asyncio.wait_for(desk.begun.wait(), 10)
    told: dict[str, str] = {}
    yield told
    desk.may_end.set()
    told["id"] = (await holding).json()


async def test_whoever_is_rejected_is_told_by_whom_and_since_when(client: tuple[Desk, httpx.AsyncClient]) -> None:
    """Beside the words, as data; by the id the other one can be followed."""
    async with held(*client) as holder:
        problem = (await client[1].post("/flows/desk/rejected")).json()
        followed = (await client[1].get(f"/requests/{problem['requestId']}")).json()
    assert problem["requestId"] == problem["explanation"]["holder"] == holder["id"]
    assert (problem["explanation"]["key"], problem["explanation"]["holderStatus"]) == ("session 's'", "running")
    assert INSTANT.fullmatch(problem["explanation"]["since"])
    assert followed["status"] == "running"


async def test_whoever_may_not_wait_is_told_behind_whom(client: tuple[Desk, httpx.AsyncClient]) -> None:
    """And how many wait."""
    async with held(*client) as holder:
        first = await client[1].post("/flows/desk/queued", headers={"Prefer": "respond-async"})
        problem = (await client[1].post("/flows/desk/queued")).json()
    assert (first.status_code, problem["status"]) == (202, 429)
    assert (problem["explanation"]["holder"], problem["explanation"]["waiting"]) == (holder["id"], 1)
    assert INSTANT.fullmatch(problem["explanation"]["since"])


async def test_whose_turn_did_not_come_is_told_who_had_it(client: tuple[Desk, httpx.AsyncClient]) -> None:
    """The id in the answer is its own."""
    async with held(*client) as holder:
        answer = await client[1].post("/flows/desk/hasty")
    problem = answer.json()
    assert (problem["status"], problem["requestId"]) == (503, answer.headers["standfast-request"])
    assert problem["explanation"]["holder"] == holder["id"] != problem["requestId"]


@pytest.mark.parametrize(("who", "said"), [("ann", "user:ann"), ("olga", "operator:olga"), ("", "user")])
async def test_who_has_cancelled_a_request_is_written_down(who: str, said: str) -> None:
    """Its user, or an operator: whoever looks at it later reads by whom and how."""
    desk = Desk()
    roles = {"olga": frozenset({"operator"})}

    def known(connection: HTTPConnection) -> sf.Principal:
        user = connection.headers["x-user"]
        return sf.Principal("acme", user, roles.get(user, frozenset()))

    async with sf.App("memory://", flows=[desk.flow], authenticate=known) as app:
        transport, own = httpx.ASGITransport(app=app), {"x-user": "ann" if who else ""}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            sent = await client.post("/flows/desk/queued", headers=own | {"Prefer": "respond-async"})
            await client.delete(sent.headers["location"], headers={"x-user": who})
            await client.get(f"{sent.headers['location']}/events", headers=own)
            info = (await client.get(sent.headers["location"], headers=own)).json()
    assert (info["status"], info["cancelledBy"]) == ("cancelled", said)
    assert info["error"] == "it was asked for over HTTP"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RequestRejectedError("k", "r1", 0), {"explanation": {"key": "k", "holder": "r1", "holderStatus": "running"}}),
        (QueueFullError("k", 9, 1.0), {"explanation": {"key": "k", "waiting": 9}}),
        (QueueTimeoutError("k", 1.0, "r1", 1), {"explanation": {"key": "k", "holder": "r1", "since": FIRST}}),
        (RequestSupersededError("r1", "r2"), {"requestId": "r1", "by": "r2"}),
    ],
)
def test_what_is_not_known_is_left_out(error: Exception, told: dict[str, Any]) -> None:
    """A refusal without a holder, or without a time, does not make one up."""
    facts = problem_of(error)
    assert facts == facts | told
    assert facts.get("explanation", {}).keys() == told.get("explanation", {}).keys()
