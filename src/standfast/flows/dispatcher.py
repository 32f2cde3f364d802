"""The dispatcher: the one seam of all transports. It decides how each request runs, and opens what serving takes.

A caller that waits has its request run in this process. What is answered before it has run is a run of its action's
workflow. What a policy collects is put into the run of its burst.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, final

from msgspec import structs

from standfast.clock import monotonic
from standfast.durations import seconds
from standfast.errors import (
    ArbiterUnavailableError,
    DeclarationError,
    EngineNotOpenError,
    FlowError,
    LeaseTooShortError,
    RequestNotFoundError,
    RunNotFoundError,
    StandfastError,
    StoreBusyError,
    StoreError,
    WaitsForItselfError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.flows.arbiter.in_memory import LocalArbiter
from standfast.flows.arbiter.in_store import SharedArbiter
from standfast.flows.arbiter.protocol import JoinsError, unavailable
from standfast.flows.collect import add
from standfast.flows.deadlock import ChainSigner
from standfast.flows.durable import workflow_of
from standfast.flows.flow import Flows, known_schedules, workflow_name
from standfast.flows.handle import Handle, Visibility
from standfast.flows.idempotency import IdempotentReplay, RacedError, resolve
from standfast.flows.inline import CLOSING, InlineRequest
from standfast.flows.records import RequestKeys, StoredRequest, new_request_id, tags_of
from standfast.flows.request import address_of, label_of
from standfast.flows.request_list import begin_index
from standfast.flows.server import RequestServer, keep_index, sweep_for_ever
from standfast.flows.storage import SMALL
from standfast.flows.task import CHAIN, Task
from standfast.flows.tenants import SPEAKS_FOR_ITSELF, TenantLimits
from standfast.flows.view import CALLER, OPERATOR, SERVER, asker_of, is_own, sees_all, settle
from standfast.locks.entry import ExtraChanges
from standfast.policies import Batch, Debounce
from standfast.space import Space
from standfast.space import open as open_space
from standfast.workflows.engine import Engine, is_open, open_with, withdraw
from standfast.workflows.messages import cancel as cancel_run
from standfast.workflows.records import Start
from standfast.workflows.start import start

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from standfast.durations import Duration
    from standfast.events import Verdict
    from standfast.flows.arbiter.protocol import Arbiter
    from standfast.flows.flow import Action, Flow
    from standfast.flows.idempotency import IdempotencyClaim
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Address, Call, OnDisconnect, Principal, RequestExplanation, RequestInfo
    from standfast.workflows.definition import Workflow
    from standfast.workflows.records import Started
    from standfast.workflows.schedules.spec import Schedule


# --- taking requests on: which of the three ways each goes, and what is committed with its place -------------------

TRIES: Final = 20


@final
class RequestAdmission:
    """Takes requests on.

    Args:
        server: Where they run.
        flows: All actions.
        workflows: The workflows of all actions, by name.
        find: Returns a handle on a request of a tenant, of any user.

    Attributes:
        server: Where they run.
        simple: The actions whose requests can be taken on without awaiting anything, if their caller waits.
    """

    def __init__(
        self,
        server: RequestServer,
        flows: Flows,
        workflows: Mapping[str, Workflow[..., Any]],
        find: Callable[[str, str], Awaitable[Handle]],
    ) -> None:
        self.server, self._workflows, self._find = server, workflows, find
        self._is_shared: Final = server.arbiter.is_shared
        self._owners: Final = server.owners
        self.seeing: Final = Visibility(server.space, self._owners)
        self.simple: Final = frozenset(
            each for each in flows.actions if each.is_simple and (not self._is_shared or each.policy.key == "none")
        )

    def has_to_claim(self, arrival: Call) -> bool:
        """Return True if it has to be looked up in the store whose session it is that a request came in."""
        return self._owners.has_to_claim(arrival)

    async def take_on(self, task: Task, *, here: bool = False) -> Handle:
        """Take a request on, once for each idempotency key.

        A user who is not the owner of its session gets no place in its line.

        Raises:
            ForbiddenError: The session is another user's.
            IdempotencyInFlightError: The same request was sent before and has not ended.
            IdempotencyMismatchError: Another request was sent with its idempotency key.
            TooManyBytesError: As much of its tenant is kept as may be, and it would be written down or has a session.
            TooManyRequestsError: More come than the action takes; or as many run as may, and it does not wait; or its
                tenant has as many as it may.
            TooManyQuarantinedError: It is durable, and too many of its tenant's ended their servers.
        """
        server, arrival = self.server, task.arrival
        if task.action.limits:
            await self._check_limits(task)
        if arrival.session and self.has_to_claim(arrival):
            with server.tenants.storage.room_for(arrival.tenant, SMALL):
                await self._owners.claim_for(arrival)
        if not arrival.idempotency_key:
            return await self._begin(task, here=here)
        for tried in range(TRIES):
            window = task.action.idempotency_window
            known = await resolve(server.space, task.arrival, task.inputs.packed, window)
            if isinstance(known, IdempotentReplay):
                keys = RequestKeys(server.space, task.arrival.tenant, known.request_id)
                await settle(server.space, keys, known.view)
                is_theirs = is_own(arrival.principal, known.view.record)  # if not, their request shares its run
                stored = StoredRequest(keys, known.view.record)
                return Handle(server, stored, task.action, is_replay=True, may_cancel=is_theirs)
            if task.action.rates and not tried:
                await server.limits.check_rates(task)
            try:
                return await self._claiming(structs.replace(task, id=new_request_id(), claim=known), known)
            except RacedError:
                continue
        raise StoreBusyError("an idempotency key", f"others used it {TRIES} times while a request was accepted")

    async def _claiming(self, task: Task, claim: IdempotencyClaim) -> Handle:
        """Take a request on with its idempotency key, unless its tenant has too many of them."""
        if claim.version:
            return await self._begin(task)
        census, who, is_there = self.server.tenants.idempotency, (task.arrival.tenant, task.arrival.user), False
        await census.enter(*who)
        try:
            handle = await self._begin(task)
            is_there = True
        finally:
            census.settle(*who, is_there=is_there)
        return handle

    async def _check_limits(self, task: Task) -> None:
        """Refuse what comes too often, before anything is written. What may be a repetition is counted later."""
        server, arrival = self.server, task.arrival
        if arrival.attended and (task.action.durable or task.action.policy.answers_first):
            server.limits.check_chain(task)  # others find out when they would wait
        if task.action.rates and not arrival.idempotency_key:
            if arrival.session and arrival.transport in SPEAKS_FOR_ITSELF:
                await self._owners.check(arrival.principal, arrival.session)  # no stranger uses up what is not theirs
            await server.limits.check_rates(task)

    async def _begin(self, task: Task, *, here: bool = False) -> Handle:
        policy = task.action.policy
        try:
            if policy.answers_first and task.address is not None:
                return await self._counted(task, self._collect if isinstance(policy, Debounce | Batch) else self._start)
            if task.action.durable or not task.arrival.attended:
                return await self._counted(task, self._start)
            is_stored = task.claim is not None or (self._is_shared and task.address is not None)
            attended = InlineRequest.of(self.server, task, is_stored=is_stored)
            on_disconnect = task.arrival.on_disconnect or task.action.on_disconnect
            explanation = None
            if is_stored:
                with self._room_for(task, with_inputs=task.hands_over):
                    explanation = await self._attend(task, attended, on_disconnect, explains=not here)
            else:
                self.check_session(task.arrival)
                if not here or on_disconnect != "cancel" or policy.name == "join":
                    explanation = await self._attend(task, attended, on_disconnect)
            return Handle(
                self.server,
                attended,
                task.action,
                is_new=True,
                explanation=explanation,
                on_disconnect=on_disconnect,
            )
        except JoinsError as joins:
            return await self._joining(task, joins.who.id)

    def check_session(self, arrival: Call) -> None:
        """Refuse a request that may write nothing but the state of its session, if too much of its tenant is kept.

        Raises:
            TooManyBytesError: It is.
        """
        if arrival.session:
            self.server.tenants.storage.check(arrival.tenant)

    def _room_for(self, task: Task, *, with_inputs: bool) -> AbstractContextManager[None]:
        """Have room in the store for a request that is written down."""
        size = SMALL + (len(task.inputs.packed) if with_inputs else 0)
        return self.server.tenants.storage.room_for(task.arrival.tenant, size)

    async def _counted(self, task: Task, begin: Callable[[Task], Awaitable[Handle]]) -> Handle:
        """Take a durable request on, unless its tenant has too many of them that have not ended."""
        census, who = self.server.tenants.durable, (task.arrival.tenant, task.arrival.sharer)
        await self.server.tenants.quarantine.check(*who)
        await census.enter(*who)
        is_new = False
        try:
            with self._room_for(task, with_inputs=True):
                handle = await begin(task)
            is_new = handle.is_new
        finally:
            census.settle(*who, is_there=is_new)
        return handle

    async def _joining(self, task: Task, request_id: str) -> Handle:
        """Share the run of another request; an idempotency key stands for that one then."""
        claim = task.claim
        if claim is not None:
            await self.server.update(ExtraChanges((claim.key,), lambda _, seen: claim.put_over(request_id, seen)))
        return await self._shared(task, await self._find(task.arrival.tenant, request_id))

    async def _shared(self, task: Task, handle: Handle) -> Handle:
        """Let the sender of a request follow the one whose run it shares. It is not theirs to cancel."""
        principal = task.arrival.principal
        handle.may_cancel = is_own(principal, handle.record)
        await self.seeing.share(principal, handle)
        return handle

    async def _attend(
        self, task: Task, attended: InlineRequest, on_disconnect: OnDisconnect, *, explains: bool = True
    ) -> RequestExplanation | None:
        """Run a request here, in a task of its own, while its caller waits; say why it waits, if it does.

        Not ``explains``: its caller waits for nothing but the result, and is told nothing else.
        """
        entered = self.server.take(attended)
        try:
            if task.address is None and not attended.is_stored and not task.action.has_room_limits:
                return None
            position = await asyncio.shield(entered)
            return await self._explain(task.id, attended.record) if position and explains else None
        except asyncio.CancelledError:
            if on_disconnect == "cancel" or not entered.done():
                attended.stop("its caller went away", CALLER)
            raise

    async def _explain(self, request_id: str, record: RequestRecord) -> RequestExplanation | None:
        """Say why a request waits; nothing if the store does not answer now, since the request is taken on."""
        try:
            return await self.server.explain(request_id, record)
        except (StoreError, ArbiterUnavailableError):
            return None

    async def _start(self, task: Task) -> Handle:
        """Start a durable request: record, run and place are one commit."""
        server = self.server
        keys, at = RequestKeys(server.space, task.arrival.tenant, task.id), server.now()
        record = task.record(at, "waiting", durable=True, verdict="started")
        workflow = self._workflows[workflow_name(task.action)]
        changes = [*keys.first(record, at)]
        changes += [] if task.claim is None else [task.claim.put(task.id, at)]
        asked = Start(
            workflow=workflow,
            packed=workflow.signature.pack((task.stored_call(),), {}),
            run_id=task.id,
            drive=server.engine.has_room,
            tags=tags_of(task.arrival.tenant),
            extra_changes=tuple(changes),
            trace=server.trace_of(task.arrival),
        )

        async def begin() -> Started:
            try:
                return await start(server.engine.runtime, asked)
            except WorkflowConcurrencyLimitExceededError as full:
                raise server.limits.refusal(task, full) or full from None

        if task.action.has_room_limits:
            server.limits.check_room(task)
        try:
            started = await (begin() if task.address is None else server.arbiter.start(task.ask(), begin))
        except RunNotFoundError:
            raise RacedError from None  # the idempotency key is in use: there is no such run, but there is the key
        if started.run_id != task.id:  # it shares the run of another one
            return await self._joining(task, started.run_id)
        declared = task.action.on_disconnect if task.arrival.attended else "continue"
        return await self._begun(keys, task, on_disconnect=task.arrival.on_disconnect or declared)

    async def _collect(self, task: Task) -> Handle:
        """Add a request to a burst."""
        server = self.server
        done = await add(server, task, self._workflows[workflow_name(task.action)])
        keys = RequestKeys(server.space, task.arrival.tenant, done.run_id)
        handle = await self._begun(keys, task, is_new=done.is_new)  # others are in it: it goes on without this one
        with suppress(StoreError):  # it is taken on all the same
            await self._shared(task, handle)
        return handle

    async def _begun(
        self, keys: RequestKeys, task: Task, *, is_new: bool = True, on_disconnect: OnDisconnect = "continue"
    ) -> Handle:
        try:
            record = (await self.server.look(keys)).record
        except (StoreError, ArbiterUnavailableError):  # it is taken on all the same
            record = task.record(self.server.now(), "waiting", durable=True)
        return Handle(
            self.server,
            StoredRequest(keys, record),
            task.action,
            is_new=is_new,
            explanation=await self._explain(keys.id, record) if record.status == "waiting" else None,
            on_disconnect=on_disconnect,
        )


# --- opening what serving takes, and closing it again, in the order in which one thing needs another ---------------

ArbiterKind: TypeAlias = Literal["shared", "local"]

GRACE: Final = 10.0
"""Seconds that requests get to end when a dispatcher closes."""


@final
class DispatcherLifecycle:
    """What a dispatcher has open. It can be opened again.

    Args:
        engine: What drives durable requests, see :class:`~standfast.flows.dispatcher.Dispatcher`.
        workflows: Those of all actions, by name.
        arbiter: Where the lines of keys lie.
        name: Of the service.
        patience: Seconds to wait for another server to end, if the arbiter is local.
        tenants: What each tenant may have at most.

    Attributes:
        is_closing: No request is admitted any more.
    """

    def __init__(
        self,
        engine: Engine | Space | str,
        workflows: Mapping[str, Workflow[..., Any]],
        arbiter: ArbiterKind,
        name: str,
        patience: float,
        tenants: TenantLimits,
    ) -> None:
        if arbiter not in ("shared", "local"):
            raise DeclarationError("arbiter", f"{arbiter!r:.60} is neither 'shared' nor 'local'")
        self._given, self._workflows, self._kind = engine, workflows, arbiter
        self._name, self._patience, self._tenants = name, patience, tenants
        self._space: Space | None = None
        self._opened: Engine | None = None
        self._server: RequestServer | None = None
        self._sweeping: asyncio.Future[tuple[None, None]] | None = None
        self.is_closing = False

    def serving(self) -> RequestServer:
        """Return what serves.

        Raises:
            ArbiterUnavailableError: Nothing does.
        """
        if self._server is None:
            raise ArbiterUnavailableError(
                "it is not open; use it in async with, await its open(), or give a host the lifespan of the application"
            )
        return self._server

    # --- opening -------------------------------------------------------------------------------------------------

    async def open(self, schedules: Sequence[Schedule]) -> None:
        """Begin to serve; schedules are made, or changed, before the first of them fires."""
        if self._server is not None:
            raise DeclarationError("the dispatcher", "it is open already")
        self.is_closing = False
        try:
            engine = await self._begin(schedules)
        except BaseException:
            await self.aclose(0)
            raise
        engine.runtime.kept_elsewhere.update(self._workflows)
        sweeping = sweep_for_ever(engine, self._workflows, self._tenants.session_kept)
        self._sweeping = asyncio.gather(sweeping, keep_index(engine, self._workflows))

    async def _begin(self, schedules: Sequence[Schedule]) -> Engine:
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
        await engine.schedules.declare(schedules)
        return engine

    async def _serve(self, engine: Engine) -> None:
        space, runtime = engine.space, engine.runtime

        async def stop_run(run_id: str, reason: str) -> None:
            await cancel_run(runtime, run_id, reason)

        def on_serving(*, is_serving: bool) -> None:
            """Leave durable requests to the process that arbitrates them."""
            change = engine.register if is_serving else partial(withdraw, engine)
            change(*self._workflows.values())

        options: Any = {"app": self._name, "patience": self._patience, "on_serving": on_serving}
        options |= {"most_keys": self._tenants.keys}
        arbiter = (
            SharedArbiter(space, stop_run=stop_run)
            if self._kind == "shared"
            else LocalArbiter(space, stop_run=stop_run, **options)
        )
        await begin_index(space)
        chains = await ChainSigner.load(space)
        await arbiter.__aenter__()
        self._server = RequestServer(engine, arbiter, chains, self._tenants)
        await self._server.listen()

    # --- closing -------------------------------------------------------------------------------------------------

    async def let_end(self, grace: float) -> None:
        """Wait for the requests that run here. Those that take longer are stopped, and end as interrupted."""
        if self._server is not None:
            await _let_end(self._server, grace)

    async def aclose(self, grace: float) -> None:
        """Admit none any more, let requests end, hand durable ones back, and only then let go."""
        self.is_closing = True
        server = self._server
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
                last_first.push_async_callback(engine.worker.stop, grace)
            sweeping, self._sweeping = self._sweeping, None
            if sweeping is not None:
                sweeping.cancel()
                await asyncio.gather(sweeping, return_exceptions=True)
            if server is not None:
                await _let_end(server, grace)

    async def _stop_serving(self, server: RequestServer) -> None:
        self._server = None
        try:
            await server.arbiter.aclose()
        finally:
            await server.aclose()


async def _let_end(server: RequestServer, grace: float) -> None:
    """Wait for the requests that run here; those that take too long are cancelled."""
    waiting = {attended.over for attended in server.unfinished}
    server.tell_waits(grace)
    if waiting and grace:
        await asyncio.wait(waiting, timeout=grace)
    for attended in server.unfinished:
        attended.stop(CLOSING, SERVER)
    if left := {attended.over for attended in server.unfinished}:
        await asyncio.wait(left, timeout=GRACE)


# --- the dispatcher: the one seam that every transport goes through, and the only place where a policy is applied --

LONGEST_ID: Final = 100
"""The most characters that the id of a request can have: ours have fewer, and all of them are ASCII."""


@final
class Dispatcher:
    """Runs requests of flows: checks them, applies the policies of their actions, and keeps what becomes of them.

        async with sf.Dispatcher("sqlite:///app.db", flows=[chat]) as dispatcher:
            handle = await dispatcher.dispatch(Call(flow="chat", action="respond", inputs={"text": "hello"}))
            print(await handle.result())

    Transports are built on it, and it needs none of them. All dispatchers on one store that have the same flows are one
    service: a request that waits in one is seen, followed and cancelled from any other.

    Args:
        engine: What drives durable requests: an engine, open or not; or a space or the URL of a store, to make one on.
        flows: What it serves.
        arbiter: ``"shared"``: the lines of keys lie in the store, for any number of processes. ``"local"``: they lie in
            the memory of this one, which is then the only one that may serve; attended requests leave nothing in the
            store.
        schedules: Of its actions, see :meth:`Action.schedule <standfast.flows.flow.Action.schedule>`: made when it
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
            workflow_name(action): workflow_of(action, self._serving) for action in self.flows.actions
        }
        self._schedules: Final = known_schedules(schedules, self._workflows)
        patient = seconds(patience, what="patience")
        most = tenants or TenantLimits()
        self._life: Final = DispatcherLifecycle(engine, self._workflows, arbiter, name, patient, most)
        self._admits: RequestAdmission | None = None

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
        """Stop serving: admit no request any more, let requests end, hand durable ones back, and only then let go.

        Args:
            grace: How long requests get to end. Then they are cancelled, and end ``interrupted``.
        """
        try:
            await self._life.aclose(seconds(grace, what="grace"))
        finally:
            self._admits = None

    async def let_end(self, *, grace: Duration = GRACE) -> None:
        """Wait for the requests whose callers wait, before it is closed, so that each caller gets its result.

        Args:
            grace: How long they get. Then they are cancelled, and end ``interrupted``.
        """
        await self._life.let_end(seconds(grace, what="grace"))

    def _admitting(self) -> RequestAdmission:
        if self._admits is None:
            server = self._serving()
            self._admits = RequestAdmission(server, self.flows, self._workflows, partial(self._handle, server))
        return self._admits

    def _serving(self) -> RequestServer:
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

    async def dispatch(self, arrival: Call, *, here: bool = False) -> Handle:
        """Take a request on, as the policy of its action says.

        It returns as soon as it is certain that the request is taken on: it runs, or waits for its turn.

        Args:
            arrival: What arrived.
            here: The caller will wait for the result and do nothing else. So the request may be run by its task, when
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
        action = self.flows.find(arrival.flow, arrival.action)
        if admitting.server.tells:
            return await self._dispatch_and_tell(admitting, action, arrival, here=here)
        return await self._dispatch(admitting, action, arrival, here=here)

    async def _dispatch(
        self, admitting: RequestAdmission, action: Action[..., Any], arrival: Call, *, here: bool
    ) -> Handle:
        try:
            task = self._checked(action, arrival)
            return await admitting.take_on(task, here=here)
        except FlowError as problem:
            admitting.server.log_refusal(arrival, problem)
            raise
        except (StoreError, LeaseTooShortError) as problem:
            raise unavailable(problem) from problem
        except EngineNotOpenError as problem:  # it was closed while this was under way, and nothing was begun
            raise ArbiterUnavailableError("this server is closing") from problem

    async def _dispatch_and_tell(
        self, admitting: RequestAdmission, action: Action[..., Any], arrival: Call, *, here: bool
    ) -> Handle:
        """Take a request on, and tell hooks what was decided; those that run here tell it themselves."""
        began, server = monotonic(), admitting.server
        try:
            handle = await self._dispatch(admitting, action, arrival, here=here)
        except Exception as problem:
            server.tell_decided("", action, "refused", monotonic() - began, type(problem).__name__)
            raise
        verdict: Verdict | None = None
        if handle.is_replay:
            verdict = "replayed"
        elif isinstance(action.policy, Debounce | Batch):
            verdict = "collected"
        elif not handle.is_new:
            verdict = "joined"
        elif action.durable or action.policy.answers_first or not arrival.attended:
            verdict = "started"
        if verdict is not None:
            server.tell_decided(handle.id, action, verdict, monotonic() - began)
        return handle

    def begin(self, action: Action[..., Any], arrival: Call) -> InlineRequest | None:
        """Take a request on that the caller runs itself, if nothing has to be awaited for that.

        It is what most requests need, and the shortest way: ``await begun.run_here()``.

        Args:
            action: What is called.
            arrival: What arrived: without an idempotency key, and the caller waits for the result.

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
        try:
            task = self._checked(action, arrival)
            admitting.check_session(arrival)
        except StandfastError as problem:
            if admitting.server.tells:
                admitting.server.tell_decided("", action, "refused", 0.0, type(problem).__name__)
            raise
        return InlineRequest.of(admitting.server, task)

    def _checked(self, action: Action[..., Any], arrival: Call) -> Task:
        if action.roles:
            action.check_roles(arrival.principal.roles)
        inputs = action.read(arrival.inputs)
        address = None if action.policy.key == "none" else address_of(action.policy, arrival, inputs.values)
        own = CHAIN.get()
        if arrival.chain or own:  # the keys of callers that wait for it, as its transport and this process know them
            chain: tuple[Address, ...] = ()
            if arrival.attended:
                given = tuple(map(self._serving().chains.known, arrival.chain))
                chain = tuple(dict.fromkeys((*given, *own))) if own else given
            if address is not None and address in chain and not action.policy.answers_first:
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

    async def _handle(self, server: RequestServer, tenant: str, request_id: str) -> Handle:
        attended = server.find(tenant, request_id)
        if attended is not None:
            return Handle(server, attended, attended.action)
        if not isinstance(request_id, str) or not 0 < len(request_id) <= LONGEST_ID or not request_id.isascii():  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise RequestNotFoundError(str(request_id)[:LONGEST_ID])
        keys = RequestKeys(server.space, tenant, request_id)
        view = await server.look(keys)
        name = (view.record.flow, view.record.action)
        action = next((each for each in self.flows.actions if (each.flow, each.name) == name), None)
        return Handle(server, StoredRequest(keys, view.record), action)

    async def explain(self, principal: Principal, request_id: str) -> RequestExplanation | None:
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
