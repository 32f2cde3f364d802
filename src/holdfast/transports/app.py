"""The application: flows over HTTP, and whatever else brings requests in, behind one door."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal, Self, final

from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Router

from holdfast.errors import EngineNotOpenError, InvalidFlowError
from holdfast.flows.arrival import Principal
from holdfast.flows.dispatch import Dispatcher
from holdfast.flows.flow import Flows
from holdfast.transports.asking import IDEMPOTENCY_KEY, SESSION
from holdfast.transports.chat.declaring import checked_chats
from holdfast.transports.chat.routes import chat_routes
from holdfast.transports.gate import PRINCIPAL, Gate
from holdfast.transports.http import REQUEST
from holdfast.transports.limits import Limits
from holdfast.transports.routing import (
    HEALTH,
    document_route,
    flow_routes,
    health_route,
    nothing_here,
    webhook_path,
    webhook_routes,
)
from holdfast.workflows.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

    from starlette.requests import HTTPConnection
    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp, Receive, Scope, Send

    from holdfast.durations import Duration
    from holdfast.events import Hook
    from holdfast.flows.arrival import Arrival
    from holdfast.flows.flow import Flow
    from holdfast.space import Space
    from holdfast.transports.authentication import Authenticate
    from holdfast.transports.chat.declaring import Chat
    from holdfast.transports.seam import Handle
    from holdfast.transports.webhooks.declaring import Webhook
    from holdfast.workflows.engine import Runnable
    from holdfast.workflows.schedules.specification import Schedule

GRACE: Final = 10.0
"""Seconds that requests under way have to end when the application closes."""

CORS_HEADERS: Final = ("Authorization", "Content-Type", "Last-Event-ID", "Prefer", IDEMPOTENCY_KEY, SESSION)
CORS_SHOWN: Final = ("Location", "Preference-Applied", "Retry-After", "Idempotency-Replayed", REQUEST)


@final
class App:
    """An ASGI application that serves flows. ``holdfast serve module:app`` runs it, and so does any ASGI server.

        app = hf.App("sqlite:///holdfast.db", flows=[chat], authenticate=hf.BearerTokens({...}))

    Without ``authenticate``, it answers to its own machine only.

    Args:
        store: Which store, as in :func:`holdfast.open`; or an engine that is not open yet, for more options.
        flows: What it serves.
        workflows: What actions start, besides; only with a store.
        webhooks: Deliveries that it takes.
        chats: The flows that people talk to.
        schedules: As in :class:`~holdfast.Engine`; only with a store.
        authenticate: Says who asks: a function of the request, such as :class:`~holdfast.BearerTokens`. It is asked
            before anything else is read, for every address but those of webhooks, which are signed, and ``/health``.
        arbiter: ``"shared"``: any number of processes share the lines in the store. ``"local"``: one process serves
            and decides in memory, without asking the store; a second one refuses to start.
        hosts: The names that it is served under; requests for others are refused. By default any.
        origins: Pages besides its own that may use it from a browser, such as ``"https://example.com"``.
        limits: How much it takes on.
        name: What it is called, in its description and as the sole server of its store.
        version: Which version of it this is, in its description.
        namespace: As in :func:`holdfast.open`; only with a store.
        hooks: Told what happens; only with a store.
        grace: How long requests under way have to end when it closes.

    Raises:
        InvalidFlowError: The declaration cannot work; the error names the place and the reason.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        store: str | Engine,
        *,
        flows: Iterable[Flow],
        workflows: Iterable[Runnable] = (),
        webhooks: Iterable[Webhook] = (),
        chats: Iterable[Chat] = (),
        schedules: Iterable[Schedule] = (),
        authenticate: Authenticate | None = None,
        arbiter: Literal["shared", "local"] = "shared",
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        limits: Limits | None = None,
        name: str = "app",
        version: str = "1",
        namespace: str = "default",
        hooks: Iterable[Hook] = (),
        grace: Duration = GRACE,
    ) -> None:
        flows, webhooks = tuple(flows), tuple(webhooks)
        self._engine: Final = (
            Engine(store, workflows=workflows, schedules=schedules, namespace=namespace, hooks=hooks)
            if isinstance(store, str)
            else _alone(store, workflows=workflows, schedules=schedules, hooks=hooks, namespace=namespace)
        )
        self._flows: Final = Flows(flows)
        self._dispatcher: Final = Dispatcher(self._engine, flows=flows, arbiter=arbiter, name=name)
        self.name, self.limits, self._grace = name, limits or Limits(), grace
        self.is_guarded: Final = authenticate is not None
        self._closing: Final = asyncio.Event()
        self._is_open = False
        self.routes: Final = [*self._routes(webhooks, version), *self._chat_routes(chats)]
        paths = {HEALTH, *(webhook_path(each) for each in _checked(webhooks, self._flows))}
        self._router: Final = Router(self.routes, redirect_slashes=False, default=nothing_here, lifespan=self._lifespan)
        gate = Gate(
            self._router,
            authenticate=authenticate,
            hosts=tuple(hosts),
            origins=(origins := tuple(origins)),
            open_paths=paths,
            nobody=Principal(),
        )
        self._door: Final[ASGIApp] = _shared_with(gate, origins) if origins else gate

    def __repr__(self) -> str:
        return f"<App {self.name!r}>"

    def _routes(self, webhooks: Iterable[Webhook], version: str) -> list[BaseRoute]:
        return [
            *flow_routes(self, self._flows, self.limits, self._closing),
            *webhook_routes(self, webhooks, self.limits),
            document_route(self.name, version, self._flows, is_guarded=self.is_guarded),
            health_route(lambda: self._is_open and not self._closing.is_set()),
        ]

    def _chat_routes(self, chats: Iterable[Chat]) -> list[BaseRoute]:
        known = checked_chats(chats, self._flows)

        def space() -> Space:
            return self.dispatcher.engine.space

        return chat_routes(known, self, space=space, limits=self.limits, closing=self._closing)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, WebSocket or lifespan, as ASGI says."""
        await self._door(scope, receive, send)

    # --- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store, and begin to serve. A server does so by itself; see also :func:`lifespan`."""
        self._closing.clear()
        await self._dispatcher.open()
        self._is_open = True

    async def aclose(self) -> None:
        """Let requests under way end, and close the store. It can be opened again."""
        self.drain()
        self._is_open = False
        await self._dispatcher.aclose(grace=self._grace)

    def drain(self) -> None:
        """Let streams end, and tell load balancers to send no more: what a server does first when it is to stop."""
        self._closing.set()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _host: object) -> AsyncGenerator[None]:
        async with self:
            yield

    # --- what endpoints ask it for -------------------------------------------------------------------------------

    @property
    def dispatcher(self) -> Dispatcher:
        """Where every request goes; refused while the application is not open."""
        if not self._is_open:
            raise EngineNotOpenError
        return self._dispatcher

    async def dispatch(self, arrival: Arrival) -> Handle:
        """Take a request on."""
        return await self.dispatcher.dispatch(arrival)

    async def find(self, principal: Principal, request_id: str) -> Handle:
        """Return a request by its id."""
        return await self.dispatcher.find(principal, request_id)

    async def principal(self, connection: HTTPConnection) -> Principal:
        """Return who sends a request that was let in."""
        found: Principal = connection.scope[PRINCIPAL]
        return found


