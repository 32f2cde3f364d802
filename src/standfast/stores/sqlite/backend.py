"""The SQLite backend: which thread does what, and for how long anyone waits.

A commit runs on the event loop when the last one was quick and the turn to write is free; a thread would only add
its own hops. Otherwise it waits on the writer's thread. Checkpoints, sweeps and the search for foreign descriptors
run on a thread of their own, when there has been something to do.
"""

from __future__ import annotations

import asyncio
import functools
import math
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import apsw

from standfast.errors import OutcomeUnknownError, StoreBusyError
from standfast.offload import Lane
from standfast.stores.backend import WorkRider
from standfast.stores.forks import ForkGuard
from standfast.stores.sqlite.doorbells import Doorbells, is_supported
from standfast.stores.sqlite.moving import SqliteMoving
from standfast.stores.sqlite.sharing import unshare
from standfast.stores.sqlite.slow_check import SlowCheck
from standfast.stores.sqlite.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, Batch, Ear
    from standfast.stores.protocol import Capabilities, Snapshot, Wake
    from standfast.stores.sqlite.database import Database
    from standfast.stores.sqlite.driver import Connection
    from standfast.stores.sqlite.options import Options
    from standfast.stores.sqlite.sharing import SharedFile

    Again = Callable[[], Coroutine[Any, Any, "SqliteBackend"]]

T = TypeVar("T")

QUICK: Final[dict[str, float]] = {"auto": 0.001, "loop": math.inf, "thread": -1.0}
"""A commit that was durable within this many seconds is worth doing on the loop."""

GIVE_WAY_AFTER: Final = 0.002
GIVE_WAY_FOR: Final = 0.005
GIVE_WAY_AT_MOST: Final = 10
LAST_WAIT: Final = 10.0
READ_AGAIN: Final = 0.01


@final
class _Job:
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
        self, file: SharedFile, database: Database, options: Options, limits: Capabilities, hooks: Hooks, again: Again
    ) -> None:
        self._file, self._database, self._options = file, database, options
        self._turn, self._bells, self._quick = file.turn, file.bells, QUICK[options.commits]
        self._limits: Final = limits
        self._again: Final = again
        self._loop: Final = asyncio.get_running_loop()
        self._writer: Final = Lane("sqlite-writer")
        self._upkeep: Final = Upkeep(file, database, options, hooks)
        self._doorbells: Final = (
            Doorbells(file.path) if options.hints == "machine" and is_supported(file.path) else None
        )
        self._slow_check: Final = SlowCheck(database)
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
        return f"sqlite://{self._file.path}"

    # --- writing -----------------------------------------------------------------------------------------------

    def apply_now(self, batch: Batch) -> Applied | None:
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
            self._upkeep.consider(self._loop.time())

    async def apply(self, batch: Batch) -> Applied:
        """Apply the batch on the writer's thread, when the turn comes."""
        patience = self._options.busy_seconds
        applied = await self._in_turn(lambda: self._database.apply(batch, patience=patience), batch.attempt)
        self._upkeep.consider(self._loop.time())
        return applied

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        patience = self._options.busy_seconds
        return await self._in_turn(lambda: self._database.settle(attempt, patience=patience), attempt)

    def moving(self) -> SqliteMoving:
        """Return what moves everything in the file to another store."""
        return SqliteMoving(self.change, self.scan)

    async def change(self, work: Callable[[Connection], T]) -> T:
        """Do something to the tables, in its turn, that may be done twice."""
        patience = self._options.busy_seconds
        return await self._in_turn(lambda: self._database.change(work, patience=patience), "")

    async def _in_turn(self, work: Callable[[], T], attempt: str) -> T:
        job = _Job()
        future = self._writer.start(self._work, job, work)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        self._loop.call_later(GIVE_WAY_AFTER, self._give_way, job)
        done, _ = await asyncio.wait({future}, timeout=self._options.busy_seconds)
        if not done and job.withdraw():
            future.add_done_callback(_ignore)
            raise StoreBusyError(self.name, self._who_has_the_turn())
        if not done:
            done, _ = await asyncio.wait({future}, timeout=LAST_WAIT)
        if not done:
            future.add_done_callback(_ignore)
            raise OutcomeUnknownError(self.name, f"the disk did not answer for {LAST_WAIT:g} s", attempt)
        return future.result()

    def _work(self, job: _Job, work: Callable[[], T]) -> T:
        """Run on the writer's thread."""
        self._file.turn.take()
        try:
            if not job.begin():
                raise StoreBusyError(self.name, "nobody waits for this any more")
            return work()
        finally:
            self._file.turn.give()
            job.ended.set()

    def _give_way(self, job: _Job) -> None:
        # A thread that holds the write lock and waits for the interpreter lock holds up every other process. A
        # busy loop would let it wait; so the loop stands still for a moment until it is through.
        if not job.began:
            is_needed = not job.withdrawn
        else:
            job.given_way += 1
            is_needed = not job.ended.wait(GIVE_WAY_FOR)
        if is_needed and job.given_way < GIVE_WAY_AT_MOST:  # beyond that it is not the interpreter that it waits for
            self._loop.call_later(GIVE_WAY_AFTER, self._give_way, job)

    def _who_has_the_turn(self) -> str:
        holder = self._file.turn.holder()
        who = "another handle in this process" if holder is None else f"process {holder}"
        return f"{who} kept the write turn for more than {self._options.busy_seconds:g} s; nothing was written"

    # --- reading -----------------------------------------------------------------------------------------------

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

    # --- hints -------------------------------------------------------------------------------------------------

    def listen(self, prefixes: tuple[RecordKey, ...], ear: Ear) -> Callable[[], None]:
        """Hear hints from this process at once, from others by doorbell, and look for lost ones now and then."""
        forget = [self._file.bells.listen(prefixes, ear)]
        if self._options.hints == "machine":  # also where there are no doorbells
            forget.append(self._slow_check.listen(ear))
        if self._doorbells is not None:
            forget.append(self._doorbells.listen(prefixes, ear))
        return functools.partial(_call_each, forget)

    def ring(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send hints to whoever listens on this machine."""
        if self._bells.by_prefix:
            self._bells.ring(changed, wakes)
        if self._doorbells is not None:
            self._doorbells.ring(changed, wakes)

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> SqliteBackend:
        """Open the same file once more, on the running loop."""
        return await self._again()

    def lifeline(self) -> str:
        """Return the text that tells of this process; all of its handles on the file have the same one."""
        return self._file.alive.lifeline()

    def is_severed(self, lifeline: str) -> bool:
        """Tell whether the process that gave ``lifeline`` has died or closed the file."""
        return self._file.alive.is_severed(lifeline)

    async def aclose(self) -> None:
        """Close connections, threads and sockets.

        A writer that still waits for its turn behind a stopped process cannot be called back: closing goes on without
        it, and what it holds is let go of when it ends.
        """
        if self._doorbells is not None:
            self._doorbells.close()
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
        self._retire()
        self._database.close()

    def _retire(self) -> None:
        if self._file.identity.is_current() and self._file.turn.try_take():
            try:
                self._database.retire()
            except apsw.Error:  # a trace that stays behind is swept up later
                return
            finally:
                self._file.turn.give()


def _call_each(actions: Iterable[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _ignore(future: asyncio.Future[Any]) -> None:
    """Take the result of work that nobody waits for, so that the loop does not complain about it."""
    if not future.cancelled():
        future.exception()
