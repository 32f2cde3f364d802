"""Places by user: one cannot take those of everybody; and those who are refused do not come back all at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import DeclarationError, QueueFullError, StoreUnavailableError, TooManyRequestsError
from standfast.flows.request import Principal
from standfast.flows.shares import Shares
from standfast.web.limits import AppLimits, UserShares, caller_of
from standfast.web.mcp import MANY, Sessions
from standfast.web.problems import LEAST, problem_response, spread
from standfast.web.sse import EventStream
from tests.unit.web.fakes import AsgiCall, Served

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import HTTPConnection

ADA, BOB = ("acme", "ada", ""), ("acme", "bob", "")
SSE = {"accept": "text/event-stream"}
ECHO = "/flows/chat/echo"


def by_name(connection: HTTPConnection) -> Principal:
    """Everybody says who they are."""
    return Principal("acme", connection.headers.get("x-user", ""))


async def test_a_user_has_so_many_streams_and_others_have_theirs() -> None:
    """The next of the same user is 429, whichever address it asks; one that ends makes room."""
    app = Served(authenticate=by_name, limits=AppLimits(user_streams=1))
    app.dispatching.answers_at_once = False
    async with AsgiCall(app.app, "POST", ECHO, SSE | {"x-user": "ada"}) as first:
        assert await first.started() == 200
        for method, path in (("POST", ECHO), ("GET", "/requests/r1/events")):
            async with AsgiCall(app.app, method, path, SSE | {"x-user": "ada"}) as second:
                assert await second.started() == 429
        async with AsgiCall(app.app, "POST", ECHO, SSE | {"x-user": "bob"}) as other:
            assert await other.started() == 200
    async with AsgiCall(app.app, "POST", ECHO, SSE | {"x-user": "ada"}) as third:
        assert await third.started() == 200


async def test_a_refusal_says_what_there_is_too_much_of() -> None:
    """Typed, with when to come again."""
    app = Served(authenticate=by_name, limits=AppLimits(user_streams=1))
    app.dispatching.answers_at_once = False
    async with AsgiCall(app.app, "POST", ECHO, SSE) as first, app.client() as client:
        await first.started()
        answer = await client.post(ECHO, headers=SSE)
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:standfast:too-many-requests")
    assert "the limit for streams of this user is 1" in answer.json()["detail"]
    assert int(answer.headers["retry-after"]) >= 1


def test_the_limit_of_all_holds_besides() -> None:
    """A place that was refused for one reason is not taken for the other."""
    places = UserShares(Shares(3, "streams"), "streams of this user", 1)
    with places.of(ADA), places.of(BOB):
        for who in (ADA, ("acme", "", "192.0.2.1")):
            with pytest.raises(TooManyRequestsError), places.of(who):
                pass
    with places.of(ADA), places.of(BOB):
        pass


def test_users_without_a_name_are_told_apart_by_their_address() -> None:
    """Those who have one are not."""
    assert caller_of(Principal("a", "u"), "192.0.2.1") == caller_of(Principal("a", "u"), "192.0.2.2")
    assert caller_of(Principal("a"), "192.0.2.1") != caller_of(Principal("a"), "192.0.2.2")


@pytest.mark.parametrize("odd", [{"user_streams": 0}, {"user_streams": True}])
def test_a_limit_has_to_let_somebody_in(odd: dict[str, Any]) -> None:
    """Nobody would ever be served."""
    with pytest.raises(DeclarationError):
        AppLimits(**odd)


# --- sessions of tools -----------------------------------------------------------------------------------------------


def test_a_user_has_so_many_sessions_of_tools() -> None:
    """Those that are opened at the same time count too; one that is closed, or that nobody uses, makes room."""
    now = [0.0]
    sessions = Sessions(2, 100_000, 100.0, lambda: now[0])
    with sessions.opening(ADA), sessions.opening(ADA), sessions.opening(BOB):
        with pytest.raises(TooManyRequestsError), sessions.opening(ADA):
            pass
        sessions.opened("a", ADA)
        sessions.opened("b", ADA)
    with pytest.raises(TooManyRequestsError), sessions.opening(ADA):
        pass
    now[0] = 101.0
    with sessions.used("a"), sessions.opening(ADA):  # the other one is gone
        sessions.opened("c", ADA)
    with pytest.raises(TooManyRequestsError), sessions.opening(ADA):
        pass
    sessions.closed("c")
    with sessions.opening(ADA):
        pass


def test_a_user_with_too_many_sessions_is_told_when_the_first_of_them_ends() -> None:
    """A client that leaves without a word keeps its session until it was not used for long."""
    now = [0.0]
    sessions = Sessions(2, 100_000, 100.0, lambda: now[0])
    for session in ("a", "b"):
        sessions.opened(session, ADA)
        now[0] += 10.0

    with pytest.raises(TooManyRequestsError) as first, sessions.opening(ADA):
        pass
    with sessions.used("a"), pytest.raises(TooManyRequestsError) as second, sessions.opening(ADA):
        pass

    assert (first.value.retry_after, second.value.retry_after) == (80.0, 90.0)


def test_sessions_of_those_who_left_without_a_word_are_forgotten() -> None:
    """Also if none of them ever had too many."""
    now = [0.0]
    sessions = Sessions(2, 100_000, 100.0, lambda: now[0])
    for number in range(10 * MANY):
        now[0] += 1.0
        sessions.opened(f"s-{number}", ("acme", f"user {number}", ""))
    assert len(sessions._known) <= MANY


# --- slow readers ----------------------------------------------------------------------------------------------------


async def test_nothing_is_read_ahead_for_whoever_does_not_read() -> None:
    """What it has not taken stays where it is kept; in the end it is let go, and told apart from one who has left."""
    taken: list[int] = []

    async def chunks() -> AsyncGenerator[bytes]:
        for number in range(100):
            taken.append(number)
            yield b"x"

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    stream = EventStream(chunks(), AppLimits(patience="10ms"), asyncio.Event())
    await asyncio.wait_for(stream({}, asyncio.Event().wait, send), 10)  # type: ignore[arg-type] # nobody says anything
    assert taken == [0]
    assert (stream.was_cut_off, stream.is_slow) == (True, True)


# --- coming again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [TooManyRequestsError("requests", 1, 1.0), QueueFullError("k", 9, 30.0)])
def test_those_who_are_refused_at_once_do_not_come_again_at_once(error: TooManyRequestsError) -> None:
    """Each is told another moment, never an earlier one than the error says."""
    answers = [problem_response(error) for _ in range(200)]
    told = {int(answer.headers["retry-after"]) for answer in answers}
    assert len(told) >= 3
    assert min(told) >= error.retry_after
    assert max(told) <= error.retry_after + max(LEAST, error.retry_after / 2) + 1


def test_a_store_that_is_gone_is_not_stormed_when_it_is_back() -> None:
    """The answer that says nothing of what went wrong says different moments too."""
    told = {problem_response(StoreUnavailableError("memory:", "gone")).headers["retry-after"] for _ in range(200)}
    assert len(told) >= 3


def test_a_time_is_spread_by_half_of_it() -> None:
    """So that nobody waits much longer than has to be."""
    assert all(60.0 <= spread(60.0) <= 90.0 for _ in range(100))
