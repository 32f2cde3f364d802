"""The SQLite backend: which thread does what, and how long a caller waits.

A commit runs on the event loop when the last one was quick and the turn to write is free; a thread would only add
its own hops. Otherwise it waits on the writer's thread. Checkpoints, sweeps and the search for foreign descriptors
run on a thread of their own, when there has been something to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import apsw

from standfast.clock import SYSTEM_CLOCK, monotonic
from standfast.errors import OutcomeUnknownError, StoreBusyError, StoreError, UnsuitableStoreError
from standfast.events import Checkpointed, ClockStepped, ForeignHandleSeen, StoreSized, Swept
from standfast.stores.backend import WorkRider
from standfast.stores.liveness import ForkGuard
from standfast.stores.sqlite.connection import connect, disconnect, grow_log, log_is_grown, unshare
from standfast.stores.sqlite.database import TOLERANCE, SqliteTransfer
from standfast.stores.sqlite.wakeups import WakeSockets, is_supported
from standfast.threads import Lane

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, RiderBatch, Subscriber
    from standfast.stores.protocol import Capabilities, Snapshot, StoreSize, Wake
    from standfast.stores.sqlite.connection import SharedFile, SqliteConnection
    from standfast.stores.sqlite.database import ClockStep, Database
    from standfast.stores.sqlite.file import SqliteOptions

    Again = Callable[[], Coroutine[Any, Any, "SqliteBackend"]]


# --- polling: finds commits whose notifications were lost ----------------------------------------------------------

SLOW_CHECK: Final = 1.0
"""How many seconds a lost notification can go unnoticed."""


@final
class ChangePoller:
    """Notifies all subscribers of one handle that anything may have changed, when something was committed.

    One poll serves them all; without subscribers there is none.
    """

    __slots__ = ("_database", "_loop", "_seen", "_subscribers", "_timer")

    def __init__(self, database: Database) -> None:
        self._database: Final = database
        self._loop: Final = asyncio.get_running_loop()
        self._subscribers: Final[dict[object, Subscriber]] = {}
        self._seen = 0
        self._timer: asyncio.TimerHandle | None = None

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Notify ``subscriber`` when something was committed, until the returned function is called."""
        token = object()
        if self._timer is None:
            self._seen = self._version()
            self._timer = self._loop.call_later(SLOW_CHECK, self._poll)
        self._subscribers[token] = subscriber
        return functools.partial(self._forget, token)

    def _forget(self, token: object) -> None:
        self._subscribers.pop(token, None)
        if not self._subscribers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _poll(self) -> None:
        self._timer = self._loop.call_later(SLOW_CHECK, self._poll)
        version = self._version()
        if version != self._seen:
            self._seen = version
            for subscriber in tuple(self._subscribers.values()):
                subscriber.notify(None)

    def _version(self) -> int:
        try:
            return self._database.data_version()
        except StoreError:  # the next read raises it; here it only means: notify
            return -1


# --- upkeep: checkpoints, sweeps of expired records, and the search for foreign descriptors ------------------------
#
# It is done off the loop, on connections of its own, and only after commits: a store at rest does nothing.

CHECKPOINT_PAGES: Final = 1_000
"""The log is written back to the database when it has this many pages: half of the size it is given."""

IN_USE_PAGES: Final = 200
"""A log that has got this many pages is given its size: a handle that is soon closed again writes it for nothing."""

EVERY: Final = 5.0

LOOK_AT_THE_CLOCK: Final = 4
"""One commit on the loop in this many asks whether it is time for upkeep."""

SWEEP_AT_MOST: Final = 200
SWEEPS_AT_MOST: Final = 100

FREE_AT_MOST: Final = 0.04
"""Which part of the file may be free pages: they are used again. What is beyond it is given back.

Pages that are in use are filled by about 85 % where runs come and go, so a file stays within 1.2 times its live data.
"""

FREE_IN_ANY_CASE: Final = 1 << 17
"""Free bytes that are kept however small the file is."""

