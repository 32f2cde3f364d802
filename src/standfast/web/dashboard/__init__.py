"""The dashboard: pages that show runs, lines and workers, why something waits, and what can be done about it."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Self, final

from standfast.errors import DeclarationError, MissingExtraError
from standfast.space import Space, lines_of
from standfast.space import open as open_space
from standfast.web.auth import OwnToken
from standfast.web.dashboard.access import default_access
from standfast.workflows.engine import Engine, is_open

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from starlette.types import ASGIApp, Receive, Scope, Send

    from standfast.flows.flow import Flow
    from standfast.web.auth import Authenticate
    from standfast.web.dashboard.access import AccessOf
    from standfast.web.dashboard.bulk import Jobs
    from standfast.web.dashboard.live import Watcher

MOST_TENANTS: Final = 100
"""How many tenants a dashboard keeps open; the least recently used one is closed for another."""


@final
class Dashboard:
    """An ASGI application for operators: what runs, who holds, who waits and why, and what can be done about it.

        app.mount("/ops", sf.web.Dashboard(engine, authenticate=signed_in, access=level_of))

    It is closed by default: without credentials there is no page. A caller sees the tenant that it belongs to, and no
    other. It can be used without JavaScript, loads nothing from elsewhere, and asks before it changes anything.

    Args:
        store: The engine or the space that the application has open, or the URL of a store. A URL is opened by the
            first request, and closed by :meth:`aclose`.
        authenticate: Says who asks, as of :class:`~standfast.web.App`. None: any caller that shows :attr:`token`.
        access: Says what a principal may do: ``"all"``, ``"read"``, a set of actions such as
            ``{"run.cancel", "lock.release", "values.reveal"}``, or None for nothing at all. By default the role
            ``operator`` has all, and ``viewer`` may read.
        namespace: Which namespace, of a store that is given by its URL.
        title: What the pages are called.
        secret: What forms are signed with. Give the same to all processes that serve one dashboard behind a load
            balancer; by default each process makes its own.
        hosts: The names that it is served under; empty: any.
        flows: The flows of the application, so that the policy of each action is shown before its first request.

    Raises:
        DeclarationError: The store is none of these.
        MissingExtraError: Install ``standfast[dashboard]``.
    """

    def __init__(
        self,
        store: str | Space | Engine,
        *,
        authenticate: Authenticate | None = None,
        access: AccessOf = default_access,
        namespace: str = "default",
        title: str = "Standfast",
        secret: bytes | None = None,
        hosts: tuple[str, ...] = (),
        flows: Iterable[Flow] = (),
    ) -> None:
        if not isinstance(store, str | Space | Engine):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise DeclarationError("Dashboard", f"it takes a URL, a space or an engine, not a {type(store).__name__}")
        self._store: Final = store
        self._namespace: Final = namespace
        self.title: Final = title
        self.access: Final = access
        self.secret: Final = secrets.token_bytes(32) if secret is None else secret
        self.hosts: Final = frozenset(host.lower() for host in hosts)
        self.flows: Final = tuple(flows)
        self.authenticate: Final[Authenticate] = OwnToken() if authenticate is None else authenticate
        self.closing: Final = asyncio.Event()
        self._opened: Space | None = None
        self._engines: Final[OrderedDict[str, Engine]] = OrderedDict()
        self._lock: Final = asyncio.Lock()
        self.watchers: Final[dict[Space, Watcher]] = {}
        building = _building()
        self.jobs: Final[Jobs] = building.Jobs(self.wake_all)
        self._pages: Final[ASGIApp] = building.routes_of(self)

    def __repr__(self) -> str:
        return f"<Dashboard {self.title!r}>"

    @property
    def token(self) -> str:
        """What opens it if there is no ``authenticate``: as ``Authorization: Bearer``, or as ``?token=`` of a page."""
        return self.authenticate.token if isinstance(self.authenticate, OwnToken) else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._pages(scope, receive, send)

    async def __aenter__(self) -> Self:
        self.closing.clear()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def drain(self) -> None:
        """End streams: the first thing that a server does to stop."""
        self.closing.set()
        self.wake_all()

    def wake_all(self) -> None:
        """Let all pages refresh."""
        for watcher in self.watchers.values():
            watcher.wake()

    async def aclose(self) -> None:
        """End the streams and the work on many runs, and close the store if it was given by its URL."""
        self.drain()
        await self.jobs.aclose()
        self.watchers.clear()
        while self._engines:
            await self._close(self._engines.popitem()[1])
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    async def engine_of(self, tenant: str) -> Engine:
        """Return an engine that executes nothing, in the space of a tenant; for its own tenant the application's."""
        own = self._store
        if isinstance(own, Engine) and is_open(own) and own.space.tenant == tenant:
            return own
        if (known := self._engines.get(tenant)) is not None:
            self._engines.move_to_end(tenant)
            return known
        async with self._lock:
            if (known := self._engines.get(tenant)) is not None:
                return known
            root = await self._root()
            engine = Engine(Space(root.store, namespace=root.namespace, tenant=tenant), drive=False)
            await engine.open()
            self._engines[tenant] = engine
            if len(self._engines) > MOST_TENANTS:
                oldest = self._engines.popitem(last=False)[1]
                self.watchers.pop(oldest.space, None)
                await self._close(oldest)
            return engine

    async def engine_of_app(self) -> Engine:
        """Return the engine in the space that the application serves from: requests of all tenants lie there."""
        return await self.engine_of((await self._root()).tenant)

    async def _root(self) -> Space:
        match self._store:
            case Engine() as engine:
                return engine.space
            case Space() as space:
                return space
            case url:
                if self._opened is None:
                    self._opened = await open_space(url, namespace=self._namespace)
                return self._opened

    @staticmethod
    async def _close(engine: Engine) -> None:
        """Close what was opened for a tenant, but not the store, which all of them share."""
        lines = lines_of(engine.space)
        await engine.aclose()
        await lines.aclose()


def _building() -> ModuleType:
    """Return the module that needs the libraries of the web, which are an extra."""
    try:
        from standfast.web.dashboard import routes  # noqa: PLC0415 -- sf.web.Dashboard can be named without them
    except ModuleNotFoundError as problem:
        if (problem.name or "").partition(".")[0] not in ("starlette", "jinja2"):
            raise
        raise MissingExtraError("the dashboard", "standfast[dashboard]") from problem
    return routes
