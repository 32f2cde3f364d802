"""Actions over HTTP: typed JSON in and out, and requests that can be followed and cancelled by their ids."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, final

from starlette.datastructures import QueryParams
from starlette.responses import Response

from standfast.errors import FlowError, ResultTimeoutError, StandfastError, TooManyRequestsError
from standfast.flows.view import OPERATOR
from standfast.log_budget import LogBudget
from standfast.web.asgi import Begun, headers_of
from standfast.web.call import (
    GONE,
    Result,
    arrival_of,
    read_after,
    read_body,
    read_preference,
    unless_closing,
    watched,
)
from standfast.web.gate import PRINCIPAL, caller_in
from standfast.web.problems import as_json, problem_response, refusal, shown_handle, shown_info, told
from standfast.web.sse import EventStream, closed, written

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, AsyncIterator

    from starlette.types import ASGIApp, Receive, Scope, Send

    from standfast.flows.flow import Action, Flows
    from standfast.flows.request import EmittedEvent, Principal
    from standfast.web.call import Dispatching, HandleLike
    from standfast.web.limits import AppLimits, AppShares


_NO_STREAM: Final = contextlib.nullcontext()


@final
class CallEndpoint:
    """``POST /flows/{flow}/{action}``."""

    def __init__(
        self, dispatching: Dispatching, flows: Flows, limits: AppLimits, shares: AppShares, closing: asyncio.Event
    ) -> None:
        self._dispatching, self._flows, self._limits, self._closing = dispatching, flows, limits, closing
        self._open, self._streams = shares.requests, shares.streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one call. Whether there is room for its stream is known before anything is done."""
        is_stream = "text/event-stream" in headers_of(scope).get("accept", "")
        who = caller_in(scope)
        try:
            with self._streams.of(who) if is_stream else _NO_STREAM:
                with self._open.of(who[0], who):
                    answer = await self._answer(scope, receive, is_stream=is_stream)
                await answer(scope, receive, send)
        except TooManyRequestsError as problem:
            await problem_response(problem)(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, *, is_stream: bool) -> ASGIApp:
        headers, path = headers_of(scope), scope["path_params"]
        preference = read_preference(headers)
        try:
            action = self._flows.find(path["flow"], path["action"])
            body = await read_body(headers, receive, self._limits.body, self._limits.body_time)
            is_later = preference.is_async or action.durable or action.policy.answers_first
            principal: Principal = scope[PRINCIPAL]
            arrival = await arrival_of(action, headers, body, principal, attended=not is_later)
            handle = await self._dispatching.dispatch(arrival, here=not is_later and not is_stream)
        except StandfastError as problem:
            return problem_response(problem)
        if is_later:  # it is answered before it has ended, unless the caller asked to wait and it ends in time
            wait = min(preference.wait or 0.0, self._limits.wait)
            answer = await result_within(handle, wait, self._closing) if wait else None
            return answer or accepted(scope, handle, is_asked_for=preference.is_async)
        if is_stream:
            return self._streamed(action, handle)
        try:
            work = Begun(handle.packed())
            packed = work.value if work.is_done else await watched(work, action, handle, receive)
            return Result(packed, handle.id, is_replay=handle.is_replay)
        except StandfastError as problem:
            return refusal(problem, handle)

    def _streamed(self, action: Action[..., Any], handle: HandleLike) -> ASGIApp:
        """Send the events as they come; the last of them has the result."""

        async def send_events(scope: Scope, receive: Receive, send: Send) -> None:
            closing = None if handle.runs_here else self._closing
            stream = EventStream(_all(handle.events()), self._limits, closing, told(handle))
            try:
                await stream(scope, receive, send)
            finally:
                if stream.was_cut_off and action.on_disconnect == "cancel" and handle.is_new:
                    handle.abandon(GONE)

        return send_events


async def result_within(handle: HandleLike, wait: float, closing: asyncio.Event) -> ASGIApp | None:
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


def accepted(scope: Scope, handle: HandleLike, *, is_asked_for: bool = False) -> Response:
    """Return the answer to a request that continues by itself: where to follow it."""
    headers = told(handle) | {"Location": f"{scope.get('root_path', '')}/requests/{handle.id}"}
    if is_asked_for:
        headers["Preference-Applied"] = "respond-async"
    return Response(as_json(shown_handle(handle)), 202, headers, "application/json")


@final
class RequestEndpoint:
    """``GET /requests/{id}``, ``GET /requests/{id}/events`` and ``DELETE /requests/{id}``."""

    def __init__(self, dispatching: Dispatching, limits: AppLimits, shares: AppShares, closing: asyncio.Event) -> None:
        self._dispatching, self._limits, self._closing = dispatching, limits, closing
        self._streams: Final = shares.streams
        self._log: Final = LogBudget(logging.getLogger("standfast.web"))

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the status of a request."""
        try:
            info = await (await self._found(scope)).info()
            answer = Response(as_json(shown_info(info)), 200, {"Cache-Control": "no-store"}, "application/json")
        except StandfastError as problem:
            answer = problem_response(problem)
        await answer(scope, receive, send)

    async def cancel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask a request to stop. One that has ended stays as it is."""
        try:
            handle, principal = await self._found(scope), scope[PRINCIPAL]
            await handle.cancel("it was asked for over HTTP")  # by whom, its record says to callers that may know
            if OPERATOR in principal.roles:
                self._log.info("operator-cancelled", request=handle.id, tenant=principal.tenant, user=principal.user)
            info = await handle.info()
            answer = Response(as_json(shown_info(info)), 202, {"Cache-Control": "no-store"}, "application/json")
        except StandfastError as problem:
            answer = problem_response(problem)
        await answer(scope, receive, send)

    async def follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events of a request after the last one that the caller has seen, and those to come."""
        try:
            with self._streams.of(caller_in(scope)):
                await (await self._stream(scope))(scope, receive, send)
        except FlowError as problem:
            await problem_response(problem)(scope, receive, send)

    async def _stream(self, scope: Scope) -> ASGIApp:
        after = read_after(headers_of(scope), QueryParams(scope["query_string"]).get("after"))
        try:
            handle = await self._found(scope)
            events = handle.events(after)
            if (await handle.info()).has_ended:
                first = await anext(events, None)
                # There is nothing more to come: with 204 a browser stops asking.
                return Response(None, 204) if first is None else self._sent(handle, _all(events, first))
        except StandfastError as problem:
            return problem_response(problem)
        return self._sent(handle, _all(events))

    def _sent(self, handle: HandleLike, chunks: AsyncGenerator[bytes]) -> EventStream:
        return EventStream(chunks, self._limits, None if handle.runs_here else self._closing)

    async def _found(self, scope: Scope) -> HandleLike:
        return await self._dispatching.find(scope[PRINCIPAL], scope["path_params"]["id"])


async def _all(events: AsyncIterator[EmittedEvent], first: EmittedEvent | None = None) -> AsyncGenerator[bytes]:
    if first is not None:
        yield written(first)
    try:
        async for event in events:
            yield written(event)
    except StandfastError as problem:
        reason = str(problem) if isinstance(problem, FlowError) else "the store does not answer now"
        yield closed(reason)
