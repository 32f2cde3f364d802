"""The dispatcher: the one seam that every transport goes through, and the only place where a policy is applied."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, final

from msgspec import structs

from standfast.durations import seconds
from standfast.errors import (
    ArbiterUnavailableError,
    EngineNotOpenError,
    LeaseTooShortError,
    RequestNotFoundError,
    StoreError,
    WaitsForItselfError,
)
from standfast.flows.admitting import Admitting
from standfast.flows.attending import Attended
from standfast.flows.call import name_of
from standfast.flows.calling import CHAIN
from standfast.flows.cancelling import asker_of
from standfast.flows.durable import workflow_of
from standfast.flows.flow import Flows
from standfast.flows.handle import Handle
from standfast.flows.keying import address_of, label_of
from standfast.flows.opening import GRACE, ArbiterKind, Opening
from standfast.flows.records import RequestKeys, Stored, new_request_id
from standfast.flows.scheduling import known_schedules
from standfast.flows.seeing import OPERATOR, sees_all
from standfast.flows.tasks import Task
from standfast.flows.tenants import TenantLimits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.durations import Duration
    from standfast.flows.action import Action
    from standfast.flows.arbiters.protocol import Arbiter
    from standfast.flows.arrival import Address, Arrival, Principal
    from standfast.flows.flow import Flow
    from standfast.flows.request import Explanation, RequestInfo
    from standfast.flows.serving import Server
    from standfast.space import Space
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.engine import Engine
    from standfast.workflows.schedules.specification import Schedule

LONGEST_ID: Final = 100
"""The most characters that the id of a request can have: ours have fewer, and all of them are ASCII."""


@final
class Dispatcher:
    """Runs requests of flows: checks them, applies the policies of their actions, and keeps what becomes of them.

        async with sf.Dispatcher("sqlite:///app.db", flows=[chat]) as dispatcher:
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
        schedules: Of its actions, see :meth:`Action.schedule <standfast.flows.action.Action.schedule>`: made when it
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
        self.flows: Final = flows if isinstance(flows, Flows) else Flows(flows)
        self._workflows: Final[dict[str, Workflow[..., Any]]] = {
            name_of(action): workflow_of(action, self._serving) for action in self.flows.actions
        }
        self._schedules: Final = known_schedules(schedules, self._workflows)
        patient = seconds(patience, what="patience")
        self._life: Final = Opening(engine, self._workflows, arbiter, name, patient, tenants or TenantLimits())
        self._admits: Admitting | None = None

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
        await self._life.open(self._schedules)

    async def aclose(self, *, grace: Duration = GRACE) -> None:
        """Stop serving: admit nobody any more, let requests end, hand durable ones back, and only then let go.

        Args:
            grace: How long requests get to end. Then they are cancelled, and end ``interrupted``.
        """
        try:
            await self._life.aclose(seconds(grace, what="grace"))
        finally:
            self._admits = None

    async def let_end(self, *, grace: Duration = GRACE) -> None:
        """Let the requests end whose callers wait, before it is closed: so they are told how their requests ended.

        Args:
            grace: How long they get. Then they are cancelled, and end ``interrupted``.
        """
        await self._life.let_end(seconds(grace, what="grace"))

    def _admitting(self) -> Admitting:
        if self._admits is None:
            server = self._serving()
            self._admits = Admitting(server, self.flows, self._workflows, partial(self._handle, server))
        return self._admits

    def _serving(self) -> Server:
        return self._life.serving()

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
        if self._life.is_closing:
            raise ArbiterUnavailableError("this server is closing")
        task = self._checked(self.flows.find(arrival.flow, arrival.action), arrival)
        try:
            return await admitting.take_on(task, here=here)
        except (StoreError, LeaseTooShortError) as problem:
            raise ArbiterUnavailableError(f"the store does not answer ({type(problem).__name__})") from problem
        except EngineNotOpenError as problem:  # it was closed while this was under way, and nothing was begun
            raise ArbiterUnavailableError("this server is closing") from problem

    def begin(self, action: Action[..., Any], arrival: Arrival) -> Attended | None:
        """Take a request on that whoever asks runs itself, if nothing has to be awaited for that.

        It is what most requests need, and the shortest way: ``await begun.run_here()``.

        Args:
            action: What is called.
            arrival: What arrived: without an idempotency key, and whoever asks waits for the result.

        Returns:
            The request; None if it is to be dispatched.

        Raises:
            StandfastError: As :meth:`dispatch`.
        """
        admitting = self._admits or self._admitting()
        if self._life.is_closing:
            raise ArbiterUnavailableError("this server is closing")
        if action not in admitting.simple or (arrival.session and admitting.has_to_claim(arrival)):
            return None
        task = self._checked(action, arrival)
        admitting.check_session(arrival)
        return Attended.of(admitting.server, task)

    def _checked(self, action: Action[..., Any], arrival: Arrival) -> Task:
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
        has put its own with them. A principal with the role ``"operator"`` or ``"viewer"`` may see all
        requests of its tenant; an operator may cancel them as well. Of all others of its tenant it sees the status and
        since when, such as of the one that has the key that its own was refused for: nothing else is told of them, and
        their result is refused.

        Raises:
            RequestNotFoundError: The tenant has none, or not any more.
        """
        server = self._serving()
        handle = await self._handle(server, principal.tenant, request_id)
        sight = await self._admitting().seeing.sight(principal, handle)
        handle.may_cancel, handle.sees_contents = sight == "own", sight != "status"
        handle.is_operators, handle.sees_all = OPERATOR in principal.roles, sees_all(principal)
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
            ForbiddenError: Another user has sent it, and the principal may follow it only: it shares its run, or has
                the role ``"viewer"``.
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
