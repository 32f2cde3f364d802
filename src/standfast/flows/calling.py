"""Calling an action: what a running request can do, and what is kept of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import Raw, Struct

from standfast.clock import later
from standfast.flows.arrival import Arrival
from standfast.flows.records import ONCES, SESSION_KEPT, SESSIONS, OnceRecord, RequestKeys, SessionRecord, session_key
from standfast.flows.request import Request
from standfast.flows.session import Session, apply
from standfast.stores.protocol import Conflict, Put
from standfast.workflows.declaring.definition import as_step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from standfast.codec import JsonValue
    from standfast.flows.action import Action, Inputs
    from standfast.flows.arrival import Address
    from standfast.flows.serving import Server  # noqa: TC004 -- none of this is ever read from data
    from standfast.flows.session import Operation
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Snapshot
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.handle import Run
    from standfast.workflows.storing.values import Typed

CHAIN: Final[ContextVar[tuple[Address, ...]]] = ContextVar("standfast_chain", default=())
"""The keys that are held by the request that runs, and by those who wait for it."""

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
class Calls(Struct, eq=False):
    """What a request that runs here can do: the :class:`~standfast.flows.means.Means` of its action.

    It is made of where the request runs, what arrived, its id, what tells those who follow it, and whether results of
    :meth:`run_once` are recorded, because it may be run again.

    Attributes:
        staging: The state of its conversation, if it has looked at it.
        stopping: Why it was asked to stop.
    """

    _server: Server
    _arrival: Arrival
    _id: str
    _emit: Callable[[str, Any], None]
    _keeps: bool = False
    _once: dict[str, asyncio.Task[Any]] | None = None  # most actions do nothing once
    staging: Session | None = None
    _started: int = 0
    stopping: str = ""

    @property
    def session(self) -> Session:
        """The state of its conversation."""
        if self.staging is None:
            # Nothing in it refers back to here: it is freed with its request, and not by the garbage collector.
            arrival, space = self._arrival, self._server.space
            self.staging = Session(arrival.session, partial(_state_of, space, arrival.tenant, arrival.session))
        return self.staging

    @property
    def operations(self) -> tuple[Operation, ...]:
        """What was staged for the state of its conversation; empty if nothing has to be written."""
        return () if self.staging is None else self.staging.operations

    async def run(
        self, action: Action[..., Any], inputs: tuple[Inputs, ...], *, address: Address | None, attempt: int = 1
    ) -> Any:  # noqa: ANN401 -- whatever the action returns
        """Call the action with the last inputs, or with the items of all."""
        values = (inputs[0].values,) if len(inputs) == 1 else tuple([each.values for each in inputs])
        arrival = self._arrival
        chain = arrival.chain if address is None else (*arrival.chain, address)
        request = Request(arrival, self, self._id, attempt, values, chain)
        token = None if chain == CHAIN.get() else CHAIN.set(chain)
        try:
            return await action.call(request, inputs)
        finally:
            if token is not None:
                CHAIN.reset(token)
            if self._once is not None:
                for each in self._once.values():  # what was begun for it and has not ended
                    each.cancel()

    # --- what an action does with its request ---------------------------------------------------------------------

    def emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        """Tell those who follow it."""
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
            task.add_done_callback(lambda done: _forget(known, key, done))
        return await asyncio.shield(task)

    async def _call_once(self, key: str, typed: Typed[Any], call: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 -- whatever it returns
        space = self._server.space
        place = RequestKeys(space, self._arrival.tenant, self._id).once(key)
        seen = await space.read(place) if self._keeps else None
        found = None if seen is None else seen.get(place)
        if found is not None:
            return typed.unpack(ONCES.decode(found.value).result)
        packed, restored = typed.pack_and_restore(await call())
        if seen is not None:
            record = ONCES.encode_own(OnceRecord(Raw(packed)))
            answer = await space.commit(Put(place, record, expires_at=later(seen.at, ONCE_KEPT)))
            self._server.tenants.storage.add(self._arrival.tenant, len(record))
            winner = answer.current.get(place) if isinstance(answer, Conflict) else None
            if winner is not None:  # another worker runs this request by now
                return typed.unpack(ONCES.decode(winner.value).result)
        return restored


def _forget(known: dict[str, asyncio.Task[Any]], key: str, task: asyncio.Task[Any]) -> None:
    """Let a call that failed be made again."""
    if task.cancelled() or task.exception() is not None:
        known.pop(key, None)
