"""The description says every status that a caller can be told, and the shape of what comes with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

import standfast as sf
from standfast import errors
from standfast.errors import QueueFullError, RequestRejectedError, RequestSupersededError
from standfast.web.openapi import describe
from standfast.web.problems import problem_of

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection

shared = sf.Flow("shared")


@shared.action(concurrency=sf.Batch(3, "1 hour", key="tenant"))
async def collect(request: sf.Request, names: list[str]) -> int:
    """Collect names of all users."""
    del request
    return len(names)


DESCRIBED: Any = describe("test", "1", [collect], is_guarded=True)
CALL = DESCRIBED["paths"]["/flows/shared/collect"]["post"]
AT_HOME = {errors.NotTheSoleServerError}


def everything(kind: type[errors.FlowError] = errors.FlowError) -> set[type[errors.FlowError]]:
    """Return every kind of error that has a status."""
    return {each for child in kind.__subclasses__() for each in {child, *everything(child)}}


def test_every_status_of_a_call_is_described() -> None:
    """Whatever error it is told by."""
    refused = {str(status) for status, *_ in errors.HttpError.REASONS.values()}
    assert refused | {str(each.status) for each in everything() - AT_HOME} == CALL["responses"].keys() - {"200", "202"}


def test_a_call_may_be_answered_with_its_events() -> None:
    """As a stream, or as JSON."""
    assert CALL["responses"]["200"]["content"].keys() == {"application/json", "text/event-stream"}


@pytest.mark.parametrize(
    "error",
    [
        RequestRejectedError("session 's'", "r1", 1_000_000),
        QueueFullError("session 's'", 100, 2.5, "r1", 1_000_000),
        RequestSupersededError("r1", "r2"),
    ],
)
def test_every_field_of_a_problem_is_described(error: Exception) -> None:
    """Also of the explanation in it."""
    schema, problem = DESCRIBED["components"]["schemas"]["Problem"], problem_of(error)
    assert problem.keys() <= schema["properties"].keys()
    explained = schema["properties"]["explanation"]
    assert problem.get("explanation", {"key": ""}).keys() <= explained["properties"].keys()
    assert set(explained["required"]) <= problem.get("explanation", {"key": ""}).keys()


async def test_a_run_that_others_share_is_not_cancelled_and_that_answer_is_described() -> None:
    """409, with the reason."""

    def who(connection: HTTPConnection) -> sf.Principal:
        return sf.Principal("acme", connection.headers["x-user"])

    async with sf.App("memory://", flows=[shared], authenticate=who) as app:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers = [
                await client.post("/flows/shared/collect", json={"names": user}, headers={"x-user": user})
                for user in ("ann", "bob")
            ]
            refused = await client.delete(answers[0].headers["location"], headers={"x-user": "ann"})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:standfast:request-shared")
    assert "409" in DESCRIBED["paths"]["/requests/{id}"]["delete"]["responses"]
