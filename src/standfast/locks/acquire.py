"""Acquire and release: how a process gets into a line, waits in it, and gets out of it again whatever happens."""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final
from weakref import ref

from msgspec import Struct, structs

from standfast.clock import Instant
from standfast.errors import (
    HoldTimeoutError,
    LockMismatchError,
    ReentryError,
    StandfastError,
    StoreClosedError,
    TooHeavyError,
    UsageError,
    WaitCycleError,
    WithdrawnError,
    WouldWaitError,
)
from standfast.events import PermitsDisagree, ReleaseDelayed, Requeued
from standfast.ids import new_id
from standfast.locks.deadlock import PATIENCE, cycle_to_break, describe_cycle, give_way
from standfast.locks.heartbeat import Presence, remove
from standfast.locks.inspect import find_waiter
from standfast.locks.line import Entry, Granted, TooHeavy, Waiting
from standfast.locks.line_driver import LocalLine, LocalWaiter, SeenGrant, grant_seen
from standfast.locks.line_records import (
    Answer,
    Enter,
    ExtraChanges,
    Leave,
    Left,
    LockSpec,
    WaitsForItself,
    WrongKind,
    marker_key,
)
from standfast.stores.liveness import run_in_forked_child
from standfast.stores.protocol import Check

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.locks.line import Line
    from standfast.locks.line_step import Answered, Sight
    from standfast.locks.registry import Lines


# --- owners: for whom a lock is held, as deadlock detection sees it ------------------------------------------------
#
# By default that is the task. Its name is the same in every space of the process, so that a cycle through two of them
# is found, and unlike that of any task of another process.

_names: Final[dict[ref[asyncio.Task[Any]], str]] = {}  # as a WeakKeyDictionary, which takes longer to look into
_held: Final[dict[str, int]] = {}
_process = ""


def owner_of_task() -> str:
    """Return a name for the task that runs now: for people to find, and unlike any other."""
    return owner_of(asyncio.current_task())


def owner_of(task: asyncio.Task[Any] | None) -> str:
    """Return a name for a task; None: for code that runs in none."""
    global _process  # noqa: PLW0603 -- found out when it is first needed, and anew in a forked child
    name = None if task is None else _names.get(ref(task))
    if name is None:
        if not _process:
            _process = f"{socket.gethostname()[:60]}/{os.getpid()}"
        shown = "" if task is None else task.get_name()[:60]
        name = f"{_process}/{''.join(each for each in shown if each.isprintable())}#{new_id()[-6:]}{len(_names):x}"
        if task is not None:
            _names[ref(task, _forget)] = name
    return name


def _forget(task: ref[asyncio.Task[Any]]) -> None:
    _names.pop(task, None)


def note_taken(owner: str) -> None:
    """Note that an owner holds one more lock."""
    _held[owner] = _held.get(owner, 0) + 1


def note_given_back(owner: str) -> None:
    """Note that an owner holds one lock less."""
    left = _held.pop(owner, 0) - 1
    if left > 0:
        _held[owner] = left


def _start_anew() -> None:
    global _process  # noqa: PLW0603 -- a forked child has another number, and holds nothing
    _process = ""
    _held.clear()
    _names.clear()


run_in_forked_child(_start_anew)


# --- getting into a line, waiting in it, and getting out of it again whatever happens ------------------------------

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries to leave a line while the store does not answer: doubled from the first to the longest."""

LONGEST_GOODBYE: Final = 0.5
"""Seconds that one whose time is up is kept for leaving the line. What takes longer goes on without it."""


class PermitsWarning(UserWarning):
    """A call site says another number of permits than the line has. The line's counts while it is in use."""


