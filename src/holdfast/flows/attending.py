"""Requests whose caller waits: they run in this process, in their turn if they have a key.

What becomes of one is written down in the commit that ends its turn. One without a record leaves nothing in the store,
and is known to this process alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import UNSET, structs

from holdfast.errors import (
    HoldfastError,
    RequestCancelledError,
    RequestInterruptedError,
    RequestSupersededError,
    SessionStateError,
)
from holdfast.flows.arbiters.body import Body
from holdfast.flows.arbiters.protocol import Beside, JoinsError
from holdfast.flows.calling import Calls, session_put
from holdfast.flows.emitting import Journal, Memory
from holdfast.flows.ending import ended_by, to_the_end, write_end
from holdfast.flows.records import REQUESTS, RequestKeys, RequestRecord, session_key
from holdfast.flows.tasks import inputs_of
from holdfast.flows.viewing import ended, final_put
from holdfast.stores.protocol import Check, Put
from holdfast.workflows.storing.failures import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.flows.action import Action
    from holdfast.flows.arbiters.protocol import Stop, Turn
    from holdfast.flows.request import Status
    from holdfast.flows.serving import Server
    from holdfast.flows.session import Operation
    from holdfast.flows.tasks import Task
    from holdfast.keys import RecordKey
    from holdfast.stores.protocol import Change, Snapshot

PATIENCE: Final = 1.0
"""Seconds that a caller waits until it is written that its request has ended without a result."""

CLOSING: Final = "its server is closing"


@final
class Attended:
    """One request that runs here.

    Attributes:
        record: How it is.
        value: What it returned.
        refusal: Why it was not taken on.
        is_entered: It is certain that it is taken on.
        is_over: It has ended.
        is_stored: Whether others can see it.
        sharers: The other users who share its run, if there are any and nothing of it is stored.
    """

    __slots__ = (
        "_body",
        "_by",
        "_calls",
        "_entered",
        "_has_started",
        "_journal",
        "_may_be_written",
        "_over",
        "_running",
        "_server",
        "_task",
        "_turn",
        "is_entered",
        "is_over",
        "is_stored",
        "keys",
        "memory",
        "problem",
        "record",
        "refusal",
        "sharers",
        "value",
    )

    def __init__(self, server: Server, task: Task, *, is_stored: bool) -> None:
        self._server, self._task = server, task
        self.keys: Final = RequestKeys(server.space, task.arrival.tenant, task.id)
        self.is_stored: Final = is_stored
        self.sharers: set[str] | None = None
        self.record = task.first_record(server.now())
        self.value: Any = None
        self.problem: BaseException | None = None
        self.refusal: BaseException | None = None
        self.is_entered = self.is_over = False
        self._entered: asyncio.Future[int] | None = None
        self._over: asyncio.Future[RequestRecord] | None = None
        self.memory: Final = Memory()
        self._journal: Memory | Journal = self.memory
        emit = self._emit if is_stored else self.memory.emit
        self._calls: Final = Calls(server, self.keys, task.arrival, emit)
        self._turn: Turn | None = None
        self._by = ""
        self._may_be_written = self._has_started = False
        self._running: asyncio.Task[Any] | None = None
        self._body: Body | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self._task.id

    @property
    def action(self) -> Action[..., Any]:
        """What it runs."""
        return self._task.action

    @property
    def has_begun(self) -> bool:
        """Whether it runs, or did."""
        return self._running is not None or self._body is not None

    @property
    def over(self) -> asyncio.Future[RequestRecord]:
        """Done when it has ended."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            if self.is_over:
                self._over.set_result(self.record)
        return self._over

    def begin(self) -> tuple[asyncio.Task[Any], asyncio.Future[int]]:
        """Begin to run it; what is returned besides is done once it is certain that it is taken on, or why it is not.

        It tells where it stands then: 0 has its turn, 1 is the next.
        """
        loop = asyncio.get_running_loop()
        self._entered = loop.create_future()
        self._running = loop.create_task(self._run())
        return self._running, self._entered

    async def run_here(self) -> None:
        """Run it in the task of its caller, which saves making one; if the caller is cancelled, so is the request.

        Raises:
            CancelledError: Somebody has cancelled the caller, and not only the request.
        """
        body, delivered = Body(), None
        self._body = body
        try:
            delivered = await self._run()
        except asyncio.CancelledError as again:
            delivered = again
        by_us = body.was_cancelled
        others = await body.take_back(delivered)
        if others is not None:
            raise others
        if delivered is not None and not by_us:
            raise delivered

    def stop(self, reason: str) -> None:
        """Ask it to stop; it ends where it waits."""
        if self.is_over or not self.has_begun:
            return
        self._calls.stopping = self._calls.stopping or reason
        if self._body is not None:
            self._body.cancel()
        elif self._running is not None and self._has_started:  # one that is cancelled before would never end
            self._running.cancel()

    def _emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        self._journal.emit(name, data)

    # --- its life ------------------------------------------------------------------------------------------------

    async def _run(self) -> asyncio.CancelledError | None:
        """Run it, whatever comes of it; return the cancellation that has ended it, if one has."""
        try:
            self._has_started = True
            if self._calls.stopping:
                self._enter(0)
                raise asyncio.CancelledError  # noqa: TRY301 -- as if it had come now
            await (self._run_free() if self._task.address is None else self._run_in_turn())
        except (JoinsError, Exception) as problem:  # noqa: BLE001 -- whatever it is, it is how the request ended
            await self._end_otherwise(problem)
        except asyncio.CancelledError as cancelled:
            await self._end_otherwise(self._why_stopped())
            return cancelled
        finally:
            if not self.is_over:  # it was cancelled a second time, while it was written down
                self._close(self._ended_by(self._why_stopped()))
            self._turn, self._journal = None, self.memory  # which refer to this request
        return None

    def _ended_by(self, problem: BaseException) -> RequestRecord:
        return ended_by(self.record, problem, self._server.now(), self._server.known)

    def _why_stopped(self) -> HoldfastError:
        if self._by:
            return RequestSupersededError(self.id, self._by)
        if self._calls.stopping == CLOSING:
            return RequestInterruptedError(self.id)
        otherwise = "it was cancelled" if self._body is None else "its caller went away"
        return RequestCancelledError(self.id, self._calls.stopping or otherwise)

    async def _run_free(self) -> None:
        if self.is_stored:
            await self._server.attend()
            await self._update(self._first())
            self._journal = Journal(self._server.space, self.keys, self._update, self._server.now)
        self._enter(0)
        await self._work()

    async def _run_in_turn(self) -> None:
        server, task = self._server, self._task
        if self.is_stored:
            await server.attend()
        first = self._first() if self.is_stored else None
        ask = task.ask(beside=first, on_waiting=self._enter, on_stop=self._told_to_stop)
        async with server.arbiter.hold(ask) as turn:
            self._turn = turn
            waited = self.is_entered
            self._enter(0)
            self.record = structs.replace(self.record, status="running", started_at=turn.since, attempt=1)
            if self.is_stored:
                self._journal = Journal(server.space, self.keys, turn.update, server.now)
                if waited:
                    await turn.update(Beside((self.keys.record,), self._mark_running))
            await self._work()

    def _enter(self, position: int) -> None:
        if not self.is_entered:
            self.is_entered = True
            if self._entered is not None:
                self._entered.set_result(position)

    def _told_to_stop(self, why: Stop) -> None:
        self._by = why.by
        self._calls.stopping = self._calls.stopping or why.reason or f"the request {why.by!r} takes its place"

    async def _work(self) -> None:
        """Run the action, and write down what came of it."""
        task, superseded = self._task, () if self._turn is None else self._turn.superseded
        self.record = task.succeeding(self.record, superseded)
        before = await inputs_of(self._server.space, task, superseded)
        try:
            value = await self._calls.run(task.action, (*before, task.inputs), address=task.address)
            result = task.action.result.pack(value)
        except Exception as problem:  # noqa: BLE001 -- whatever the action raises is how it ended
            await self._fail(problem)
        else:
            await self._succeed(value, result)
        self._close(self.record)

    async def _succeed(self, value: Any, result: bytes) -> None:  # noqa: ANN401 -- whatever the action returned
        await self._journal.flush()
        try:
            late = await self._finish(self._ended("completed", result=result), self._calls.session.operations)
        except SessionStateError as problem:
            await self._fail(problem)
        else:
            self.value = value
            if late is not None:
                self._close(self.record)
                raise late

    async def _fail(self, problem: Exception) -> None:
        self.problem = problem
        failure = describe(problem, self._server.known)
        await self._journal.flush()
        await self._finish(self._ended("failed", failure=failure), ())

    def _ended(self, status: Status, **how: Any) -> RequestRecord:  # noqa: ANN401 -- see viewing.ended
        return ended(self.record, status, self._server.now(), **how)

    # --- what is written -----------------------------------------------------------------------------------------

    def _first(self) -> Beside:
        """Return what is committed with its place: its record, and its idempotency key."""
        server, claim, keys = self._server, self._task.claim, self.keys

        def decide(position: int, seen: Snapshot) -> Sequence[Change]:
            if seen.version(keys.record):
                return ()  # it was written, and the answer got lost
            begins = {} if position else {"started_at": seen.at, "attempt": 1}
            status: Status = "waiting" if position else "running"
            record = self._task.record(seen.at, status, owner=server.owner, server=server.name, **begins)
            self.record = record
            put = Put(keys.record, REQUESTS.encode_own(record))
            changes = (put, *(() if claim is None else claim.put_over(keys.id, seen)))
            self._may_be_written = True
            return changes

        return Beside((keys.record, *(() if claim is None else (claim.key,))), decide)

    def _mark_running(self, _: int, seen: Snapshot) -> Sequence[Change]:
        found = seen.get(self.keys.record)
        if found is None:
            return ()
        if REQUESTS.decode(found.value).has_ended:  # others took this server for dead, and have said so
            raise RequestInterruptedError(self.id)
        return (Put(self.keys.record, REQUESTS.encode_own(self.record), found.version),)

    async def _finish(self, record: RequestRecord, operations: tuple[Operation, ...]) -> asyncio.CancelledError | None:
        """Write down how it ended and what it did to its session, in the commit that ends its turn.

        If nothing else would tell that this has happened, a cancellation comes too late, and is returned.
        """
        beside, late = self._last(record, operations), None
        if self.is_stored or beside is None:
            await self._write(beside)
        else:
            late = await to_the_end(self._server.own(self._write(beside)))
        self.record = record
        return late

    async def _write(self, beside: Beside | None) -> None:
        if self._turn is not None:
            await self._turn.finish(beside)
        elif beside is not None:
            await self._update(beside)

    def _last(self, record: RequestRecord, operations: tuple[Operation, ...]) -> Beside | None:
        if not self.is_stored and not operations:
            return None
        session = session_key(self._server.space, self.keys.tenant, self._task.arrival.session)
        keys = ((self.keys.record,) if self.is_stored else ()) + ((session,) if operations else ())

        def decide(_: int, seen: Snapshot) -> Sequence[Change]:
            changes: list[Change] = []
            if self.is_stored:
                found = seen.get(self.keys.record)
                if found is None:
                    raise RequestInterruptedError(self.id)
                there = REQUESTS.decode(found.value)
                if (there.status, there.ended_at) == (record.status, record.ended_at):
                    return ()  # it was written, and the answer got lost
                if there.has_ended:  # others took this server for dead, and have said so
                    raise RequestInterruptedError(self.id)
                changes.append(final_put(self.keys, record, found.version, seen.at))
            if operations:
                changes.append(session_put(session, operations, seen))
            return changes

        return Beside(keys, decide)

    async def _update(self, beside: Beside) -> Mapping[RecordKey, int]:
        """Commit without a turn; if it has a record, only while this process is taken for alive."""
        server = self._server
        if not self.is_stored:
            return await server.update(beside)
        guard = server.presence_key

        def decide(position: int, seen: Snapshot) -> Sequence[Change]:
            if not seen.version(guard):
                raise RequestInterruptedError(self.id)
            return (*beside.decide(position, seen), Check(guard, seen.version(guard)))

        return await server.update(Beside((*beside.keys, guard), decide))

    async def _end_otherwise(self, problem: BaseException) -> None:
        """Write down that it ended without a result, if it was taken on, or that may be so."""
        self._calls.close()
        if self.is_over:
            return
        if not self.is_entered:
            self.refusal = problem
            if self._entered is not None:
                self._entered.set_exception(problem)
                self._entered.exception()  # whoever asked may have gone
            record = self._ended("refused", reason=str(problem))  # it has not run, whatever was written of it
            if self._may_be_written:
                self._server.own(write_end(self._server, self.keys, record))
            self._close(record)
            return
        record = self._ended_by(problem)
        if self.is_stored:
            # However long that takes, and whoever is cancelled.
            writing = self._server.own(write_end(self._server, self.keys, record))
            await asyncio.wait({writing}, timeout=PATIENCE)
            record = writing.result() if writing.done() else record
        if record.status == "completed":  # it was written, and the answer got lost
            self.value = self.action.result.unpack(b"null" if record.result is UNSET else record.result)
        else:
            self.problem = self.problem or problem
        self._close(record)

    def _close(self, record: RequestRecord) -> None:
        self.record, self.is_over = record, True
        if self._over is not None and not self._over.done():
            self._over.set_result(record)
        self.memory.rouse()
