"""The driver of one line: the requests of one process on one key, folded in order and committed once.

A step names the keys that it will need before it is taken, from what was last seen of the line (:class:`Guess`). When
another process moved the line meanwhile, the step finds that it lacks some, changes nothing, and is taken again with
those (:class:`LineDriver`). What each step leaves behind is told to the waiters and holds of this process
(:class:`LocalLine`).

Mutexes and small semaphores pass by this where the store hands them over: :mod:`~standfast.locks.mutex_line` and
:mod:`~standfast.locks.slot_line` drive those.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, final

from msgspec import Struct, structs

from standfast.clock import Instant, seconds_between
from standfast.errors import StoreBusyError
from standfast.keys import MAX_KEY_BYTES
from standfast.locks.heartbeat import Presence
from standfast.locks.line import OUT_OF_SIGHT, Entry, Holder, Line, OfPresence, Rules, presence_of
from standfast.locks.line_memory import FEW_SLOTS, Guess, KnownRecords
from standfast.locks.line_records import (
    GRANTS,
    HEADS,
    SEMAPHORE,
    WINDOW,
    Enter,
    Head,
    Leave,
    LineFacts,
    LineView,
    LockSpec,
    Reap,
    Request,
    brought_by,
    is_slotted,
    waiter_in,
)
from standfast.locks.line_step import (
    Answered,
    OtherLayoutError,
    Sight,
    StepInput,
    StepResult,
    decide_step,
    quick_step,
)
from standfast.locks.mutex_line import (
    MUTEX,
    ONE,
    MutexDriver,
    holder_in,
    is_mutex,
    is_of_mutex,
    queued_in,
    read_ticket,
)
from standfast.locks.slot_line import SlotDriver, is_plain
from standfast.stores.group_commit import verdict_of
from standfast.stores.protocol import Conflict, Decided, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence

    from standfast.clock import Clock
    from standfast.keys import RecordKey
    from standfast.locks.line import Waiter
    from standfast.locks.line_records import LineKeys
    from standfast.locks.line_step import Outcome
    from standfast.scope import Scope


# --- driving one line: the requests of one process on one key, folded in order and committed once ------------------

MOST_AT_ONCE: Final = 16
"""The most requests on one line that are folded into one step, so that its keys fit into one commit."""

SLACK: Final = 24
"""By how many tickets a line may move on between two tries of a step before the second fails like the first."""

MOST_KEYS: Final = 100
"""The most keys of one step, unless the store takes fewer in one commit."""

KEYS_EACH: Final = 5
"""How many keys of the line a request needs at the most: its ticket and its marker, two grants, and a run to tell."""

MOST_FENCES: Final = 40
"""The most fences that are read in one look; the rest follows in the next."""

TRIES: Final = 50

BACK_WITHIN: Final = 0.005
"""Within how many seconds the one that has left a lock may ask for it again before the next one has looked."""

SHORT_HOLD: Final = 0.02
"""If holds take less than this many seconds, those that join wait for one that leaves, and share its step."""


NEAR: Final = 3
"""How many waiters at the front poll most often. Those behind do so now and then."""

_NO_SITE: Final = LockSpec("", Rules())

_NONE: Final[Mapping[str, int]] = {}


class _QueuedRequest(Struct, frozen=True):
    """A request that waits for its step."""

    request: Request
    spec: LockSpec
    answer: asyncio.Future[Answered]

    def settle(self, answered: Answered | Exception) -> None:
        """Give the answer to the caller."""
        if self.answer.done():
            return
        if isinstance(answered, Exception):
            self.answer.set_exception(answered)
            self.answer.exception()  # its caller may be gone
        else:
            self.answer.set_result(answered)


@final
class LineDriver:
    """All requests of one process on one line.

    Args:
        scope: Where the line lies.
        keys: Its records.
        clock: The process's own clock.
        interest: The entries whose fences are to be told when they hold.
        seen: Called with what each step left behind, once it is durable.
        granted: Called with the grant of another entry that the store has made when one left.
    """

    def __init__(
        self,
        scope: Scope,
        keys: LineKeys,
        clock: Clock,
        interest: Collection[str],
        seen: Callable[[Sight], None],
        granted: Callable[[Record], object] | None = None,
    ) -> None:
        self._scope, self._clock, self._interest, self._seen = scope, clock, interest, seen
        self.keys: Final = keys
        self._queue: Final[deque[_QueuedRequest]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._is_busy = False
        self._soon = 0.0  # in how many seconds the holder, which is in this process, is likely to leave
        self._leaving: asyncio.Future[None] | None = None
        self._shown_at: Instant | None = None
        self._lives = 0
        self.dead: Final[set[str]] = set()
        self.killed: Final[set[str]] = set()
        self.disagreement: Head | None = None
        limits = scope.store.capabilities
        self._most: Final = min(MOST_KEYS, limits.max_changes)
        self._has_alternatives: Final = limits.alternatives
        self._guess: Final = Guess(keys, self._most, limits)
        self._known: Final = KnownRecords(keys, clock)
        self._is_mutex = False
        gone, tell = (self.dead, self.killed), granted or _ignored
        self.mutex: Final = MutexDriver(scope, keys, clock, gone, seen, tell, self._do_no_mutex)
        self._has_slots: bool | None = None  # None: it was free, or is not known
        self._slot_keys: Final = keys.with_slots()
        self._slots: Final = SlotDriver(scope, self._slot_keys, clock, gone, seen, tell, self._note_disagreement)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked of the line at the moment."""
        return self._running is None and not self._is_busy and not self.mutex.asked

    def ask(self, request: Request, spec: LockSpec) -> asyncio.Future[Answered]:
        """Put a request to the line. Requests are answered in the order of the calls, awaited or not."""
        if self._is_of_mutex(spec) or self._has_slots or self._may_have_slots(spec):
            return self.mutex.begin(self.do(request, spec))
        return self._ask(request, spec)

    def _is_of_slots(self, request: Request, spec: LockSpec) -> bool:
        """Return True if a semaphore has slots as far as is known, or may begin so with this entry."""
        if self._has_slots is None:
            return self._may_have_slots(spec) and is_plain(request, spec)
        return self._has_slots and spec.kind in ("", SEMAPHORE)

    def _may_have_slots(self, spec: LockSpec) -> bool:
        return spec.kind == SEMAPHORE and self._scope.store.capabilities.alternatives

    def _note_disagreement(self, head: Head) -> None:
        self.disagreement = head

    def note_grant(self, holder: Holder) -> None:
        """Note that the store has handed over to an entry of this process."""
        if self._has_slots:
            self._slots.note_grant(holder)
        else:
            self.mutex.held_since = holder.granted_at

    def _is_of_mutex(self, spec: LockSpec) -> bool:
        if spec.kind:
            self._is_mutex = self._has_alternatives and spec.kind == MUTEX
        return self._is_mutex

    def _ask(self, request: Request, spec: LockSpec) -> asyncio.Future[Answered]:
        asked = _QueuedRequest(request, spec, asyncio.get_running_loop().create_future())
        self._queue.append(asked)
        if self._leaving is not None and not self._leaving.done() and not _may_wait(request):
            self._leaving.set_result(None)
        self._go_on()
        return asked.answer

    def do(self, request: Request, spec: LockSpec) -> Coroutine[Any, Any, Answered]:
        """Ask, and wait for the answer. If the line is idle, the step is taken right here, without a task for it.

        A caller that is cancelled does not know if the request was answered; it asks to leave.
        """
        if spec.kind:  # as in _is_of_mutex: this is called twice for every hold
            self._is_mutex = self._has_alternatives and spec.kind == MUTEX
        return self.mutex.do(request, spec) if self._is_mutex else self._do_other(request, spec)

    async def _do_no_mutex(self, request: Request, spec: LockSpec) -> Answered:
        """Answer a request on a line that was taken for a mutex, and is of another kind."""
        self._is_mutex = False
        try:
            return await self._do_counted(request, spec)
        except OtherLayoutError:  # it was of another kind a moment ago
            return await self.do(request, spec)

    async def _do_other(self, request: Request, spec: LockSpec) -> Answered:
        asked = self.mutex.asked
        if asked and type(request) is Enter and asyncio.current_task() not in asked:  # it may have asked to leave
            await asyncio.wait(asked)
        while True:
            if self._is_of_slots(request, spec):
                answered = await self._slots.do(request, spec)
                self._has_slots = answered is not None
                if answered is not None:
                    return answered
            try:
                return await self._do_counted(request, spec)
            except OtherLayoutError:
                if not self._may_have_slots(spec):
                    return await self._leave_moved(request, spec)
                self._has_slots = True

    async def _leave_moved(self, request: Request, spec: LockSpec) -> Answered:
        """Let a holder leave that took its lock before its store was moved here from one that hands locks over."""
        driver = self._slots if spec.kind == SEMAPHORE else self.mutex
        answered = None if isinstance(request, Enter) else await driver.step(request, spec)
        if answered is None:
            raise StoreBusyError(self.keys.name, "it is held since before its store was moved here; ask again later")
        return answered

    async def _do_counted(self, request: Request, spec: LockSpec) -> Answered:
        is_held_back = self._soon and _may_wait(request)
        if self._running is not None or self._is_busy or self._queue or is_held_back:
            return await self._ask(request, spec)
        self._is_busy = True
        try:
            sight, [outcome] = await self._advance((request,), spec)
        finally:
            self._is_busy = False
            self._go_on()
        if isinstance(outcome, Exception):
            raise outcome
        return Answered(outcome, sight)

    async def leave_known(self, request: Leave, spec: LockSpec) -> Answered | None:
        """Let a holder leave by what is known of the line here, without a look; None: it has not, so ask as ever.

        What it brings along must be ``guarded``, and its ``on_grant`` look at nothing.
        """
        if self._is_of_mutex(spec):
            return await self.mutex.leave_known(request, spec)
        if not self.is_idle or self.dead or self._is_of_slots(request, spec):
            return None
        self._is_busy = True
        try:
            return await self._leave_known(request, spec)
        finally:
            self._is_busy = False
            self._go_on()

    async def _leave_known(self, request: Leave, spec: LockSpec) -> Answered | None:
        recalled, extra = self._known.recall(), request.extra_changes
        if recalled is None or extra is None or extra.guarded is None:
            return None
        seen, given = recalled
        quick = quick_step(self.keys, seen, given, spec, LineFacts(), request)
        if quick is None or not quick.granted:
            return None
        welcome, know = ((), ()) if extra.on_grant is None else extra.on_grant(quick.granted, seen)
        ready = [change for change in quick.ready if change.key not in know]
        wakes = [wake for wake in quick.wakes if not wake.to.startswith(self._scope.presence)]
        changes = (*quick.changes, *extra.guarded, *welcome, *ready)
        asked_at = self._clock.elapsed()
        try:
            if wakes or extra.before is not None or max([len(change.key) for change in changes]) > MAX_KEY_BYTES:
                done = await self._scope.commit(*changes, before=extra.before, wake=wakes)
            else:  # all of it is of our own making
                done = await self._scope.commit_unchecked(*changes)
        except BaseException:
            self._known.forget()
            raise
        if isinstance(done, Conflict):
            self._known.forget()
            return None
        decided = Decided(quick.result(seen), done.at, done.versions)
        return Answered(quick.answer, self._finish(decided, asked_at, frozenset()))

    def _go_on(self) -> None:
        if self._queue and self._running is None and not self._is_busy:
            running = asyncio.get_running_loop().create_task(self._run())
            self._running = None if running.done() else running  # an eager task may be over by now

    async def finish(self) -> None:
        """Wait until everything that was asked is answered."""
        while self._running is not None or self._is_busy or self.mutex.asked:
            under_way = {*self.mutex.asked, *([] if self._running is None else [self._running])}
            await (asyncio.wait(under_way) if under_way else asyncio.sleep(0))

    async def _run(self) -> None:
        try:
            while self._queue:
                if self._soon and all(_may_wait(each.request) for each in self._queue):
                    await self._until_one_leaves(self._soon)
                await self._serve(self._take())
        finally:
            self._running = None

    async def _until_one_leaves(self, seconds: float) -> None:
        """Hold back those that join a line in which others wait: they share the step of the next one that leaves.

        If they went by themselves, that one would have to wait for them.
        """
        loop = asyncio.get_running_loop()
        leaving = self._leaving = loop.create_future()
        timer = loop.call_later(seconds, _settle, leaving)
        try:
            await leaving
        finally:
            timer.cancel()
            self._leaving = None

    def _take(self) -> list[_QueuedRequest]:
        """Take what can share a step: requests that agree about what the line is, as far as their keys fit."""
        queue, taken = self._queue, [self._queue.popleft()]
        brought, room = set(brought_by(taken[0].request)), self._most - WINDOW - 2
        while queue and len(taken) < MOST_AT_ONCE and queue[0].spec == taken[0].spec:
            brought.update(brought_by(queue[0].request))
            if len(brought) + KEYS_EACH * (len(taken) + 1) > room:
                break
            taken.append(queue.popleft())
        return taken

    async def _serve(self, some: list[_QueuedRequest]) -> None:
        while some:
            try:
                sight, outcomes = await self._advance([each.request for each in some], some[0].spec)
            except Exception as problem:  # noqa: BLE001 -- the caller gets it
                for each in some:
                    each.settle(problem)
                return
            for each, outcome in zip(some, outcomes, strict=False):  # the rest needs another step
                each.settle(outcome if isinstance(outcome, Exception) else Answered(outcome, sight))
            some = some[len(outcomes) :]

    async def _advance(self, requests: Sequence[Request], spec: LockSpec) -> tuple[Sight, tuple[Outcome, ...]]:
        dead = frozenset(self.dead)
        sight, outcomes = await self._step(requests, spec)
        self._guess.is_crowded = self._guess.is_crowded and bool(sight.line.held)
        while _is_halfway(sight.line, dead) or _has_dead_holders(sight, dead):
            # Find the first that still waits behind all that are gone, and let it move up.
            start, end = self.keys.tickets_from(sight.line.front)
            page = await self._scope.scan(start, end, limit=1)
            first = next((int(key.parts[-1]) for key in page.records), sight.line.next_ticket)
            front = min(first, sight.line.next_ticket)
            moved, _ = await self._step([Reap()], spec, LineFacts(dead=dead, life=sight.life, front=front))
            sight = _followed(sight, moved)
        return sight, outcomes

    async def look(self, also: Collection[str] = (), waiting: Mapping[str, int] = _NONE) -> Sight:
        """Read the line; nothing is written, and nothing is waited for but the store.

        ``also`` are further entries whose fences are to be told. ``waiting`` are the first of this process's waiters,
        by their tickets: those in front of all others in sight are looked for among the holders that are only counted.
        """
        if self._is_mutex and (sight := await self.mutex.look(also)) is not None:
            return sight
        if self._has_slots and (sight := await self._slots.look()) is not None:
            return sight
        self._is_mutex, self._has_slots = False, None
        keys = frozenset((self.keys.head, *self._guess.likely(())))
        most = max(1, min(MOST_FENCES, self._most - WINDOW - FEW_SLOTS - 4))
        passed = list(waiting)[:NEAR] if self._guess.is_counting else []
        keys |= {self.keys.held(each) for each in passed}
        while True:
            asked_at = self._clock.elapsed()
            seen = await self._scope.read(*keys)
            view = LineView(self.keys, seen, keys, _NO_SITE, LineFacts(), {*also, *passed})
            if is_mutex(view.head) and (sight := await self.mutex.look(also)) is not None:
                self._is_mutex = True
                return sight
            if is_slotted(view.head) and (sight := await self._slots.look()) is not None:
                self._has_slots = True
                return sight
            before = [each for each, ticket in waiting.items() if view.head.unseen and ticket < view.line.front]
            if not {*passed} >= {*before[:most]}:
                passed = before[:most]
                view.missing.update(map(self.keys.held, passed))
            ours = [each for each in view.line.holders if each.entry.id in self._interest or each.entry.id in also]
            ours.sort(key=lambda holder: holder.entry.id not in also)
            fences = {holder.entry.id: view.fence_of(holder) for holder in ours[:most]}
            if not view.missing:
                self._guess.remember(view.line)
                self._has_slots = False if view.head.life else None
                unread = waiting[before[most]] if len(before) > most else None
                return Sight(view.line, view.head.life, fences, seen.at, asked_at, unread=unread)
            named = map(self.keys.held, {*passed, *also} if view.head.unseen else ())
            keys = frozenset((self.keys.head, *view.missing, *named, *self._guess.likely((), view.head)))

    async def waiter_at(self, ticket: int) -> Waiter | None:
        """Return the waiter with a ticket, however far back; None: it does not wait."""
        if self._is_mutex or self._has_slots:
            keys = self.keys if self._is_mutex else self._slot_keys
            queued = await read_ticket(self._scope, keys, ticket)
            return None if queued is None else queued_in(keys, queued)
        key = self.keys.ticket(ticket)
        record = (await self._scope.read(key)).get(key)
        return None if record is None else waiter_in(record)

    async def poll_front(self, waiting: Mapping[str, int]) -> Sight:
        """Read what a notification may be about, mostly in one round trip: the holders, and the tickets of ``waiting``.

        Waiters in front of them that were not read are out of sight.
        """
        if self._is_mutex or self._has_slots or self._guess.is_counting:
            return await self.look((), waiting)
        near = dict(itertools.islice(waiting.items(), NEAR))
        keys = self._guess.near(near.values())
        asked_at = self._clock.elapsed()
        seen = await self._scope.read(*keys)
        view = LineView(self.keys, seen, keys, _NO_SITE, LineFacts())
        holders = {holder.entry.id: holder for holder in view.head.holders}
        ours = [holder for holder in view.head.holders if holder.entry.id in self._interest]
        stands = {waiter.entry.id for ticket in near.values() if (waiter := view.waiter_at(ticket)) is not None}
        is_told = not view.head.unseen and holders.keys() | stands >= near.keys()
        if not is_told or not keys.issuperset([self.keys.grant(holder.slot) for holder in ours]):
            return await self.look((), waiting)
        line = view.in_sight()
        self._guess.remember(line)
        fences = {holder.entry.id: view.fence_of(holder) for holder in ours}
        return Sight(line, view.head.life, fences, seen.at, asked_at)

    def take_head(self, head: Head) -> None:
        """Keep in mind how a notification has shown the line: that tells what the next step needs."""
        horizon = head.front if head.front < head.next_ticket else None
        line = Line(head.rules, head.holders, (), head.next_ticket, horizon, unseen=head.unseen, listed=head.listed)
        self._guess.remember(line)
        self._shown_at = self._clock.elapsed()

    def _leaves_early(self, requests: Sequence[Request]) -> bool:
        """Return True if one leaves that was told by a notification so soon that the one before may be on its way back.

        If both went on without a look they would race for a line that is free, and one of them could lose for long.
        """
        if self._shown_at is None or not any(type(each) is Leave for each in requests):
            return False
        passed, self._shown_at = seconds_between(self._shown_at, self._clock.elapsed()), None
        return passed < BACK_WITHIN

    # --- one step ------------------------------------------------------------------------------------------------

    async def _step(
        self, requests: Sequence[Request], spec: LockSpec, known: LineFacts | None = None
    ) -> tuple[Sight, tuple[Outcome, ...]]:
        """Answer requests, from the first to as far as one commit takes them."""
        known = known or LineFacts()
        dead = known.dead | self.dead
        tickets = tuple(each.ticket for each in requests if isinstance(each, Enter | Leave) and each.ticket is not None)
        self._lives += 1
        new_life, killed = f"{self._scope.presence_name}.{self._lives}", frozenset(self.killed)
        facts = LineFacts(dead, known.life, known.front, tickets, new_life, killed)
        if self._guess.wants_look(requests) or self._leaves_early(requests):
            await self.look()
        limits = self._scope.store.capabilities
        needed = self._guess.sure(requests)
        if dead or (spec.history and any(type(each) is Leave for each in requests)):
            needed |= {self.keys.past}
        keys = self._guess.within(needed, self._guess.likely(requests))
        for _ in range(TRIES):
            asked_at = self._clock.elapsed()
            try:
                asked = StepInput(self.keys, requests, spec, keys, facts, self._interest, self._scope.presence, limits)
                decided = await self._scope.update(tuple(keys), partial(decide_step, asked))
            except asyncio.CancelledError as cancelled:  # too late, perhaps: then tell the entries that were granted
                verdict = verdict_of(cancelled)
                if isinstance(verdict, Decided) and not cast("Decided[StepResult]", verdict).answer.missing:
                    self._finish(verdict, asked_at, keys)
                raise
            found = decided.answer
            if not found.missing:
                self.dead.difference_update(dead)
                self.killed.intersection_update(self.dead)
                return self._finish(decided, asked_at, keys), found.outcomes
            self._guess.is_crowded = True  # from now on it is worth a look before joining
            needed |= found.missing
            keys = self._guess.within(needed, self._guess.likely(requests, found.head, SLACK))
            if len(keys) > self._most and len(requests) > 1:
                requests = requests[: len(requests) // 2]
                needed = self._guess.sure(requests)
                keys = needed = self._guess.within(needed, self._guess.likely(requests, found.head))
            elif len(keys) > self._most:
                keys = needed = found.missing | self._guess.sure(requests)
        raise StoreBusyError(self.keys.name, f"its line moved on {TRIES} times while a step was taken")

    def _finish(self, decided: Decided[StepResult], asked_at: Instant, given: frozenset[RecordKey]) -> Sight:
        found, line = decided.answer, decided.answer.line
        self._guess.remember(line)
        self._known.remember(found, given, decided.at, decided.versions)
        self._soon = self._leaves_in(line, found.head.pace)
        if found.disagrees:
            self.disagreement = found.head
        fences = dict(found.fences)
        for holder in found.granted:
            fences[holder.entry.id] = decided.versions[self.keys.grant_of(holder)]
        unread = 0 if line.unseen else None
        sight = Sight(line, found.head.life, fences, decided.at, asked_at, decided.versions, unread)
        if found.head.life:  # of others nothing is in sight here
            self._has_slots = None if line.is_empty and not found.head.pinned else False
            self._seen(sight)
        return sight

    def _leaves_in(self, line: Line, pace: float) -> float:
        """Return for how many seconds it pays to wait for the holder to leave; 0: it does not."""
        if not 0 < pace < SHORT_HOLD or line.rules != ONE or len(line.holders) != 1 or line.front >= line.next_ticket:
            return 0.0
        presence = presence_of(line.holders[0].entry)
        is_here = presence is not None and presence.startswith(self._scope.presence_name)
        return pace if is_here else 0.0

    def likely_keys(self, requests: Sequence[Request]) -> frozenset[RecordKey]:
        """Return the keys that a step is likely to need, from what was last seen of the line."""
        return self._guess.sure(requests) | self._guess.likely(requests)


def _may_wait(request: Request) -> bool:
    """Return True if a request joins a line, and is ready to wait there."""
    return type(request) is Enter and request.waits


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _ignored(_: Record) -> None:
    """Tell none of a grant."""


def _followed(first: Sight, then: Sight) -> Sight:
    """Return what two steps have left behind: requests of the first look for what it has put, and for its fences."""
    held = {(holder.entry.id, holder.granted_at) for holder in then.line.holders}
    stay = {holder.entry.id for holder in first.line.holders if (holder.entry.id, holder.granted_at) in held}
    fences = {entry_id: fence for entry_id, fence in first.fences.items() if entry_id in stay}
    return structs.replace(then, fences=fences | then.fences, versions=first.versions | then.versions)


def _is_halfway(line: Line, dead: frozenset[str]) -> bool:
    """Return True if a waiter out of sight may have to fall, or to move up, which none does while all is held."""
    return line.is_cut_off and (bool(dead) or not line.is_full)


def _has_dead_holders(sight: Sight, dead: frozenset[str]) -> bool:
    """Return True if some dead holders are left over from a step in which not all could fall."""
    return any(
        (holder.ends_at is not None and holder.ends_at <= sight.at)
        or (isinstance(holder.entry.anchor, OfPresence) and holder.entry.anchor.presence in dead)
        for holder in sight.line.holders
    )


# --- one line as this process takes part in it: its own waiters and holds, and what they are told ------------------

TAKEN_AWAY: Final = "it was released by force, or this process was taken for dead"


class SeenGrant(Struct, frozen=True):
    """That an entry holds: its holder record and fence, and when that was seen, by both clocks."""

    holder: Holder
    fence: int
    at: Instant
    asked_at: Instant


def grant_seen(holder: Holder, sight: Sight) -> SeenGrant | None:
    """Return a holder's turn; None if it was over before it was seen."""
    fence = sight.fences.get(holder.entry.id)
    return None if fence is None else SeenGrant(holder, fence, sight.at, sight.asked_at)


class LocalWaiter(Struct, eq=False):
    """An entry of this process that waits, or is about to. :attr:`turn` is set when it holds; to None when it is gone.

    ``is_gone``: it was evicted after it was granted, before its task took note of the grant.
    """

    entry: Entry
    presence: Presence
    spec: LockSpec
    _loop: asyncio.AbstractEventLoop
    ticket: int | None = None
    joined: int = 0
    is_gone: bool = False
    _since: float | None = None
    _turn: asyncio.Future[SeenGrant | None] | None = None

    @property
    def since(self) -> float:
        """Since when it waits, by the loop's time: since it has a ticket, or was first asked."""
        if self._since is None:
            self._since = self._loop.time()
        return self._since

    @property
    def turn(self) -> asyncio.Future[SeenGrant | None]:
        """Done when it holds or is gone. Made when it is first asked for: one that need not wait does without."""
        if self._turn is None:
            self._turn = self._loop.create_future()
        return self._turn

    def joins(self, ticket: int, joined: int) -> None:
        """Note the place that it has got, as which of those that joined here."""
        self.ticket, self.joined = ticket, joined
        if self._since is None:
            self._since = self._loop.time()

    def settle(self, turn: SeenGrant | None) -> None:
        """Tell the task that waits."""
        if not self.turn.done():
            self.turn.set_result(turn)
        elif turn is None:
            self.is_gone = True


class LocalHold(Protocol):
    """What a line asks of a hold: who it is, and to be told when it is over."""

    @property
    def presence(self) -> Presence | None:
        """What it is anchored to; None: to an instant of its own."""
        ...

    @property
    def granted_at(self) -> Instant:
        """Since when it is held, by the store's time."""
        ...

    @property
    def known_at(self) -> Instant:
        """Since when this process knows of it, by its own clock."""
        ...

    @property
    def called_from(self) -> str:
        """Where in the code it was taken."""
        ...

    def lose(self, reason: str) -> None:
        """Hear that it is no longer held."""
        ...


@final
class LocalLine:
    """The waiters and holds of this process on one key.

    Attributes:
        holds: Those that the line lists.
        counted: Those that it only counts, by their presence.
        leaving: What sees to it that an entry leaves which this process has given up, by the entry.
        entering: Held while an entry joins this line in the step of another line.
        reaping: The next reap, which has not begun: requests for one share it.
        due_in: In how many seconds an entry at the front may fall, when it was last reaped.
        next_end: When that is by the store's time; None: no entry there falls by time.
        waited: Seconds that waiters here waited lately until the store said that they hold, as a moving average.
    """

    __slots__ = (
        "_clock",
        "_joined",
        "_scope",
        "_shown_head",
        "counted",
        "driver",
        "due_in",
        "entering",
        "holds",
        "last",
        "leaving",
        "liveness_tokens",
        "next_end",
        "reaping",
        "waited",
        "waits",
    )

    def __init__(self, scope: Scope, keys: LineKeys, clock: Clock) -> None:
        self.waits: Final[dict[str, LocalWaiter]] = {}
        self.holds: Final[dict[str, LocalHold]] = {}
        self.counted: Final[dict[str, dict[str, LocalHold]]] = {}
        self.liveness_tokens: dict[str, str] = {}
        self.last: Sight | None = None
        self.leaving: Final[dict[str, asyncio.Task[Any]]] = {}
        self.entering: Final = asyncio.Lock()
        self.reaping: asyncio.Task[Instant | None] | None = None
        self.due_in = self.waited = 0.0
        self.next_end: Instant | None = None
        self._joined = 0
        self._shown_head: Record | None = None
        self._clock, self._scope = clock, scope
        self.driver: Final = LineDriver(scope, keys, clock, self.waits, self._saw, self.take_grant)

    @property
    def is_idle(self) -> bool:
        """Whether this process has nothing to do with the line at the moment."""
        is_left = not self.waits and not self.holds and not self.counted and not self.leaving
        return is_left and self.driver.is_idle

    def all_holds(self) -> list[LocalHold]:
        """Return the holds of this process, listed or counted."""
        return [*self.holds.values(), *(hold for some in self.counted.values() for hold in some.values())]

    def keep_hold(self, holder: Holder, hold: LocalHold) -> None:
        """Tell ``hold`` from now on when it is seen to be over."""
        if holder.slot == OUT_OF_SIGHT and (presence := presence_of(holder.entry)) is not None:
            self.counted.setdefault(presence, {})[holder.entry.id] = hold
        else:
            self.holds[holder.entry.id] = hold

    def forget_hold(self, holder: Holder) -> None:
        """Tell it no longer."""
        if self.holds.pop(holder.entry.id, None) is not None or not self.counted:
            return
        presence = presence_of(holder.entry)
        if presence is not None and presence in self.counted:
            self.counted[presence].pop(holder.entry.id, None)
            if not self.counted[presence]:
                del self.counted[presence]

    @property
    def waiting_since(self) -> float:
        """Since when the first of those here waits, by the loop's time."""
        return next(iter(self.waits.values())).since

    @property
    def is_near(self) -> bool:
        """Whether a waiter here is so near to the front that it polls most often."""
        if self.last is None:
            return True
        place, first = self.last.line.place, itertools.islice(self.waits.values(), NEAR)
        return any(wait.ticket is not None and place(wait.ticket) < NEAR for wait in first)

    def note_ticket(self, wait: LocalWaiter, ticket: int) -> None:
        """Note the place that one who waits here has got."""
        self._joined += 1  # tickets would not do: those of another life of the line begin anew
        wait.joins(ticket, self._joined)

    async def look(self, also: Collection[str] = ()) -> Sight:
        """Read the line and tell the waiters and holds of this process.

        ``also`` are entries that are looked for among the holders that the line only counts.
        """
        while True:
            # One that joins after the line was read is not in what was read: its fate cannot be told from it.
            joined, held = self._joined, tuple(self.holds)
            sight = await self.driver.look(also, self._first_waits())
            self._tell_waits(sight, joined)
            self._tell_holds(sight, held)
            if sight.unread is None:
                return sight

    async def poll_front(self) -> None:
        """Read as much of the line as a notification is about, and tell the waiters and holds of this process."""
        joined, held = self._joined, tuple(self.holds)
        sight = await self.driver.poll_front(self._first_waits())
        self._tell_waits(sight, joined)
        self._tell_holds(sight, held)
        if sight.unread is not None:
            await self.look()

    def _first_waits(self) -> dict[str, int]:
        """Return the first of this process that wait, by their tickets: as many as one look tells, and one more."""
        waits = ((entry, wait.ticket) for entry, wait in self.waits.items() if not wait.turn.done())
        return dict(itertools.islice(((entry, each) for entry, each in waits if each is not None), MOST_FENCES + 1))

    async def check_counted(self) -> None:
        """Look for the records of some holds that the line only counts, and tell those that have none.

        The others follow the next time, so that it costs the same however many there are.
        """
        scope, keys = self._scope, self.driver.keys
        for some in tuple(self.counted.values()):
            known = list(itertools.islice(some, scope.at_most(MOST_KEYS)))
            for entry_id in known:
                some[entry_id] = some.pop(entry_id)
            seen = await scope.read(*map(keys.held, known))
            self.lose_counted([each for each in known if seen.get(keys.held(each)) is None])

    def lose_counted(self, entries: Iterable[str]) -> None:
        """Tell holds that the line only counts that they are over."""
        for some in tuple(self.counted.values()):
            for hold in [some[each] for each in entries if each in some]:
                hold.lose(TAKEN_AWAY)

    def take_head(self, head: Record) -> None:
        """Keep the head of a counted line in mind that a notification shows: a grant of the same commit follows."""
        self._shown_head = head

    def take_grant(self, grant: Record) -> bool:
        """Tell a waiter of this process that it holds: the store shows the grant, as it was made.

        What it says is believed because of the entry's id, which no other process knows. It may be old, and the hold be
        lost since; but so may whatever is read. Return False if the waiter has to look for itself.
        """
        if not is_of_mutex(grant):
            return self._take_counted(grant)
        if not self.waits:  # it is of another process, and need not be read
            return True
        holder = holder_in(grant)
        wait = self.waits.get(holder.entry.id)
        if wait is not None and holder.entry.anchor == wait.entry.anchor:
            self.driver.note_grant(holder)
            self._settle_shown(wait, holder, grant.version)
        return True

    def _take_counted(self, grant: Record) -> bool:
        """Tell a waiter of a counted line that it holds, if head and grant show that this very ticket was granted."""
        granted = GRANTS.decode(grant.value)
        wait, stored, last = self.waits.get(granted.entry), self._shown_head, self.last
        if wait is None:
            return True
        head = None if stored is None else HEADS.decode(stored.value)
        if head is None or last is None or head.life != last.life:
            return False
        holder = next((each for each in head.holders if each.entry.id == granted.entry), None)
        is_of_grant = holder is not None and holder.granted_at == granted.granted_at
        is_of_ticket = wait.ticket is not None and wait.ticket < head.front  # else it waits again, and this is old
        if holder is None or not is_of_grant or not is_of_ticket or holder.entry.anchor != wait.entry.anchor:
            return False
        self.driver.take_head(head)
        self._settle_shown(wait, holder, grant.version)
        return head.front == head.next_ticket  # else who comes next is looked at while it holds

    def _settle_shown(self, wait: LocalWaiter, holder: Holder, fence: int) -> None:
        took = asyncio.get_running_loop().time() - wait.since
        self.waited = self.waited + 0.2 * (took - self.waited) if self.waited else took
        wait.settle(SeenGrant(holder, fence, holder.granted_at, self._clock.elapsed()))

    def _saw(self, sight: Sight) -> None:
        self._tell_waits(sight, self._joined)
        self._tell_holds(sight, tuple(self.holds))

    def _tell_waits(self, sight: Sight, joined: int) -> None:
        self.last = sight
        holders = {holder.entry.id: holder for holder in sight.line.holders}
        for entry_id in sight.fences.keys() & self.waits.keys():
            wait, holder = self.waits[entry_id], holders[entry_id]
            if holder.entry.anchor == wait.entry.anchor:  # by another one it holds only until that is noticed
                wait.settle(grant_seen(holder, sight))
        waiting, horizon = {waiter.entry.id for waiter in sight.line.waiters}, sight.line.horizon
        for entry_id, wait in self.waits.items():  # in the order in which they joined
            if wait.ticket is None or wait.joined > joined or (horizon is not None and wait.ticket >= horizon):
                return
            if sight.unread is not None and wait.ticket >= sight.unread:
                return
            if entry_id not in holders and entry_id not in waiting:
                wait.settle(None)

    def _tell_holds(self, sight: Sight, held: Iterable[str]) -> None:
        for presence in [each for each in self.counted if each not in dict(sight.line.unseen_of)]:
            brought = {holder.entry.id for holder in sight.line.holders if holder.slot == OUT_OF_SIGHT}
            for entry_id, counted in tuple(self.counted[presence].items()):  # it has fallen, but for those in sight
                if entry_id not in brought and sight.asked_at >= counted.known_at:
                    counted.lose(TAKEN_AWAY)
        holders = {holder.entry.id: holder.granted_at for holder in sight.line.holders}
        for entry_id in held:
            hold = self.holds.get(entry_id)
            # What was asked for before the hold was known of may be older than its grant, and show it still waiting.
            if hold is not None and sight.asked_at >= hold.known_at and holders.get(entry_id) != hold.granted_at:
                hold.lose(TAKEN_AWAY)
