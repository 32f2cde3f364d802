"""What hooks hear of requests: what was decided about each, and how it ended, by names that were declared."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

import pytest

import standfast as sf
from standfast.errors import RequestFailedError, RequestRejectedError, UnknownActionError
from standfast.events import Event, RequestDecided, RequestEnded
from standfast.flows.request import Call

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

FLOW = sf.Flow("desk-of-events")
GATE: dict[str, asyncio.Event] = {}


@FLOW.action
async def plain(_request: sf.Request, fail: bool = False) -> str:  # noqa: FBT001, FBT002 -- inputs have names
    """Answer, or fail."""
    if fail:
        raise ValueError("no")
    return "done"


@FLOW.action(concurrency=sf.Queue(key="tenant"))
async def queued(_request: sf.Request) -> str:
    """Wait for the test."""
    GATE["here"].set()
    await GATE["go"].wait()
    return "done"


@FLOW.action(concurrency=sf.Reject(key="tenant"))
async def rejects(_request: sf.Request) -> str:
    """Wait for the test."""
    GATE["here"].set()
    await GATE["go"].wait()
    return "done"


@FLOW.action(concurrency=sf.Join(key="tenant"))
async def joins(_request: sf.Request) -> str:
    """Wait for the test."""
    GATE["here"].set()
    await GATE["go"].wait()
    return "done"


@FLOW.action(durable=True)
async def durable(_request: sf.Request) -> str:
    """Answer later."""
    return "done"


@FLOW.action(concurrency=sf.Debounce("10ms", key="tenant"))
async def debounced(_request: sf.Request) -> str:
    """Answer once for many."""
    return "done"


class Told:
    """What hooks were told of requests."""

    def __init__(self) -> None:
        self.decided: list[RequestDecided] = []
        self.ended: list[RequestEnded] = []

    def wants(self, kind: type[Event]) -> bool:
        """Want what is told of requests."""
        return kind in (RequestDecided, RequestEnded)

    def __call__(self, event: Event, /) -> None:
        """Take note."""
        if isinstance(event, RequestDecided):
            self.decided.append(event)
        if isinstance(event, RequestEnded):
            self.ended.append(event)

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        """What was decided, by action and policy."""
        return [(each.name, each.policy, each.verdict) for each in self.decided]


@asynccontextmanager
async def desk(told: Told, arbiter: Literal["local", "shared"]) -> AsyncIterator[sf.Dispatcher]:
    """Serve."""
    GATE["here"], GATE["go"] = asyncio.Event(), asyncio.Event()
    engine = sf.Engine("memory://", hooks=[told])
    async with sf.Dispatcher(engine, flows=[FLOW], arbiter=arbiter) as dispatcher:
        yield dispatcher


def call(action: str, inputs: dict[str, Any] | None = None, idempotency_key: str = "") -> Call:
    """Return a call of an action."""
    return Call(flow=FLOW.kind, action=action, inputs=inputs or {}, idempotency_key=idempotency_key)


both = pytest.mark.parametrize("arbiter", ["local", "shared"])


@both
async def test_a_plain_request_is_decided_and_ends(arbiter: Literal["local", "shared"]) -> None:
    """Once each, whether its caller runs it or a task does."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        await (await dispatcher.dispatch(call("plain"))).result()
        await (await dispatcher.dispatch(call("plain"), here=True)).result()
        begun = dispatcher.begin(plain, call("plain"))
        assert begun is not None
        await begun.run_here()
    assert told.verdicts == [("plain", "allow", "run")] * 3
    assert [(each.flow, each.outcome, each.durable) for each in told.ended] == [(FLOW.kind, "completed", False)] * 3
    assert {each.request for each in told.decided} == {each.request for each in told.ended}


@both
async def test_a_failed_request_is_told(arbiter: Literal["local", "shared"]) -> None:
    """Its outcome, never what it raised."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        handle = await dispatcher.dispatch(call("plain", inputs={"fail": True}))
        with suppress(RequestFailedError, ValueError):
            await handle.result()
    assert [each.outcome for each in told.ended] == ["failed"]


@both
async def test_a_request_that_waits_was_queued_and_tells_how_long(arbiter: Literal["local", "shared"]) -> None:
    """Waiting and running are two times."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        first = await dispatcher.dispatch(call("queued"))
        await GATE["here"].wait()
        second = await dispatcher.dispatch(call("queued"))
        asyncio.get_running_loop().call_later(0.02, GATE["go"].set)
        await first.result()
        await second.result()
    assert told.verdicts == [("queued", "queue", "run"), ("queued", "queue", "queued")]
    one, two = told.ended
    assert two.waited > one.waited
    assert one.ran > 0.01


@both
async def test_a_rejected_request_says_by_which_error(arbiter: Literal["local", "shared"]) -> None:
    """It is decided, and never ends: it never began."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        first = await dispatcher.dispatch(call("rejects"))
        await GATE["here"].wait()
        with pytest.raises(RequestRejectedError):
            await (await dispatcher.dispatch(call("rejects"))).result()
        with pytest.raises(RequestRejectedError):
            await (await dispatcher.dispatch(call("rejects"), here=True)).result()
        GATE["go"].set()
        await first.result()
    refused = ("rejects", "reject", "refused")
    assert told.verdicts == [("rejects", "reject", "run"), refused, refused]
    assert {each.reason for each in told.decided[1:]} == {"RequestRejectedError"}
    assert len(told.ended) == 1


@both
async def test_a_request_that_joins_another_is_decided_and_does_not_end_by_itself(
    arbiter: Literal["local", "shared"],
) -> None:
    """One run, two requests."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        first = await dispatcher.dispatch(call("joins"))
        await GATE["here"].wait()
        second = await dispatcher.dispatch(call("joins"))
        GATE["go"].set()
        assert await first.result() == await second.result()
    assert told.verdicts == [("joins", "join", "run"), ("joins", "join", "joined")]
    assert [each.outcome for each in told.ended] == ["completed"]


@both
async def test_a_durable_request_is_started_and_ends_where_it_ran(arbiter: Literal["local", "shared"]) -> None:
    """The id of its run is the request's, so that a trace finds both."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        handle = await dispatcher.dispatch(call("durable"))
        await handle.result()
    assert told.verdicts == [("durable", "allow", "started")]
    assert [(each.request, each.outcome, each.durable) for each in told.ended] == [(handle.id, "completed", True)]


@both
async def test_a_repeated_request_is_replayed(arbiter: Literal["local", "shared"]) -> None:
    """Its answer is given again, and nothing runs."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        for _ in range(2):
            await (await dispatcher.dispatch(call("plain", idempotency_key="k"))).result()
    assert told.verdicts == [("plain", "allow", "run"), ("plain", "allow", "replayed")]
    assert len(told.ended) == 1


@both
async def test_debounced_requests_are_collected(arbiter: Literal["local", "shared"]) -> None:
    """Two events, one run."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        first = await dispatcher.dispatch(call("debounced"))
        await dispatcher.dispatch(call("debounced"))
        await first.result()
    assert told.verdicts == [("debounced", "debounce", "collected")] * 2
    assert [each.outcome for each in told.ended] == ["completed"]


@both
async def test_what_was_never_declared_is_not_told(arbiter: Literal["local", "shared"]) -> None:
    """A stranger who makes names up makes no labels."""
    told = Told()
    async with desk(told, arbiter) as dispatcher:
        with pytest.raises(UnknownActionError):
            await dispatcher.dispatch(call("made-up"))
    assert told.decided == []
