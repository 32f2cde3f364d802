"""The dispatcher: the one seam that every transport goes through, and the only place where a policy is applied."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, final

from msgspec import structs

from holdfast.durations import seconds
from holdfast.errors import (
    ArbiterUnavailableError,
    InvalidFlowError,
    LeaseTooShortError,
    RequestNotFoundError,
    StoreError,
    WaitsForItselfError,
)
from holdfast.flows.admitting import Admitting
from holdfast.flows.arbiters.local import LocalArbiter
from holdfast.flows.arbiters.shared import SharedArbiter
from holdfast.flows.attending import CLOSING
from holdfast.flows.call import name_of
from holdfast.flows.calling import CHAIN
from holdfast.flows.cancelling import SERVER, asker_of
from holdfast.flows.chaining import Chains
from holdfast.flows.durable import workflow_of
from holdfast.flows.flow import Flows
from holdfast.flows.handle import Handle, Stored
from holdfast.flows.keying import address_of, label_of
from holdfast.flows.records import RequestKeys, new_request_id
from holdfast.flows.scheduling import known_schedules
from holdfast.flows.seeing import OPERATOR
from holdfast.flows.serving import Server
from holdfast.flows.sweeping import sweep_for_ever
from holdfast.flows.tasks import Task
from holdfast.flows.tenants import TenantLimits
from holdfast.space import Space
from holdfast.space import open as open_space
from holdfast.workflows.engine import Engine, is_open, open_with, withdraw
from holdfast.workflows.starting.sending import cancel as cancel_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.durations import Duration
    from holdfast.flows.action import Action
    from holdfast.flows.arbiters.protocol import Arbiter
    from holdfast.flows.arrival import Address, Arrival, Principal
    from holdfast.flows.flow import Flow
    from holdfast.flows.request import Explanation, RequestInfo
    from holdfast.workflows.declaring.definition import Workflow
    from holdfast.workflows.schedules.specification import Schedule

ArbiterKind: TypeAlias = Literal["shared", "local"]

GRACE: Final = 10.0
"""Seconds that requests get to end when a dispatcher closes."""

LONGEST_ID: Final = 100
"""The most characters that the id of a request can have: ours have fewer, and all of them are ASCII."""


@final
class Dispatcher:
    """Runs requests of flows: checks them, applies the policies of their actions, and keeps what becomes of them.

        async with hf.Dispatcher("sqlite:///app.db", flows=[chat]) as dispatcher:
            handle = await dispatcher.dispatch(Arrival(flow="chat", action="respond", inputs={"text": "hello"}))
            print(await handle.result())

    Transports are built on it, and it needs none of them. All dispatchers on one store that have the same flows are one
    service: a request that waits in one is seen, followed and cancelled from any other.

    Args:
        engine: What drives durable requests: an engine, open or not; or a space or the URL of a store, to make one on.
        flows: What it serves.
        arbiter: ``"shared"``: the lines of keys lie in the store, for any number of processes. ``"local"``: they lie in
            the memory of this one, which is then the only one that may serve; attended requests leave nothing in the
            store.
        schedules: Of its actions, see :meth:`Action.schedule <holdfast.flows.action.Action.schedule>`: made when it
            opens, or changed if they are declared in another way than the last time.
        name: Of the service: which dispatchers exclude each other if the arbiter is local.
        patience: How long to wait for another server to end, on opening, if the arbiter is local.
        tenants: What each tenant may have at most.
    """

    def __init__(
        self,
        engine: Engine | Space | str,
        flows: Iterable[Flow] | Flows,
        *,
        arbiter: ArbiterKind = "shared",
        schedules: Iterable[Schedule] = (),
        name: str = "app",
        patience: Duration = 0,
        tenants: TenantLimits | None = None,
    ) -> None:
        if arbiter not in ("shared", "local"):
            raise InvalidFlowError("arbiter", f"{arbiter!r:.60} is neither 'shared' nor 'local'")
        self.flows: Final = flows if isinstance(flows, Flows) else Flows(flows)
        self._given: Final = engine
        self._kind: Final = arbiter
        self._tenants: Final = tenants or TenantLimits()
        self._name, self._patience = name, seconds(patience, what="patience")
        self._workflows: Final[dict[str, Workflow[..., Any]]] = {
            name_of(action): workflow_of(action, self._serving) for action in self.flows.actions
        }
        self._schedules: Final = known_schedules(schedules, self._workflows)
        self._space: Space | None = None
        self._opened: Engine | None = None
        self._server: Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._admits: Admitting | None = None
        self._is_closing = False

    # --- life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def open(self) -> None:
        """Begin to serve.

        Raises:
            NotTheSoleServerError: The arbiter is local, and another process serves.
        """
        if self._server is not None:
            raise InvalidFlowError("the dispatcher", "it is open already")
        self._is_closing = False
        try:
            engine = await self._begin()
        except BaseException:
            await self.aclose(grace=0)
            raise
        sweeping = sweep_for_ever(engine, self._workflows, self._tenants.session_kept)
        self._sweeping = asyncio.get_running_loop().create_task(sweeping)

    async def _begin(self) -> Engine:
        given = self._given
        if isinstance(given, Engine):
            engine, space = given, None
        else:
            space = given if isinstance(given, Space) else await open_space(given)
            self._space = None if space is given else space
            engine = Engine(space)
        if is_open(engine):
            await self._serve(engine)
            engine.register(*self._workflows.values())
        else:
            engine.register(*self._workflows.values())
            self._opened = engine
            await open_with(engine, self._serve)  # nothing is driven before there is an arbiter to ask
        await engine.schedules.declare(self._schedules)
        return engine

    async def _serve(self, engine: Engine) -> None:
        space, host = engine.space, engine.host

        async def stop_run(run_id: str, reason: str) -> None:
            await cancel_run(host, run_id, reason)

        def on_serving(*, is_serving: bool) -> None:
            """Leave durable requests to whoever arbitrates them."""
            change = engine.register if is_serving else partial(withdraw, engine)
            change(*self._workflows.values())

        options: Any = {"app": self._name, "patience": self._patience, "on_serving": on_serving}
        options |= {"most_keys": self._tenants.keys}
        arbiter = (
            SharedArbiter(space, stop_run=stop_run)
            if self._kind == "shared"
            else LocalArbiter(space, stop_run=stop_run, **options)
        )
        chains = await Chains.load(space)
        await arbiter.__aenter__()
        self._server = Server(engine, arbiter, chains, self._tenants)
        await self._server.listen()

    async def aclose(self, *, grace: Duration = GRACE) -> None:
        """Stop serving: admit nobody any more, let requests end, hand durable ones back, and only then let go.

        Args:
            grace: How long requests get to end. Then they are cancelled, and end ``interrupted``.
        """
        self._is_closing = True
        server, limit = self._server, seconds(grace, what="grace")
        engine, self._opened = self._opened, None
        space, self._space = self._space, None
        async with AsyncExitStack() as last_first:  # whatever fails, the rest is closed
            if space is not None:
                last_first.push_async_callback(space.aclose)
            if engine is not None:
                last_first.push_async_callback(engine.aclose, grace=0)
            if server is not None:
                last_first.push_async_callback(self._stop_serving, server)
            if engine is not None and engine.worker is not None:  # what drives durable requests needs the arbiter
                last_first.push_async_callback(engine.worker.stop, limit)
            await self._stop_admitting(server, limit)

    async def _stop_admitting(self, server: Server | None, grace: float) -> None:
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.gather(sweeping, return_exceptions=True)
        if server is not None:
            await _let_end(server, grace)

    async def _stop_serving(self, server: Server) -> None:
        self._server = self._admits = None
        try:
            await server.arbiter.aclose()
        finally:
            await server.aclose()

    def _admitting(self) -> Admitting:
        if self._admits is None:
            server = self._serving()
            self._admits = Admitting(server, self._workflows, partial(self._handle, server))
        return self._admits

    def _serving(self) -> Server:
        if self._server is None:
            raise ArbiterUnavailableError("the dispatcher is not open")
        return self._server

    @property
    def engine(self) -> Engine:
        """What drives durable requests, and workflows besides."""
        return self._serving().engine

    @property
    def arbiter(self) -> Arbiter:
        """Who says whose turn it is."""
        return self._serving().arbiter

    # --- requests ------------------------------------------------------------------------------------------------

    async def dispatch(self, arrival: Arrival, *, here: bool = False) -> Handle:
        """Take a request on, as the policy of its action says.

        It returns as soon as it is certain that the request is taken on: it runs, or waits for its turn.

        Args:
            arrival: What arrived.
            here: Whoever asks will wait for the result and do nothing else. So the request may be run by its task, when
                that waits, and be taken on or refused only then: it is faster by a third.

        Raises:
            UnknownActionError: There is no such action.
            ForbiddenError: Who asks may not call it, or the session is another user's.
            InvalidInputError: What was sent is not what it takes.
            RequestRejectedError: Another request has the key, and the policy is not to wait.
            QueueFullError: As many wait as may.
            WaitsForItselfError: It would wait for a key that is held by one that waits for it.
            IdempotencyInFlightError: The same request was sent before and has not ended.
            IdempotencyMismatchError: Another request was sent with its idempotency key.
            ArbiterUnavailableError: Who has its turn cannot be decided now, or this server is closing.
        """
        admitting = self._admits or self._admitting()
        if self._is_closing:
            raise ArbiterUnavailableError("this server is closing")
        task = self._checked(arrival)
        try:
            return await admitting.take_on(task, here=here)
        except (StoreError, LeaseTooShortError) as problem:
            raise ArbiterUnavailableError(f"the store does not answer ({type(problem).__name__})") from problem

    def _checked(self, arrival: Arrival) -> Task:
        action = self.flows.find(arrival.flow, arrival.action)
        if action.roles:
            action.check_roles(arrival.principal.roles)
        inputs = action.read(arrival.inputs)
        address = None if action.policy.key == "none" else address_of(action.policy, arrival, inputs.values)
        if arrival.chain or CHAIN.get():
            chain = _chain_of(self._serving(), arrival)
            if address is not None and address in chain and not action.policy.collects:
                raise WaitsForItselfError(label_of(address))
            arrival = structs.replace(arrival, chain=chain)
        return Task(id=new_request_id(), action=action, arrival=arrival, inputs=inputs, address=address)

    async def find(self, principal: Principal, request_id: str) -> Handle:
        """Return a handle on a request that a principal may see.

        Those are the requests that it has sent, those of its sessions, and those whose run it shares because a policy
        has put its own with them. A principal with the role ``"operator"`` may see all requests of its tenant.

        Raises:
            RequestNotFoundError: There is none, or not any more, or it is not the principal's to see; which of these is
                not told.
        """
        server = self._serving()
        handle = await self._handle(server, principal.tenant, request_id)
        handle.may_cancel = await self._admitting().seeing.may_cancel(principal, handle)
        handle.is_operators = OPERATOR in principal.roles
        handle.asker = asker_of(principal, handle.record.user)
        return handle

    async def _handle(self, server: Server, tenant: str, request_id: str) -> Handle:
        attended = server.find(tenant, request_id)
        if attended is not None:
            return Handle(server, attended, attended.action)
        if not isinstance(request_id, str) or not 0 < len(request_id) <= LONGEST_ID or not request_id.isascii():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise RequestNotFoundError(str(request_id)[:LONGEST_ID])
        keys = RequestKeys(server.space, tenant, request_id)
        view = await server.look(keys)
        return Handle(server, Stored(keys, view.record), self._action_of(view.record.flow, view.record.action))

    def _action_of(self, flow: str, action: str) -> Action[..., Any] | None:
        return next((each for each in self.flows.actions if (each.flow, each.name) == (flow, action)), None)

    async def explain(self, principal: Principal, request_id: str) -> Explanation | None:
        """Say why a request waits: who has its key, since when, and its place; None: it does not.

        Raises:
            RequestNotFoundError: The principal has no such request, see :meth:`find`.
        """
        return (await self.info(principal, request_id)).explanation

    async def info(self, principal: Principal, request_id: str) -> RequestInfo:
        """Return how a request is.

        Raises:
            RequestNotFoundError: The principal has no such request, see :meth:`find`.
        """
        return await (await self.find(principal, request_id)).info()

    async def cancel(self, principal: Principal, request_id: str, reason: str = "it was asked to") -> None:
        """Ask a request to stop, wherever it waits or runs.

        Raises:
            ForbiddenError: Another user has sent it, and the principal shares its run only.
            RequestSharedError: Other users share its run, which goes on for them.
            RequestNotFoundError: The principal has no such request, see :meth:`find`.
        """
        await (await self.find(principal, request_id)).cancel(reason)


def _chain_of(server: Server, arrival: Arrival) -> tuple[Address, ...]:
    """Return the keys of those who wait for a request, as its transport and this process know them."""
    own = CHAIN.get()
    if not arrival.attended:
        return ()
    given = tuple(map(server.chains.known, arrival.chain)) if arrival.chain else ()
    return tuple(dict.fromkeys((*given, *own))) if own else given


async def _let_end(server: Server, grace: float) -> None:
    """Wait for the requests that run here; those that take too long are cancelled."""
    waiting = {attended.over for attended in server.unfinished}
    if waiting and grace:
        await asyncio.wait(waiting, timeout=grace)
    for attended in server.unfinished:
        attended.stop(CLOSING, SERVER)
    if left := {attended.over for attended in server.unfinished}:
        await asyncio.wait(left, timeout=GRACE)
