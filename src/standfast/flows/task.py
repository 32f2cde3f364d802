"""A request that was checked and is to be run, and what it can do while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from standfast.clock import later, seconds_between
from standfast.events import RequestsOverlap
from standfast.exits import EXITS, failure_of
from standfast.flows.arbiter.protocol import Ask, QueueRules, queue_rules_of
from standfast.flows.deadlock import LONGEST
from standfast.flows.flow import Action, Inputs, workflow_name
from standfast.flows.idempotency import IdempotencyClaim
from standfast.flows.records import (
    ONCES,
    REQUESTS,
    SESSION_KEPT,
    SESSIONS,
    SUPERSEDING,
    OnceRecord,
    RequestKeys,
    RequestRecord,
    SessionRecord,
    StoredCall,
    session_key,
)
from standfast.flows.request import Address, Call, Request, label_of
from standfast.flows.session import Session, apply
from standfast.policies import Restart
from standfast.stores.protocol import Conflict, Put
from standfast.trace_context import read_stored
from standfast.workflows.definition import as_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

    from standfast.clock import Instant
    from standfast.codec import JsonValue
    from standfast.flows.arbiter.protocol import RequestTurn, Stop, Superseded
    from standfast.flows.request import Status
    from standfast.flows.server import RequestServer  # noqa: TC004 -- none of this is ever read from data
    from standfast.flows.session import Operation
    from standfast.keys import RecordKey
    from standfast.locks.entry import ExtraChanges
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.definition import Workflow
    from standfast.workflows.records import Standing
    from standfast.workflows.run import Run
    from standfast.workflows.values import Typed


# --- calling an action: what a running request can do, and what is kept of it --------------------------------------

CHAIN: Final[ContextVar[tuple[Address, ...]]] = ContextVar("standfast_chain", default=())
"""The keys that are held by the request that runs, and by callers that wait for it."""

ONCE_KEPT: Final = 30 * 86_400.0
"""Seconds for which the results of calls that are made once are kept: no request is tried for longer."""


def session_put(key: RecordKey, operations: tuple[Operation, ...], seen: Snapshot, kept: float = SESSION_KEPT) -> Put:
    """Return the change that does what was staged to the newest state of a session, which is kept for a while then.

    Raises:
        SessionStateError: It does not fit what is there.
    """
    record = seen.get(key)
    state = {} if record is None else SESSIONS.decode(record.value).state
    value = SESSIONS.encode(SessionRecord(apply(state, operations)))
    return Put(key, value, seen.version(key), expires_at=later(seen.at, kept))


async def _state_of(scope: Scope, tenant: str, session: str) -> Mapping[str, JsonValue]:
    key = session_key(scope, tenant, session)
    record = (await scope.read(key)).get(key)
    return {} if record is None else SESSIONS.decode(record.value).state


@final
class DispatcherBackend(Struct, eq=False):
    """What a request that runs here can do: the :class:`~standfast.flows.request.RequestBackend` of its action.

    It is made of where the request runs, what arrived, its id, what tells its followers, and whether results of
    :meth:`run_once` are recorded, because it may be run again.

    Attributes:
        staging: The state of its conversation, if it has looked at it.
        stopping: Why it was asked to stop.
    """

    _server: RequestServer
    _arrival: Call
    _id: str
    _emit: Callable[[str, Any], None]
    _keeps: bool = False
    _once: dict[str, asyncio.Task[Any]] | None = None  # most actions do nothing once
    staging: Session | None = None
    _started: int = 0
    stopping: str = ""
    _action: Action[..., Any] | None = None

    @property
    def session(self) -> Session:
        """The state of its conversation."""
        if self.staging is None:
            # Nothing in it refers back to here: it is freed with its request, and not by the garbage collector.
            arrival, space = self._arrival, self._server.space
            self.staging = Session(arrival.session, partial(_state_of, space, arrival.tenant, arrival.session))
        return self.staging

    @property
    def module(self) -> str:
        """The module of its action."""
        return __name__ if self._action is None else self._action.function.__module__

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was staged for the state of its conversation; empty if nothing has to be written."""
        return () if self.staging is None else self.staging.operations

    async def run(
        self, action: Action[..., Any], inputs: tuple[Inputs, ...], *, address: Address | None, attempt: int = 1
    ) -> Any:  # noqa: ANN401 -- whatever the action returns
        """Call the action with the last inputs, or with the items of all."""
        self._action = action
        values = (inputs[0].values,) if len(inputs) == 1 else tuple([each.values for each in inputs])
        arrival = self._arrival
        chain = arrival.chain if address is None else (*arrival.chain, address)
        request = Request(arrival, self, self._id, attempt, values, chain)
        token = None if chain == CHAIN.get() else CHAIN.set(chain)
        tracing = self._server.tracing
        try:
            if tracing is None or self._keeps:  # a durable request is a run, and is traced as one
                return await action.call(request, inputs)
            caller = read_stored(arrival.trace) if arrival.trace else None
            traced = tracing.request(caller, self._id, action.full_name)
            try:
                result = await action.call(request, inputs)
            except BaseException as problem:
                traced.end(type(problem))
                raise
            traced.end()
            return result
        finally:
            if token is not None:
                CHAIN.reset(token)
            if self._once is not None:
                for each in self._once.values():  # what was begun for it and has not ended
                    each.cancel()

    # --- what an action does with its request ---------------------------------------------------------------------

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell its followers."""
        self._emit(name, data)

    def signed(self, address: Address) -> Address:
        """Return a key as it is sent to other processes."""
        return self._server.chains.signed(address)

    async def start(
        self,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        id: str | None,  # noqa: A002 -- the word that users know
    ) -> Run[Any]:
        """Start a workflow; the n-th one of a request has an id that follows from the request's."""
        self._started += 1
        run_id = f"{self._id}:{self._started}" if id is None else id
        return await self._server.engine.start(workflow, *args, kwargs=kwargs, id=run_id)

    async def run_once(
        self, key: str, function: Callable[..., Awaitable[Any]], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401 -- whatever it returns
        """Call a function unless it was called before for this request; share the call that is under way."""
        if self._once is None:
            self._once = {}
        known, task = self._once, self._once.get(key)
        if task is None:
            once = self._call_once(key, as_step(function).signature.result, lambda: function(*args, **kwargs))
            task = known[key] = asyncio.get_running_loop().create_task(once)

            def forget(done: asyncio.Task[Any]) -> None:
                if done.cancelled() or done.exception() is not None:  # a call that failed may be made again
                    known.pop(key, None)

            task.add_done_callback(forget)
        return await asyncio.shield(task)

    async def _call_once(self, key: str, typed: Typed[Any], call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 -- whatever it returns
        space = self._server.space
        place = RequestKeys(space, self._arrival.tenant, self._id).once(key)
        seen = await space.read(place) if self._keeps else None
        found = None if seen is None else seen.get(place)
        if found is not None:
            return typed.unpack(ONCES.decode(found.value).result)
        try:
            result = await call()
        except EXITS as raised:  # in a task of its own, from which it would end the event loop
            raise failure_of(raised) from raised
        packed, restored = typed.pack_and_restore(result)
        if seen is not None:
            record = ONCES.encode_own(OnceRecord(Raw(packed)))
            answer = await space.commit(Put(place, record, expires_at=later(seen.at, ONCE_KEPT)))
            self._server.tenants.storage.add(self._arrival.tenant, len(record))
            winner = answer.current.get(place) if isinstance(answer, Conflict) else None
            if winner is not None:  # another worker runs this request by now
                return typed.unpack(ONCES.decode(winner.value).result)
        return restored


# --- A request that was checked, and is to be run ------------------------------------------------------------------


class Task(Struct, frozen=True, kw_only=True):
    """A request that was checked, and is to be run.

    Attributes:
        id: Its id.
        action: What to run.
        arrival: Who asks, and how.
        inputs: What with.
        address: The line in which it needs a turn; None: it needs none.
        claim: Its idempotency key, if it has one.
    """

    id: str
    action: Action[..., Any]
    arrival: Call
    inputs: Inputs
    address: Address | None = None
    claim: IdempotencyClaim | None = None

    @property
    def name(self) -> str:
        """Flow and action."""
        return f"{self.action.flow}.{self.action.name}"

    @property
    def is_called(self) -> bool:
        """Whether another request waits for it, which holds something, and it can still be refused when it waits."""
        is_kept = self.action.durable or self.action.policy.answers_first
        return bool(self.arrival.chain) and self.arrival.attended and not is_kept

    @property
    def hands_over(self) -> bool:
        """Whether its record has what it brought, for a request that takes its place."""
        return self.action.policy.name in SUPERSEDING

    def record(self, at: Instant, status: Status, **more: Any) -> RequestRecord:  # noqa: ANN401 -- fields of the record
        """Return its first record."""
        if self.hands_over:
            more["inputs"] = Raw(self.inputs.packed)
        if self.claim is not None:
            more["keep"] = self.claim.keep
        return record_of(self.action, self.arrival, self.address, at, status, **more)

    def stored_call(self, at: float | None = None) -> StoredCall:
        """Return what is stored of it with its run; ``at`` is when its event happened, in seconds, if that is known."""
        arrival = self.arrival
        return StoredCall(
            flow=arrival.flow,
            action=arrival.action,
            tenant=arrival.tenant,
            inputs=msgspec.json.decode(self.inputs.packed),
            user=arrival.user,
            roles=tuple(sorted(arrival.principal.roles)),
            session=arrival.session,
            transport=arrival.transport,
            metadata=dict(arrival.metadata),
            idempotency_key=arrival.idempotency_key,
            address=self.address or (),
            chain=arrival.chain,
            at=at,
        )

    def succeeding(self, record: RequestRecord, turn: RequestTurn | None) -> RequestRecord:
        """Return the record of one that has begun, with those whose place it took.

        One that had to wait for as long as they had to end has taken it by force, and they may still be at work. What
        it has waited for room at a limit since then does not count.
        """
        if turn is None or not turn.superseded:
            return record
        policy = self.action.policy
        waited = seconds_between(record.received_at, turn.since)
        overlap = isinstance(policy, Restart) and waited >= policy.grace
        return structs.replace(record, superseded=tuple(each.id for each in turn.superseded), overlap=overlap)

    def ask(
        self,
        extra_changes: ExtraChanges[int] | None = None,
        on_waiting: Callable[[int], None] | None = None,
        on_stop: Callable[[Stop], None] | None = None,
        on_turn: ExtraChanges[Instant] | None = None,
    ) -> Ask:
        """Return what an arbiter is asked."""
        name, rules = _name_and_rules(self.action, attended=self.arrival.attended)
        if rules.budget is None and self.is_called:
            rules = structs.replace(rules, budget=LONGEST)
        return Ask(
            id=self.id,
            address=self.address or (),
            action=name,
            rules=rules,
            packed=self.inputs.packed,
            extra_changes=extra_changes,
            on_turn=on_turn,
            on_waiting=on_waiting,
            on_stop=on_stop,
            sharer=self.arrival.sharer,
        )


class RequestOrigin(Protocol):
    """Where a request came from, as far as its record tells."""

    @property
    def user(self) -> str:
        """Who asked."""
        ...

    @property
    def session(self) -> str:
        """In which conversation."""
        ...

    @property
    def transport(self) -> str:
        """What it came by."""
        ...


def record_of(
    action: Action[..., Any],
    origin: RequestOrigin,
    address: Address | None,
    at: Instant,
    status: Status,
    **more: Any,  # noqa: ANN401 -- fields of the record
) -> RequestRecord:
    """Return the record of a request that was received at an instant."""
    return RequestRecord(
        action.flow,
        action.name,
        status,
        at,
        user=origin.user,
        session=origin.session,
        transport=origin.transport,
        address=address or (),
        policy=action.policy.name,
        retryable=action.interrupted == "retry",
        **more,
    )


def task_of(action: Action[..., Any], call: StoredCall, request_id: str) -> Task:
    """Return the request that a call stands for."""
    packed = msgspec.json.encode(call.inputs)
    return Task(
        id=request_id,
        action=action,
        arrival=call.arrival,
        inputs=action.read(packed),
        address=call.address or None,
    )


def tell_overlap(server: RequestServer, task: Task, record: RequestRecord) -> None:
    """Tell hooks that a request has begun while one may still be at work that it superseded."""
    runtime = server.engine.runtime
    at, key = runtime.clock.wall(), label_of(record.address)
    runtime.emit(RequestsOverlap(at=at, request=task.id, action=task.name, key=key, superseded=record.superseded))


def standings_of(server: RequestServer, task: Task) -> tuple[Standing, ...]:
    """Return the lines that the run of a durable request stands in: first that of its key, then those of its limits."""
    own = () if task.address is None else server.arbiter.standings(task.ask())
    return (*own, *server.limits.standings(task)) if task.action.has_room_limits else own


@lru_cache(maxsize=1_000)
def _name_and_rules(action: Action[..., Any], *, attended: bool) -> tuple[str, QueueRules]:
    """Return how the requests of an action are called in a line, and behave there."""
    return workflow_name(action), queue_rules_of(action.policy, attended=attended)


async def inputs_of(scope: Scope, task: Task, superseded: Iterable[Superseded]) -> list[Inputs]:
    """Return what those brought whose place a request has taken, as far as it can still be found out."""
    found: list[Inputs] = []
    for each in superseded:
        packed = each.packed
        if packed is None:
            key = RequestKeys(scope, task.arrival.tenant, each.id).record
            stored = (await scope.read(key)).get(key)
            record = None if stored is None else REQUESTS.decode(stored.value)
            # One that is completed had ended well before it was to stop.
            if record is not None and record.inputs is not UNSET and record.status != "completed":
                packed = bytes(record.inputs)
        if packed is not None:
            found.append(task.action.read(packed))
    return found
