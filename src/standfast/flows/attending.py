"""Requests whose caller waits: they run in this process, in their turn if they have a key.

What becomes of one is written down in the commit that ends its turn. One without a record leaves nothing in the store,
and is known to this process alone.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from msgspec import structs

from standfast.clock import Instant
from standfast.errors import (
    RequestCancelledError,
    RequestInterruptedError,
    RequestSupersededError,
    StandfastError,
    WaitsForItselfError,
)
from standfast.flows.arbiters.body import Body, this_body
from standfast.flows.arbiters.protocol import JoinsError
from standfast.flows.calling import Calls
from standfast.flows.cancelling import CALLER
from standfast.flows.circling import Waiter
from standfast.flows.concluding import Concluding
from standfast.flows.emitting import Journal
from standfast.flows.ending import is_cancelling, is_exit, raise_cancelling
from standfast.flows.handle import Handle
from standfast.flows.keying import label_of
from standfast.flows.knowing import NOTHING
from standfast.flows.tasks import inputs_of, tell_overlap
from standfast.flows.writing import as_it_is_now, update_while_alive, with_its_place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from standfast.flows.action import Inputs
    from standfast.flows.arbiters.protocol import Beside, Stop
    from standfast.flows.records import RequestRecord
    from standfast.flows.request import Status
    from standfast.keys import RecordKey

CLOSING: Final = "its server is closing"


@final
class Attended(Concluding, eq=False):
    """One request that runs here.

    Attributes:
        stopping: Why it was asked to stop.
    """

    stopping: str = ""
    _by: str = ""
    _doomed: WaitsForItselfError | None = None
    _exit: BaseException | None = None
    _calls: Calls | None = None
    _has_started: bool = False
    _is_waiting: bool = False
    _body: Body | None = None
    _running: asyncio.Task[Any] | None = None

    # --- beginning, and being stopped ------------------------------------------------------------------------------

    def begin(self) -> tuple[asyncio.Task[Any], asyncio.Future[int]]:
        """Begin to run it; what is returned besides is done once it is certain that it is taken on, or why it is not.

        It tells where it stands then: 0 has its turn, 1 is the next.
        """
        loop, self.has_begun = asyncio.get_running_loop(), True
        self._entered = loop.create_future()
        self._running = loop.create_task(self._run())
        return self._running, self._entered

    async def run_here(self) -> None:
        """Run it in the task of its caller, which saves making one; if the caller is cancelled, so is the request.

        Raises:
            CancelledError: Somebody has cancelled the caller, and not only the request.
        """
        self.stay()
        await self.run_at_once()

    async def run_at_once(self) -> None:
        """Run it here, in the hope that one step is enough; if it is not, :meth:`stay` after the first of them.

        Nobody else can see or stop it before that, so that what is needed for it need not be prepared for most.
        """
        self.has_begun = True
        self._server.requests[self.id] = self
        try:
            delivered = await self._run()
        except asyncio.CancelledError as again:
            delivered = again
        finally:
            body, self._body = self._body, None  # whose task refers to whatever its context does
            self._server.gone(self)
        if body is None or (delivered is None and not body.was_cancelled):
            return
        is_others = body.is_to_end and not body.was_cancelled
        others = await body.take_back(delivered)
        if others is not None:
            raise others
        if delivered is not None and is_others:
            raise delivered

    def stay(self) -> None:
        """Be stopped by others from now on, in the task that runs."""
        self._body = this_body()
        if self.stopping:
            self._body.cancel()

    def handle(self) -> Handle:
        """Return what whoever has begun it can ask of it, and do with it."""
        return Handle(self._server, self, self.action, is_new=True, on_disconnect="cancel")

    def stop(self, reason: str, cancelled_by: str = "") -> None:
        """Ask it to stop; it ends where it waits."""
        if self.is_over or not self.has_begun:
            return
        self._hear(reason, cancelled_by)
        if self._body is not None:
            self._body.cancel()
        elif self._running is not None and self._has_started:  # one that is cancelled before would never end
            self._running.cancel()

    def _told_to_stop(self, why: Stop) -> None:
        self._by = why.by
        self._hear(why.reason or f"the request {why.by!r} takes its place", why.cancelled_by)

    def _hear(self, reason: str, cancelled_by: str) -> None:
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
        if self._body is not None and self._body.is_to_end:
            return RequestCancelledError(self.id, "its caller went away", CALLER)
        return RequestCancelledError(self.id, "it was cancelled")

    # --- its life ------------------------------------------------------------------------------------------------

    async def _run(self) -> asyncio.CancelledError | None:
        """Run it, whatever comes of it; return the cancellation that has ended it, if one has."""
        try:
            self._has_started = True
            if self.stopping:
                self._enter()
                raise asyncio.CancelledError  # noqa: TRY301 -- as if it had come now
            if self._task.address is not None:
                await self._run_in_turn()
            elif self.is_stored or self.action.has_room_limits or self._entered is not None:
                await self._run_free()
            else:
                self.is_entered = True
                await self._work()
        except (JoinsError, Exception) as problem:  # noqa: BLE001 -- whatever it is, it is how the request ended
            await self._end_otherwise(problem)
        except asyncio.CancelledError as cancelled:
            await self._end_otherwise(self._why_stopped())
            return cancelled
        except (KeyboardInterrupt, SystemExit) as problem:  # it came while the action did not run
            self._exit = problem
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
                raise self._take_exit()
        return None

    def _take_exit(self) -> BaseException:
        """Return what ends this process, which is no longer kept here: it refers to all that was at work."""
        taken, self._exit = self._exit or SystemExit(), None
        return taken

    async def _run_free(self) -> None:
        """Run one that needs no turn, but has a record, or needs room, or somebody waits until it is taken on."""
        server = self._server
        if self.is_stored:
            await server.attend()
            await self._update(with_its_place(server, self._task, self.keys, self._note))
            self._journal = Journal(server.space, self.keys, self._update, server.now, self._kept())
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
        ask = self._task.ask(first, self._wait_for_turn, self._told_to_stop)
        async with server.arbiter.hold(ask) as turn:
            self._turn, waited, self._started_at = turn, self.is_entered, turn.since
            if self._is_waiting:
                self._wait_no_longer()
            if self._record is not None:
                self._record = structs.replace(self._record, status="running", started_at=turn.since, attempt=1)
            if self.is_stored:
                self._journal = Journal(server.space, self.keys, turn.update, server.now, self._kept())
                if waited:
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
                self._wait(1)
                await room.wait()
                self._wait_no_longer()
                await self._show("running")
            self._task = limits.chained(self._task)
            self._enter()
            await self._work()
        finally:
            room.give_back()

    async def _show(self, status: Status) -> None:
        at = self._server.now() if status == "running" else Instant(0)
        self._record = structs.replace(self.record, status=status, started_at=at)
        if self.is_stored:
            await (self._update if self._turn is None else self._turn.update)(as_it_is_now(self.keys, self._record))

    async def _update(self, beside: Beside) -> Mapping[RecordKey, int]:
        return await update_while_alive(self._server, self.id, beside)

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
            waiter = Waiter(self.id, wants, label_of(wants), chain, self._task.is_called, self._refuse_to_wait)
            self._server.limits.circles.wait(waiter)
        if self._doomed is None:
            self._enter(position)

    def _refuse_to_wait(self, problem: WaitsForItselfError) -> None:
        self._doomed = problem
        self.stop(str(problem))

    def _wait(self, position: int) -> None:
        self._is_waiting = self._is_waiting or self._server.tenants.wait(self.tenant, self._sharer)
        self._enter(position)

    def _wait_no_longer(self) -> None:
        self._is_waiting = False
        self._server.limits.circles.go_on(self.id)
        self._server.tenants.waits_no_longer(self.tenant, self._sharer)

    def _note(self, record: RequestRecord) -> None:
        self._record, self._may_be_written = record, True

    def _enter(self, position: int = 0) -> None:
        if not self.is_entered:
            self.is_entered = True
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
        self._calls = calls = Calls(self._server, task.arrival, task.id, self._emit)
        try:
            value = await calls.run(task.action, inputs, address=task.address)
            packed = task.action.write(value)[0]
        except BaseException as problem:  # noqa: BLE001 -- whatever the action raises is how it ended
            if is_cancelling(problem) and self._journal is not None:
                await self._journal.close()
            raise_cancelling(problem)
            self._exit = problem if is_exit(problem) else None
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