GIVEN_BACK_AT_ONCE: Final = 64
"""How many pages are given back in one turn: others wait for about a millisecond."""

GIVEN_BACK_FOR: Final = 2.5
"""Seconds in which pages are given back after one sweep, at most: half of the time between two."""

GIVEN_BACK_AT_A_CHECKPOINT: Final = 0.2
"""The same after a checkpoint: where much is deleted, more gets free between two sweeps than may be."""

OTHERS_MAY_WAIT: Final = 0.05
"""How many seconds upkeep waits for readers and other programs: all writers wait for it meanwhile."""


@final
class Upkeep:
    """What a handle does for the file it uses.

    Attributes:
        checkpoint_at: How many pages the log has when it is written back.
    """

    def __init__(self, file: SharedFile, database: Database, options: SqliteOptions, hooks: Hooks) -> None:
        self._file, self._database, self._options = file, database, options
        self._hooks: Final = hooks
        self._name: Final = f"sqlite:///{file.path}"
        self._lane: Final = Lane("sqlite-upkeep")
        self._section: Final = file.new_section()
        self._connection: SqliteConnection | None = None
        self._task: asyncio.Future[None] | None = None
        self._sweep_at = asyncio.get_running_loop().time() + EVERY
        self.checkpoint_at = IN_USE_PAGES

    def consider(self, now: float) -> None:
        """Start upkeep if it is due, by the loop's time, and not under way."""
        is_long, is_late = self._database.log_pages >= self.checkpoint_at, now > self._sweep_at
        if (is_long or is_late) and self._task is None:
            grow = False
            if self.checkpoint_at == IN_USE_PAGES and is_long:
                self.checkpoint_at = CHECKPOINT_PAGES
                grow, is_long = not log_is_grown(self._file.path), self._database.log_pages >= CHECKPOINT_PAGES
                if not (grow or is_long or is_late):
                    return
            if is_late:
                self._sweep_at = now + EVERY
            self._task = self._lane.start(self._do, grow=grow, checkpoint=is_long, sweep=is_late)
            self._task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Future[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # commits and reads meet the same error and report it

    def _do(self, *, grow: bool, checkpoint: bool, sweep: bool) -> None:
        self._look_for_strangers()
        if self._connection is None:
            self._connection = connect(self._file, busy_seconds=OTHERS_MAY_WAIT)
        if grow:
            with self._file.turn:
                grow_log(self._file.path, self._connection)
        if checkpoint:
            self._checkpoint(self._connection)
        if sweep:
            self._file.turn.tell_alone(self._file.alive.is_alone)
            self._sweep(self._connection)
        self._give_back(self._connection, GIVEN_BACK_FOR if sweep else GIVEN_BACK_AT_A_CHECKPOINT, always_tell=sweep)
        if sweep:
            self._follow_wall(self._connection)

    def _look_for_strangers(self) -> None:
        try:
            with self._file.lock:  # not while a thread opens a connection that is not yet known as ours
                self._file.guard.check()
        except UnsuitableStoreError:
            self._hooks.emit(ForeignHandleSeen(at=SYSTEM_CLOCK.wall(), store=self._name))
            raise

    def _checkpoint(self, connection: SqliteConnection) -> None:
        # The bulk is written back while commits go on. They keep the log from starting over, so hold them up for
        # the few pages that are left: a log that grows makes each commit twice as slow.
        started = monotonic()
        with self._section:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        with self._file.turn:
            pages, done = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            # What is left is being read by another program. It may read for long: try again only when more is there.
            self.checkpoint_at = pages + CHECKPOINT_PAGES
            if pages == done:
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
                self.checkpoint_at = CHECKPOINT_PAGES
        if self._hooks:
            at, taken = SYSTEM_CLOCK.wall(), monotonic() - started
            event = Checkpointed(at=at, store=self._name, seconds=taken, pages=pages, remaining=pages - done)
            self._hooks.emit(event)

    def _sweep(self, connection: SqliteConnection) -> None:
        started, removed = monotonic(), 0
        for _ in range(SWEEPS_AT_MOST):
            with self._file.turn:  # let go between sweeps, so that writers wait for one of them at most
                swept = self._database.sweep(connection, SWEEP_AT_MOST)
            removed += swept
            if swept < SWEEP_AT_MOST:
                break
        if self._hooks and removed:
            at, taken = SYSTEM_CLOCK.wall(), monotonic() - started
            self._hooks.emit(Swept(at=at, store=self._name, seconds=taken, removed=removed))

    def _give_back(self, connection: SqliteConnection, longest: float, *, always_tell: bool) -> None:
        """Cut free pages off the end of the file, a few in each turn, until few are left or the time is over."""
        started = monotonic()
        before = size = self._size(connection)
        while size.free > max(FREE_IN_ANY_CASE, FREE_AT_MOST * size.size) and monotonic() - started < longest:
            with self._file.turn:
                self._database.give_back(connection, GIVEN_BACK_AT_ONCE)
            size, last = self._size(connection), size
            if size.size >= last.size:
                break  # a file that was made before pages could be given back, or it grew meanwhile
        if self._hooks and (always_tell or size.size < before.size):
            event = StoreSized(
                at=SYSTEM_CLOCK.wall(),
                store=self._name,
                size=size.size,
                free=size.free,
                given_back=max(0, before.size - size.size),
                seconds=monotonic() - started,
            )
            self._hooks.emit(event)

    def _size(self, connection: SqliteConnection) -> StoreSize:
        with self._section:  # a fork waits for it: a child must not inherit what SQLite has locked in this thread
            return self._database.size(connection)

    def _follow_wall(self, connection: SqliteConnection) -> None:
        """Let the store's time follow the time of day, once for each step of the clock that this process sees."""
        ahead, known = self._database.wall_ahead(), self._file.wall_ahead
        if known is not None and abs(ahead - known) <= TOLERANCE:
            return
        with self._file.turn:
            is_followed, step = self._database.follow_wall(connection)
        if is_followed:
            self._file.wall_ahead = ahead
        if step is not None:
            tell_clock_step(step, self._file, self._hooks)

    async def aclose(self) -> None:
        """Close when what is under way has ended, off the loop: the last to close writes the log back."""
        if self._task is not None:
            await asyncio.wait({self._task})
        if self._connection is not None:
            await self._lane.run(disconnect, self._file, self._connection)
        self._lane.close()


def tell_clock_step(step: ClockStep, file: SharedFile, hooks: Hooks) -> None:
    """Tell that the store's time and the time of day differ, and when they will not any more."""
    at, store = SYSTEM_CLOCK.wall(), f"sqlite:///{file.path}"
    hooks.emit(ClockStepped(at=at, store=store, seconds=step.seconds, settles_in=step.settles_in))


# --- the SQLite backend: which thread does what, and how long a caller waits ---------------------------------------

T = TypeVar("T")

QUICK: Final[dict[str, float]] = {"auto": 0.001, "loop": math.inf, "thread": -1.0}
"""A commit that was durable within this many seconds is worth doing on the loop."""

GIVE_WAY_AFTER: Final = 0.002
GIVE_WAY_FOR: Final = 0.005
GIVE_WAY_AT_MOST: Final = 10
LAST_WAIT: Final = 10.0
READ_AGAIN: Final = 0.01


@final
class _WriterJob:
    """Work for the writer's thread that can be withdrawn until it has begun."""

    __slots__ = ("_lock", "began", "ended", "given_way", "withdrawn")

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self.began = self.withdrawn = False
        self.ended: Final = threading.Event()
        self.given_way = 0

    def begin(self) -> bool:
        with self._lock:
            self.began = not self.withdrawn
            return self.began

    def withdraw(self) -> bool:
        with self._lock:
            self.withdrawn = not self.began
            return self.withdrawn


@final
class SqliteBackend:
    """One handle on an SQLite database."""

    def __init__(
        self,
        file: SharedFile,
        database: Database,
        options: SqliteOptions,
        limits: Capabilities,
        hooks: Hooks,
        again: Again,
    ) -> None:
        self._file, self._database, self._options = file, database, options
        self._turn, self._subscriptions, self._quick = file.turn, file.subscriptions, QUICK[options.commits]
        self._limits: Final = limits
        self._again: Final = again
        self._commits = 0
        self._loop: Final = asyncio.get_running_loop()
        self._writer: Final = Lane("sqlite-writer")
        self._upkeep: Final = Upkeep(file, database, options, hooks)
        self._sockets: Final = (
            WakeSockets(file.path) if options.hints == "machine" and is_supported(file.path) else None
        )
        self._poller: Final = ChangePoller(database)
        self._jobs: Final[set[asyncio.Future[Any]]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._fork: Final = ForkGuard(file.path)

    def __del__(self) -> None:
        # Its threads and descriptors stay: closing connections from wherever garbage is collected could deadlock.
        guard: ForkGuard | None = getattr(self, "_fork", None)  # None if making it failed half-way
        if guard is not None and not guard.crossed and self._closing is None:
            message = f"the store {self.name} was not closed; use async with, or await its aclose()"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    @property
    def capabilities(self) -> Capabilities:
        """Atomic, durable, for the processes of one machine."""
        return self._limits

    @property
    def name(self) -> str:
        """The database's URL."""
        return f"sqlite:///{self._file.path}"

    def size(self) -> StoreSize:
        """Return how large the file is."""
        return self._database.size()

    def count(self, most: int) -> int:
        """Return how many records there are, up to a number."""
        self._file.check()
        return self._database.count(most)

    # --- writing ---------------------------------------------------------------------------------------------

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Apply the batch on the loop if the last commit was quick and the turn is free."""
        database, turn = self._database, self._turn
        if self._jobs or database.quickest_of_two > self._quick or type(batch.riders[0]) is WorkRider:
            return None
        if not turn.try_take():
            return None
        try:
            return database.apply(batch)
        except StoreBusyError:  # another program has it locked: the thread can wait for that, the loop cannot
            return None
        finally:
            turn.give()
            self._commits += 1
            if database.log_pages >= self._upkeep.checkpoint_at or not self._commits % LOOK_AT_THE_CLOCK:
                self._upkeep.consider(self._loop.time())

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch on the writer's thread, when the turn comes."""
        patience = self._options.busy_seconds
        applied = await self._in_turn(lambda: self._database.apply(batch, patience=patience), batch.attempt)
        self._upkeep.consider(self._loop.time())
        return applied

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        patience = self._options.busy_seconds
        return await self._in_turn(lambda: self._database.settle(attempt, patience=patience), attempt)

    def transfer(self) -> SqliteTransfer:
        """Return what moves everything in the file to another store."""
        return SqliteTransfer(self.change, self.scan)

    async def change(self, work: Callable[[SqliteConnection], T]) -> T:
        """Do something to the tables, in its turn, that may be done twice."""
        patience = self._options.busy_seconds
        return await self._in_turn(lambda: self._database.change(work, patience=patience), "")

    async def _in_turn(self, work: Callable[[], T], attempt: str) -> T:
        job = _WriterJob()
        future = self._writer.start(self._work, job, work)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        self._loop.call_later(GIVE_WAY_AFTER, self._give_way, job)
        done, _ = await asyncio.wait({future}, timeout=self._options.busy_seconds)
        if not done and job.withdraw():
            future.add_done_callback(_ignore)
            holder = self._file.turn.holder()
            who = "another handle in this process" if holder is None else f"process {holder}"
            kept = f"kept the write turn for more than {self._options.busy_seconds:g} s"
            raise StoreBusyError(self.name, f"{who} {kept}; nothing was written")
        if not done:
            done, _ = await asyncio.wait({future}, timeout=LAST_WAIT)
        if not done:
            future.add_done_callback(_ignore)
            raise OutcomeUnknownError(self.name, f"the disk did not answer for {LAST_WAIT:g} s", attempt)
        return future.result()

    def _work(self, job: _WriterJob, work: Callable[[], T]) -> T:
        """Run on the writer's thread."""
        self._file.turn.take()
        try:
            if not job.begin():
                raise StoreBusyError(self.name, "its caller has given up")
            return work()
        finally:
            self._file.turn.give()
            job.ended.set()

    def _give_way(self, job: _WriterJob) -> None:
        # A thread that holds the write lock and waits for the interpreter lock holds up every other process. A
        # busy loop would let it wait; so the loop stands still for a moment until it is through.
        if not job.began:
            is_needed = not job.withdrawn
        else:
            job.given_way += 1
            is_needed = not job.ended.wait(GIVE_WAY_FOR)
        if is_needed and job.given_way < GIVE_WAY_AT_MOST:  # beyond that it is not the interpreter that it waits for
            self._loop.call_later(GIVE_WAY_AFTER, self._give_way, job)

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot, on the loop: it takes microseconds and never waits for writers."""
        self._file.check()
        try:
            return self._database.read(keys)
        except StoreBusyError:
            return await self._patiently(functools.partial(self._database.read, keys))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range, on the loop."""
        self._file.check()
        scan = functools.partial(self._database.scan, start, end, limit=limit, reverse=reverse)
        try:
            return scan()
        except StoreBusyError:
            return await self._patiently(scan)

    async def _patiently(self, read: Callable[[], Snapshot]) -> Snapshot:
        """Read when the file is locked for reading too, which it is while a crash is being repaired."""
        deadline = self._loop.time() + self._options.busy_seconds
        while True:
            await asyncio.sleep(READ_AGAIN)
            try:
                return read()
            except StoreBusyError:
                if self._loop.time() >= deadline:
                    raise

    # --- notifications ---------------------------------------------------------------------------------------

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Notify of commits of this process at once, of those of others by socket, and poll for what got lost."""
        forget = [self._file.subscriptions.subscribe(prefixes, subscriber)]
        if self._options.hints == "machine":  # also where there are no sockets
            forget.append(self._poller.subscribe(subscriber))
        if self._sockets is not None:
            forget.append(self._sockets.subscribe(prefixes, subscriber))

        def unsubscribe() -> None:
            for each in forget:
                each()

        return unsubscribe

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Notify the subscribers on this machine."""
        if self._subscriptions.by_prefix:
            self._subscriptions.notify(changed, wakes)
        if self._sockets is not None and not self._turn.is_alone:
            self._sockets.notify(changed, wakes)

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> SqliteBackend:
        """Open the same file once more, on the running loop."""
        return await self._again()

    def liveness_token(self) -> str:
        """Return the token of this process; all of its handles on the file have the same one."""
        return self._file.alive.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has died or closed the file."""
        return self._file.alive.is_dead(token)

    async def aclose(self) -> None:
        """Close connections, threads and sockets.

        A writer that still waits for its turn behind a stopped process cannot be called back: closing goes on without
        it, and what it holds is let go of when it ends.
        """
        if self._sockets is not None:
            self._sockets.close()
        self._closing = self._loop.create_task(self._let_go())
        done, _ = await asyncio.wait({self._closing}, timeout=2 * self._options.busy_seconds)
        for task in done:
            task.result()

    async def _let_go(self) -> None:
        await self._upkeep.aclose()
        await self._writer.run(self._close)  # off the loop: the last to close writes the log back
        self._writer.close()
        unshare(self._file)

    def _close(self) -> None:
        if self._file.identity.is_current() and self._file.turn.try_take():
            try:
                with contextlib.suppress(apsw.Error):  # a trace that stays behind is swept up later
                    self._database.retire()
            finally:
                self._file.turn.give()
        self._database.close()


def _ignore(future: asyncio.Future[Any]) -> None:
    """Take the result of work that is no longer waited for, so that the loop does not complain about it."""
    if not future.cancelled():
        future.exception()
