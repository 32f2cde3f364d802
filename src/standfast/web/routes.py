"""Which address leads where, and an application put together: its routes behind its gate."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, final

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from standfast.errors import ForbiddenError, MissingExtraError
from standfast.telemetry.health import metrics_of
from standfast.web.asgi import raw_headers, route_path
from standfast.web.auth import OWNER
from standfast.web.call import IDEMPOTENCY_KEY, REQUEST, SESSION
from standfast.web.chat.routes import chat_routes
from standfast.web.deliveries import WebhookEndpoint
from standfast.web.fast_path import FastPath
from standfast.web.gate import PRINCIPAL, Gate
from standfast.web.http import CallEndpoint, RequestEndpoint
from standfast.web.oauth import OAuthTokens
from standfast.web.openapi import describe
from standfast.web.problems import as_json, plain_problem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from starlette.types import ASGIApp, Receive, Scope, Send

    from standfast.flows.flow import Action, Flows
    from standfast.flows.request import Principal
    from standfast.web.app import App
    from standfast.web.auth import Authenticate
    from standfast.web.call import Dispatching
    from standfast.web.chat import Chat
    from standfast.web.limits import AppLimits, AppShares
    from standfast.web.mcp import ToolEndpoint
    from standfast.web.tools import Toolbox
    from standfast.web.webhooks import Webhook


# --- which address leads where -------------------------------------------------------------------------------------

CALLS: Final = "/flows/{flow}/{action}"
HEALTH: Final = "/health"
LIVE: Final = "/health/live"
READY: Final = "/health/ready"
METRICS: Final = "metrics"
"""The role that reads metrics."""

JSON: Final = "application/json"


def flow_routes(
    dispatching: Dispatching, flows: Flows, limits: AppLimits, shares: AppShares, closing: asyncio.Event
) -> list[BaseRoute]:
    """Return the routes of actions, and of requests by their ids."""
    following = RequestEndpoint(dispatching, limits, shares, closing)
    return [
        Route(CALLS, _ByMethod(POST=CallEndpoint(dispatching, flows, limits, shares, closing))),
        Route("/requests/{id}", _ByMethod(GET=following.show, HEAD=following.show, DELETE=following.cancel)),
        Route("/requests/{id}/events", _ByMethod(GET=following.follow)),
    ]


@final
class ActionRouter:
    """Routes calls of actions, which are nearly all requests, without the router; the router gets all others.

    Args:
        router: Knows all routes.
        routes: Those of actions among them.
        flows: What can be called.
    """

    def __init__(self, router: ASGIApp, routes: Iterable[BaseRoute], flows: Flows) -> None:
        self._router: Final = router
        found = [each.endpoint for each in routes if isinstance(each, Route) and each.path == CALLS]
        self._known: Final[dict[str, tuple[ASGIApp, dict[str, str]]]] = {
            CALLS.format(**names): (endpoint, names)
            for endpoint in found
            for names in ({"flow": each.flow, "action": each.name} for each in flows.actions)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route one request."""
        known = self._known.get(route_path(scope)) if scope["type"] == "http" else None
        if known is None:
            await self._router(scope, receive, send)
            return
        endpoint, scope["path_params"] = known
        await endpoint(scope, receive, send)


def webhook_routes(
    dispatching: Dispatching, webhooks: Iterable[Webhook], limits: AppLimits, shares: AppShares
) -> list[BaseRoute]:
    """Return the routes of webhooks."""
    endpoints = {webhook_path(each): WebhookEndpoint(each, dispatching, limits, shares) for each in webhooks}
    return [Route(path, _ByMethod(POST=endpoint)) for path, endpoint in endpoints.items()]


def webhook_path(webhook: Webhook) -> str:
    """Return where the deliveries of a webhook come in."""
    return f"/webhooks/{webhook.name}"


def document_route(title: str, version: str, flows: Flows, *, is_guarded: bool) -> BaseRoute:
    """Return the route of the description. It shows callers what they may call, and not what else there is."""

    @lru_cache(maxsize=64)
    def described(visible: tuple[Action[..., Any], ...]) -> dict[str, Any]:
        return describe(title, version, visible, is_guarded=is_guarded)

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        roles = scope[PRINCIPAL].roles
        made = described(tuple(each for each in flows.actions if each.is_for(roles)))
        root = scope.get("root_path", "")
        shown = made | {"servers": [{"url": root}]} if root else made  # paths are below where it is mounted
        await Response(as_json(shown), 200, media_type=JSON)(scope, receive, send)

    return Route("/openapi.json", _ByMethod(GET=show, HEAD=show))


def metadata_routes(authenticate: object) -> list[BaseRoute]:
    """Return the routes of the metadata for clients of OAuth, if access tokens are taken."""
    if not isinstance(authenticate, OAuthTokens):
        return []
    answer = Response(as_json(authenticate.metadata), 200, {"Cache-Control": "max-age=3600"}, JSON)
    return [Route(path, _ByMethod(GET=answer, HEAD=answer)) for path in authenticate.metadata_paths]


