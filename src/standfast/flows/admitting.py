"""Taking requests on: which of the three ways each goes, and what is committed with its place.

A caller that waits has its request run in this process. What is answered before it has run is a run of its action's
workflow. What a policy collects is put into the run of its burst.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import structs

from standfast.errors import (
    ArbiterUnavailableError,
    RunNotFoundError,
    StoreBusyError,
    StoreError,
    WorkflowConcurrencyLimitExceededError,
)
from standfast.flows.arbiters.protocol import Beside, JoinsError
from standfast.flows.attending import Attended
from standfast.flows.bursts import add
from standfast.flows.call import Call, name_of, tags_of
from standfast.flows.cancelling import CALLER
from standfast.flows.handle import Handle
from standfast.flows.idempotency import RacedError, Replay, resolve
from standfast.flows.informing import explain
from standfast.flows.ownership import SPEAKS_FOR_ITSELF
from standfast.flows.policies import Batch, Debounce
from standfast.flows.records import RequestKeys, Stored, new_request_id
from standfast.flows.seeing import Seeing, is_own
from standfast.flows.storage import SMALL
from standfast.flows.viewing import settle
from standfast.workflows.starting.starting import Start, start

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from contextlib import AbstractContextManager

    from standfast.flows.arrival import Arrival, OnDisconnect
    from standfast.flows.flow import Flows
    from standfast.flows.idempotency import Claim
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Explanation
    from standfast.flows.serving import Server
    from standfast.flows.tasks import Task
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.starting.starting import Started

TRIES: Final = 20


@final
class Admitting:
    """Takes requests on.

    Args:
        server: Where they run.
        flows: All actions.
        workflows: The workflows of all actions, by name.
        find: Returns a handle on a request of a tenant, whoever sent it.

    Attributes:
        server: Where they run.
        simple: The actions whose requests can be taken on without awaiting anything, if their caller waits.
    """

    def __init__(
        self,
        server: Server,
        flows: Flows,
        workflows: Mapping[str, Workflow[..., Any]],
        find: Callable[[str, str], Awaitable[Handle]],
    ) -> None:
        self.server, self._workflows, self._find = server, workflows, find
        self._is_shared: Final = server.arbiter.is_shared
        self._owners: Final = server.owners
        self.seeing: Final = Seeing(server.space, self._owners)
        self.simple: Final = frozenset(
            each for each in flows.actions if each.is_simple and (not self._is_shared or each.policy.key == "none")
        )

    def has_to_claim(self, arrival: Arrival) -> bool:
        """Tell whether it has to be looked up in the store whose session it is that a request came in."""
        return self._owners.has_to_claim(arrival)

    async def take_on(self, task: Task, *, here: bool = False) -> Handle:
        """Take a request on, once for each idempotency key.

        Whoever is not the owner of its session gets no place in its line.

        Raises:
            ForbiddenError: The session is another user's.
            IdempotencyInFlightError: The same request was sent before and has not ended.
            IdempotencyMismatchError: Another request was sent with its idempotency key.
            RateExceededError: More come than the action takes.
            TooManyBytesError: As much of its tenant is kept as may be, and it would be written down or has a session.
            TooManyRequestsError: As many run as may, and it does not wait; or its tenant has as many as it may.
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
            if isinstance(known, Replay):
                keys = RequestKeys(server.space, task.arrival.tenant, known.request_id)
                await settle(server.space, keys, known.view)
                is_theirs = is_own(arrival.principal, known.view.record)  # if not, their request shares its run
                stored = Stored(keys, known.view.record)
                return Handle(server, stored, task.action, is_replay=True, may_cancel=is_theirs)
            if task.action.rates and not tried:
                await server.limits.check_rates(task)
            try:
                return await self._claiming(structs.replace(task, id=new_request_id(), claim=known), known)
            except RacedError:
                continue
        raise StoreBusyError("an idempotency key", f"others used it {TRIES} times while a request was taken on")

    async def _claiming(self, task: Task, claim: Claim) -> Handle:
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
        if arrival.attended and (task.action.durable or task.action.policy.collects):
            server.limits.check_chain(task)  # others find out when they would wait
        if task.action.rates and not arrival.idempotency_key:
            if arrival.session and arrival.transport in SPEAKS_FOR_ITSELF:
                await self._owners.check(arrival.principal, arrival.session)  # no stranger uses up what is not theirs
            await server.limits.check_rates(task)

    async def _begin(self, task: Task, *, here: bool = False) -> Handle:
        policy = task.action.policy
        try:
            if policy.collects and task.address is not None:
                return await self._counted(task, self._collect if isinstance(policy, Debounce | Batch) else self._start)
            if task.action.durable or not task.arrival.attended:
                return await self._counted(task, self._start)
            is_stored = task.claim is not None or (self._is_shared and task.address is not None)
            attended = Attended.of(self.server, task, is_stored=is_stored)
            on_disconnect = task.arrival.on_disconnect or task.action.on_disconnect
            explanation = None
            if is_stored:
                with self._room_for(task, with_inputs=task.hands_over):
                    explanation = await self._attend(task, attended, on_disconnect)
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

    def check_session(self, arrival: Arrival) -> None:
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
            await self.server.update(Beside((claim.key,), lambda _, seen: claim.put_over(request_id, seen)))
        return await self._shared(task, await self._find(task.arrival.tenant, request_id))

    async def _shared(self, task: Task, handle: Handle) -> Handle:
        """Let whoever sent a request follow the one whose run it shares. It is not theirs to cancel."""
        principal = task.arrival.principal
        handle.may_cancel = is_own(principal, handle.record)
        await self.seeing.share(principal, handle)
        return handle

    async def _attend(self, task: Task, attended: Attended, on_disconnect: OnDisconnect) -> Explanation | None:
        """Run a request here, in a task of its own, while its caller waits; say why it waits, if it does."""
        entered = self.server.take(attended)
        try:
            if task.address is None and not attended.is_stored and not task.action.has_room_limits:
                return None
            position = await asyncio.shield(entered)
            return await self._explain(task.id, attended.record) if position else None
        except asyncio.CancelledError:
            if on_disconnect == "cancel" or not entered.done():
                attended.stop("its caller went away", CALLER)
            raise

    async def _explain(self, request_id: str, record: RequestRecord) -> Explanation | None:
        """Say why a request waits; nothing if the store does not answer now, since the request is taken on."""
        try:
            return await explain(self.server, request_id, record)
        except (StoreError, ArbiterUnavailableError):
            return None

    async def _start(self, task: Task) -> Handle:
        """Start a durable request: record, run and place are one commit."""
        server = self.server
        keys, at = RequestKeys(server.space, task.arrival.tenant, task.id), server.now()
        record = task.record(at, "waiting", durable=True)
        workflow = self._workflows[name_of(task.action)]
        changes = [*keys.first(record, at)]
        changes += [] if task.claim is None else [task.claim.put(task.id, at)]
        asked = Start(
            workflow=workflow,
            packed=workflow.signature.pack((Call.of(task),), {}),
            run_id=task.id,
            drive=server.engine.has_room,
            tags=tags_of(task.arrival.tenant),
            alongside=tuple(changes),
        )

        async def begin() -> Started:
            try:
                return await start(server.engine.host, asked)
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
        done = await add(server, task, self._workflows[name_of(task.action)])
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
            Stored(keys, record),
            task.action,
            is_new=is_new,
            explanation=await self._explain(keys.id, record) if record.status == "waiting" else None,
            on_disconnect=on_disconnect,
        )
