"""Driving one line: the requests of one process on one key, folded in order and committed once.

A step names the keys that it will need before it is taken, from what was last seen of the line. When somebody else
moved the line meanwhile, the step finds that it lacks some, changes nothing, and is taken again with those.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, cast, final

from msgspec import Struct

from holdfast.clock import Instant, later
from holdfast.errors import StoreBusyError
from holdfast.keys import RecordKey
from holdfast.locks.algebra.entries import Attended, Holder
from holdfast.locks.algebra.line import Line, Rules, Waiting
from holdfast.locks.driving.quick_step import quick_step
from holdfast.locks.driving.records import WINDOW, Facts, Head, Site, View
from holdfast.locks.driving.requests import Answer, Enter, Leave, Poke, Renew, Request, Resize, WrongKind, step
from holdfast.locks.driving.waits_for import KEPT_FOR, MARKERS, Marker
from holdfast.stores.group import verdict_of
from holdfast.stores.protocol import Decided, Decision, Put

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from holdfast.clock import Clock
    from holdfast.locks.driving.records import LineKeys
    from holdfast.scope import Scope
    from holdfast.stores.protocol import Change, Snapshot, Wake

MOST_AT_ONCE: Final = 16
"""The most requests on one line that are folded into one step, so that its keys fit into one commit."""

SLACK: Final = 24
"""By how many tickets a line may move on between two tries of a step before the second fails like the first."""

MOST_KEYS: Final = 100
"""The most keys of one step: what a store takes in one commit."""

FEW_SLOTS: Final = 8
"""Of how many slots the grants are read in any case."""

MOST_FENCES: Final = 40
"""The most fences that are read in one look; the rest follows in the next."""

FEW_FENCES: Final = 16
"""The most fences of earlier grants that are read in one step; the rest follows in the next look."""

TRIES: Final = 50


_EMPTY: Final = Head("", "", Rules())
_NO_SITE: Final = Site("", Rules())


class Sight(Struct, frozen=True):
    """A line as it was seen, with nothing left uncommitted.

    Attributes:
        line: What was in sight of it.
        life: Which life of the line it was.
        fences: The fence of each holder that this process asked about.
        at: When, by the store's time.
        asked_at: When, by this process's clock, before it was asked for.
    """

    line: Line
    life: str
    fences: dict[str, int]
    at: Instant
    asked_at: Instant


class Answered(Struct, frozen=True):
    """The answer to one request, and the line it left behind."""

    answer: Answer
    sight: Sight


class _Step(Struct, frozen=True):
    """What one step of a line came to, or the keys that it lacked."""

    head: Head
    answers: tuple[Answer, ...] = ()
    line: Line = Line(Rules())
    fences: dict[str, int] = {}
    granted: tuple[Holder, ...] = ()
    missing: frozenset[RecordKey] = frozenset()
    disagrees: bool = False


class _Asked(Struct, frozen=True):
    """A request that waits for its step."""

    request: Request
    site: Site
    answer: asyncio.Future[Answered]


@final
class LineDriver:
    """All requests of one process on one line.

    Args:
        scope: Where the line lies.
        keys: Its records.
        clock: The process's own clock.
        interest: The entries whose fences are to be told when they hold.
        seen: Called with what each step left behind, once it is durable.
    """

    def __init__(
        self, scope: Scope, keys: LineKeys, clock: Clock, interest: Collection[str], seen: Callable[[Sight], None]
    ) -> None:
        self._scope, self._clock, self._interest, self._seen = scope, clock, interest, seen
        self.keys: Final = keys
        self._queue: Final[deque[_Asked]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._is_busy = self._is_crowded = False
        self._lives = 0
        self._head: Head = _EMPTY
        self.dead: set[str] = set()
        self.disagreement: Head | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked of the line at the moment."""
        return self._running is None and not self._is_busy

    def ask(self, request: Request, site: Site) -> asyncio.Future[Answered]:
        """Put a request to the line. Requests are answered in the order of the calls, also if nobody waits for it."""
        asked = _Asked(request, site, asyncio.get_running_loop().create_future())
        self._queue.append(asked)
        self._go_on()
        return asked.answer

    async def do(self, request: Request, site: Site) -> Answered:
        """Ask, and wait for the answer. If the line is idle, the step is taken right here, without a task for it.

        A caller that is cancelled cannot tell whether the request was answered; it asks to leave.
        """
        if self._running is not None or self._is_busy or self._queue:
            return await self.ask(request, site)
        self._is_busy = True
        try:
            sight, answers = await self._advance((request,), site)
        finally:
            self._is_busy = False
            self._go_on()
        return Answered(answers[0], sight)

    def _go_on(self) -> None:
        if self._queue and self._running is None and not self._is_busy:
            running = asyncio.get_running_loop().create_task(self._run())
            self._running = None if running.done() else running  # an eager task may be over by now

    async def finish(self) -> None:
        """Wait until everything that was asked is answered."""
        while self._running is not None or self._is_busy:
            await (asyncio.sleep(0) if self._running is None else asyncio.wait({self._running}))

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._serve(self._take())
        finally:
            self._running = None

    def _take(self) -> list[_Asked]:
        """Take what can share a step: requests that agree about what the line is."""
        queue, taken = self._queue, [self._queue.popleft()]
        while queue and len(taken) < MOST_AT_ONCE and queue[0].site is taken[0].site:
            taken.append(queue.popleft())
        return taken

    async def _serve(self, some: list[_Asked]) -> None:
        try:
            sight, answers = await self._advance([each.request for each in some], some[0].site)
        except Exception as problem:  # noqa: BLE001 -- whoever asked gets it
            for each in some:
                if not each.answer.done():
                    each.answer.set_exception(problem)
                    each.answer.exception()  # nobody may be waiting for it any more
            return
        for each, answer in zip(some, answers, strict=True):
            if not each.answer.done():
                each.answer.set_result(Answered(answer, sight))

    async def _advance(self, requests: Sequence[Request], site: Site) -> tuple[Sight, tuple[Answer, ...]]:
        dead = frozenset(self.dead)
        sight, answers = await self._step(requests, site)
        self._is_crowded = self._is_crowded and bool(sight.line.holders)
        while sight.line.is_cut_off or _has_dead_holders(sight, dead):
            sight = await self._look_further(sight, site, dead)
        return sight, answers

    async def _look_further(self, sight: Sight, site: Site, dead: frozenset[str]) -> Sight:
        """Find the first who still waits behind all those who are gone, and let it move up."""
        start, end = self.keys.tickets_from(sight.line.front)
        page = await self._scope.scan(start, end, limit=1)
        first = next((int(key.parts[-1]) for key in page.records), sight.line.next_ticket)
        front = min(first, sight.line.next_ticket)
        moved, _ = await self._step([Poke()], site, Facts(dead=dead, life=sight.life, front=front))
        return moved

    async def look(self) -> Sight:
        """Read the line; nothing is written, and nothing is waited for but the store."""
        keys = frozenset((self.keys.head, *self._likely_keys((), self._head, 1)))
        while True:
            asked_at = self._clock.elapsed()
            seen = await self._scope.read(*keys)
            view = View(self.keys, seen, keys, _NO_SITE, Facts())
            ours = [holder for holder in view.line.holders if holder.entry.id in self._interest]
            fences = {holder.entry.id: view.fence_of(holder) for holder in ours[:MOST_FENCES]}
            if not view.missing:
                self._remember(view.line)
                return Sight(view.line, view.head.life, fences, seen.at, asked_at)
            keys = frozenset((self.keys.head, *view.missing, *self._likely_keys((), view.head, 1)))

    # --- one step ------------------------------------------------------------------------------------------------

    async def _step(
        self, requests: Sequence[Request], site: Site, known: Facts | None = None
    ) -> tuple[Sight, tuple[Answer, ...]]:
        known = known or Facts()
        dead = known.dead | self.dead
        tickets = tuple(each.ticket for each in requests if isinstance(each, Enter | Leave) and each.ticket is not None)
        self._lives += 1
        facts = Facts(dead, known.life, known.front, tickets, f"{self._scope.presence_name}.{self._lives}")
        if self._is_crowded and any(isinstance(each, Enter) for each in requests):
            await self.look()
        needed = self._sure_keys(requests)
        keys = needed | self._likely_keys(requests, self._head, 1)
        for _ in range(TRIES):
            asked_at = self._clock.elapsed()
            try:
                decided = await self._scope.update(tuple(keys), self._decide(requests, site, keys, facts))
            except asyncio.CancelledError as cancelled:
                self._learn_from(cancelled, asked_at)
                raise
            found = decided.answer
            if not found.missing:
                self.dead -= dead
                return self._finish(decided, asked_at), found.answers
            self._is_crowded = True  # from now on it is worth a look before joining
            needed |= found.missing
            keys = needed | self._likely_keys(requests, found.head, SLACK)
            if len(keys) > MOST_KEYS:
                keys = needed
            if len(keys) > MOST_KEYS:
                keys = found.missing | self._sure_keys(requests)
        raise StoreBusyError(self.keys.name, f"its line moved on {TRIES} times while a step was taken")

    def _learn_from(self, cancelled: asyncio.CancelledError, asked_at: Instant) -> None:
        """Tell those who were granted by a step whose caller was cancelled too late."""
        verdict = verdict_of(cancelled)
        if isinstance(verdict, Decided) and not cast("Decided[_Step]", verdict).answer.missing:
            self._finish(verdict, asked_at)

    def _decide(
        self, requests: Sequence[Request], site: Site, given: frozenset[RecordKey], facts: Facts
    ) -> Callable[[Snapshot], Decision[_Step]]:
        def decide(snapshot: Snapshot) -> Decision[_Step]:
            if len(requests) == 1 and (quick := quick_step(self.keys, snapshot, given, site, facts, requests[0])):
                return Decision(_Step(quick.head, (quick.answer,), quick.line, granted=quick.granted), quick.changes)
            view = View(self.keys, snapshot, given, site, facts)
            if view.missing:
                return Decision(_Step(view.head, missing=frozenset(view.missing)))
            refused = _kind_conflict(view.head, site)
            asked = [Poke() if refused and isinstance(each, Enter | Resize) else each for each in requests]
            line, answers = step(view.line, asked, snapshot.at, view.is_alive)
            changes = view.changes(line, pinned=_pinned(asked))
            fences, granted = self._fences(view, line, requests)
            if view.missing:
                return Decision(_Step(view.head, missing=frozenset(view.missing)))
            if refused:
                pairs = zip(requests, answers, strict=True)
                answers = tuple(refused if isinstance(each, Enter | Resize) else answer for each, answer in pairs)
            markers = tuple(self._markers(requests, answers, snapshot.at))
            disagrees = refused is None and _disagrees(view.head, site, requests)
            found = _Step(view.head, answers, line, fences, granted, disagrees=disagrees)
            return Decision(found, (*changes, *markers), wake=self._wakes(view, line, requests))

        return decide

    def _fences(self, view: View, line: Line, requests: Sequence[Request]) -> tuple[dict[str, int], tuple[Holder, ...]]:
        """Return the fences of holders from before, and the holders whose fence this very commit makes."""
        before = {(holder.entry.id, holder.granted_at) for holder in view.line.holders}
        granted = tuple(holder for holder in line.holders if (holder.entry.id, holder.granted_at) not in before)
        leased = {_leased(each) for each in requests}
        wanted = [
            holder
            for holder in line.holders
            if (holder.entry.id in self._interest or holder.entry.id in leased) and holder not in granted
        ]
        wanted.sort(key=lambda holder: holder.entry.id not in leased)
        return {holder.entry.id: view.fence_of(holder) for holder in wanted[:FEW_FENCES]}, granted

    def _markers(self, requests: Sequence[Request], answers: Sequence[Answer], at: Instant) -> Iterator[Change]:
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(request, Enter) and request.marker is not None and isinstance(answer, Waiting):
                marker = Marker(self.keys.address, answer.ticket, request.entry.id)
                yield Put(request.marker, MARKERS.encode(marker), expires_at=later(at, KEPT_FOR))

    def _wakes(self, view: View, line: Line, requests: Sequence[Request]) -> tuple[Wake, ...]:
        # Whoever waits in this process, or leaves of its own accord, is told by the step itself.
        left = [each.entry_id for each in requests if isinstance(each, Leave) and not each.by_force]
        own = self._scope.presence
        return tuple(dict.fromkeys(wake for wake in view.wakes(line, left) if not wake.to.startswith(own)))

    def _finish(self, decided: Decided[_Step], asked_at: Instant) -> Sight:
        found, line = decided.answer, decided.answer.line
        self._remember(line)
        if found.disagrees:
            self.disagreement = found.head
        fences = dict(found.fences)
        for holder in found.granted:
            fences[holder.entry.id] = decided.versions[self.keys.grant(holder.slot)]
        sight = Sight(line, found.head.life, fences, decided.at, asked_at)
        self._seen(sight)
        return sight

    def _remember(self, line: Line) -> None:
        is_empty = not line.holders and line.front == line.next_ticket
        self._head = _EMPTY if is_empty else Head("", "", line.rules, line.holders, line.front, line.next_ticket)

    # --- which keys ----------------------------------------------------------------------------------------------

    def _sure_keys(self, requests: Sequence[Request]) -> frozenset[RecordKey]:
        keys = {self.keys.head}
        for request in requests:
            if isinstance(request, Enter) and request.marker is not None:
                keys.add(request.marker)
            if isinstance(request, Leave | Renew) and request.slot is not None:
                keys.add(self.keys.grant(request.slot))
            if isinstance(request, Enter | Leave) and request.ticket is not None:
                keys.add(self.keys.ticket(request.ticket))
        return frozenset(keys)

    def _likely_keys(self, requests: Sequence[Request], head: Head, slack: int) -> frozenset[RecordKey]:
        """Return the keys that a step will need unless the line has moved since ``head`` was seen."""
        front, last = head.front, head.next_ticket
        entering = sum(type(each) is Enter for each in requests)
        tickets: set[int] = set()
        if last > front or entering > 1 or (entering and head.holders) or self._is_crowded:
            tickets = {*range(front, min(front + WINDOW, last + slack)), *range(last, last + entering + slack)}
        slots = range(min(len(head.holders) + entering, FEW_SLOTS))
        return frozenset((*map(self.keys.ticket, tickets), *map(self.keys.grant, slots)))


