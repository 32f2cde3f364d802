"""Which address of the dashboard shows what, who is let in, and what browsers are told with every answer."""

from __future__ import annotations

import contextlib
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, final

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from standfast.errors import (
    AuthenticationError,
    FlowError,
    HttpError,
    InvalidArgumentError,
    RunNotFoundError,
    StandfastError,
    StoreError,
)
from standfast.log_budget import LogBudget
from standfast.web.asgi import host_of
from standfast.web.auth import OwnToken, identify
from standfast.web.dashboard.access import OneTimeToken, PageError, access_of
from standfast.web.dashboard.actions import execute, preview
from standfast.web.dashboard.bulk import Jobs
from standfast.web.dashboard.live import PAUSE, PAUSES, SharedParts, Watcher, stream_of
from standfast.web.dashboard.pages import PART, View, compile_templates, error_page, static_files
from standfast.web.dashboard.screens import SCREENS
from standfast.workflows.failures import log_failure
from standfast.workflows.lanes import one_look

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from standfast.web.dashboard import Dashboard
    from standfast.web.dashboard.access import Access
    from standfast.web.dashboard.pages import Screen


POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
SECURITY: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
__all__ = ["Jobs", "routes_of", "screens"]
_log: Final = logging.getLogger("standfast.dashboard")


def routes_of(dashboard: Dashboard) -> ASGIApp:
    """Return the pages of a dashboard as an application."""
    compile_templates()
    return _Gate(dashboard)


def screens() -> Mapping[tuple[str, str], Screen]:
    """Return every screen by its method and path."""
    return {
        **{("GET", f"/{path}"): screen for path, screen in SCREENS.items()},
        ("GET", "/act/{action}"): preview,
        ("POST", "/act/{action}"): execute,
        ("GET", "/live"): _live,
    }


async def _live(view: View) -> Response:
    dashboard, space = view.dashboard, view.engine.space
    return stream_of(dashboard.watchers.setdefault(space, Watcher(space)), dashboard.closing)


async def _static(request: Request) -> Response:
    found = static_files().get(request.path_params["name"])
    if found is None:
        raise PageError(404, "There is no such page", "There is no such file.")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(found[0], HTTPStatus.OK, headers, found[1])


@final
class _Gate:
    """Lets in callers that have credentials and a level, answers with pages, and adds what browsers are told."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard: Final = dashboard
        self._refusals: Final = LogBudget(_log)
        self._parts: Final = SharedParts()
        routes = [
            Route(path, self._shown(screen, path), methods=[method]) for (method, path), screen in screens().items()
        ]
        routes.append(Route("/static/{name}", _static, methods=["GET"]))
        self.routes: Final = routes

        @contextlib.asynccontextmanager
        async def lifespan(_app: object) -> AsyncGenerator[None]:
            async with dashboard:
                yield

        self._router: Final = Router(routes, default=_nothing, redirect_slashes=True, lifespan=lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return

        has_begun = False

        async def guarded(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                told = {name.encode(): value.encode() for name, value in SECURITY.items()}
                headers = [pair for pair in message.get("headers", ()) if pair[0].lower() not in told]
                message["headers"] = [*headers, *told.items()]
            await send(message)

        try:
            if self._dashboard.hosts and host_of(Request(scope).headers.get("host", "")) not in self._dashboard.hosts:
                raise HttpError("wrong-host", "this is no host of this dashboard")  # noqa: TRY301 -- answered below, as all are
            await self._router(scope, receive, guarded)
        except Exception as problem:
            if has_begun:
                raise
            await self._error(problem, scope)(scope, receive, guarded)

    def _shown(self, screen: Screen, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            found = await self._let_in(request.scope)
            if isinstance(found, Response):
                return found
            engine = await self._dashboard.engine_of(found.principal.tenant)
            view = View(self._dashboard, request, found, engine)
            watcher = self._dashboard.watchers.get(engine.space)
            if not is_shared:
                return await screen(view)
            if PART not in request.headers or watcher is None or not watcher.changes:
                with one_look():
                    return await screen(view)
            scope, mounted = request.scope, request.scope.get("root_path", "")
            page = (mounted, scope["path"], scope["query_string"], found.principal.tenant, found.actions)
            return await self._parts.get(page, lambda: watcher.changes, lambda: screen(view), pause)

        is_shared, pause = screen in SCREENS.values(), PAUSES.get(path, PAUSE)
        return endpoint

    async def _let_in(self, scope: Scope) -> Access | Response:
        authenticate = self._dashboard.authenticate
        if isinstance(authenticate, OwnToken | OneTimeToken) and (greeting := authenticate.greeting(scope)) is not None:
            return greeting
        try:
            principal = await identify(authenticate, HTTPConnection(scope))
            if principal is None:
                raise AuthenticationError("credentials are needed")
            return access_of(principal, self._dashboard.access(principal))
        except FlowError as problem:
            address = (scope.get("client") or ("",))[0]
            self._refusals.warning("dashboard-refused", address=address, status=problem.status)
            raise

    def _error(self, problem: Exception, scope: Scope) -> Response:  # noqa: PLR0911 -- one answer a kind of problem
        title, root = self._dashboard.title, str(scope.get("root_path", ""))
        match problem:
            case AuthenticationError():
                words = "You are not signed in", "This dashboard shows nothing without credentials."
                advice = _SIGN_IN.get(type(self._dashboard.authenticate), _SIGN_IN_ELSEWHERE)
                answer = error_page(title, root, problem.status, *words, advice)
                answer.headers["www-authenticate"] = "Bearer"
                return answer
            case PageError():
                return error_page(title, root, *problem.args)
            case FlowError():
                heading = "You may not do this" if problem.status == HTTPStatus.FORBIDDEN else "This was refused"
                return error_page(title, root, problem.status, heading, str(problem), "")
            case RunNotFoundError():
                return error_page(title, root, 404, "No such run", str(problem), "It may have been purged.")
            case StoreError():
                return error_page(title, root, 503, "The store does not answer", str(problem), "Load the page again.")
            case InvalidArgumentError():
                return error_page(title, root, 400, "This address is not right", str(problem), "Go back and try again.")
            case StandfastError():
                return error_page(title, root, 409, "This cannot be done now", str(problem), "Go back and look again.")
            case _:
                log_failure(_log, "a page of the dashboard", problem, path=scope["path"])
                return error_page(title, root, 500, "Something went wrong here", "The log of the server says what.", "")


_SIGN_IN: Final[dict[type, str]] = {
    OwnToken: "Add ?token= and the token of the dashboard to its address, or give it authenticate=.",
    OneTimeToken: "What standfast dashboard printed opens it once. Start the command again for another address.",
}
_SIGN_IN_ELSEWHERE: Final = "Sign in to the application that it is part of, and come back."


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    del receive, send
    raise PageError(404, "There is no such page", f"There is nothing at {scope['path']!r:.100}.")
