"""Group commit: the store that common code makes of any backend.

Commits and updates that arrive while a transaction is under way ride in the next one together, each with its own
verdict; that is where the speed comes from. What is the same for every server lives here: the rules, the order,
withdrawal on cancellation, settling unknown outcomes, and hints after the commit is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final
from weakref import WeakSet

from holdfast.durations import seconds
from holdfast.errors import (
    InvalidChangeError,
    OutcomeUnknownError,
    StoreBusyError,
    StoreClosedError,
    UnsuitableStoreError,
    WrongLoopError,
)
from holdfast.ids import new_id
from holdfast.stores.backend import Applied, Batch, CommitRider, UpdateRider, WorkRider
from holdfast.stores.forks import ForkGuard
from holdfast.stores.rules import check_commit, check_read, check_scan, check_window
from holdfast.stores.settling import Settling
from holdfast.stores.watching import BackendWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from holdfast.clock import Instant
    from holdfast.durations import Duration
    from holdfast.keys import RecordKey
    from holdfast.stores.backend import Backend, Outcome, Rider
    from holdfast.stores.protocol import (
        Capabilities,
        Change,
        Commit,
        Conflict,
        Decided,
        Decision,
        Snapshot,
        Verdict,
        Wake,
        Watch,
        Worked,
    )

T = TypeVar("T")

MAX_RIDERS: Final = 1_000
"""The most commits and updates that share one transaction."""

MAX_WAITING: Final = 100_000
"""Beyond this many commits waiting on one handle, more are refused: the store is not keeping up."""


def verdict_of(cancelled: asyncio.CancelledError) -> Verdict | Exception | None:
    """Return the verdict of a commit or update whose caller was cancelled when it was already under way.

    None means that it was withdrawn: nothing was written.
    """
    return getattr(cancelled, "verdict", None)


@final
class _Seat:
    """A rider's place in the queue, and later its outcome."""

    __slots__ = ("answer", "outcome", "rider", "state")

    def __init__(self, rider: Rider, answer: asyncio.Future[None]) -> None:
        self.rider, self.answer = rider, answer
        self.outcome: Outcome | None = None
        self.state = _WAITING

    def settle(self, outcome: Outcome) -> None:
        self.outcome = outcome
        if not self.answer.done():
            self.answer.set_result(None)

    def verdict(self) -> Verdict:
        outcome = self.outcome
        if outcome is None or isinstance(outcome, Exception):
            raise outcome or RuntimeError("asked for a verdict before there was one")
        return outcome


_WAITING, _TAKEN, _WITHDRAWN = range(3)


