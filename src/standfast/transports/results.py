"""Waiting for what a request returns while its caller may go away, and telling it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from standfast.errors import ResultTimeoutError, StandfastError
from standfast.transports.alarms import Alarm
from standfast.transports.headers import FOR_DATA
from standfast.transports.problems import problem_response

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from standfast.flows.action import Action
    from standfast.transports.begun import Rest
    from standfast.transports.seam import Handle

T = TypeVar("T")

REQUEST: Final = "Standfast-Request"
WATCH_AFTER: Final = 0.05
"""Seconds after which it is looked at whether a caller is still there. Most requests have ended by then."""

GONE: Final = "the caller went away"

_REQUEST: Final = REQUEST.lower().encode()
_JSON: Final = (b"content-type", b"application/json")
_REPLAYED: Final = (b"idempotency-replayed", b"true")
_ALWAYS: Final = ((b"cache-control", b"no-store"), *FOR_DATA)
_watching: Final = Alarm(WATCH_AFTER)


async def watched(work: Rest[T], action: Action[..., Any], handle: Handle, receive: Receive) -> T:
    """Wait for a result that was not there at once. A caller that goes away meanwhile is noticed, if it matters.

    Args:
        work: What returns it.
        action: What was called.
        handle: The request.
        receive: Tells that the caller has gone.

    Raises:
        StandfastError: Why there is nothing.
    """
    if action.on_disconnect != "cancel" or not handle.is_new:
        return await work
    watching: list[asyncio.Task[None]] = []
    off = _watching.set(lambda: watching.append(asyncio.ensure_future(_watch(handle, receive))))
    try:
        return await work
    finally:
        off()
        if watching:
            watching[0].cancel()
            await asyncio.wait(watching)


async def _watch(handle: Handle, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    handle.abandon(GONE)


async def result_within(handle: Handle, wait: float, closing: asyncio.Event) -> ASGIApp | None:
    """Return the answer of a request that ends in time.

    None: it does not, or the server stops before; then it goes on without this server.
    """
    try:
        packed = await unless_closing(handle.packed(wait), closing)
    except ResultTimeoutError:
        return None
    except StandfastError as problem:
        return refusal(problem, handle)
    return None if packed is None else Result(packed, handle.id, is_replay=handle.is_replay)


async def unless_closing(work: Coroutine[Any, Any, T], closing: asyncio.Event) -> T | None:
    """Wait for something that goes on without this server; None: the server stops before."""
    ended, stops = asyncio.ensure_future(work), asyncio.ensure_future(closing.wait())
    try:
        await asyncio.wait({ended, stops}, return_when=asyncio.FIRST_COMPLETED)
        return ended.result() if ended.done() else None
    finally:
        ended.cancel()
        stops.cancel()
        await asyncio.gather(ended, stops, return_exceptions=True)


def refusal(problem: StandfastError, handle: Handle) -> Response:
    """Return the answer that tells why a request has no result."""
    return problem_response(problem, handle.id, told(handle)) if handle.is_taken_on else problem_response(problem)


def told(handle: Handle) -> dict[str, str]:
    """Return the headers that every answer about a request has."""
    headers = {REQUEST: handle.id, "Cache-Control": "no-store"}
    return headers | {"Idempotency-Replayed": "true"} if handle.is_replay else headers


@final
class Result:
    """The most frequent answer: what an action returned, with all headers, so that the door adds none.

    Attributes:
        start: The message that it begins with.
        body: The one that it ends with.
    """

    __slots__ = ("body", "start")

    def __init__(self, packed: bytes, request_id: str, *, is_replay: bool = False) -> None:
        length, own = (b"content-length", b"%d" % len(packed)), (_REQUEST, request_id.encode("latin-1"))
        headers = [length, _JSON, own, _REPLAYED, *_ALWAYS] if is_replay else [length, _JSON, own, *_ALWAYS]
        self.start: Final[Message] = {"type": "http.response.start", "status": 200, "headers": headers}
        self.body: Final[Message] = {"type": "http.response.body", "body": packed}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 -- ASGI hands it to everybody
        """Send it."""
        await send(self.start)
        await send(self.body)
