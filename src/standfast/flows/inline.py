"""Requests whose caller waits: they run in this process, in their turn if they have a key.

What becomes of one is written down in the commit that ends its turn. One without a record leaves nothing in the store,
and is known to this process alone.
"""

from __future__ import annotations

import asyncio
import logging
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, cast, final

from msgspec import UNSET, Struct, structs

from standfast.clock import Instant, seconds_between
from standfast.errors import (
    FlowError,
    QueueFullError,
    QueueTimeoutError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestSupersededError,
    SessionStateError,
    StandfastError,
    TooManyRequestsError,
    WaitsForItselfError,
)
from standfast.exits import EXITS, is_from_signal
from standfast.flows.arbiter.in_store import CancellableTask, cancellable_task
from standfast.flows.arbiter.protocol import JoinsError
from standfast.flows.deadlock import BlockedRequest
from standfast.flows.events import EventJournal, EventMemory
from standfast.flows.flow import Action, workflow_name
from standfast.flows.handle import Handle
from standfast.flows.idempotency import kept_until_end
from standfast.flows.records import REQUESTS, RequestKeys, RequestRecord, ended, session_key
from standfast.flows.request import Address, Principal, Transport, label_of
from standfast.flows.storage import WeighedChanges
from standfast.flows.task import DispatcherBackend, Task, inputs_of, record_of, session_put, tell_overlap
from standfast.flows.view import CALLER
from standfast.locks.entry import ExtraChanges
from standfast.stores.protocol import Check, Put
from standfast.workflows.failures import describe, log_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from standfast.events import Verdict
    from standfast.flows.arbiter.protocol import (
        RequestTurn,  # noqa: TC004 -- none of this is ever read from data
        Stop,
    )
    from standfast.flows.flow import Inputs
    from standfast.flows.idempotency import IdempotencyClaim
    from standfast.flows.request import Status
    from standfast.flows.server import RequestServer  # noqa: TC004 -- none of this is ever read from data
    from standfast.flows.session import Operation
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Snapshot
    from standfast.workflows.failures import Failure, KnownErrors


# --- how a request ends that has no result, and writing that down once it has no turn any more ---------------------

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries to write the end down: doubled from the first to the longest."""

PATIENCE: Final = 1.0
"""Seconds that a caller waits until it is written that its request has ended without a result."""


_CANCELLING: Final = (asyncio.CancelledError, GeneratorExit)


def raise_cancelling(problem: BaseException) -> None:
    """Raise what an action has raised if that is a cancellation: as it is, or in place of a group of nothing else."""
    if isinstance(problem, _CANCELLING):
        raise problem
    if is_cancelling(problem):
        raise asyncio.CancelledError from problem


def is_cancelling(problem: BaseException) -> bool:
    """Return True if what an action has raised is a cancellation, after which it can be awaited what is left to do."""
    if isinstance(problem, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", problem)
        return group.subgroup(_is_something_else) is None
    return isinstance(problem, asyncio.CancelledError)


def _is_something_else(problem: BaseException) -> bool:
    return not isinstance(problem, (*_CANCELLING, BaseExceptionGroup))  # what is in a group is asked for by itself


def ended_by(record: RequestRecord, problem: BaseException, at: Instant, known: KnownErrors) -> RequestRecord:
    """Return the record of a request that has ended because of a problem."""
    failure, reason = describe(problem, known), str(problem)
    match problem:
        case RequestSupersededError():
            by = structs.replace(record, by=problem.by)
            return ended(by, "superseded", at, reason=reason, failure=failure)
        case RequestCancelledError():
            return ended(record, "cancelled", at, reason=problem.reason, cancelled_by=problem.cancelled_by)
        case RequestInterruptedError():
            return ended(record, "interrupted", at, reason=reason, failure=failure)
        case QueueTimeoutError() | QueueFullError() | TooManyRequestsError() | WaitsForItselfError():
            return ended(record, "refused", at, reason=reason, failure=failure)
        case _:
            return ended(record, "failed", at, failure=failure)


async def to_the_end(writing: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait for what cannot be called back; return the cancellation that came too late for it."""
    late = None
    while not writing.done():
        try:
            await asyncio.wait({writing})
        except asyncio.CancelledError as cancelled:
            late = cancelled
    writing.result()
    return late


