"""The application: flows over HTTP, webhooks, chats and tools, behind one gate."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Literal, Self, cast, final

from standfast.errors import DeclarationError, MissingExtraError
from standfast.flows.dispatcher import Dispatcher
from standfast.flows.flow import Flows, workflow_name
from standfast.telemetry.health import Health
from standfast.web import limits as given
from standfast.web.auth import OwnToken
from standfast.web.chat import checked_chats
from standfast.web.limits import AppLimits, AppShares
from standfast.web.tools import Toolbox
from standfast.web.webhooks import Webhook
from standfast.workflows.engine import Engine
from standfast.workflows.schedules.spec import Schedule

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable
    from types import ModuleType

    from starlette.types import ASGIApp, Receive, Scope, Send

    from standfast.events import Hook
    from standfast.flows.flow import Flow
    from standfast.flows.request import Principal
    from standfast.space import Space
    from standfast.web.auth import Authenticate
    from standfast.web.chat import Chat
    from standfast.web.mcp import ToolEndpoint
    from standfast.web.tools import Toolable
    from standfast.workflows.debounce import Runnable


@final
class Site:
    """Where an application is served, and to which pages and clients.

        sf.App(url, flows=[shop], site=sf.web.Site(hosts=["shop.example"], origins=["https://admin.example"]))

    Args:
        hosts: The names that it is served under; requests for others are refused. By default any.
        origins: Pages besides its own that may use it from a browser, such as ``"https://example.com"``.
        version: Which version of it this is, in its description.
        tool_sessions: Give clients of older versions of the Model Context Protocol a session, which lives in the
            process that opened it. False: none has one, and any process takes any message, as with its newest version.

    Raises:
        DeclarationError: The declaration cannot work; the error names the place and the reason.
    """

    __slots__ = ("hosts", "origins", "tool_sessions", "version")

    def __init__(
        self,
        *,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        version: str = "1",
        tool_sessions: bool = True,
    ) -> None:
        self.hosts: Final = given.texts("hosts", hosts)
        self.origins: Final = given.texts("origins", origins)
        self.version: Final = version
        self.tool_sessions: Final = tool_sessions


@final
class App:
    """An ASGI application that serves flows. ``standfast serve module:app`` runs it, and so does any ASGI server.

        app = sf.App("sqlite:///standfast.db", flows=[chat], authenticate=sf.web.BearerTokens({...}))

    Without ``authenticate``, it answers to callers that have its :attr:`token`; ``standfast serve`` shows it on the
    terminal.

    Args:
        store: Which store, as in :func:`standfast.open`; or an engine that is not open yet, for more options.
        flows: What it serves.
        workflows: What actions start, besides; only with a store.
        webhooks: Deliveries that it takes.
        chats: The flows that people talk to.
        tools: Flows and actions that language models may use, over the Model Context Protocol at ``/mcp``.
        schedules: Of its actions, see :meth:`Action.schedule <standfast.flows.flow.Action.schedule>`; and of
            workflows, as in :class:`~standfast.Engine`, only with a store.
        authenticate: Says who asks: a function of the request, such as :class:`~standfast.web.BearerTokens` or
            :class:`~standfast.web.OAuthTokens`. It is asked before anything else is read, for each address but those of
            webhooks, which are signed, ``/health`` and what is below it, and what clients of OAuth are told. Without
            it, callers need the :attr:`token`.
        arbiter: ``"shared"``: any number of processes share the lines in the store. ``"local"``: one process serves
            and decides in memory, without asking the store; a second one refuses to start.
        name: What it is called, in its description and as the sole server of its store.
        site: Where it is served, and to which pages and clients: ``sf.web.Site(hosts=["api.example.com"])``.
        limits: How much it takes on.
        namespace: As in :func:`standfast.open`; only with a store.
        hooks: Told what happens; only with a store.

    Raises:
        DeclarationError: The declaration cannot work; the error names the place and the reason.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        store: str | Engine,
        *,
        flows: Iterable[Flow],
        workflows: Iterable[Runnable] = (),
        webhooks: Iterable[Webhook] = (),
        chats: Iterable[Chat] = (),
        tools: Iterable[Toolable] = (),
        schedules: Iterable[Schedule] = (),
        authenticate: Authenticate | None = None,
        arbiter: Literal["shared", "local"] = "shared",
        name: str = "app",
        site: Site | None = None,
        limits: AppLimits | None = None,
        namespace: str = "default",
        hooks: Iterable[Hook] = (),
    ) -> None:
        self.flows: Final = Flows(flows)
        scheduled = given.several("schedules", schedules, Schedule, "action.schedule(...)")
        names = {workflow_name(action) for action in self.flows.actions}
        of_actions = [each for each in scheduled if each.workflow in names]
        of_workflows = [each for each in scheduled if each.workflow not in names]
        self._engine: Final = (
            Engine(store, workflows=workflows, schedules=of_workflows, namespace=namespace, hooks=hooks)
            if isinstance(store, str)
            else _alone(store, workflows=workflows, schedules=of_workflows, hooks=hooks, namespace=namespace)
        )
        self.name: Final = name
        place = given.one("site", site, Site, "sf.web.Site(...)") or Site()
        self.limits: Final = given.one("limits", limits, AppLimits, "sf.web.AppLimits(...)") or AppLimits()
        self.grace: float | str = self.limits.grace
        self.shares: Final = AppShares(self.limits)
        self._dispatcher: Final = Dispatcher(
            self._engine, self.flows, arbiter=arbiter, schedules=of_actions, name=name, tenants=self.limits.tenants
        )
        self.is_guarded: Final = given.function("authenticate", authenticate, "sf.web.BearerTokens(...)") is not None
        self.closing: Final = asyncio.Event()
        self._is_open = False
        self._health: Final = Health(self._engine, lambda: not self.is_well)
        building = _building()
        who: Authenticate = OwnToken() if authenticate is None else authenticate
        self._authenticate: Final = who
        known = _checked(webhooks, self.flows)
        self.toolbox: Final = Toolbox(tools, self.flows)
        self._tools: Final[ToolEndpoint | None] = (
            building.tools_of(self, self.toolbox, has_sessions=place.tool_sessions) if self.toolbox else None
        )
        talks = checked_chats(chats, self.flows)
        self.pages: Final = tuple(f"/chat/{each.flow}/" for each in talks if each.page)
        self.routes: Final = building.routes_of(self, known, talks, self._tools, place.version, who)
        allowed = {"hosts": place.hosts, "origins": place.origins}
        self._gate: Final[ASGIApp] = building.behind_gate(self, self.routes, known, authenticate=who, **allowed)

    def __repr__(self) -> str:
        return f"<App {self.name!r}>"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, WebSocket or lifespan, as ASGI says."""
        await self._gate(scope, receive, send)

    # --- life ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the store, and begin to serve. A server does so by itself; see also :func:`lifespan`."""
        self.closing.clear()
        await self._dispatcher.open()
        self._is_open = True
        if self._tools is not None:
            await self._tools.open()

    @property
    def health(self) -> Health:
        """Whether it takes requests, and how much there is to do."""
        return self._health

    @property
    def engine(self) -> Engine:
        """The engine that executes durable requests and workflows; open or not."""
        return self._engine

    async def aclose(self) -> None:
        """Let requests under way end, and close the store. It can be opened again."""
        self.drain()
        self._is_open = False
        if self._tools is not None:
            await self._tools.aclose()
        await self._dispatcher.aclose(grace=self.grace)

    def drain(self) -> None:
        """End streams, and tell load balancers to send no more: the first thing that a server does to stop."""
        self.closing.set()

    async def let_end(self) -> None:
        """Let the requests end whose callers wait. Requests that take longer than the grace are cancelled.

        A server calls it before it closes connections, so that callers are told how their requests ended.
        """
        await self._dispatcher.let_end(grace=self.grace)

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @contextlib.asynccontextmanager
    async def lifespan(self, _host: object = None) -> AsyncGenerator[None]:
        """Open it, and close it at the end, as a server does."""
        async with self:
            yield

    # --- what it serves with -------------------------------------------------------------------------------------

    @property
    def dispatcher(self) -> Dispatcher:
        """Where every request goes; it refuses them while the application is not open."""
        return self._dispatcher

    @property
    def space(self) -> Space:
        """The space that it serves from; refused while it is not open."""
        return self._engine.space

    @property
    def token(self) -> str:
        """What callers send as ``Authorization: Bearer`` if there is no ``authenticate``; nothing if there is.

        It is made anew with every application, and can be set before it serves: to one that several processes share.
        A caller that shows it is an operator.
        """
        return "" if self.is_guarded else cast("OwnToken", self._authenticate).token

    @token.setter
    def token(self, token: str) -> None:
        if self.is_guarded:
            raise DeclarationError("App", "it has authentication, so it takes no token of its own")
        cast("OwnToken", self._authenticate).token = token

    async def serve_tools(self, principal: Principal) -> None:
        """Serve its tools over stdin and stdout, to the program that started this process: as ``standfast mcp``.

        Args:
            principal: For whom tools are called; there are no credentials.
        """
        building = _building()
        await building.tools_over_stdio(self, self.toolbox, principal)

    @property
    def is_well(self) -> bool:
        """Whether it takes requests: it is open, and not about to close."""
        return self._is_open and not self.closing.is_set()