class AcquireRequest(Struct, frozen=True):
    """What is asked for: a place in a line, for whom, and for how long.

    Attributes:
        name: The key, as shown to people.
        address: Where its line lies.
        spec: What the call site says about the line.
        called_from: The place in the code.
        owner: For whom; None: for the task that asks.
        waits: Whether to wait for it.
        timeout: For how many seconds at most.
        extra_changes: What to commit together with the answer, see :class:`~standfast.locks.line_records.ExtraChanges`.
        on_leave: What to commit together with leaving the line again.
        may_circle: Whether its owner may hold something that an owner waits for which is in its way here.
        on_waiting: Called when it has to wait, with how many are in front of it, and whether it is back: it had a
            place before, and has lost it.
        keeps_age: Whether one that is back still counts as having entered when it first did.
        entry_id: The id of its entry, never used before; empty: a new one.
        permits: How many permits the line has from now on, unless an operator has set another number; None: as it has.
    """

    name: str
    address: tuple[str, ...]
    spec: LockSpec
    lease: float
    called_from: str
    owner: str | None = None
    mode: str = ""
    weight: int = 1
    waits: bool = True
    timeout: float | None = None
    max_hold: float | None = None
    note: str = ""
    extra_changes: ExtraChanges[Answer] | None = None
    may_circle: bool = True
    on_waiting: Callable[[int, bool], None] | None = None
    keeps_age: bool = False
    entry_id: str = ""
    permits: int | None = None
    on_leave: ExtraChanges[Answer] | None = None


def names_of(request: AcquireRequest) -> dict[str, str]:
    """Return what events say of the lock that is asked for."""
    return {"key": request.name, "family": request.address[1], "kind": request.spec.kind}


@final
class HeldEntry(Struct, frozen=True, eq=False):
    """A place at the front: an entry that holds, what it hangs on, and the task that waited for it.

    ``known_at`` is since when this process knows of it, by its own clock.
    """

    line: LocalLine
    entry: Entry
    presence: Presence
    turn: SeenGrant
    task: asyncio.Task[Any] | None
    known_at: Instant

    @property
    def guard(self) -> Check:
        """A change that lets a commit happen only while this is held."""
        return Check(self.line.driver.keys.grant_of(self.turn.holder), self.turn.fence)

    @property
    def granted_at(self) -> Instant:
        """Since when it holds, by the store's time."""
        return self.turn.holder.granted_at


def acquire(lines: Lines, request: AcquireRequest) -> Coroutine[Any, Any, HeldEntry]:
    """Take a place in the line and wait for its turn; leave nothing behind if that fails."""
    lines.guard.check()
    if request.timeout is None:
        return _Acquisition(lines, request).run()
    return _acquire_in_time(lines, request, request.timeout)


async def _acquire_in_time(lines: Lines, request: AcquireRequest, timeout: float) -> HeldEntry:
    if timeout == 0:
        try:
            return await _Acquisition(lines, structs.replace(request, waits=False)).run()
        except WouldWaitError as busy:
            if not request.waits:
                raise
            raise HoldTimeoutError(request.name, 0.0, busy.holders) from None
    attempt = _Acquisition(lines, request)
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            return await attempt.run()
    except TimeoutError:
        if not limit.expired():
            raise
        await attempt.withdrawn()
        raise HoldTimeoutError(request.name, timeout, await attempt.holders()) from None


async def release(lines: Lines, place: HeldEntry, request: AcquireRequest, *, overran: bool = False) -> Left | None:
    """Leave the line; None if the store does not answer. Then it is tried again until it does, or all is closed.

    Args:
        lines: Of the process.
        place: What is held.
        request: What was asked for.
        overran: Its ``max_hold`` is over, by the clock of this process.
    """
    holder = place.turn.holder
    fence = place.turn.fence if holder.ends_at is None else None  # what is over is not given back
    leave = Leave(place.entry.id, holder.slot, extra_changes=request.on_leave, fence=fence, overran=overran)
    try:
        left = (await place.line.driver.do(leave, request.spec)).answer
    except StandfastError as problem:
        _leave_for_certain(lines, place.line, leave, place.presence, request)
        at = lines.clock.wall()
        lines.hooks.emit(ReleaseDelayed(at=at, problem=type(problem).__name__, **names_of(request)))
        return None
    except BaseException:
        # When its caller is cancelled the request is on its way all the same; this makes sure of it.
        _leave_for_certain(lines, place.line, leave, place.presence, request)
        raise
    lines.heartbeat.leave(place.presence)
    return left if type(left) is Left else None