async def write_end_in_time(
    server: RequestServer, keys: RequestKeys, record: RequestRecord, claim: IdempotencyClaim | None
) -> RequestRecord:
    """Write the end of a request, however long that takes and whatever is cancelled; return what is written by then."""
    writing = server.own(write_late_end(server, keys, record, claim))
    await asyncio.wait({writing}, timeout=PATIENCE)
    return writing.result() if writing.done() else record


async def write_late_end(
    server: RequestServer, keys: RequestKeys, record: RequestRecord, claim: IdempotencyClaim | None = None
) -> RequestRecord:
    """Write the end of a request that has no turn any more, and return what is written then.

    While the store does not answer it is tried again. If this server closes before that, its end will tell.
    """
    there = [record]

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        found = seen.get(keys.record)
        there[:] = [record if found is None else REQUESTS.decode(found.value)]
        if found is None or there[0].has_ended:
            return ()
        there[:] = [record]
        key = () if claim is None else kept_until_end(claim.key, keys.id, record.keep, seen)
        return (*keys.end(record, found.version, seen), *key)

    named = keys.ending(record) if claim is None else (*keys.ending(record), claim.key)
    pause = FIRST_PAUSE
    while True:
        try:
            await server.update(ExtraChanges(named, decide))
        except StandfastError:
            if server.is_closing:
                return record
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            return there[0]


# --- what is kept in memory of a request that has ended here -------------------------------------------------------
#
# Nearly all requests whose caller waits leave nothing in the store, end at once, and are never asked about.

NOTHING: Final = cast("Task", None)
"""Stands for what a request brought, once it has ended: it is not looked at any more."""


class EndedRequest(Struct, frozen=True, gc=False):
    """All that is kept of nearly every request that has ended here: little, since there are thousands of them.

    What a request leaves in memory is cold when the next one needs the room, and is paid for by that one.
    """

    id: str
    action: Action[..., Any]
    address: Address | None
    principal: Principal
    session: str
    transport: Transport
    packed: bytes
    received_at: Instant
    started_at: Instant
    ended_at: Instant


# --- what is written of a request whose caller waits: with its place, when it waits no longer, and with its end ----
#
# All of it is for the store's commits: pure functions of what lies there, which may run several times, on another
# thread.


def with_its_place(
    server: RequestServer, task: Task, keys: RequestKeys, note: Callable[[RequestRecord], None]
) -> ExtraChanges[int]:
    """Return what is committed with the place of a request: its record, and its idempotency key.

    Args:
        server: Where it runs.
        task: The request.
        keys: Where its records lie.
        note: Told the record before it is written; from then on it may be there.
    """
    claim, came_at = task.claim, server.now()  # where it is listed is named before the store says what time it is

    def decide(position: int, seen: Snapshot) -> Sequence[Change]:
        if seen.version(keys.record):
            return ()  # it was written, and the answer got lost
        begins = {} if position else {"started_at": max(came_at, seen.at), "attempt": 1}
        status: Status = "waiting" if position else "running"
        verdict: Verdict = "queued" if position else "run"
        record = task.record(came_at, status, owner=server.owner, server=server.name, verdict=verdict, **begins)
        put = Put(keys.record, REQUESTS.encode_own(record))
        changes = (put, *keys.listing(record), *(() if claim is None else claim.put_over(keys.id, seen)))
        note(record)
        return changes

    listed = keys.listed(task.record(came_at, "waiting"))
    return ExtraChanges((keys.record, *listed, *(() if claim is None else (claim.key,))), decide)


