"""Group commit: the store that common code makes of any backend.

Commits and updates that arrive while a transaction is under way ride in the next one together, each with its own
verdict; that is where the speed comes from. What is the same for every server lives here: the rules, the order,
withdrawal on cancellation, settling unknown outcomes, and hints after the commit is durable.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import get_running_loop
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final
from weakref import WeakSet

from standfast.durations import seconds
from standfast.errors import (
    InvalidChangeError,
    StoreClosedError,
    UnsuitableStoreError,
    WrongLoopError,
)
from standfast.events import NO_HOOKS
from standfast.stores.backend import CommitRider, Deferred, UpdateRider, WorkRider
from standfast.stores.forks import ForkGuard
from standfast.stores.group import ANY_NUMBER, Group
from standfast.stores.joining import joining_of
from standfast.stores.moving.protocol import moving_of
from standfast.stores.protocol import Commit
from standfast.stores.rules import check_commit, check_read, check_scan, check_window, is_plain
from standfast.stores.watching import BackendWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Backend, Batching, Outcome
    from standfast.stores.joining import Joining
    from standfast.stores.moving.protocol import Movable
    from standfast.stores.protocol import (
        Capabilities,
        Change,
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

_ATTEMPT: Final = re.compile(r"[0-9a-f-]{36}\.[1-9][0-9]{0,14}/[0-9]{1,4}", re.ASCII)
"""A group's id and a number, as the group names its attempts, and a rider of it."""


@final
class GroupedStore:
    """A :class:`~standfast.stores.protocol.Store` over a backend. It belongs to the event loop it is made in."""

    def __init__(self, backend: Backend, hooks: Hooks = NO_HOOKS, *, batching: Batching = ANY_NUMBER) -> None:
        self._backend: Final = backend
        self._batching: Final = batching
        self._hooks: Final = hooks
        self._limits: Final = backend.capabilities
        self._loop: Final = asyncio.get_running_loop()
        self._guard: Final = ForkGuard(backend.name)
        self._group: Final = Group(backend, hooks, batching)
        self._watches: Final[WeakSet[BackendWatch]] = WeakSet()
        self._closing: asyncio.Task[None] | None = None

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
        watch = BackendWatch(self._backend, prefixes, self._check_usable)
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
        if self._closing is not None or get_running_loop() is not self._loop or self._guard.crossed:
            self._check_usable()
        if wake or not is_plain(changes, self._limits):
            check_commit(changes, wake, self._limits)
        if after is not None or before is not None:
            check_window(after, before)
        group = self._group
        seat = group.board(CommitRider(changes, after, before, tuple(wake)))  # from here on as Group.ride does
        try:
            if seat.answer is not None:
                await seat.answer
            elif group.wants_pause:
                await group.pause()
        except asyncio.CancelledError as cancelled:
            await group.leave(seat, cancelled)
            raise
        outcome = cast("Outcome", seat.outcome)
        return outcome if type(outcome) is Commit else cast("Conflict", _verdict(outcome))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Run the pure function ``decide`` on the records at ``keys`` and commit what it decides."""
        self._check_usable()
        check_read(keys, self._limits)
        return cast("Decided[T]", _verdict(await self._group.ride(UpdateRider(tuple(keys), decide))))

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        and_then: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` and the caller's own SQL in one transaction: both happen, or neither.

        ``work`` gets a connection-like object (on SQLite a :class:`~standfast.stores.sqlite.SqlWork`) and runs on the
        writer's thread, only if every guard holds. Whatever it raises undoes everything and is raised here.

        ``and_then`` is called with the work's answer, on the same thread, and returns further changes, for example
        a record of the answer. They join ``changes``, under the rules of one commit: if a guard of theirs does not
        hold, everything is undone, the work included, and the answer is the ``Conflict``. What ``and_then`` raises
        undoes everything as well, and its time counts as the work's.

        Raises:
            UnsuitableStoreError: The store has no SQL to share a transaction with.
            InvalidChangeError: The changes break a rule, alone or together with those of ``and_then``.
            WorkTimeoutError: The work took longer than ``timeout``; everything was undone.
        """
        if not self._limits.commit_with:
            raise UnsuitableStoreError(self._backend.name, "it cannot share a transaction with your SQL")
        self._check_usable()
        check_commit(changes, wake, self._limits)
        check_window(after, before)
        commit = CommitRider(changes, after, before, tuple(wake))
        rider = WorkRider(commit, work, seconds(timeout, what="timeout"), and_then)
        return cast("Worked[T] | Conflict", _verdict(await self._group.ride(rider)))

    async def joining(self) -> Joining:
        """Return what this store can do over connections of the user's, in transactions of theirs.

        Raises:
            UnsuitableStoreError: Nothing: it is no PostgreSQL.
        """
        self._check_usable()
        return await joining_of(self._backend, self._backend.name)

    def moving(self) -> Movable:
        """Return what moves everything in this store to another one.

        Raises:
            UnsuitableStoreError: Its backend cannot do it.
        """
        self._check_usable()
        return moving_of(self._backend, self._backend.name)

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

    # --- life --------------------------------------------------------------------------------------------------

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``work`` to its end whoever is cancelled meanwhile; :meth:`aclose` waits for it."""
        return self._group.own(work)

    def _check_usable(self) -> None:
        if self._closing is None and get_running_loop() is self._loop and not self._guard.crossed:
            return
        self._check_open()
        raise WrongLoopError(f"the store {self._backend.name}", "belongs to another event loop")

    def _check_open(self) -> None:
        self._guard.check()
        if self._closing is not None:
            raise StoreClosedError(self._backend.name, "it was closed; open a new one")

    async def another(self) -> GroupedStore:
        """Open another handle on the same store, on the running loop, which may be another one in another thread."""
        self._check_open()
        return GroupedStore(await self._backend.another(), self._hooks, batching=self._batching)

    def lifeline(self) -> str:
        """Return a text by which others can tell that this process has died; empty if this store cannot see deaths."""
        return "" if self._is_over() else self._backend.lifeline()

    def is_severed(self, lifeline: str) -> bool:
        """Tell whether the process that gave ``lifeline`` has certainly died, or closed its last handle."""
        return not self._is_over() and self._backend.is_severed(lifeline)

    def _is_over(self) -> bool:
        return self._closing is not None or self._guard.crossed

    async def aclose(self) -> None:
        """Finish what is under way and let go of everything. Closing twice is fine."""
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
