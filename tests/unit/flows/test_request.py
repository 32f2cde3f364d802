"""What an action sees of a request, and what can be known about it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import standfast as sf
from standfast.errors import InvalidInputError, SessionStateError, WrongArgumentsError
from standfast.flows.request import ENDED, EmittedEvent, RequestExplanation, RequestInfo
from standfast.testing.flows import Rehearsal


@sf.workflow
async def fulfil(_ctx: sf.Context, order: str) -> str:
    """Fulfil an order."""
    return order


def test_a_request_knows_who_asks_and_how() -> None:
    """What the transport said can be read from it."""
    request = Rehearsal(
        principal=sf.Principal("acme", "ada"), session="s-1", metadata={"n": 1}, idempotency_key="k"
    ).request
    assert (request.tenant, request.user, request.session_id) == ("acme", "ada", "s-1")
    assert (request.transport, request.metadata, request.idempotency_key) == ("local", {"n": 1}, "k")
    assert repr(request) == f"<request {request.id} of rehearsal.rehearsal>"


def test_events_are_told_in_order() -> None:
    """With their names."""
    rehearsal = Rehearsal()
    rehearsal.request.emit({"text": "a"})
    rehearsal.request.emit(1, name="progress")
    assert rehearsal.events == [EmittedEvent(1, "message", {"text": "a"}), EmittedEvent(2, "progress", 1)]


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "x" * 51, "request.ended", 7])
def test_an_event_has_a_name_of_its_own(name: Any) -> None:
    """It fits on a line of a stream, and cannot pass for what the dispatcher tells."""
    with pytest.raises(InvalidInputError):
        Rehearsal().request.emit(1, name=name)


def test_a_request_that_was_asked_to_stop_says_so() -> None:
    """Long work without an await can look, or be stopped."""
    rehearsal = Rehearsal()
    rehearsal.request.check()
    assert not rehearsal.request.is_cancelled

    rehearsal.stop("enough")

    assert rehearsal.request.is_cancelled
    with pytest.raises(asyncio.CancelledError, match="enough"):
        rehearsal.request.check()


async def test_something_is_done_once() -> None:
    """However often the code comes by."""
    done: list[str] = []

    async def charge(card: str, *, amount: int) -> int:
        done.append(card)
        return amount

    request = Rehearsal().request
    results = [await request.run_once("charge", charge, "4242", amount=7) for _ in range(2)]
    assert (results, done) == ([7, 7], ["4242"])


async def test_a_rehearsal_notes_the_workflows_that_are_started() -> None:
    """And refuses arguments with which they could not be."""
    rehearsal = Rehearsal()
    await rehearsal.request.start(fulfil, "o-1", id="order-1")
    [started] = rehearsal.started
    assert (started.id, started.workflow, started.args) == ("order-1", "fulfil", ("o-1",))
    with pytest.raises(WrongArgumentsError):
        await rehearsal.request.start(fulfil)


async def test_a_rehearsal_shows_the_state_after() -> None:
    """And leaves the one before as it was."""
    before: dict[str, Any] = {"count": 1}
    rehearsal = Rehearsal(state=before)
    rehearsal.request.session.increment("count")
    assert (rehearsal.state_after(), before) == ({"count": 2}, {"count": 1})
    with pytest.raises(SessionStateError):
        Rehearsal(session="").request.session.set("count", 1)


def test_an_explanation_reads_as_a_sentence() -> None:
    """Who has the key, and how many are before."""
    free = RequestExplanation(key="session 's'", policy="queue")
    held = RequestExplanation(key="session 's'", policy="queue", holder="r-1", position=2)
    assert str(free) == "session 's' is free"
    assert str(held) == "session 's' is taken by the request 'r-1' (running); 2 before it in the line"


def test_a_request_has_ended_when_nothing_more_happens_to_it() -> None:
    """Waiting and running are the only statuses that change."""
    infos = [RequestInfo(id="r", flow="f", action="a", status=status) for status in ("waiting", "running", "failed")]
    assert [info.has_ended for info in infos] == [False, False, True]
    assert not {"waiting", "running"} & ENDED