def as_it_is_now(keys: RequestKeys, record: RequestRecord) -> ExtraChanges[int]:
    """Return what is committed when one that had to wait runs, or one that had its turn has to wait for room."""

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        found = seen.get(keys.record)
        if found is None:
            return ()
        if REQUESTS.decode(found.value).has_ended:  # others took this server for dead, and have said so
            raise RequestInterruptedError(keys.id)
        return (Put(keys.record, REQUESTS.encode_own(record), found.version),)

    return ExtraChanges((keys.record,), decide)


def as_it_runs(keys: RequestKeys) -> ExtraChanges[Instant]:
    """Return what is committed with the turn of one that had to wait: that it runs since then."""

    def decide(since: Instant, seen: Snapshot) -> Sequence[Change]:
        found = seen.get(keys.record)
        record = None if found is None else REQUESTS.decode(found.value)
        if found is None or record is None or record.has_ended:
            return ()  # it finds out for itself
        running = structs.replace(record, status="running", started_at=since, attempt=1)
        return (Put(keys.record, REQUESTS.encode_own(running), found.version),)

    return ExtraChanges((keys.record,), decide)


def with_its_end(
    server: RequestServer,
    task: Task,
    keys: RequestKeys,
    record: RequestRecord | None,
    operations: tuple[Operation, ...],
) -> ExtraChanges[int]:
    """Return what is committed with the end of a request: what was done to its session, and its record if it has one.

    With the record ends its idempotency key, after its window.

    It raises :class:`~standfast.errors.RequestInterruptedError` if the record is gone, or others have ended it.
    """
    session, claim = session_key(server.space, keys.tenant, task.arrival.session), task.claim
    kept = server.tenants.limits.session_kept
    named = (*(() if record is None else keys.ending(record)), *((session,) if operations else ()))

    def decide(_: int, seen: Snapshot) -> Sequence[Change]:
        changes: list[Change] = []
        if record is not None:
            found = seen.get(keys.record)
            if found is None:
                raise RequestInterruptedError(keys.id)
            there = REQUESTS.decode(found.value)
            if (there.status, there.ended_at) == (record.status, record.ended_at):
                return ()  # it was written, and the answer got lost
            if there.has_ended:  # others took this server for dead, and have said so
                raise RequestInterruptedError(keys.id)
            changes += keys.end(record, found.version, seen)
            if claim is not None:
                changes += kept_until_end(claim.key, keys.id, record.keep, seen)
        if operations:
            changes.append(session_put(session, operations, seen, kept))
        return changes

    return ExtraChanges(named if claim is None else (*named, claim.key), decide)


async def write_end(
    server: RequestServer,
    task: Task,
    keys: RequestKeys,
    turn: RequestTurn | None,
    record: RequestRecord | None,
    operations: tuple[Operation, ...],
) -> asyncio.CancelledError | None:
    """Write down how a request ended and what it did to its session, in the commit that ends its turn.

    If nothing else would tell that this has happened, a cancellation comes too late, and is returned.

    Args:
        server: Where it runs.
        task: The request.
        keys: Where its records lie.
        turn: Its turn, if it has one.
        record: How it ended; None: it has no record.
        operations: What it did to its session.
    """
    weighed = WeighedChanges(with_its_end(server, task, keys, record, operations))
    changes, late = weighed.extra_changes, None
    if record is None:
        late = await to_the_end(server.own(server.update(changes) if turn is None else turn.finish(changes)))
    else:
        await (update_while_alive(server, task.id, changes) if turn is None else turn.finish(changes))
    server.tenants.storage.add(keys.tenant, weighed.grown)
    return late


async def update_while_alive(
    server: RequestServer, request_id: str, extra_changes: ExtraChanges[int]
) -> Mapping[RecordKey, int]:
    """Commit without a turn, only while this process is taken for alive."""
    guard = server.presence_key

    def decide(position: int, seen: Snapshot) -> Sequence[Change]:
        if not seen.version(guard):
            raise RequestInterruptedError(request_id)
        return (*extra_changes.decide(position, seen), Check(guard, seen.version(guard)))

    return await server.update(ExtraChanges((*extra_changes.keys, guard), decide))


