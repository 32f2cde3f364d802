"""Putting an application together: its routes behind its door."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router

from standfast.errors import MissingExtraError
from standfast.transports.asking import IDEMPOTENCY_KEY, SESSION
from standfast.transports.chat.routes import chat_routes
from standfast.transports.gate import Gate
from standfast.transports.oauth.tokens import OAuthTokens
from standfast.transports.own_token import OwnToken
from standfast.transports.results import REQUEST
from standfast.transports.routing import (
    CALLS,
    HEALTH,
    Direct,
    document_route,
    flow_routes,
    health_route,
    metadata_routes,
    nothing_here,
    webhook_path,
    webhook_routes,
)
from standfast.transports.straight import Straight

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from standfast.flows.arrival import Principal
    from standfast.transports.app import App
    from standfast.transports.authentication import Authenticate
    from standfast.transports.chat.declaring import Chat
    from standfast.transports.mcp.serving import ToolEndpoint
    from standfast.transports.mcp.tools import Toolbox
    from standfast.transports.webhooks.declaring import Webhook

__all__ = ["OwnToken", "behind_the_door", "routes_of", "tools_of", "tools_over_stdio"]

CORS_HEADERS: Final = (
    *("Authorization", "Content-Type", "Last-Event-ID", "Prefer", IDEMPOTENCY_KEY, SESSION),
    *("MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"),
)
CORS_SHOWN: Final = (
    *("Location", "Preference-Applied", "Retry-After", "Idempotency-Replayed", REQUEST),
    *("WWW-Authenticate", "Mcp-Session-Id"),
)


def tools_of(app: App, toolbox: Toolbox, *, has_sessions: bool) -> ToolEndpoint:
    """Return what serves tools over HTTP."""
    given = (app.name, toolbox, app, app.limits, app.closing)
    endpoint: ToolEndpoint = _serving().ToolEndpoint(*given, has_sessions=has_sessions)
    return endpoint


async def tools_over_stdio(app: App, toolbox: Toolbox, principal: Principal) -> None:
    """Serve tools over stdin and stdout."""
    await _serving().serve_stdio(app.name, toolbox, app, principal)


def _serving() -> ModuleType:
    """Return what serves tools, which needs one more library."""
    try:
        from standfast.transports.mcp import serving  # noqa: PLC0415 -- an extra of its own
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise MissingExtraError("serving tools", "standfast[mcp]") from problem
    return serving


def routes_of(
    app: App,
    webhooks: Sequence[Webhook],
    chats: Sequence[Chat],
    tools: ToolEndpoint | None,
    version: str,
    authenticate: Authenticate,
) -> list[BaseRoute]:
    """Return all routes of an application."""
    limits, rooms = app.limits, app.rooms
    return [
        *flow_routes(app, app.flows, limits, rooms, app.closing),
        *webhook_routes(app, webhooks, limits, rooms),
        *chat_routes(chats, app, space=lambda: app.space, limits=limits, rooms=rooms, closing=app.closing),
        *([] if tools is None else [Route("/mcp", tools)]),
        document_route(app.name, version, app.flows, is_guarded=True),
        health_route(lambda: app.is_well),
        *metadata_routes(authenticate),
    ]


def behind_the_door(
    app: App,
    routes: Sequence[BaseRoute],
    webhooks: Sequence[Webhook],
    *,
    authenticate: Authenticate,
    hosts: Sequence[str],
    origins: Sequence[str],
) -> ASGIApp:
    """Return what a server calls: it lets in whoever is known."""
    open_paths = authenticate.metadata_paths if isinstance(authenticate, OAuthTokens) else ()
    router = Router(routes, redirect_slashes=False, default=nothing_here, lifespan=app.lifespan)
    gate = Gate(
        Direct(router, routes, app.flows),
        authenticate=authenticate,
        hosts=hosts,
        origins=origins,
        open_paths={HEALTH, *(webhook_path(each) for each in webhooks if each.is_signed), *open_paths},
        straight=Straight(app, app.flows, CALLS, app.limits, app.rooms),
    )
    if not origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=CORS_HEADERS,
        expose_headers=CORS_SHOWN,
    )