def lifespan(*apps: App) -> Callable[[Any], contextlib.AbstractAsyncContextManager[None]]:
    """Return the ``lifespan`` of a FastAPI or Starlette application that applications of ours are mounted in.

    FastAPI and Starlette do not open what is mounted in them:

        api = FastAPI(lifespan=sf.web.lifespan(app))
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
    """Refuse options that have to be given to the engine itself."""
    named = [name for name, value in given.items() if tuple(value)]
    if named or namespace != "default":
        problem = f"{', '.join(named) or 'namespace'} cannot be given beside an engine; give it to the engine"
        raise DeclarationError("App", problem)
    return engine


def _checked(webhooks: Iterable[Webhook], flows: Flows) -> tuple[Webhook, ...]:
    """Refuse two webhooks with one address, and webhooks whose deliveries would go nowhere."""
    known = given.several("webhooks", webhooks, Webhook, "sf.web.Webhook(...)")
    seen: set[str] = set()
    for each in known:
        if each.name in seen:
            raise DeclarationError(each.where, "there are two with this name")
        seen.add(each.name)
        for action in each.actions:
            if action not in flows.actions:
                raise DeclarationError(each.where, f"{action.where} is of no flow that the app was given")
    return known


def _building() -> ModuleType:
    """Return the module that needs the libraries of the web, which are an extra."""
    try:
        from standfast.web import routes as building  # noqa: PLC0415 -- sf.App can be named without them
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] != "starlette":
            raise
        raise MissingExtraError("serving flows", "standfast[serve]") from problem
    return building