# --- requests whose caller waits: they run in this process, in their turn if they have a key -----------------------

_log: Final = logging.getLogger("standfast.flows")

CLOSING: Final = "its server is closing"


@final
class InlineRequest(Struct, eq=False):
    """One request that runs here.

    Attributes:
        id: Its id.
        action: What it runs.
        address: The line in which it needs a turn; None: it needs none.
        principal: Who asked.
        session: In which conversation.
        transport: What it came by.
        is_stored: Whether others can see it.
        value: What it returned; None also if that was long ago, see :meth:`in_brief`.
        packed: The same, as JSON; None: it has returned nothing.
        problem: What it raised.
        refusal: Why it was not taken on.
        is_entered: It is certain that it is taken on.
        has_begun: It runs, or did.
        is_over: It has ended.
        ended_at: When.
        sharers: The other users who share its run, if there are any and nothing of it is stored.
        stopping: Why it was asked to stop.
    """

    _server: RequestServer
    _task: Task
    id: str
    action: Action[..., Any]
    address: Address | None
    principal: Principal
    session: str
    transport: Transport
    _received_at: Instant
    is_stored: bool = False
    value: Any = None
    packed: bytes | None = None
    problem: BaseException | None = None
    refusal: BaseException | None = None
    is_entered: bool = False
    has_begun: bool = False
    is_over: bool = False
    ended_at: Instant = Instant(0)
    sharers: set[str] | None = None
    _started_at: Instant = Instant(0)
    _record: RequestRecord | None = None
    _keys: RequestKeys | None = None
    _memory: EventMemory | None = None
    _over: asyncio.Future[RequestRecord] | None = None
    _journal: EventJournal | None = None
    _turn: RequestTurn | None = None
    _entered: asyncio.Future[int] | None = None
    _may_be_written: bool = False
    _cancelled_by: str = ""
    _exit: BaseException | None = None  # what ends this process, once it is written how the request has ended
    stopping: str = ""
    _by: str = ""
    _doomed: WaitsForItselfError | None = None
    _calls: DispatcherBackend | None = None
    _is_waiting: bool = False
    _cancellable: CancellableTask | None = None
    _running: asyncio.Task[Any] | None = None

    # --- what is known of it; its record is made when it is asked for ------------------------------------------------

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.principal.tenant

    @property
    def user(self) -> str:
        """Who asked; empty if the caller has no name."""
        return self.principal.user

    @property
    def keys(self) -> RequestKeys:
        """Where its records lie, if it has any."""
        if self._keys is None:
            self._keys = RequestKeys(self._server.space, self.tenant, self.id)
        return self._keys

    @property
    def memory(self) -> EventMemory:
        """What it tells, if it has no record."""
        if self._memory is None:
            self._memory = EventMemory()
            if self.is_over:
                self._memory.close()
        return self._memory

    @property
    def record(self) -> RequestRecord:
        """How it is."""
        if self._record is None:  # it was not asked for yet
            self._record = self._first_record()
        return self._record

    def shown(self) -> RequestRecord:
        """Return how it is, to be told and not to be kept."""
        return self._first_record() if self._record is None else self._record

    def _first_record(self) -> RequestRecord:
        at, began = self._received_at, self._started_at if self.address else self._received_at
        if not began:
            return record_of(self.action, self, self.address, at, "waiting")
        record = record_of(self.action, self, self.address, at, "running", started_at=began, attempt=1)
        return record if self.packed is None else ended(record, "completed", self.ended_at, result=self.packed)

    @property
    def over(self) -> asyncio.Future[RequestRecord]:
        """Done when it has ended."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            if self.is_over:
                self._over.set_result(self.record)
        return self._over

    # --- being kept in mind --------------------------------------------------------------------------------------

    @property
    def weight(self) -> int:
        """How many bytes are kept of it, as JSON: its result, and what it has told."""
        result = 0 if self.packed is None else len(self.packed)
        return result if self._memory is None else result + self._memory.weight

    def in_brief(self) -> Self | EndedRequest:
        """Return what is to be kept: all but what only those need who wait for it now.

        What it returned is there as JSON, and how it failed in words. As an object, either may refer to anything: an
        error refers to all that was in the hands of the action.
        """
        if self.packed is not None and self._record is None and self._memory is None and self.sharers is None:
            times = (self._received_at, self._started_at, self.ended_at)
            origin = (self.principal, self.session, self.transport)
            return EndedRequest(self.id, self.action, self.address, *origin, self.packed, *times)
        whole = copy(self)
        whole.value = whole.problem = None
        return whole

    @classmethod
    def of(cls, server: RequestServer, task: Task, *, is_stored: bool = False) -> Self:
        """Return a request that has just arrived."""
        who = task.arrival
        origin = (who.principal, who.session, who.transport)
        return cls(server, task, task.id, task.action, task.address, *origin, server.now(), is_stored)

    @classmethod
    def again(cls, server: RequestServer, brief: EndedRequest) -> Self:
        """Return a request again of which little was kept."""
        origin = (brief.principal, brief.session, brief.transport)
        known = cls(server, NOTHING, brief.id, brief.action, brief.address, *origin, brief.received_at)
        known._started_at, known.ended_at, known.packed = brief.started_at, brief.ended_at, brief.packed
        known.is_entered = known.has_begun = known.is_over = True
        return known

    # --- beginning, and being stopped ------------------------------------------------------------------------------

    def begin(self) -> tuple[asyncio.Task[Any], asyncio.Future[int]]:
        """Begin to run it; what is returned besides is done once it is certain that it is taken on, or why it is not.

        It tells where it stands then: 0 has its turn, 1 is the next.
        """
        loop, self.has_begun = asyncio.get_running_loop(), True
        self._entered = loop.create_future()
        return loop.create_task(self._run_apart()), self._entered

    async def _run_apart(self) -> None:
        self._running = asyncio.current_task()  # by itself: an eager one may be refused before its maker knows of it
        await self._run()

    async def run_here(self) -> None:
        """Run it in the task of its caller, which saves making one; if the caller is cancelled, so is the request.

        Raises:
            CancelledError: The caller itself was cancelled, and not only the request.
        """
        self.stay()
        await self.run_at_once()

    async def run_at_once(self) -> None:
        """Run it here, in the hope that one step is enough; if it is not, :meth:`stay` after the first of them.

        No other caller can see or stop it before that, so that what is needed for it need not be prepared for most.
        """
        self.has_begun = True
        self._server.requests[self.id] = self
        try:
            delivered = await self._run()
        except asyncio.CancelledError as again:
            delivered = again
        finally:
            cancellable, self._cancellable = self._cancellable, None  # whose task refers to whatever its context does
            self._server.gone(self)
        if cancellable is None or (delivered is None and not cancellable.was_cancelled):
            return
        is_others = cancellable.is_to_end and not cancellable.was_cancelled
        others = await cancellable.take_back(delivered)
        if others is not None:
            raise others
        if delivered is not None and is_others:
            raise delivered

    def stay(self) -> None:
        """Be stopped by others from now on, in the task that runs."""
        self._cancellable = cancellable_task()
        if self.stopping:
            self._cancellable.cancel()

    def handle(self) -> Handle:
        """Return what the caller that has begun it can ask of it, and do with it."""
        return Handle(self._server, self, self.action, is_new=True, on_disconnect="cancel")

    def stop(self, reason: str, cancelled_by: str = "") -> None:
        """Ask it to stop; it ends where it waits."""
        if self.is_over or not self.has_begun:
            return
        self._on_stop(reason, cancelled_by)
        if self._cancellable is not None:
            self._cancellable.cancel()
        elif self._running is not None:  # None: it has not begun, and would never end if it were cancelled now
            self._running.cancel()

    def _told_to_stop(self, why: Stop) -> None:
        self._by = why.by
        self._on_stop(why.reason or f"the request {why.by!r} takes its place", why.cancelled_by)

    def _on_stop(self, reason: str, cancelled_by: str) -> None:
        if not self.stopping:
            self.stopping, self._cancelled_by = reason, cancelled_by
        if self._calls is not None:
            self._calls.stopping = self.stopping

    def _why_stopped(self) -> StandfastError:
        if self._doomed is not None:
            return self._doomed
        if self._by:
            return RequestSupersededError(self.id, self._by)
        if self.stopping == CLOSING:
            return RequestInterruptedError(self.id)
        if self.stopping:
            return RequestCancelledError(self.id, self.stopping, self._cancelled_by)
        if self._cancellable is not None and self._cancellable.is_to_end:
            return RequestCancelledError(self.id, "its caller went away", CALLER)
        return RequestCancelledError(self.id, "it was cancelled")

    # --- its life ------------------------------------------------------------------------------------------------

    async def _run(self) -> asyncio.CancelledError | None:
        """Run it, whatever comes of it; return the cancellation that has ended it, if one has."""
        try:
            if self.stopping:
                self._enter()
                raise asyncio.CancelledError  # noqa: TRY301 -- as if it had come now
            if self._task.address is not None:
                await self._run_in_turn()
            elif self.is_stored or self.action.has_room_limits or self._entered is not None:
                await self._run_free()
            else:
                self._enter()
                await self._work()
        except (JoinsError, Exception) as problem:  # noqa: BLE001 -- whatever it is, it is how the request ended
            await self._end_otherwise(problem)
        except asyncio.CancelledError as cancelled:
            await self._end_otherwise(self._why_stopped())
            return cancelled
        except EXITS as problem:  # it came while the action did not run
            self._exit = problem if is_from_signal(problem) else None
            await self._end_otherwise(problem)
        finally:
            if not self.is_over:  # it was cancelled a second time, while it was written down
                self._close(self._ended_by(self._why_stopped()))
            if self._is_waiting:
                self._wait_no_longer()
            self._turn = self._journal = self._calls = None  # which refer to this request
            self._running = None  # which refers to whatever its context does
            self._task = NOTHING  # what it brought is needed no more, and would be kept in mind for an hour
            if self._exit is not None:
                taken, self._exit = self._exit, None  # what ends this process refers to all that was at work
                raise taken
        return None

    async def _run_free(self) -> None:
        """Run one that needs no turn, but has a record, or needs room, or whose caller waits until it is taken on."""
        server = self._server
        if self.is_stored:
            await server.attend()
            await self._update(with_its_place(server, self._task, self.keys, self._note))
            self._journal = EventJournal(server.space, self.keys, self._update, server.now, self._kept())
        if self.action.has_room_limits:
            await self._work_with_room()
        else:
            self._enter()
            await self._work()

    async def _run_in_turn(self) -> None:
        server, first = self._server, None
        if self.is_stored:
            await server.attend()
            first = with_its_place(server, self._task, self.keys, self._note)
        on_turn = as_it_runs(self.keys) if self.is_stored else None
        ask = self._task.ask(first, self._wait_for_turn, self._told_to_stop, on_turn)
        async with server.arbiter.hold(ask) as turn:
            self._turn, waited, self._started_at = turn, self.is_entered, turn.since
            if self._is_waiting:
                self._wait_no_longer()
            if self._record is not None:
                self._record = structs.replace(self._record, status="running", started_at=turn.since, attempt=1)
            if self.is_stored:
                self._journal = EventJournal(server.space, self.keys, turn.update, server.now, self._kept())
                if waited and not turn.is_noted:
                    await turn.update(as_it_is_now(self.keys, self.record))
            if self.action.has_room_limits:
                await self._work_with_room()
            else:
                self._enter()
                await self._work()

    async def _work_with_room(self) -> None:
        """Run it when its limits have room for it."""
        limits = self._server.limits
        room = limits.room_for(self._task, self._refuse_to_wait)
        try:
            if not await room.take_at_once():
                await self._show("waiting")
                self._is_waiting = self._is_waiting or self._server.tenants.wait(self.tenant, self._sharer)
                self._enter(1)
                await room.wait()
                self._wait_no_longer()
                await self._show("running")
            self._task = limits.chained(self._task)
            self._enter()
            await self._work()
        finally:
            room.give_back()

    async def _show(self, status: Status) -> None:
        is_waiting = status == "waiting"
        at, verdict = (Instant(0), "queued") if is_waiting else (self._server.now(), self.record.verdict)
        self._record = structs.replace(self.record, status=status, started_at=at, verdict=verdict)
        if self.is_stored:
            await (self._update if self._turn is None else self._turn.update)(as_it_is_now(self.keys, self._record))

    async def _update(self, extra_changes: ExtraChanges[int]) -> Mapping[RecordKey, int]:
        return await update_while_alive(self._server, self.id, extra_changes)

    def _kept(self) -> Callable[[int], None]:
        """Return what takes note of bytes that are kept of its tenant; it may outlive the request by a moment."""
        return partial(self._server.tenants.storage.add, self.keys.tenant)

    @property
    def _sharer(self) -> str:
        return self._task.arrival.sharer

    def _wait_for_turn(self, position: int) -> None:
        """Wait, unless one that waits for this request would have to go on first."""
        self._is_waiting = self._is_waiting or self._server.tenants.wait(self.tenant, self._sharer)
        chain, wants = self._task.arrival.chain, self.address
        if chain and wants is not None:
            waiter = BlockedRequest(self.id, wants, label_of(wants), chain, self._task.is_called, self._refuse_to_wait)
            self._server.limits.deadlocks.wait(waiter)
        if self._doomed is None:
            self._enter(position)

    def _refuse_to_wait(self, problem: WaitsForItselfError) -> None:
        self._doomed = problem
        self.stop(str(problem))

    def _wait_no_longer(self) -> None:
        self._is_waiting = False
        self._server.limits.deadlocks.go_on(self.id)
        self._server.tenants.waits_no_longer(self.tenant, self._sharer)

    def _note(self, record: RequestRecord) -> None:
        self._record, self._may_be_written = record, True

    def _enter(self, position: int = 0) -> None:
        if not self.is_entered:
            self.is_entered = True
            if self._server.tells:
                self._tell_decided("queued" if position else "run")
            if self._entered is not None:
                self._entered.set_result(position)

    async def _work(self) -> None:
        """Run the action, and write down what came of it."""
        task, turn = self._task, self._turn
        inputs: tuple[Inputs, ...] = (task.inputs,)
        if turn is not None and turn.superseded:
            self._record = task.succeeding(self.record, turn)
            if self._record.overlap:
                tell_overlap(self._server, task, self._record)
            inputs = (*await inputs_of(self._server.space, task, turn.superseded), task.inputs)
        self._calls = calls = DispatcherBackend(self._server, task.arrival, task.id, self._emit)
        try:
            value = await calls.run(task.action, inputs, address=task.address)
            packed = task.action.write(value)[0]
        except BaseException as problem:  # noqa: BLE001 -- whatever the action raises is how it ended
            if is_cancelling(problem) and self._journal is not None:
                await self._journal.close()
            raise_cancelling(problem)
            self._exit = problem if isinstance(problem, EXITS) and is_from_signal(problem) else None
            await self._fail(problem)
            return
        operations = () if calls.staging is None else calls.staging.operations
        if self.is_stored or operations:
            await self._succeed(value, packed, operations)
            return
        if turn is not None:
            await turn.finish()
        self._complete(value, packed, self._server.now())

    def _emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        (self._journal or self.memory).emit(name, data)

    # --- its end -------------------------------------------------------------------------------------------------

    def _complete(self, value: Any, packed: bytes, at: Instant) -> None:  # noqa: ANN401 -- whatever the action returned
        self.value, self.packed, self.ended_at, self.is_over = value, packed, at, True
        if self._record is not None:
            self._record = ended(self._record, "completed", at, result=packed)
        if self._over is not None or self._memory is not None:
            self._tell()

    def _close(self, record: RequestRecord) -> None:
        self._record, self.ended_at, self.is_over = record, record.ended_at, True
        self._tell()

    def _tell(self) -> None:
        """Tell the tasks that wait for its end."""
        if self._over is not None and not self._over.done():
            self._over.set_result(self.record)
        if self._memory is not None:
            self._memory.close()

    async def _succeed(self, value: Any, packed: bytes, operations: tuple[Operation, ...]) -> None:  # noqa: ANN401 -- whatever the action returned
        """Write down that it ended well, in the commit that ends its turn."""
        if self._journal is not None:
            await self._journal.flush()
        at = self._server.now()
        record = ended(self.record, "completed", at, result=packed) if self.is_stored else None
        try:
            late = await write_end(self._server, self._task, self.keys, self._turn, record, operations)
        except SessionStateError as problem:
            await self._fail(problem)
            return
        self._complete(value, packed, at)
        if late is not None:
            raise late

    async def _fail(self, problem: BaseException) -> None:
        self.problem = problem
        if self._journal is not None:
            await self._journal.flush()
        failure = describe(problem, self._server.known)
        record = ended(self.record, "failed", self._server.now(), failure=failure)
        if self.is_stored:
            await write_end(self._server, self._task, self.keys, self._turn, record, ())
        elif self._turn is not None:
            await self._turn.finish()
        self._close(record)
        if self._exit is None:  # else a user has sent it to the program, not to the action
            self._log_failure(failure)

    def _log_failure(self, failure: Failure) -> None:
        action = workflow_name(self.action)
        log_failure(_log, f"the request {self.id!r} of {action}", failure, request=self.id, action=action)

    def _ended_by(self, problem: BaseException) -> RequestRecord:
        record = ended_by(self.record, problem, self._server.now(), self._server.known)
        is_closing = record.status == "interrupted" and self._cancelled_by
        return structs.replace(record, cancelled_by=self._cancelled_by) if is_closing else record

    async def _end_otherwise(self, problem: BaseException) -> None:
        """Write down that it ended without a result, if it was taken on, or that may be so."""
        if self.is_over:
            return
        if not self.is_entered:
            self._refuse(problem)
            return
        record = self._ended_by(problem)
        if self.is_stored:
            record = await write_end_in_time(self._server, self.keys, record, self._task.claim)
        if record.status == "completed":  # it was written, and the answer got lost
            self.packed = b"null" if record.result is UNSET else bytes(record.result)
            self.value = self.action.result.unpack(self.packed)
        else:
            self.problem = self.problem or problem
        self._close(record)
        if record.status == "failed" and record.failure is not None and not isinstance(problem, StandfastError):
            self._log_failure(record.failure)
        elif record.status == "refused" and isinstance(problem, FlowError):
            self._server.log_refusal(self._task.arrival, problem, self.id)

    def _tell_decided(self, verdict: Verdict, reason: str = "") -> None:
        taken = max(0.0, seconds_between(self._received_at, self._server.now()))
        self._server.tell_decided(self.id, self.action, verdict, taken, reason)

    def _refuse(self, problem: BaseException) -> None:
        self.refusal = problem
        if self._entered is None and self._server.tells:  # else the task that took it on tells
            self._tell_decided("refused", type(problem).__name__)
        if self._entered is not None:
            self._entered.set_exception(problem)
            self._entered.exception()  # the caller may have gone
        at = self._server.now()
        record = ended(self.record, "refused", at, reason=str(problem))  # it has not run, whatever was written of it
        if self._may_be_written:
            self._server.own(write_late_end(self._server, self.keys, record, self._task.claim))
        self._close(record)
        if isinstance(problem, FlowError):
            self._server.log_refusal(self._task.arrival, problem, self.id)
