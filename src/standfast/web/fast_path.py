"""The fast path of plain calls: from the gate to the dispatcher and back, past everything they do not need.

What comes most is a call of an action with a small JSON body whose caller waits for the result. It needs no router, no
request and response objects, and no headers as text. Whatever is unusual about a call, or is to be refused because of
how it was sent, goes the ordinary way, which says what is wrong with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from standfast.errors import StandfastError
from standfast.flows.request import Call
from standfast.web.asgi import Begun, Rest, route_path
from standfast.web.call import LARGE, Result, received, trace_in, watched
from standfast.web.problems import problem_response, refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope

    from standfast.flows.flow import Action, Flows
    from standfast.flows.request import Principal
    from standfast.web.asgi import RawHeaders
    from standfast.web.call import Dispatching, HandleLike
    from standfast.web.limits import AppLimits, AppShares, Caller


UNUSUAL: Final = frozenset(
    {b"prefer", b"content-encoding", b"transfer-encoding", b"idempotency-key", b"standfast-chain"}
)
"""Headers that change what is done with a call. The gate has checked its own."""

_MOST_DIGITS: Final = 7


@final
class FastPath:
    """Answers plain calls.

    Args:
        dispatching: Where they go.
        flows: What can be called. Actions that are answered before they have run are not called like this.
        path: The address of an action, with its flow and its name to be filled in.
        limits: How much is taken on.
        shares: What is open, whatever way it came by.
    """

    def __init__(self, dispatching: Dispatching, flows: Flows, path: str, limits: AppLimits, shares: AppShares) -> None:
        attended = [each for each in flows.actions if not each.durable and not each.policy.answers_first]
        self._actions: Final = {path.format(flow=each.flow, action=each.name): each for each in attended}
        self._dispatching, self._limits, self._open = dispatching, limits, shares.requests
        self._most: Final = min(limits.body, LARGE)

    def find(self, scope: Scope, headers: RawHeaders) -> Action[..., Any] | None:
        """Return the action that a plain call is for; None: it is not plain, or not for an action."""
        action = self._actions.get(route_path(scope) if scope.get("root_path") else scope["path"])
        if action is None or scope["type"] != "http" or scope["method"] != "POST" or not UNUSUAL.isdisjoint(headers):
            return None
        length, accepted = headers.get(b"content-length", b""), headers.get(b"accept")
        is_short = length.isdigit() and len(length) <= _MOST_DIGITS and int(length) <= self._most
        is_plain = headers.get(b"content-type") == b"application/json"
        is_stream = accepted is not None and b"text/event-stream" in accepted
        return action if is_short and is_plain and not is_stream else None

    async def answer(
        self, action: Action[..., Any], principal: Principal, who: Caller, headers: RawHeaders, receive: Receive
    ) -> Result | ASGIApp:
        """Run a plain call, and return the answer to it.

        Args:
            action: What is called.
            principal: Who asks.
            who: As whom that is counted.
            headers: Of the call.
            receive: Returns the next part of its body.

        Raises:
            TooManyRequestsError: There is no room for it.
        """
        shares, session = self._open, headers.get(b"standfast-session")
        shares.enter(who[0], who)
        try:
            arrival = Call(
                flow=action.flow,
                action=action.name,
                inputs=await received(Begun(receive()), receive, self._limits.body, self._limits.body_time),
                principal=principal,
                session="" if session is None else session.decode("latin-1"),
                transport="http",
                trace=""
                if (parent := headers.get(b"traceparent")) is None
                else trace_in(parent.decode("latin-1"), headers.get(b"tracestate", b"").decode("latin-1")),
            )
            simple = self._dispatching.begin(action, arrival)
            if simple is None:
                return await self._dispatched(action, arrival, receive)
            steps = simple.run_at_once().__await__()
            try:
                rest = Rest(steps, next(steps))
            except StopIteration:
                pass  # it is done, as nearly all
            else:
                simple.stay()
                await watched(rest, action, simple.handle(), receive)
            packed = simple.packed
            return Result(packed, simple.id) if packed is not None else await self._refused(simple.handle())
        except StandfastError as problem:
            return problem_response(problem)
        finally:
            shares.leave(who[0], who)

    async def _dispatched(self, action: Action[..., Any], arrival: Call, receive: Receive) -> Result | ASGIApp:
        handle = await self._dispatching.dispatch(arrival, here=True)
        try:
            work = Begun(handle.packed())
            packed = work.value if work.is_done else await watched(work, action, handle, receive)
        except StandfastError as problem:
            return refusal(problem, handle)
        return Result(packed, handle.id, is_replay=handle.is_replay)

    async def _refused(self, handle: HandleLike) -> ASGIApp:
        """Return why a request that is over has no result."""
        try:
            return Result(await handle.packed(), handle.id)
        except StandfastError as problem:
            return refusal(problem, handle)
