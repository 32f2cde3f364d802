"""A dispatcher that does what a test says, and an application around it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

import httpx
import msgspec
from starlette.routing import Router

from standfast.clock import Instant
from standfast.errors import RequestCancelledError, RequestNotFoundError, ResultTimeoutError, StandfastError
from standfast.flows.flow import Flow, Flows
from standfast.flows.request import EmittedEvent, Request, RequestExplanation, RequestInfo
from standfast.web.auth import OwnToken
from standfast.web.fast_path import FastPath
from standfast.web.gate import Gate
from standfast.web.limits import AppLimits, AppShares
from standfast.web.routes import (
    CALLS,
    HEALTH,
    document_route,
    flow_routes,
    health_route,
    nothing_here,
    webhook_path,
    webhook_routes,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, MutableMapping

    from starlette.types import ASGIApp

    from standfast.flows.flow import Action
    from standfast.flows.request import Call, Principal
    from standfast.web.app import App
    from standfast.web.auth import Authenticate
    from standfast.web.call import Simple
    from standfast.web.webhooks import Webhook

chat = Flow("chat")


@chat.action
async def echo(request: Request, text: str, times: int = 1) -> str:
    """Say it again."""
    del request
    return text * times


@chat.action(durable=True)
async def post(request: Request, letter: dict[str, Any]) -> None:
    """Send a letter."""


@chat.action(on_disconnect="continue")
async def stay(request: Request) -> None:
    """Go on whatever happens."""


OWN = OwnToken()
SHOWN = {"Authorization": f"Bearer {OWN.token}"}
"""What a caller sends to an application without authentication."""


def shown(app: App) -> dict[str, str]:
    """Return what a caller sends to an application: its token, if it has no authentication."""
    return {} if app.is_guarded else {"Authorization": f"Bearer {app.token}"}


class FakeHandle:
    """A request that ends when the test says so."""

    explanation: RequestExplanation | None = None
    position: int | None = None
    is_taken_on = True
    runs_here = False

    def __init__(self, request_id: str, arrival: Call, *, is_new: bool = True) -> None:
        self.id, self.arrival, self.is_new, self.is_replay = request_id, arrival, is_new, not is_new
        self.status = "running"
        self.ending: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.told: list[EmittedEvent] = []
        self.news = asyncio.Condition()
        self.cancelled_for: list[str] = []
        self.was_cancelled = asyncio.Event()

    async def packed(self, timeout: float | None = None) -> bytes:
        """Wait for the end."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self.ending)
        except TimeoutError:
            raise ResultTimeoutError(self.id, timeout or 0.0, self.status) from None

    async def info(self) -> RequestInfo:
        """Tell where it stands."""
        status: Any = self.status
        return RequestInfo(id=self.id, flow="chat", action="echo", status=status, received_at=Instant(1_000_000))

    async def events(self, after: int = 0) -> AsyncIterator[EmittedEvent]:
        """Yield what was told, and what will be."""
        while True:
            is_over = self.status != "running"
            for event in self.told[after:]:
                after = event.number
                yield event
            if is_over:
                return
            async with self.news:
                if len(self.told) == after and self.status == "running":
                    await self.news.wait()

    async def tell(self, data: object, name: str = "message") -> None:
        """Tell something."""
        self.told.append(EmittedEvent(len(self.told) + 1, name, data))
        async with self.news:
            self.news.notify_all()

    async def end(self, result: object = None) -> None:
        """End well."""
        self.status = "completed"
        if not self.ending.done():
            self.ending.set_result(msgspec.json.encode(result))
        await self.tell({"status": "completed", "result": result}, "request.ended")

    def abandon(self, reason: str) -> None:
        """End because its caller has gone."""
        self._end_for(reason, "caller")

    async def cancel(self, reason: str, cancelled_by: str = "") -> None:
        """End because somebody wants it."""
        self._end_for(reason, cancelled_by)

    def _end_for(self, reason: str, cancelled_by: str) -> None:
        self.cancelled_for.append(reason)
        self.status = "cancelled"
        self.was_cancelled.set()
        if not self.ending.done():
            self.ending.set_exception(RequestCancelledError(self.id, reason, cancelled_by))
            self.ending.exception()  # whoever sent it may have gone