async def release_with(
    lines: Lines, held: HeldEntry, request: AcquireRequest, extra_changes: ExtraChanges[Answer]
) -> None:
    """Leave the line together with extra changes. What they or the store raise is raised, and it is not tried again."""
    leave = Leave(held.entry.id, held.turn.holder.slot, extra_changes=extra_changes)
    await held.line.driver.do(leave, request.spec)
    lines.heartbeat.leave(held.presence)


def _leave_for_certain(
    lines: Lines, line: LocalLine, leave: Leave, presence: Presence | None, request: AcquireRequest
) -> asyncio.Task[Any]:
    """Leave a line for certain: as long as this process is present, no other process would remove its entry."""
    # Asked at once: should the same task ask for the lock again, it must not find itself in its own way. If the store
    # does not answer it may all the same, and waits until it has left.
    leaving = lines.own(_see_left(lines, line, leave, presence, request, line.driver.ask(leave, request.spec)))
    line.leaving[leave.entry_id] = leaving
    leaving.add_done_callback(lambda _: line.leaving.pop(leave.entry_id, None))
    return leaving


async def _see_left(
    lines: Lines,
    line: LocalLine,
    leave: Leave,
    presence: Presence | None,
    request: AcquireRequest,
    asked: asyncio.Future[Answered],
) -> None:
    pause = FIRST_PAUSE
    try:
        while True:
            try:
                answered = await asked
                left = answered.answer
                was_there = isinstance(left, Left) and (left.was_holding or left.was_waiting)
                if was_there or answered.sight.line.horizon is None:
                    return
                # It may wait far back, out of sight: it was cancelled before it was told its place.
                waiter = await find_waiter(lines.scope, line.driver.keys, leave.entry_id)
            except StandfastError:
                if lines.is_closing:  # the presence goes, and the entry with it
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                if waiter is None:
                    return
                leave = structs.replace(leave, ticket=waiter.ticket)
            asked = line.driver.ask(leave, request.spec)
    finally:
        if presence is not None:
            lines.heartbeat.leave(presence)