@final
class GroupedStore:
    """A :class:`~holdfast.stores.protocol.Store` over a backend. It belongs to the event loop it is made in."""

    def __init__(self, backend: Backend) -> None:
        self._backend: Final = backend
        self._limits: Final = backend.capabilities
        self._loop: Final = asyncio.get_running_loop()
        self._guard: Final = ForkGuard(backend.name)
        self._id: Final = new_id()
        self._attempts = 0
        self._queue: Final[deque[_Seat]] = deque()
        self._owned: Final[set[asyncio.Task[Any]]] = set()
        self._settling: Final = Settling(backend)
        self._watches: Final[WeakSet[BackendWatch]] = WeakSet()
        self._closing: asyncio.Task[None] | None = None
        self._scheduled = self._busy = False

    def __repr__(self) -> str:
        return f"<GroupedStore {self._backend.name}>"

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return self._limits

    @property
    def backend(self) -> Backend:
        """The backend underneath, for what only it offers."""
        return self._backend

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records in one snapshot. Expired ones are absent."""
        self._check_usable()
        check_read(keys, self._limits)
        return await self._backend.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read up to ``limit`` records with ``start <= key < end``, in key order, within one namespace."""
        self._check_usable()
        check_scan(start, end, limit)
        return await self._backend.scan(start, end, limit=limit, reverse=reverse)

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Subscribe to hints for keys that equal or continue one of ``prefixes``."""
        self._check_usable()
        check_read(prefixes, self._limits)
        watch = BackendWatch(self._backend, prefixes)
        self._watches.add(watch)
        return watch

    # --- writing -----------------------------------------------------------------------------------------------

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Do all of ``changes`` or none, durably, if every guard holds and ``after <= store time < before``."""
        check_commit(changes, wake, self._limits)
        check_window(after, before)
        seat = self._board(CommitRider(changes, after, before, tuple(wake)))
        try:
            await seat.answer
        except asyncio.CancelledError as cancelled:
            await self._leave(seat, cancelled)
            raise
        return cast("Commit | Conflict", seat.verdict())

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Run the pure function ``decide`` on the records at ``keys`` and commit what it decides."""
        check_read(keys, self._limits)
        seat = self._board(UpdateRider(tuple(keys), decide))
        try:
            await seat.answer
        except asyncio.CancelledError as cancelled:
            await self._leave(seat, cancelled)
            raise
        return cast("Decided[T]", seat.verdict())

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` and the caller's own SQL in one transaction: both happen, or neither.

        ``work`` gets a connection-like object (on SQLite a :class:`~holdfast.stores.sqlite.SqlWork`) and runs on the
        writer's thread, only if every guard holds. Whatever it raises undoes everything and is raised here.

        Raises:
            UnsuitableStoreError: The store has no SQL to share a transaction with.
            WorkTimeoutError: The work took longer than ``timeout``; everything was undone.
        """
        if not self._limits.commit_with:
            raise UnsuitableStoreError(self._backend.name, "it cannot share a transaction with your SQL")
        check_commit(changes, wake, self._limits)
        check_window(after, before)
        commit = CommitRider(changes, after, before, tuple(wake))
        seat = self._board(WorkRider(commit, work, seconds(timeout, what="timeout")))
        try:
            await seat.answer
        except asyncio.CancelledError as cancelled:
            await self._leave(seat, cancelled)
            raise
        return cast("Worked[T] | Conflict", seat.verdict())

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out for good what became of an attempt whose outcome was unknown."""
        self._check_usable()
        name, _, index = attempt.rpartition("/")
        if not name or not index.isdecimal():
            raise InvalidChangeError(f"{attempt!r} does not name an attempt; pass error.attempt")
        applied = await self._settling.settle(name)
        if applied is None:
            return None
        outcome = applied.outcomes[int(index)]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _board(self, rider: Rider) -> _Seat:
        self._check_usable()
        if len(self._queue) >= MAX_WAITING:
            raise StoreBusyError(self._backend.name, f"{MAX_WAITING:,} commits are waiting already")
        seat = _Seat(rider, self._loop.create_future())
        self._queue.append(seat)
        self._schedule()
        return seat

    async def _leave(self, seat: _Seat, cancelled: asyncio.CancelledError) -> None:
        """Withdraw a rider whose caller was cancelled; too late for that, let the cancellation carry its verdict."""
        if seat.state == _WAITING:
            seat.state = _WITHDRAWN
        else:
            outcome = await self._despite_cancellation(seat)
            cancelled.verdict = outcome  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] -- read by verdict_of

    async def _despite_cancellation(self, seat: _Seat) -> Outcome:
        """Wait for the outcome of a rider that is under way; backends answer in bounded time."""
        while seat.outcome is None:
            seat.answer = self._loop.create_future()
            try:
                await seat.answer
            except asyncio.CancelledError:  # cancelled again: the first cancellation is raised when this is over
                continue
        return seat.outcome

    # --- the group ---------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        # Through the loop, so that every task that is ready in this tick gets on before the transaction leaves.
        if not self._scheduled and not self._busy:
            self._scheduled = True
            self._loop.call_soon(self._depart)

    def _depart(self) -> None:
        self._scheduled = False
        if self._busy or not (seats := self._take()):
            return
        batch = self._batch(seats)
        unknown: OutcomeUnknownError | None = None
        try:
            applied = None if self._settling.pending else self._backend.apply_now(batch)
        except OutcomeUnknownError as problem:
            applied, unknown = None, problem
        except Exception as problem:  # noqa: BLE001 -- each rider gets it
            self._fail(seats, batch, problem)
            self._again()
            return
        if applied is None:
            self._busy = True
            self.own(self._travel(seats, batch, unknown))
        else:
            self._arrive(seats, applied)
            self._again()

    def _take(self) -> list[_Seat]:
        seats: list[_Seat] = []
        queue = self._queue
        while queue and len(seats) < MAX_RIDERS:
            alone = type(queue[0].rider) is WorkRider
            if alone and seats:
                break
            seat = queue.popleft()
            if seat.state == _WAITING:
                seat.state = _TAKEN
                seats.append(seat)
                if alone:
                    break
        return seats

    def _batch(self, seats: list[_Seat]) -> Batch:
        self._attempts += 1
        return Batch(f"{self._id}.{self._attempts}", tuple([seat.rider for seat in seats]))

    async def _travel(self, seats: list[_Seat], batch: Batch, unknown: OutcomeUnknownError | None) -> None:
        try:
            await self._settling.settle_pending()
            applied = await self._settling.apply(batch, lambda: self._batch(seats), unknown)
        except Exception as problem:  # noqa: BLE001 -- each rider gets it
            self._fail(seats, batch, problem)
        else:
            self._arrive(seats, applied)
        finally:
            self._busy = False
            self._again()

    def _again(self) -> None:
        if self._queue:
            self._schedule()

    def _arrive(self, seats: list[_Seat], applied: Applied) -> None:
        for seat, outcome in zip(seats, applied.outcomes, strict=True):
            seat.settle(outcome)
        if applied.changed or applied.wakes:
            self._backend.ring(applied.changed, applied.wakes)

    def _fail(self, seats: list[_Seat], batch: Batch, problem: Exception) -> None:
        for index, seat in enumerate(seats):
            if isinstance(problem, OutcomeUnknownError):
                seat.settle(
                    OutcomeUnknownError(problem.store, problem.problem, f"{problem.attempt or batch.attempt}/{index}")
                )
            else:
                seat.settle(problem)

    # --- life --------------------------------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` to its end whoever is cancelled meanwhile; :meth:`aclose` waits for it."""
        task = self._loop.create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task

    def _check_usable(self) -> None:
        self._guard.check()
        if self._closing is not None:
            raise StoreClosedError(self._backend.name, "it was closed; open a new one")
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoopError(f"the store {self._backend.name}", "belongs to another event loop")

    async def aclose(self) -> None:
        """Finish what is under way and let go of everything. Closing twice is fine."""
        if self._guard.crossed:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        while self._queue or self._busy or self._owned:
            self._schedule()
            await asyncio.gather(*self._owned, return_exceptions=True)
            await asyncio.sleep(0)
        for watch in tuple(self._watches):
            watch.stop()
        await self._backend.aclose()