def _kind_conflict(head: Head, site: Site) -> WrongKind | None:
    if head.kind == site.kind and head.rules.alone == site.rules.alone:
        return None
    return WrongKind(head.kind if head.kind != site.kind else f"{head.kind} with other modes")


def _disagrees(head: Head, site: Site, requests: Sequence[Request]) -> bool:
    # A number that was set on purpose is meant to differ.
    return head.rules != site.rules and not head.pinned and any(isinstance(each, Enter) for each in requests)


def _has_dead_holders(sight: Sight, dead: frozenset[str]) -> bool:
    """Tell whether some of a large crowd are left over from a step in which only so many can fall."""
    return any(
        (holder.ends_at is not None and holder.ends_at <= sight.at)
        or (isinstance(holder.entry.anchor, Attended) and holder.entry.anchor.presence in dead)
        for holder in sight.line.holders
    )


def _leased(request: Request) -> str | None:
    """Return the entry that a request leases: it is told its fence, though nobody waits for it."""
    if isinstance(request, Renew):
        return request.entry_id
    return request.entry.id if isinstance(request, Enter) and request.lease is not None else None


def _pinned(requests: Sequence[Request]) -> bool | None:
    found: bool | None = None
    for request in requests:
        if isinstance(request, Resize):
            found = request.pinned
    return found