@final
class _Acquisition:
    """One way into a line."""

    __slots__ = (
        "_asked_at",
        "_entered_at",
        "_has_asked",
        "_id",
        "_life",
        "_line",
        "_lines",
        "_marker",
        "_may_stand",
        "_owner",
        "_request",
        "_task",
        "_ticket",
        "_withdrawal",
    )

    def __init__(self, lines: Lines, request: AcquireRequest) -> None:
        self._lines, self._request = lines, request
        self._line: Final = lines.line(request.address)
        self._id: Final = request.entry_id or lines.new_entry_id()
        if asyncio.get_running_loop() is not lines.loop:
            raise UsageError(repr(lines.scope), "belongs to another event loop", "open it once in each event loop")
        task = self._task = asyncio.current_task(lines.loop)
        owner = self._owner = request.owner or owner_of(task)
        # One that holds nothing, as far as this process knows, cannot be part of a cycle.
        may_circle = request.waits and request.may_circle and (owner in _held or request.owner is not None)
        self._marker: Final = marker_key(lines.scope, owner, self._id) if may_circle else None
        self._ticket: int | None = None
        self._life = ""
        self._asked_at: Instant | None = None
        self._entered_at: Instant | None = None
        self._may_stand = self._has_asked = False
        self._withdrawal: asyncio.Task[Any] | None = None

    async def run(self) -> HeldEntry:
        """Return the place, once it is at the front."""
        lines, has_looked = self._lines, False
        if not lines.is_listening:
            await lines.listen()
        try:
            while not lines.is_closing:
                outcome = await self._try_once()
                if type(outcome) is HeldEntry:
                    if not lines.is_closing:
                        self._may_stand = False  # from now on it is the caller's to leave
                        return outcome
                    self._withdraw(outcome.presence)  # its block would not be told
                elif isinstance(outcome, WouldWaitError) and not has_looked:
                    has_looked = True
                    if not await lines.reap(self._line):
                        raise outcome
                elif outcome is not None:
                    raise outcome
                elif await lines.was_cancelled(self._id):
                    raise WithdrawnError(self._request.name)
            raise StoreClosedError(repr(lines.scope), "it was closed while a task waited in it")
        finally:
            if self._may_stand and self._withdrawal is None:  # it failed on the way to asking again
                self._withdraw(None)

    async def withdrawn(self) -> None:
        """Wait until nothing of the attempt is left in the line; a while at most, if the store does not answer."""
        if self._withdrawal is not None:
            await asyncio.wait({self._withdrawal}, timeout=LONGEST_GOODBYE)

    async def holders(self) -> tuple[str, ...]:
        """Return who held when the line was last seen since this was asked for; a look at it may be the first."""
        last = self._line.last
        if last is None or self._asked_at is None or last.asked_at < self._asked_at:
            with suppress(StandfastError, TimeoutError):
                async with asyncio.timeout(LONGEST_GOODBYE):
                    last = await self._line.look()
        return () if last is None else _holders(last.line)

    async def _try_once(self) -> HeldEntry | StandfastError | None:
        """Return the place, or why there is none; None if it got lost on the way and must be asked for again."""
        lines, request, line = self._lines, self._request, self._line
        now = lines.clock.elapsed()
        self._asked_at = self._asked_at or now
        presence = lines.heartbeat.try_join(request.lease, now) or await lines.heartbeat.join(request.lease)
        entry = Entry(
            self._id,
            self._owner,
            presence.anchor,
            Instant(0),
            request.mode,
            request.weight,
            True,  # noqa: FBT003 -- by place: it is made for every acquisition
            request.max_hold,
            request.note,
        )
        enter = Enter(
            entry,
            request.waits,
            self._marker,
            self._ticket,
            None,
            request.extra_changes,
            request.permits,
            self._entered_at if request.keeps_age else None,
            not self._has_asked,
        )
        wait = line.waits[self._id] = LocalWaiter(entry, presence, request.spec, lines.loop)
        self._may_stand = self._has_asked = True
        try:
            answered = await line.driver.do(enter, request.spec)
            answer = answered.answer
            outcome: SeenGrant | StandfastError | None
            if line.driver.disagreement is not None:
                self._note_disagreement()
            if type(answer) is Granted:
                self._entered_at = self._entered_at or answer.holder.entry.entered_at
                outcome = grant_seen(answer.holder, answered.sight)
            else:
                outcome = await self._wait(wait, answered)
            if presence.proof is not None:
                await presence.until_proven()  # nothing begins while others may take this process for dead
        except BaseException:
            self._withdraw(presence)
            raise
        finally:
            del line.waits[self._id]
        if wait.is_gone:
            outcome = None
        if self._marker is not None and self._ticket is not None and outcome is not None:
            lines.own(_remove(lines, self._marker))
        if isinstance(outcome, SeenGrant):
            known_at = lines.clock.elapsed()
            if presence.left(known_at) > 0:
                return HeldEntry(line, entry, presence, outcome, self._task, known_at)
            outcome = None  # its presence lapsed before this was known; by another one it may still keep it
        lines.heartbeat.leave(presence)
        self._may_stand = outcome is None
        return outcome

    def _withdraw(self, presence: Presence | None) -> None:
        leave = Leave(self._id, ticket=self._ticket, extra_changes=self._request.on_leave)
        leaving = _leave_for_certain(self._lines, self._line, leave, presence, self._request)
        self._withdrawal = leaving if self._marker is None else self._lines.own(self._unmark(leaving, self._marker))

    async def _unmark(self, leaving: asyncio.Task[Any], marker: RecordKey) -> None:
        await asyncio.wait({leaving})  # not earlier: the request that writes it may have been under way
        await _remove(self._lines, marker)

    async def _wait(self, wait: LocalWaiter, answered: Answered) -> SeenGrant | StandfastError | None:
        answer = answered.answer
        if isinstance(answer, WaitsForItself) and (leaving := self._own_leaving(answer)):
            if not self._request.waits:
                return WouldWaitError(self._request.name, _holders(answered.sight.line))
            await asyncio.wait(leaving)
            return None
        if not isinstance(answer, Waiting):
            return self._refusal(answered)
        is_back = self._note_place(answered.sight, answer.ticket)
        self._line.note_ticket(wait, answer.ticket)
        self._lines.poll_soon()
        if self._request.on_waiting is not None:
            self._request.on_waiting(answer.place, is_back)
        if self._marker is not None:
            await self._refuse_circle(wait.turn)
        return await wait.turn

    def _own_leaving(self, answer: WaitsForItself) -> list[asyncio.Task[Any]]:
        """Return what lets entries of the same owner leave that this process has given up: they hold nothing for it."""
        entries = [*(each.entry for each in answer.line.holders), *(each.entry for each in answer.line.waiters)]
        own = [each.id for each in entries if each.owner == self._owner]
        return [self._line.leaving[each] for each in own if each in self._line.leaving]

    def _refusal(self, answered: Answered) -> StandfastError:
        answer, request = answered.answer, self._request
        if isinstance(answer, TooHeavy):
            return TooHeavyError(request.name, request.weight, answer.permits)
        if isinstance(answer, WrongKind):
            return LockMismatchError(request.name, f"a {answer.kind}", f"a {request.spec.kind}")
        if isinstance(answer, WaitsForItself):
            own = [holder.entry.id for holder in answer.line.holders if holder.entry.owner == self._owner]
            here = [self._line.holds[each].called_from for each in own if each in self._line.holds]
            return ReentryError(request.name, here[0] if here else "somewhere else", request.called_from)
        return WouldWaitError(request.name, _holders(answered.sight.line))

    async def _refuse_circle(self, turn: asyncio.Future[SeenGrant | None]) -> None:
        """Raise if waiting would never end."""

        async def still_waits() -> bool:
            await asyncio.wait({turn}, timeout=PATIENCE)
            return not turn.done()

        scope = self._lines.scope
        while cycle := await cycle_to_break(scope, self._owner, self._id, still_waits):
            if await give_way(scope, cycle, self._id):
                raise WaitCycleError(self._request.name, self._request.called_from, describe_cycle(cycle))
            if not await still_waits():  # another one gives way, or the store takes nothing now
                return

    def _note_place(self, sight: Sight, ticket: int) -> bool:
        """Note which place it has got; return True if it waits again after it has lost another one."""
        is_other = (sight.life, ticket) != (self._life, self._ticket)  # tickets begin anew with each life of a line
        is_back = self._entered_at is not None and is_other
        if self._entered_at is None:
            found = sight.line.waiter(self._id)
            self._entered_at = sight.at if found is None else found.entry.entered_at
        self._life, self._ticket = sight.life, ticket
        if is_back:
            self._lines.hooks.emit(Requeued(at=self._lines.clock.wall(), **names_of(self._request)))
        return is_back

    def _note_disagreement(self) -> None:
        head, self._line.driver.disagreement = self._line.driver.disagreement, None
        if head is None or self._request.permits is not None:  # one that brings its own number has been heard
            return
        if not self._lines.is_first(self._request.address, self._request.spec):
            return
        stored, asked = head.rules.permits, self._request.spec.rules.permits
        if self._lines.is_watched:
            at = self._lines.clock.wall()
            self._lines.hooks.emit(PermitsDisagree(at=at, stored=stored, asked=asked, **names_of(self._request)))
        else:
            message = (
                f"{self._request.called_from} says {asked} permits of {self._request.name}, and its line has {stored}"
            )
            warnings.warn(message, PermitsWarning, stacklevel=2)


def _holders(line: Line) -> tuple[str, ...]:
    return tuple(holder.entry.owner for holder in line.holders)


async def _remove(lines: Lines, key: RecordKey) -> None:
    """Remove a marker. If that fails it goes later: a marker without its waiter counts for nothing."""
    try:
        await remove(lines.scope.store, key)
    except StandfastError:
        return


# --- taking back a cancellation: a task that was cancelled to leave a block does not stay cancelled because of it --


async def undo_cancellation(
    task: asyncio.Task[Any], cancelling: int, error: BaseException | None
) -> asyncio.CancelledError | None:
    """Undo one's own cancellation of the running task; return it if the task was cancelled from elsewhere, too.

    Args:
        task: The task that runs now.
        cancelling: How many cancellations it had when its block began.
        error: What the block ended with.
    """
    cancelled = error if isinstance(error, asyncio.CancelledError) else None
    if cancelled is None:  # it is delivered at the next await, which must not be a part of giving back
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as delivered:
            cancelled = delivered
    return cancelled if task.uncancel() > cancelling else None