class FakeDispatching:
    """Takes everything on, once for each idempotency key; or raises what the test wants."""

    def __init__(self) -> None:
        self.arrivals: list[Call] = []
        self.handles: dict[str, FakeHandle] = {}
        self.keys: dict[str, str] = {}
        self.refusal: StandfastError | None = None
        self.answers_at_once = True
        self.result: object = "done"
        self.came = asyncio.Event()

    def begin(self, action: Action[..., Any], arrival: Call) -> Simple | None:
        """Have everything dispatched."""
        del action, arrival
        return None

    async def dispatch(self, arrival: Call, *, here: bool = False) -> FakeHandle:
        """Take a request on, and run it at once wherever that is."""
        assert arrival.attended or not here
        self.arrivals.append(arrival)
        if self.refusal is not None:
            raise self.refusal
        known = self.keys.get(arrival.idempotency_key) if arrival.idempotency_key else None
        handle = FakeHandle(known or f"r{len(self.handles) + 1}", arrival, is_new=known is None)
        self.handles[handle.id] = handle
        self.keys[arrival.idempotency_key] = handle.id
        if self.answers_at_once:
            await handle.end(self.result)
        self.came.set()
        return handle

    async def find(self, principal: Principal, request_id: str) -> FakeHandle:
        """Return a request of the same tenant."""
        found = self.handles.get(request_id)
        if found is None or found.arrival.principal.tenant != principal.tenant:
            raise RequestNotFoundError(request_id)
        return found


class Served:
    """An application with a dispatcher of ours."""

    def __init__(
        self,
        *,
        webhooks: Iterable[Webhook] = (),
        authenticate: Authenticate | None = None,
        hosts: tuple[str, ...] = (),
        origins: tuple[str, ...] = (),
        limits: AppLimits | None = None,
        fast_path: bool = True,
    ) -> None:
        self.dispatching, self.closing = FakeDispatching(), asyncio.Event()
        limits, flows, webhooks = limits or AppLimits(), Flows([chat]), tuple(webhooks)
        shares = AppShares(limits)
        self.routes = [
            *flow_routes(self.dispatching, flows, limits, shares, self.closing),
            *webhook_routes(self.dispatching, webhooks, limits, shares),
            document_route("test", "1", flows, is_guarded=True),
            health_route(lambda: not self.closing.is_set()),
        ]
        self.app: ASGIApp = Gate(
            Router(self.routes, redirect_slashes=False, default=nothing_here),
            authenticate=authenticate or OWN,
            hosts=hosts,
            origins=origins,
            open_paths={HEALTH, *(webhook_path(each) for each in webhooks if each.is_signed)},
            fast_path=FastPath(self.dispatching, flows, CALLS, limits, shares) if fast_path else None,
        )

        self._shown = SHOWN if authenticate is None else {}

    def client(self, address: str = "127.0.0.1", base: str = "http://localhost") -> httpx.AsyncClient:
        """Return a client that comes from an address; it shows the token if that is all there is."""
        transport = httpx.ASGITransport(app=self.app, client=(address, 1234))
        return httpx.AsyncClient(transport=transport, base_url=base, headers=self._shown)


class AsgiCall:
    """One HTTP request by hand, for what a client library keeps from us: pieces of an answer, and hanging up."""

    def __init__(self, app: ASGIApp, method: str, path: str, headers: dict[str, str] | None = None) -> None:
        given = {"host": "localhost"} | SHOWN | (headers or {})
        self.scope: dict[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
            "client": ("127.0.0.1", 1),
        }
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._app = app

    async def __aenter__(self) -> Self:
        self._incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})
        self.task = asyncio.ensure_future(self._app(self.scope, self._incoming.get, self._sent.put))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.hang_up()
        await self.task

    async def started(self) -> int:
        """Return the status of the answer."""
        message = await self._sent.get()
        self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        status: int = message["status"]
        return status

    async def piece(self) -> str:
        """Return the next piece of the body; empty at its end."""
        message = await self._sent.get()
        body: bytes = message["body"]
        return body.decode()

    def hang_up(self) -> None:
        """Go away."""
        self._incoming.put_nowait({"type": "http.disconnect"})