def lifespan(*apps: App) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
    """Return the ``lifespan`` of a FastAPI or Starlette application that applications of ours are mounted in.

    Those do not open what is mounted in them:

        api = FastAPI(lifespan=hf.lifespan(app))
        api.mount("/flows", app)
    """

    @contextlib.asynccontextmanager
    async def run(_host: object) -> AsyncGenerator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for app in apps:
                await stack.enter_async_context(app)
            yield

    return run


def _alone(engine: Engine, *, namespace: str, **given: Iterable[object]) -> Engine:
    """Refuse what has to be said to the engine itself."""
    named = [name for name, value in given.items() if tuple(value)]
    if named or namespace != "default":
        problem = f"{', '.join(named) or 'namespace'} cannot be given beside an engine; give it to the engine"
        raise InvalidFlowError("App", problem)
    return engine


def _checked(webhooks: Iterable[Webhook], flows: Flows) -> Iterable[Webhook]:
    """Refuse two webhooks with one address, and webhooks whose deliveries would go nowhere."""
    seen: set[str] = set()
    for each in webhooks:
        if each.name in seen:
            raise InvalidFlowError(each.where, "there are two with this name")
        seen.add(each.name)
        for action in each.actions:
            if action not in flows.actions:
                raise InvalidFlowError(each.where, f"{action.where} is of no flow that the app was given")
    return webhooks


def _shared_with(app: ASGIApp, origins: tuple[str, ...]) -> ASGIApp:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=CORS_HEADERS,
        expose_headers=CORS_SHOWN,
    )
