"""Requests whose caller waits: they run in this process, in their turn if they have a key.

What becomes of one is written down in the commit that ends its turn. One without a record leaves nothing in the store,
and is known to this process alone. Nearly all are like that, so what few of them need is made when it is needed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import UNSET, structs

from holdfast.clock import Instant
from holdfast.errors import HoldfastError, RequestCancelledError, RequestInterruptedError, SessionStateError
from holdfast.flows.arbiters.body import Body
from holdfast.flows.arbiters.protocol import JoinsError
from holdfast.flows.calling import Calls
from holdfast.flows.emitting import Journal, Memory
from holdfast.flows.ending import ended_by, to_the_end, write_end
from holdfast.flows.records import RequestKeys
from holdfast.flows.tasks import inputs_of
from holdfast.flows.viewing import ended
from holdfast.flows.writing import update_while_alive, when_it_runs, with_its_end, with_its_place
from holdfast.workflows.storing.failures import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.flows.action import Action, Inputs
    from holdfast.flows.arbiters.protocol import Beside, Stop, Turn
    from holdfast.flows.arrival import Address
    from holdfast.flows.records import RequestRecord
    from holdfast.flows.serving import Server
    from holdfast.flows.session import Operation
    from holdfast.flows.tasks import Task
    from holdfast.keys import RecordKey

PATIENCE: Final = 1.0
"""Seconds that a caller waits until it is written that its request has ended without a result."""

CLOSING: Final = "its server is closing"


@final
class Attended:
    """One request that runs here.

    Attributes:
        id: Its id.
        is_stored: Whether others can see it.
        value: What it returned.
        packed: The same, as JSON; None: it has returned nothing.
        problem: What it raised.
        refusal: Why it was not taken on.
        is_entered: It is certain that it is taken on.
        is_over: It has ended.
        ended_at: When.
        stopping: Why it was asked to stop.
        sharers: The other users who share its run, if there are any and nothing of it is stored.
    """

    # What most requests never have is said once, for the class: to set it for each takes longer than their actions do.
    value: Any = None
    packed: bytes | None = None
    problem: BaseException | None = None
    refusal: BaseException | None = None
    is_entered = is_over = False
    ended_at = Instant(0)
    stopping = ""
    sharers: set[str] | None = None
    _record: RequestRecord | None = None
    _keys: RequestKeys | None = None
    _memory: Memory | None = None
    _journal: Journal | None = None
    _turn: Turn | None = None
    _calls: Calls | None = None
    _may_be_written = _has_started = False
    _body: Body | None = None
    _running: asyncio.Task[Any] | None = None
    _entered: asyncio.Future[int] | None = None
    _over: asyncio.Future[RequestRecord] | None = None

    def __init__(self, server: Server, task: Task, *, is_stored: bool) -> None:
        self._server, self._task, self.id, self.is_stored = server, task, task.id, is_stored
        self._received_at = at = server.now()
        self._started_at = at if task.address is None else Instant(0)

    @property
    def action(self) -> Action[..., Any]:
        """What it runs."""
        return self._task.action

    @property
    def address(self) -> Address | None:
        """The line in which it needs a turn; None: it needs none."""
        return self._task.address

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self._task.arrival.principal.tenant

    @property
    def keys(self) -> RequestKeys:
        """Where its records lie, if it has any."""
        if self._keys is None:
            self._keys = RequestKeys(self._server.space, self.tenant, self.id)
        return self._keys

    @property
    def memory(self) -> Memory:
        """What it tells, if it has no record."""
        if self._memory is None:
            self._memory = Memory()
        return self._memory

    @property
    def record(self) -> RequestRecord:
        """How it is."""
        if self._record is None:  # nobody has looked yet
            self._record = self._first_record()
        return self._record

    def _first_record(self) -> RequestRecord:
        task, began = self._task, self._started_at
        if not began:
            return task.record(self._received_at, "waiting")
        record = task.record(self._received_at, "running", started_at=began, attempt=1)
        return record if self.packed is None else ended(record, "completed", self.ended_at, result=self.packed)

    @property
    def has_begun(self) -> bool:
        """Whether it runs, or did."""
        return self._body is not None or self._running is not None

    @property
    def over(self) -> asyncio.Future[RequestRecord]:
        """Done when it has ended."""
        if self._over is None:
            self._over = asyncio.get_running_loop().create_future()
            if self.is_over:
                self._over.set_result(self.record)
        return self._over

    # --- beginning, and being stopped ------------------------------------------------------------------------------

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
        self._body = body = Body()
        self._server.begun(self)
        try:
            delivered = await self._run()
        except asyncio.CancelledError as again:
            delivered = again
        finally:
            self._server.gone(self)
        if delivered is None and not body.was_cancelled:
            return
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
        self._hear(reason)
        if self._body is not None:
            self._body.cancel()
        elif self._running is not None and self._has_started:  # one that is cancelled before would never end
            self._running.cancel()

    def _told_to_stop(self, why: Stop) -> None:
        self._hear(why.reason or f"the request {why.by!r} takes its place")

    def _hear(self, reason: str) -> None:
        self.stopping = self.stopping or reason
        if self._calls is not None:
            self._calls.stopping = self.stopping

    def _emit(self, name: str, data: Any) -> None:  # noqa: ANN401 -- JSON-shaped data
        (self._journal or self.memory).emit(name, data)

    # --- its life ------------------------------------------------------------------------------------------------

    async def _run(self) -> asyncio.CancelledError | None:
        """Run it, whatever comes of it; return the cancellation that has ended it, if one has."""
        try:
            self._has_started = True
            if self.stopping:
                self._enter(0)
                raise asyncio.CancelledError  # noqa: TRY301 -- as if it had come now
            if self._task.address is not None:
                await self._run_in_turn()
            elif self.is_stored:
                await self._run_stored()
            else:
                self._enter(0)
                await self._work()
        except (JoinsError, Exception) as problem:  # noqa: BLE001 -- whatever it is, it is how the request ended
            await self._end_otherwise(problem)
        except asyncio.CancelledError as cancelled:
            await self._end_otherwise(self._why_stopped())
            return cancelled
        finally:
            if not self.is_over:  # it was cancelled a second time, while it was written down
                self._close(self._ended_by(self._why_stopped()))
            self._turn = self._journal = self._calls = None  # which refer to this request
        return None

    async def _run_stored(self) -> None:
        """Run one that needs no turn, and has a record."""
        await self._server.attend()
        await self._update(self._first())
        self._journal = Journal(self._server.space, self.keys, self._update, self._server.now)
        self._enter(0)
        await self._work()

    async def _run_in_turn(self) -> None:
        server, first = self._server, None
        if self.is_stored:
            await server.attend()
            first = self._first()
        ask = self._task.ask(beside=first, on_waiting=self._enter, on_stop=self._told_to_stop)
        async with server.arbiter.hold(ask) as turn:
            self._turn, waited, self._started_at = turn, self.is_entered, turn.since
            self._enter(0)
            if self._record is not None:
                self._record = structs.replace(self._record, status="running", started_at=turn.since, attempt=1)
            if self.is_stored:
                self._journal = Journal(server.space, self.keys, turn.update, server.now)
                if waited:
                    await turn.update(when_it_runs(self.keys, self.record))
            await self._work()

    def _enter(self, position: int) -> None:
        if not self.is_entered:
            self.is_entered = True
            if self._entered is not None:
                self._entered.set_result(position)

    async def _work(self) -> None:
        """Run the action, and write down what came of it."""
        task, turn = self._task, self._turn
        inputs: tuple[Inputs, ...] = (task.inputs,)
        if turn is not None and turn.superseded:
            self._record = task.succeeding(self.record, turn.superseded)
            inputs = (*await inputs_of(self._server.space, task, turn.superseded), task.inputs)
        self._calls = calls = Calls(self._server, task.arrival, task.id, self._emit)
        try:
            value = await calls.run(task.action, inputs, address=task.address)
            packed = task.action.result.pack(value)
        except Exception as problem:  # noqa: BLE001 -- whatever the action raises is how it ended
            await self._fail(problem)
        else:
            await self._succeed(value, packed, calls.operations)

    async def _succeed(self, value: Any, packed: bytes, operations: tuple[Operation, ...]) -> None:  # noqa: ANN401 -- whatever the action returned
        if self._journal is not None:
            await self._journal.flush()
        at, late = self._server.now(), None
        record = ended(self.record, "completed", at, result=packed) if self.is_stored else None
        try:
            if record is not None or operations:
                late = await self._write_end(record, operations)
            elif self._turn is not None:
                await self._turn.finish()
        except SessionStateError as problem:
            await self._fail(problem)
            return
        self.value, self.packed, self.ended_at, self.is_over = value, packed, at, True
        if self._record is not None:
            self._record = record or ended(self._record, "completed", at, result=packed)
        self._tell()
        if late is not None:
            raise late

    async def _fail(self, problem: Exception) -> None:
        self.problem = problem
        if self._journal is not None:
            await self._journal.flush()
        at, failure = self._server.now(), describe(problem, self._server.known)
        record = ended(self.record, "failed", at, failure=failure)
        if self.is_stored:
            await self._write_end(record, ())
        elif self._turn is not None:
            await self._turn.finish()
        self._close(record)

    def _ended_by(self, problem: BaseException) -> RequestRecord:
        return ended_by(self.record, problem, self._server.now(), self._server.known)

    def _why_stopped(self) -> HoldfastError:
        if self.stopping == CLOSING:
            return RequestInterruptedError(self.id)
        otherwise = "it was cancelled" if self._body is None else "its caller went away"
        return RequestCancelledError(self.id, self.stopping or otherwise)

    # --- what is written -----------------------------------------------------------------------------------------

    def _first(self) -> Beside:
        return with_its_place(self._server, self._task, self.keys, self._note)

    def _note(self, record: RequestRecord) -> None:
        self._record, self._may_be_written = record, True

    async def _write_end(
        self, record: RequestRecord | None, operations: tuple[Operation, ...]
    ) -> asyncio.CancelledError | None:
        """Write down how it ended and what it did to its session, in the commit that ends its turn.

        If nothing else would tell that this has happened, a cancellation comes too late, and is returned.
        """
        beside = with_its_end(self._server, self._task, self.keys, record, operations)
        write = self._update if self._turn is None else self._turn.finish
        if record is None:
            return await to_the_end(self._server.own(write(beside)))
        await write(beside)
        return None

    async def _update(self, beside: Beside) -> Mapping[RecordKey, int]:
        """Commit without a turn."""
        server = self._server
        return await (update_while_alive(server, self.id, beside) if self.is_stored else server.update(beside))

    async def _end_otherwise(self, problem: BaseException) -> None:
        """Write down that it ended without a result, if it was taken on, or that may be so."""
        if self.is_over:
            return
        if not self.is_entered:
            self._refuse(problem)
            return
        record = self._ended_by(problem)
        if self.is_stored:
            # However long that takes, and whoever is cancelled.
            writing = self._server.own(write_end(self._server, self.keys, record))
            await asyncio.wait({writing}, timeout=PATIENCE)
            record = writing.result() if writing.done() else record
        if record.status == "completed":  # it was written, and the answer got lost
            self.packed = b"null" if record.result is UNSET else bytes(record.result)
            self.value = self.action.result.unpack(self.packed)
        else:
            self.problem = self.problem or problem
        self._close(record)

    def _refuse(self, problem: BaseException) -> None:
        self.refusal = problem
        if self._entered is not None:
            self._entered.set_exception(problem)
            self._entered.exception()  # whoever asked may have gone
        at = self._server.now()
        record = ended(self.record, "refused", at, reason=str(problem))  # it has not run, whatever was written of it
        if self._may_be_written:
            self._server.own(write_end(self._server, self.keys, record))
        self._close(record)

    def _close(self, record: RequestRecord) -> None:
        self._record, self.ended_at, self.is_over = record, record.ended_at, True
        self._tell()

    def _tell(self) -> None:
        """Tell those who wait for its end, if anybody does."""
        if self._over is not None and not self._over.done():
            self._over.set_result(self.record)
        if self._memory is not None:
            self._memory.rouse()
