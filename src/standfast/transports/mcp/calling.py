"""Calls of tools, as requests: what a model asks for is arbitrated like everything else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

import msgspec
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, ListToolsResult, TextContent

from standfast.errors import (
    ArbiterUnavailableError,
    FlowError,
    InvalidInputError,
    RequestFailedError,
    StandfastError,
)
from standfast.flows.arrival import Arrival
from standfast.transports.asking import IDEMPOTENCY_KEY, SESSION
from standfast.transports.problems import problem_of, status_of
from standfast.transports.results import unless_closing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mcp.server.context import ServerRequestContext
    from mcp.types import CallToolRequestParams, PaginatedRequestParams

    from standfast.flows.action import Action
    from standfast.flows.arrival import Principal
    from standfast.transports.mcp.tools import Toolbox
    from standfast.transports.seam import Dispatching, Handle

BUSY: Final = -32_000
"""The JSON-RPC error of what is refused now and may be taken later."""

UNKNOWN: Final = -32_602
INTERNAL: Final = -32_603
CANCELLED: Final = "the caller cancelled the call"


@final
class ToolCalls:
    """What a server of tools does.

    Args:
        toolbox: The tools.
        dispatching: Where calls go.
        who: Who calls, and with which headers.
        closing: Set when the server stops; whoever waits for a durable request then is told to ask again.
    """

    def __init__(
        self,
        toolbox: Toolbox,
        dispatching: Dispatching,
        who: Callable[[ServerRequestContext[Any, Any]], tuple[Principal, Mapping[str, str]]],
        closing: asyncio.Event,
    ) -> None:
        self._toolbox, self._dispatching, self._who, self._closing = toolbox, dispatching, who, closing

    async def show(
        self, context: ServerRequestContext[Any, Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """List the tools that the caller may use."""
        del params
        principal, _ = self._who(context)
        return ListToolsResult(tools=self._toolbox.shown_to(principal))

    async def call(self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        """Call a tool, and wait for its end."""
        principal, headers = self._who(context)
        action = self._toolbox.find(params.name, principal)
        if action is None:
            raise MCPError(UNKNOWN, f"there is no tool {params.name!r:.100}")
        try:
            handle = await self._dispatching.dispatch(_arrival(action, params, principal, headers, context))
            following = self._followed(context, action, handle)
            if not (action.durable or action.policy.collects):
                return _result(await following)
            packed = await unless_closing(following, self._closing)
            if packed is None:
                raise ArbiterUnavailableError(f"this server is closing; the request {handle.id!r} goes on")
            return _result(packed)
        except InvalidInputError as problem:
            return _failed(str(problem))
        except RequestFailedError as problem:
            return _failed(f"the action failed (request {problem.request_id})")
        except StandfastError as problem:
            raise _refusal(problem) from problem

    async def _followed(
        self, context: ServerRequestContext[Any, Any], action: Action[..., Any], handle: Handle
    ) -> bytes:
        """Wait for the result; tell of events on the way if the caller wants to know."""
        try:
            if context.meta is not None and context.meta.get("progress_token") is not None:
                async for event in handle.events():
                    if event.name != "request.ended":
                        message = msgspec.json.encode(event.data).decode()
                        await context.session.report_progress(event.number, message=message)
            return await handle.packed()
        except asyncio.CancelledError:
            if action.on_disconnect == "cancel" and handle.is_new:
                handle.abandon(CANCELLED)
            raise


def _arrival(
    action: Action[..., Any],
    params: CallToolRequestParams,
    principal: Principal,
    headers: Mapping[str, str],
    context: ServerRequestContext[Any, Any],
) -> Arrival:
    meta: Mapping[str, Any] = context.meta or {}
    return Arrival(
        flow=action.flow,
        action=action.name,
        inputs=params.arguments or {},
        principal=principal,
        session=_text(meta.get("standfast/session")) or headers.get(SESSION.lower(), ""),
        transport="mcp",
        idempotency_key=_text(meta.get("standfast/idempotency-key")) or headers.get(IDEMPOTENCY_KEY.lower(), ""),
        attended=True,
    )


def _text(given: object) -> str:
    return given if isinstance(given, str) else ""


def _result(packed: bytes) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(type="text", text=packed.decode())],
        structured_content={"result": msgspec.json.decode(packed)},
    )


def _failed(words: str) -> CallToolResult:
    """Return a failure that the model can see, and do something about."""
    return CallToolResult(content=[TextContent(type="text", text=words)], is_error=True)


def _refusal(problem: StandfastError) -> MCPError:
    """Return what the client is told when a call was not taken on."""
    if not isinstance(problem, FlowError):
        busy = ArbiterUnavailableError("the store does not answer")
        return MCPError(BUSY if status_of(problem) == busy.status else INTERNAL, "not now", problem_of(problem))
    return MCPError(BUSY, str(problem), problem_of(problem))
