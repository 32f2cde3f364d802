"""Group commit: the store that common code makes of any backend.

Commits and updates that arrive while a transaction is under way ride in the next one together, each with its own
verdict.

Riders leave in the order in which they came. After a transaction is answered the loop runs once before the next one
leaves, so that all riders that waited for it get on together. A rider that has been alone for a while leaves at once,
and lets the loop run once afterwards: riders that come in that turn share the next transaction.

Many riders on their way to a server are parted into halves. While the server works for one half, the tasks of the
other go on and come back; when the answer is there the other half leaves first, and only then are the tasks of the
first half resumed.

The words of this module: a *rider* is a commit, update or choice that waits to be applied; it *boards* when it is
handed in and has a *seat*, where its answer is put; a batch *departs* when it is sent to the backend, *travels* while
that works on it, and *arrives* when its riders are answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import re
import types
from asyncio import get_running_loop
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final
from weakref import WeakSet

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.durations import seconds
from standfast.errors import (
    InvalidChangeError,
    OutcomeUnknownError,
    StandfastError,
    StoreBusyError,
    StoreClosedError,
    StoreError,
    UnsuitableStoreError,
    UsageError,
)
from standfast.events import NO_HOOKS, Committed, SlowCommit
from standfast.ids import new_id
from standfast.stores.backend import (
    Applied,
    Arrival,
    Batching,
    ChoiceRider,
    CommitRider,
    Counted,
    Deferred,
    Measured,
    Outcome,
    Rider,
    RiderBatch,
    SendsAtOnce,
    Sized,
    UpdateRider,
    WorkRider,
    namespace_of,
    transfer_of,
    weight_of,
)
from standfast.stores.liveness import ForkGuard
from standfast.stores.protocol import Choice, Commit, Conflict, Put
from standfast.stores.settlement import AttemptSettler
from standfast.stores.user_transactions import user_transactions_of
from standfast.stores.validation import (
    A_FEW,
    check_alternatives,
    check_commit,
    check_read,
    check_scan,
    check_window,
    is_plain,
    takes_a_few,
)
from standfast.stores.watch import BackendWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Backend, Transfer
    from standfast.stores.protocol import (
        Alternative,
        Capabilities,
        Change,
        Decided,
        Decision,
        Snapshot,
        StoreMeasure,
        StoreSize,
        Verdict,
        Wake,
        Watch,
        Worked,
    )
    from standfast.stores.user_transactions import UserTransactions


# --- the group: riders that wait for the next transaction, and riders under way ------------------------------------

T = TypeVar("T")

MAX_WAITING: Final = 100_000
"""Beyond this many commits waiting on one handle, more are refused: the store is not keeping up."""


ANY_NUMBER: Final = Batching()

USED_TO_BE_ALONE: Final = 3
"""After this many transactions in a row with one rider each, the next rider waits for no company."""

AT_ONCE_IN_A_ROW: Final = 8
"""How many riders in a row leave at once before the loop runs."""

A_CROWD: Final = 64
"""This many riders are parted into halves, where those take turns, if this process takes longer than the server."""

TOLD_AT_ONCE: Final = 200
"""How many riders are resumed in one turn of the event loop: what each does then takes some 100 µs."""

A_PAUSE: Final = 0.1
"""Riders that come back after this many seconds were not at work: halves would gain nothing."""

MEASURED_EVERY: Final = 60.0
"""Seconds between two times that a server is asked how much it keeps."""

SLOW_COMMIT: Final = 0.5
"""A transaction that takes longer than this many seconds is told to the hooks."""


def verdict_of(cancelled: asyncio.CancelledError) -> Verdict | Exception | None:
    """Return the verdict of a commit or update whose caller was cancelled when it was already under way.

    None means that it was withdrawn: nothing was written. Catch the error where the call was awaited:
    ``asyncio.gather(..., return_exceptions=True)`` makes a new one that knows nothing.
    """
    return getattr(cancelled, "verdict", None)


class Seat(Struct, eq=False):
    """A rider's place in the group, and later its outcome. A struct, because one is made for every commit."""

    rider: Rider
    answer: asyncio.Future[None] | Arrival | None = None
    outcome: Outcome | None = None
    state: int = 0

    def settle(self, outcome: Outcome) -> None:
        """Give the rider its outcome."""
        self.outcome = outcome
        if isinstance(self.answer, asyncio.Future) and not self.answer.done():
            self.answer.set_result(None)