def health_route(is_well: Callable[[], bool]) -> BaseRoute:
    """Return the route that tells a load balancer if this server takes requests, and nothing else."""

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        well = is_well()
        answer = Response(as_json({"status": "ok" if well else "closing"}), 200 if well else 503, media_type=JSON)
        await answer(scope, receive, send)

    return Route(HEALTH, _ByMethod(GET=show, HEAD=show))


def telemetry_routes(app: App) -> list[BaseRoute]:
    """Return the routes of probes, which are open, and those of metrics and autoscalers, which are for operators."""

    async def live(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(as_json({"status": "ok"}), 200, media_type=JSON)(scope, receive, send)

    async def ready(scope: Scope, receive: Receive, send: Send) -> None:
        found = await app.health.ready()
        shown = {"status": "ok" if found.is_ready else "not ready"}  # why is for callers that may know more
        await Response(as_json(shown), found.status, media_type=JSON)(scope, receive, send)

    async def scale(scope: Scope, receive: Receive, send: Send) -> None:
        _check_may_watch(scope)
        told = await app.health.scale()
        await Response(as_json(told), 200 if "load" in told else 503, media_type=JSON)(scope, receive, send)

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        _check_may_watch(scope)
        found = metrics_of(app.engine)
        if found is None:
            text = "this application has no metrics: pass hooks=[sf.admin.PrometheusMetrics()], or serve with --listen"
            await plain_problem("not-found", text, 404)(scope, receive, send)
            return
        accept = raw_headers(scope).get(b"accept", b"").decode("latin-1")
        shown, media_type = await found.text(accept)
        await Response(shown, 200, media_type=media_type)(scope, receive, send)

    answers = {LIVE: live, READY: ready, "/scale": scale, "/metrics": metrics}
    return [Route(path, _ByMethod(GET=answer, HEAD=answer)) for path, answer in answers.items()]


def _check_may_watch(scope: Scope) -> None:
    """Let in the owner of the application's own token, and users with the role: metrics are of all tenants together."""
    principal: Principal = scope[PRINCIPAL]
    if principal is not OWNER and METRICS not in principal.roles:
        raise ForbiddenError("reading metrics", (METRICS,))


async def nothing_here(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for which there is no route."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": ""})
        return
    await plain_problem("not-found", "There is nothing at this address", 404)(scope, receive, send)


@final
class _ByMethod:
    """An endpoint that chooses by the method of a request, and refuses other methods."""

    def __init__(self, **methods: ASGIApp) -> None:
        self._methods: Final = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._methods.get(scope["method"])
        if found is None:
            allowed = {"Allow": ", ".join(sorted(self._methods))}
            await plain_problem("method", "That cannot be done at this address", 405, allowed)(scope, receive, send)
            return
        await found(scope, receive, send)


# --- putting an application together: its routes behind its gate ---------------------------------------------------

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
    given = (app.name, toolbox, app.dispatcher, app.limits, app.closing)
    endpoint: ToolEndpoint = _serving().ToolEndpoint(*given, has_sessions=has_sessions)
    return endpoint


async def tools_over_stdio(app: App, toolbox: Toolbox, principal: Principal) -> None:
    """Serve tools over stdin and stdout."""
    await _serving().serve_stdio(app.name, toolbox, app.dispatcher, principal)


def _serving() -> ModuleType:
    """Return the module that serves tools, which needs one more library."""
    try:
        from standfast.web import mcp as serving  # noqa: PLC0415 -- an extra of its own
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
    dispatcher, limits, shares = app.dispatcher, app.limits, app.shares
    return [
        *flow_routes(dispatcher, app.flows, limits, shares, app.closing),
        *webhook_routes(dispatcher, webhooks, limits, shares),
        *chat_routes(chats, dispatcher, space=lambda: app.space, limits=limits, shares=shares, closing=app.closing),
        *([] if tools is None else [Route("/mcp", tools)]),
        document_route(app.name, version, app.flows, is_guarded=True),
        health_route(lambda: app.is_well),
        *telemetry_routes(app),
        *metadata_routes(authenticate),
    ]


def behind_gate(
    app: App,
    routes: Sequence[BaseRoute],
    webhooks: Sequence[Webhook],
    *,
    authenticate: Authenticate,
    hosts: Sequence[str],
    origins: Sequence[str],
) -> ASGIApp:
    """Return the application that a server calls: the routes behind the gate."""
    open_paths = authenticate.metadata_paths if isinstance(authenticate, OAuthTokens) else ()
    router = Router(routes, redirect_slashes=False, default=nothing_here, lifespan=app.lifespan)
    gate = Gate(
        ActionRouter(router, routes, app.flows),
        authenticate=authenticate,
        hosts=hosts,
        origins=origins,
        open_paths={HEALTH, LIVE, READY, *(webhook_path(each) for each in webhooks if each.is_signed), *open_paths},
        fast_path=FastPath(app.dispatcher, app.flows, CALLS, app.limits, app.shares),
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