_WAITING, _TAKEN, _WITHDRAWN = range(3)


@final
class CommitGroup:
    """Riders on their way to one backend, on one event loop."""

    def __init__(self, backend: Backend, hooks: Hooks, batching: Batching = ANY_NUMBER) -> None:
        self._backend: Final = backend
        self._apply_soon: Final = backend.apply_soon if isinstance(backend, SendsAtOnce) else None
        self._batching: Final = batching
        self._hooks, self._tells_commits = hooks, hooks.want(Committed)
        self._tally_commit: Final[Callable[[str, float, int, int], None] | None] = hooks.tally_of(Committed)
        self._loop: Final = asyncio.get_running_loop()
        self._done: Final[asyncio.Future[None]] = self._loop.create_future()
        self._done.set_result(None)
        self._name: Final = new_id()
        self._attempts = 0
        self._queue: Final[deque[Seat]] = deque()
        self._owned: Final[set[asyncio.Task[Any]]] = set()
        self._scheduled = self._is_halved = False
        self._under_way: list[Seat] | None = None
        self._left_at = self._arrived_at = self._boarded_at = 0.0
        self._alone = 0
        self._is_quick = False  # whether the last batch was applied in the call: then none is left to be settled
        self.wants_pause = False
        """Whether enough riders have left at once when the last one did."""
        self.settling: Final = AttemptSettler(backend, hooks)
        self.problem: Exception | None = None
        """What the last transaction failed with; None: it did not."""

    def board(self, rider: Rider) -> Seat:
        """Take a seat in the next transaction, or in one that has left already.

        Await ``seat.answer``, or :meth:`pause` if there is none, and call :meth:`leave` if that is cancelled: then the
        rider is withdrawn. Too late for that, the cancellation carries the verdict.
        """
        seat = Seat(rider)
        if self._alone >= USED_TO_BE_ALONE and not (self._queue or self._under_way or self._scheduled):
            seat.state = _TAKEN
            sent = self._send([seat])
            if sent is not None:
                seat.answer = Arrival(sent, self._done)
                return seat
            if seat.outcome is not None:
                self._alone += 1
                self.wants_pause = self._alone >= USED_TO_BE_ALONE + AT_ONCE_IN_A_ROW
                return seat
        else:
            self._line_up(seat)
        seat.answer = asyncio.Future(loop=self._loop)
        return seat

    def at_once(self, rider: Rider) -> Outcome | Seat | None:
        """Apply a rider in this very call, if it is alone as it used to be; None: nothing was done, it is to board.

        As :meth:`board` does where the backend applies at once, for a lone commit without a call for each part of it.
        A seat: its outcome is to be waited for. Every so often it is None, so that :meth:`pause` lets the loop run.
        """
        if (
            not self._is_quick
            or not USED_TO_BE_ALONE <= self._alone < USED_TO_BE_ALONE + AT_ONCE_IN_A_ROW - 1
            or self._queue
            or self._under_way
            or self._scheduled
        ):
            return None
        self._attempts += 1
        batch, started = RiderBatch(f"{self._name}.{self._attempts}", (rider,)), monotonic()
        try:
            applied = self._backend.apply_now(batch)
        except OutcomeUnknownError as unknown:
            seat = Seat(rider, asyncio.Future(loop=self._loop), None, _TAKEN)
            self._is_quick = False
            self._under_way, self._left_at = [seat], started
            self._begin_travel(self._under_way, batch, unknown)
            return seat
        except Exception as error:  # noqa: BLE001 -- it is raised where the rider is awaited
            self.problem = error
            return own_copy(error)
        if applied is None:
            self._is_quick = False
            return None
        self._alone += 1
        self.problem, self._arrived_at = None, monotonic()
        if applied.changed or applied.wakes:
            self._backend.notify(applied.changed, applied.wakes)
        if self._tells_commits or self._arrived_at - started > SLOW_COMMIT:
            self._tell(1, applied.outcomes, self._arrived_at - started)
        return applied.outcomes[0]

    async def until_settled(self, seat: Seat) -> None:
        """Wait on for an outcome: the first answer was not the last."""
        while seat.outcome is None:
            seat.answer = asyncio.Future(loop=self._loop)
            await seat.answer

    def expect_another(self) -> None:
        """Let the next rider wait for the one after it, which comes in the same turn of the loop or in the next."""
        self._alone = 0

    async def pause(self) -> None:
        """Let the loop run once if enough riders have left at once: it may be that they are not alone."""
        if not self.wants_pause:
            return
        self._alone, self.wants_pause = 0, False  # riders that come in that turn of the loop wait for company
        await _one_turn()
        if not self._scheduled:
            self._alone = USED_TO_BE_ALONE

    def _line_up(self, seat: Seat) -> None:
        if len(self._queue) >= MAX_WAITING:
            raise StoreBusyError(self._backend.name, f"{MAX_WAITING:,} commits are waiting already")
        self._queue.append(seat)
        self._boarded_at = monotonic()
        if not self._scheduled and not self._under_way:  # as _schedule does; this is called for every commit
            self._schedule()

    async def leave(self, seat: Seat, cancelled: asyncio.CancelledError) -> None:
        """Withdraw a rider whose caller was cancelled; too late for that, let the cancellation carry its verdict."""
        if seat.state == _WAITING:
            seat.state = _WITHDRAWN
        else:
            outcome = await self._despite_cancellation(seat)
            cancelled.verdict = outcome  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] -- read by verdict_of

    async def _despite_cancellation(self, seat: Seat) -> Outcome | None:
        """Wait for the outcome of a rider that is under way; backends answer in bounded time.

        Cancelled again, the first cancellation is raised when this is over; put off by then, it is withdrawn.
        """
        while seat.outcome is None:
            seat.answer = self._loop.create_future()
            try:
                await seat.answer
            except asyncio.CancelledError:
                if seat.state == _WAITING:
                    seat.state = _WITHDRAWN
                    return None
        return seat.outcome

    def _schedule(self) -> None:
        # Through the loop, so that every task that is ready in this tick gets on before the transaction leaves.
        if not self._scheduled and not self._under_way:
            self._scheduled = True
            self._loop.call_soon(self._depart)

    def _depart(self) -> None:
        self._scheduled = False
        if self._under_way:
            return
        waiting, most = len(self._queue), self._batching.max_riders
        flight, worked = self._arrived_at - self._left_at, monotonic() - self._arrived_at
        self._is_halved = self._batching.in_halves and waiting >= A_CROWD and flight <= worked < A_PAUSE
        if seats := self._take(min(most, (waiting + 1) // 2) if self._is_halved else most):
            self._alone = min(self._alone + 1, USED_TO_BE_ALONE) if len(seats) == 1 else 0
            self._send(seats)

    def _send(self, seats: list[Seat]) -> asyncio.Future[Any] | None:
        """Let a batch depart; if it was sent without a task, return what is done when the answer is there."""
        batch, started = self._batch(seats), monotonic()
        unknown: OutcomeUnknownError | None = None
        try:
            applied = None if self.settling.pending else self._backend.apply_now(batch)
        except OutcomeUnknownError as error:
            applied, unknown = None, error
        except Exception as error:  # noqa: BLE001 -- each rider gets it
            self._fail(seats, batch, error)
            self._again()
            return None
        except BaseException:  # Ctrl-C, say: the loop gets it, and no rider may be left waiting
            self._fail(seats, batch, OutcomeUnknownError(self._backend.name, "it was interrupted"))
            self._again()
            raise
        self._is_quick = applied is not None
        if applied is None:
            self._under_way, self._left_at = seats, started
            if self._apply_soon is not None and unknown is None and self.settling.pending is None:
                sent = self._apply_soon(batch, functools.partial(self._answered, seats, batch, started))
                if sent is not None:
                    return sent
            self._begin_travel(seats, batch, unknown)
        elif len(seats) == 1 and not (self._queue or type(applied.outcomes[0]) is Deferred):
            self._arrive_alone(seats[0], applied, started)
        else:
            self._arrive(seats, applied, started)
            if self._queue:
                self._schedule()
        return None

    def _take(self, most: int) -> list[Seat]:  # noqa: C901 -- one loop over a thousand riders, without a call for each
        seats: list[Seat] = []
        queue, size = self._queue, 0
        if len(queue) == 1 and (alone := queue[0]).state == _WAITING and (not alone.answer or not alone.answer.done()):
            alone.state = _TAKEN
            return [queue.popleft()]
        batching, weight, namespace = self._batching, 0, b""
        apart: type | None = None  # the riders that cannot travel with those that have a seat
        while queue and len(seats) < most and size < batching.max_bytes:
            rider = queue[0].rider
            weighs = len(rider.changes) if type(rider) is CommitRider else weight_of(rider)
            if not seats:
                namespace = b"" if batching.spans_namespaces else namespace_of(rider)
            elif (
                type(rider) is WorkRider
                or type(rider) is apart
                or ((apart is UpdateRider or type(rider) is ChoiceRider) and 0 < batching.max_choices <= len(seats))
                or weight + weighs > batching.max_weight
                or (namespace and namespace_of(rider) != namespace)
            ):
                break
            seat = queue.popleft()
            if seat.state == _WAITING and not (seat.answer is not None and seat.answer.cancelled()):
                seat.state = _TAKEN
                seats.append(seat)
                weight += weighs
                if type(rider) is WorkRider:
                    break
                if type(rider) is CommitRider:
                    for change in rider.changes:
                        if type(change) is Put:
                            size += len(change.value)
                    continue
                if type(rider) is ChoiceRider:
                    size += rider.size
                if batching.max_choices:
                    apart = UpdateRider if type(rider) is ChoiceRider else ChoiceRider
        return seats

    def _batch(self, seats: list[Seat]) -> RiderBatch:
        self._attempts += 1
        riders = (seats[0].rider,) if len(seats) == 1 else tuple([seat.rider for seat in seats])
        name = f"{self._name}.{self._attempts}"
        if not self._batching.spans_namespaces:
            name = f"{name}@{namespace_of(riders[0]).hex()}"
        return RiderBatch(name, riders)

    def _begin_travel(self, seats: list[Seat], batch: RiderBatch, unknown: OutcomeUnknownError | None) -> None:
        travel = self._loop.create_task(self._travel(seats, batch, unknown))
        self._owned.add(travel)  # as own() does, with one callback for both
        travel.add_done_callback(functools.partial(self._ended, seats, batch))

    def _answered(
        self, seats: list[Seat], batch: RiderBatch, started: float, applied: Applied | Exception | None
    ) -> None:
        """Go on with a batch that was sent without a task, as :meth:`_travel` does."""
        if self._under_way is not seats:
            return
        if applied is None or isinstance(applied, OutcomeUnknownError):
            self._begin_travel(seats, batch, applied)
            return
        self._over(seats)
        try:
            if isinstance(applied, Exception):
                self._fail(seats, batch, applied)
            elif len(seats) == 1 and not (self._queue or type(applied.outcomes[0]) is Deferred):
                self._arrive_alone(seats[0], applied, started)
            else:
                self._arrive(seats, applied, started)
        finally:
            self._again()

    async def _travel(self, seats: list[Seat], batch: RiderBatch, unknown: OutcomeUnknownError | None) -> None:
        started, settling, applied = monotonic(), self.settling, None
        try:
            if settling.pending is not None:
                await settling.settle_pending()
            elif unknown is None:  # nearly always: nothing is to be settled, and then nothing is asked to
                try:
                    applied = await self._backend.apply(batch)
                except OutcomeUnknownError as error:
                    unknown = error
            if applied is None:
                applied = await settling.apply(batch, lambda: self._batch(seats), unknown)
        except Exception as error:  # noqa: BLE001 -- each rider gets it
            self._fail(seats, batch, error)
        else:
            self._over(seats)
            self._arrive(seats, applied, started)
        finally:
            self._over(seats)
            self._again()

    def _over(self, seats: list[Seat]) -> None:
        if self._under_way is seats:  # else the other half has left meanwhile
            self._under_way = None

    def _ended(self, seats: list[Seat], batch: RiderBatch, travel: asyncio.Task[None]) -> None:
        self._owned.discard(travel)
        # Cancelled when the loop is shut down, perhaps before it began: then no rider may be left waiting for it.
        if travel.cancelled() or travel.exception() is not None:
            self._over(seats)
            self._fail(seats, batch, OutcomeUnknownError(self._backend.name, "the event loop was shut down"))

    def _again(self) -> None:
        if self._queue:
            self._schedule()

    def _arrive(self, seats: list[Seat], applied: Applied, started: float) -> None:
        outcomes, self.problem = applied.outcomes, None
        if Deferred in {*map(type, outcomes)}:
            for seat in [seat for seat, each in zip(seats, outcomes, strict=True) if type(each) is Deferred][::-1]:
                seat.state = _WAITING
                self._queue.appendleft(seat)
        self._arrived_at = monotonic()
        flight, worked = self._arrived_at - self._left_at, self._boarded_at - self._left_at
        if (
            self._batching.in_halves
            and len(self._queue) >= max(A_CROWD, len(seats)) // 2
            and (self._is_halved or flight <= 2 * worked)
        ):
            self._send_the_others()
        later = deque[asyncio.Future[None]]()
        for seat, outcome in zip(seats, outcomes, strict=True):
            if type(outcome) is Deferred:
                continue
            seat.outcome = outcome  # as Seat.settle does, without a call for each of a thousand
            answer = seat.answer
            if isinstance(answer, asyncio.Future) and not answer.done():
                later.append(answer)
        self._tell_some(later)
        if applied.changed or applied.wakes:
            self._backend.notify(applied.changed, applied.wakes)
        taken = monotonic() - started
        if self._tells_commits or taken > SLOW_COMMIT:
            self._tell(len(seats), outcomes, taken)

    def _tell_some(self, answers: deque[asyncio.Future[None]]) -> None:
        """Resume riders, in each turn of the loop some: what else is ready has its turn between them."""
        for _ in range(min(TOLD_AT_ONCE, len(answers))):
            answer = answers.popleft()
            if not answer.done():
                answer.set_result(None)
        if answers:
            self._loop.call_soon(self._tell_some, answers)

    def _arrive_alone(self, seat: Seat, applied: Applied, started: float) -> None:
        """Answer one rider as :meth:`_arrive` does; none waits for the next transaction."""
        self.problem, seat.outcome, self._arrived_at = None, applied.outcomes[0], monotonic()
        if isinstance(seat.answer, asyncio.Future) and not seat.answer.done():
            seat.answer.set_result(None)
        if applied.changed or applied.wakes:
            self._backend.notify(applied.changed, applied.wakes)
        if self._tells_commits or self._arrived_at - started > SLOW_COMMIT:
            self._tell(1, applied.outcomes, self._arrived_at - started)

    def _tell(self, riders: int, outcomes: Sequence[Outcome], taken: float) -> None:
        if self._tells_commits:
            store, lost = self._backend.name, [type(each) for each in outcomes].count(Conflict)
            if self._tally_commit is not None:
                self._tally_commit(store, taken, riders, lost)
            else:
                now = SYSTEM_CLOCK.wall()
                self._hooks.emit(Committed(at=now, store=store, seconds=taken, riders=riders, conflicts=lost))
        if taken > SLOW_COMMIT:
            now, store = SYSTEM_CLOCK.wall(), self._backend.name
            self._hooks.emit(SlowCommit(at=now, store=store, seconds=taken, riders=riders))

    def _send_the_others(self) -> None:
        """Let the other half leave: those of this one, who are told next, have something to do meanwhile."""
        self._is_halved = False  # from now on it shows how long they take
        if seats := self._take(self._batching.max_riders):
            self._alone = 0
            self._send(seats)

    def _fail(self, seats: list[Seat], batch: RiderBatch, error: Exception) -> None:
        self.problem = error
        for index, seat in enumerate(seats):
            if isinstance(error, OutcomeUnknownError):
                attempt = f"{error.attempt or batch.attempt}/{index}"
                seat.settle(OutcomeUnknownError(error.store, error.problem, attempt))
            else:
                seat.settle(own_copy(error))

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` to its end, also if its caller is cancelled; :meth:`drain` waits for it."""
        task = self._loop.create_task(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)
        return task

    async def drain(self) -> None:
        """Wait until no rider waits and nothing is under way."""
        while self._queue or self._under_way or self._owned:
            self._schedule()
            answers = [seat.answer for seat in self._under_way or () if seat.answer is not None]
            under_way = [each.sent if isinstance(each, Arrival) else each for each in answers]
            if waits := [*self._owned, *under_way]:
                await asyncio.wait(waits)
            await asyncio.sleep(0)


@types.coroutine
def _one_turn() -> Generator[None]:
    """Let everyone else who is ready run once."""
    yield


def own_copy(error: Exception) -> Exception:
    """Return a copy for one rider: an exception that is raised in several tasks would collect all their tracebacks."""
    if not isinstance(error, StandfastError):
        return error
    copied = copy.copy(error)
    copied.__cause__ = error.__cause__
    return copied


# --- the store -----------------------------------------------------------------------------------------------------
#
# Commits and updates that arrive while a transaction is under way ride in the next one together, each with its own
# verdict; that is where the speed comes from. What is the same for every server lives here: the rules, the order,
# withdrawal on cancellation, settling unknown outcomes, and notifications after the commit is durable.

_ATTEMPT: Final = re.compile(r"[0-9a-f-]{36}\.[1-9][0-9]{0,14}(@(?:[0-9a-f]{2}){1,1000})?/[0-9]{1,4}", re.ASCII)
"""A group's id and a number, as the group names its attempts, and a rider of it.

Where a transaction stays inside one namespace, because a store may keep each on a server of its own, the name says
which: only there can the attempt be closed.
"""


@final
class GroupedStore:
    """A :class:`~standfast.stores.protocol.Store` over a backend. It belongs to the event loop it is made in."""

    def __init__(self, backend: Backend, hooks: Hooks = NO_HOOKS, *, batching: Batching = ANY_NUMBER) -> None:
        self._backend: Final = backend
        self._batching: Final = batching
        self._hooks: Final = hooks
        self._limits: Final = backend.capabilities
        self._is_narrow: Final = not takes_a_few(self._limits)
        self._loop: Final = asyncio.get_running_loop()
        self._guard: Final = ForkGuard(backend.name)
        self._group: Final = CommitGroup(backend, hooks, batching)
        self._watches: Final[WeakSet[BackendWatch]] = WeakSet()
        self._closing: asyncio.Task[None] | None = None
        self._measured: StoreMeasure | None = None
        self._measured_at: float | None = None

    def __repr__(self) -> str:
        return f"<GroupedStore {self._backend.name}>"

    def __str__(self) -> str:
        return self._backend.name

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return self._limits

    @property
    def write_problem(self) -> Exception | None:
        """What the last transaction of this handle failed with; None: it did not, or there was none yet."""
        return self._group.problem

    def expect_another(self) -> None:
        """Say that two tasks are about to commit: the first waits for the second, and they share a transaction."""
        self._group.expect_another()

    @property
    def backend(self) -> Backend:
        """The backend underneath, for what only it offers."""
        return self._backend

    # --- reading ---------------------------------------------------------------------------------------------

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
        """Subscribe to keys that equal or continue one of ``prefixes``."""
        self._check_usable()
        check_read(prefixes, self._limits)
        watch = BackendWatch(self._backend, prefixes, self._check_usable)
        self._watches.add(watch)
        return watch

    # --- writing ---------------------------------------------------------------------------------------------

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Do all of ``changes`` or none, durably, if every guard holds and ``after <= store time < before``."""
        if self._closing is not None or get_running_loop() is not self._loop or self._guard.crossed:
            self._check_usable()
        if wake or not is_plain(changes, self._limits):
            check_commit(changes, wake, self._limits)
        if after is not None or before is not None:
            check_window(after, before)
        group = self._group
        seat = group.board(CommitRider(changes, after, before, tuple(wake)))  # from here on as _carry does
        try:
            if seat.answer is not None:
                await seat.answer
                if seat.outcome is None:
                    await group.until_settled(seat)
            elif group.wants_pause:
                await group.pause()
        except asyncio.CancelledError as cancelled:
            await group.leave(seat, cancelled)
            raise
        outcome = seat.outcome
        return outcome if type(outcome) is Commit else cast("Conflict", _verdict(cast("Outcome", outcome)))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Run the pure function ``decide`` on the records at ``keys`` and commit what it decides."""
        self._check_usable()
        check_read(keys, self._limits)
        return cast("Decided[T]", await self._carry(UpdateRider(tuple(keys), decide)))

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Do the first of ``alternatives`` whose guards hold, durably, in one round trip."""
        self._check_usable()
        if not self._limits.alternatives:
            raise UnsuitableStoreError(self._backend.name, "it cannot choose between alternatives; use commit")
        check_alternatives(alternatives, self._limits)
        return await self.choose_unchecked(*alternatives)

    def choose_unchecked(self, *alternatives: Alternative) -> Coroutine[Any, Any, Choice | Conflict]:
        """Do as :meth:`choose` does with alternatives of our own making, of keys that were checked once.

        It is called in the loop of this store: what the caller itself makes sure of is not checked again.
        """
        return self._carry(ChoiceRider(alternatives))  # type: ignore[return-value]  # pyright: ignore[reportReturnType] -- a choice gets nothing else, and a cast is a call

    def commit_unchecked(self, *changes: Change) -> Coroutine[Any, Any, Commit | Conflict]:
        """Do as :meth:`commit` does with changes of our own making: keys of one space, each once, and encoded records.

        What may be too much for a store is checked all the same. It is called in the loop of this store.
        """
        if len(changes) > A_FEW or self._is_narrow:
            return self.commit(*changes)
        return cast("Coroutine[Any, Any, Commit | Conflict]", self._carry(CommitRider(changes)))

    def commit_at_once(self, *changes: Change) -> Commit | Coroutine[Any, Any, Commit | Conflict]:
        """Do as :meth:`commit_unchecked` does; return the commit itself if it was done in this very call."""
        if len(changes) > A_FEW or self._is_narrow or self._closing is not None or self._guard.crossed:
            return self.commit_unchecked(*changes)
        rider = CommitRider(changes)
        outcome = self._group.at_once(rider)
        if type(outcome) is Commit:
            return outcome
        return cast("Coroutine[Any, Any, Commit | Conflict]", self._carry(rider, outcome))

    async def _carry(self, rider: Rider, outcome: Outcome | Seat | None = None) -> Verdict:
        """Let a rider ride, and return its verdict; perhaps it has boarded already."""
        group = self._group
        if outcome is None:
            if self._closing is not None or self._guard.crossed:
                self._check_usable()
            outcome = group.at_once(rider) or group.board(rider)
        if type(outcome) is Commit or type(outcome) is Choice:
            return outcome
        if type(outcome) is not Seat:
            return _verdict(cast("Outcome", outcome))
        seat = outcome
        try:
            if seat.answer is not None:
                await seat.answer
                if seat.outcome is None:
                    await group.until_settled(seat)
            elif group.wants_pause:
                await group.pause()
        except asyncio.CancelledError as cancelled:
            await group.leave(seat, cancelled)
            raise
        outcome = seat.outcome
        if type(outcome) is Commit or type(outcome) is Choice:
            return outcome
        return _verdict(cast("Outcome", outcome))

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        extra_changes: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` and the caller's own SQL in one transaction: both happen, or neither.

        ``work`` gets a connection-like object (on SQLite a :class:`~standfast.stores.sqlite.SqliteWork`) and runs on
        the writer's thread, only if every guard holds. Whatever it raises undoes everything and is raised here.

        ``extra_changes`` is called with the work's answer, on the same thread, and returns further changes, for example
        a record of the answer. They join ``changes``, under the rules of one commit: if a guard of theirs does not
        hold, everything is undone, the work included, and the answer is the ``Conflict``. What ``extra_changes`` raises
        undoes everything as well, and its time counts as the work's.

        Raises:
            UnsuitableStoreError: The store has no SQL to share a transaction with.
            InvalidChangeError: The changes break a rule, alone or together with those of ``extra_changes``.
            WorkTimeoutError: The work took longer than ``timeout``; everything was undone.
        """
        if not self._limits.commit_with:
            raise UnsuitableStoreError(self._backend.name, "it cannot share a transaction with your SQL")
        self._check_usable()
        check_commit(changes, wake, self._limits)
        check_window(after, before)
        commit = CommitRider(changes, after, before, tuple(wake))
        rider = WorkRider(commit, work, seconds(timeout, what="timeout"), extra_changes)
        return cast("Worked[T] | Conflict", await self._carry(rider))

    async def user_transactions(self) -> UserTransactions:
        """Return what this store can do over connections of the user's, in transactions of theirs.

        Raises:
            UnsuitableStoreError: Nothing: it is no PostgreSQL.
        """
        self._check_usable()
        return await user_transactions_of(self._backend, self._backend.name)

    def size(self) -> StoreSize | None:
        """Return how large the store is; None if its backend does not say: a server has its own ways to tell."""
        self._check_usable()
        return self._backend.size() if isinstance(self._backend, Sized) else None

    async def measure(self) -> StoreMeasure | None:
        """Return about how much a server keeps for this store, as it said in the last minute; None if it does not tell.

        A user that may not ask for it gets nothing, and no error.
        """
        self._check_usable()
        is_known = self._measured_at is not None and monotonic() < self._measured_at + MEASURED_EVERY
        if isinstance(self._backend, Measured) and not is_known:
            self._measured_at = monotonic()
            with contextlib.suppress(StoreError):
                self._measured = await self._backend.measure()
        return self._measured

    def count(self, most: int) -> int | None:
        """Return how many records there are, up to a number; None if its backend cannot count at little cost."""
        self._check_usable()
        return self._backend.count(most) if isinstance(self._backend, Counted) else None

    def transfer(self) -> Transfer:
        """Return what moves everything in this store to another one.

        Raises:
            UnsuitableStoreError: Its backend cannot do it.
        """
        self._check_usable()
        return transfer_of(self._backend, self._backend.name)

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out for good what became of an attempt whose outcome was unknown."""
        self._check_usable()
        if not _ATTEMPT.fullmatch(attempt):
            raise InvalidChangeError(f"{attempt!r} does not name an attempt; pass error.attempt")
        name, _, index = attempt.rpartition("/")
        applied = await self._group.settling.settle(name)
        if applied is None:
            return None
        if int(index) >= len(applied.outcomes):
            raise InvalidChangeError(f"{attempt!r} names none of the {len(applied.outcomes)} riders of its attempt")
        outcome = applied.outcomes[int(index)]
        return None if isinstance(outcome, Deferred) else _verdict(outcome)

    # --- life ------------------------------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` to its end, also if its caller is cancelled; :meth:`aclose` waits for it."""
        return self._group.own(work)

    def _check_usable(self) -> None:
        if self._closing is None and get_running_loop() is self._loop and not self._guard.crossed:
            return
        self._check_open()
        raise UsageError(
            f"the store {self._backend.name}",
            "belongs to another event loop",
            "make one for each event loop, or use a store to share between threads",
        )

    def _check_open(self) -> None:
        self._guard.check()
        if self._closing is not None:
            raise StoreClosedError(self._backend.name, "it was closed; open a new one")

    async def another(self) -> GroupedStore:
        """Open another handle on the same store, on the running loop, which may be another one in another thread."""
        self._check_open()
        return GroupedStore(await self._backend.another(), self._hooks, batching=self._batching)

    def liveness_token(self) -> str:
        """Return a text by which other processes see that this one has died; empty if this store cannot see deaths."""
        return "" if self._is_over() else self._backend.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has certainly died, or closed its last handle."""
        return not self._is_over() and self._backend.is_dead(token)

    def _is_over(self) -> bool:
        return self._closing is not None or self._guard.crossed

    async def aclose(self) -> None:
        """Finish what is under way and release everything. Closing twice is fine."""
        if self._guard.crossed:
            return
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._group.drain()
        for watch in tuple(self._watches):
            watch.stop()
        await self._backend.aclose()


def _verdict(outcome: Outcome) -> Verdict:
    """Return the verdict, or raise what became of it instead."""
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, Deferred):
        raise TypeError("a rider that must ride again has no verdict yet")
    return outcome
