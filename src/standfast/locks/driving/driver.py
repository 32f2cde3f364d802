"""Driving one line: the requests of one process on one key, folded in order and committed once.

A step names the keys that it will need before it is taken, from what was last seen of the line. When somebody else
moved the line meanwhile, the step finds that it lacks some, changes nothing, and is taken again with those.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, cast, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import StoreBusyError
from standfast.keys import RecordKey
from standfast.locks.algebra.entries import Attended
from standfast.locks.algebra.line import Line, Rules
from standfast.locks.driving.deciding import Asked, Step, decide_step
from standfast.locks.driving.guessing import FEW_SLOTS, Guess, brought_by
from standfast.locks.driving.records import WINDOW, Facts, Head, Site, View
from standfast.locks.driving.requests import Answer, Enter, Leave, Poke, Request
from standfast.stores.group import verdict_of
from standfast.stores.protocol import Decided

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from standfast.clock import Clock
    from standfast.locks.driving.deciding import Outcome
    from standfast.locks.driving.records import LineKeys
    from standfast.scope import Scope

MOST_AT_ONCE: Final = 16
"""The most requests on one line that are folded into one step, so that its keys fit into one commit."""

SLACK: Final = 24
"""By how many tickets a line may move on between two tries of a step before the second fails like the first."""

MOST_KEYS: Final = 100
"""The most keys of one step, unless the store takes fewer in one commit."""

KEYS_EACH: Final = 4
"""How many keys of the line a request needs at the most: its ticket and its marker, a grant, and a run to tell."""

MOST_FENCES: Final = 40
"""The most fences that are read in one look; the rest follows in the next."""

TRIES: Final = 50


_NO_SITE: Final = Site("", Rules())


class Sight(Struct, frozen=True):
    """A line as it was seen, with nothing left uncommitted.

    Attributes:
        line: What was in sight of it.
        life: Which life of the line it was.
        fences: The fence of each holder that this process asked about.
        at: When, by the store's time.
        asked_at: When, by this process's clock, before it was asked for.
        versions: Of everything that the step has put.
    """

    line: Line
    life: str
    fences: dict[str, int]
    at: Instant
    asked_at: Instant
    versions: dict[RecordKey, int] = {}


class Answered(Struct, frozen=True):
    """The answer to one request, and the line it left behind."""

    answer: Answer
    sight: Sight


class _Queued(Struct, frozen=True):
    """A request that waits for its step."""

    request: Request
    site: Site
    answer: asyncio.Future[Answered]

    def settle(self, answered: Answered | Exception) -> None:
        """Tell whoever waits for the answer."""
        if self.answer.done():
            return
        if isinstance(answered, Exception):
            self.answer.set_exception(answered)
            self.answer.exception()  # nobody may be waiting for it any more
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
    """

    def __init__(
        self, scope: Scope, keys: LineKeys, clock: Clock, interest: Collection[str], seen: Callable[[Sight], None]
    ) -> None:
        self._scope, self._clock, self._interest, self._seen = scope, clock, interest, seen
        self.keys: Final = keys
        self._queue: Final[deque[_Queued]] = deque()
        self._running: asyncio.Task[None] | None = None
        self._is_busy = False
        self._lives = 0
        self.dead: set[str] = set()
        self.disagreement: Head | None = None
        limits = scope.store.capabilities
        self._most: Final = min(MOST_KEYS, limits.max_changes)
        self._guess: Final = Guess(keys, self._most, limits)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked of the line at the moment."""
        return self._running is None and not self._is_busy

    def ask(self, request: Request, site: Site) -> asyncio.Future[Answered]:
        """Put a request to the line. Requests are answered in the order of the calls, also if nobody waits for it."""
        asked = _Queued(request, site, asyncio.get_running_loop().create_future())
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
            sight, [outcome] = await self._advance((request,), site)
        finally:
            self._is_busy = False
            self._go_on()
        if isinstance(outcome, Exception):
            raise outcome
        return Answered(outcome, sight)

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

    def _take(self) -> list[_Queued]:
        """Take what can share a step: requests that agree about what the line is, as far as their keys fit."""
        queue, taken = self._queue, [self._queue.popleft()]
        brought, room = set(brought_by(taken[0].request)), self._most - WINDOW - 2
        while queue and len(taken) < MOST_AT_ONCE and queue[0].site == taken[0].site:
            brought.update(brought_by(queue[0].request))
            if len(brought) + KEYS_EACH * (len(taken) + 1) > room:
                break
            taken.append(queue.popleft())
        return taken

    async def _serve(self, some: list[_Queued]) -> None:
        while some:
            try:
                sight, outcomes = await self._advance([each.request for each in some], some[0].site)
            except Exception as problem:  # noqa: BLE001 -- whoever asked gets it
                for each in some:
                    each.settle(problem)
                return
            for each, outcome in zip(some, outcomes, strict=False):  # those who are left need another step
                each.settle(outcome if isinstance(outcome, Exception) else Answered(outcome, sight))
            some = some[len(outcomes) :]

    async def _advance(self, requests: Sequence[Request], site: Site) -> tuple[Sight, tuple[Outcome, ...]]:
        dead = frozenset(self.dead)
        sight, outcomes = await self._step(requests, site)
        self._guess.is_crowded = self._guess.is_crowded and bool(sight.line.holders)
        while _is_halfway(sight.line, dead) or _has_dead_holders(sight, dead):
            sight = await self._look_further(sight, site, dead)
        return sight, outcomes

    async def _look_further(self, sight: Sight, site: Site, dead: frozenset[str]) -> Sight:
        """Find the first who still waits behind all those who are gone, and let it move up."""
        start, end = self.keys.tickets_from(sight.line.front)
        page = await self._scope.scan(start, end, limit=1)
        first = next((int(key.parts[-1]) for key in page.records), sight.line.next_ticket)
        front = min(first, sight.line.next_ticket)
        moved, _ = await self._step([Poke()], site, Facts(dead=dead, life=sight.life, front=front))
        return moved

    async def look(self, also: Collection[str] = ()) -> Sight:
        """Read the line; nothing is written, and nothing is waited for but the store.

        ``also`` are further entries whose fences are to be told.
        """
        keys = frozenset((self.keys.head, *self._guess.likely(())))
        most = min(MOST_FENCES, self._most - WINDOW - FEW_SLOTS - 4)
        while True:
            asked_at = self._clock.elapsed()
            seen = await self._scope.read(*keys)
            view = View(self.keys, seen, keys, _NO_SITE, Facts())
            ours = [each for each in view.line.holders if each.entry.id in self._interest or each.entry.id in also]
            ours.sort(key=lambda holder: holder.entry.id not in also)
            fences = {holder.entry.id: view.fence_of(holder) for holder in ours[:most]}
            if not view.missing:
                self._guess.remember(view.line)
                return Sight(view.line, view.head.life, fences, seen.at, asked_at)
            keys = frozenset((self.keys.head, *view.missing, *self._guess.likely((), view.head)))

    async def glance(self, waiting: Mapping[str, int]) -> Sight:
        """Read what a hint may be about, mostly in one round trip: who holds, and the tickets of ``waiting``.

        Whoever stands in front of them, and was not looked at, is out of sight.
        """
        keys = self._guess.near(waiting.values())
        asked_at = self._clock.elapsed()
        seen = await self._scope.read(*keys)
        view = View(self.keys, seen, keys, _NO_SITE, Facts())
        holders = {holder.entry.id: holder for holder in view.head.holders}
        ours = [holder for holder in view.head.holders if holder.entry.id in self._interest]
        stands = {waiter.entry.id for ticket in waiting.values() if (waiter := view.waiter_at(ticket)) is not None}
        if not holders.keys() | stands >= waiting.keys() or not keys.issuperset(
            [self.keys.grant(holder.slot) for holder in ours]
        ):
            return await self.look()
        line = view.in_sight()
        self._guess.remember(line)
        fences = {holder.entry.id: view.fence_of(holder) for holder in ours}
        return Sight(line, view.head.life, fences, seen.at, asked_at)

    # --- one step ------------------------------------------------------------------------------------------------

    async def _step(
        self, requests: Sequence[Request], site: Site, known: Facts | None = None
    ) -> tuple[Sight, tuple[Outcome, ...]]:
        """Answer requests, from the first to as far as one commit takes them."""
        known = known or Facts()
        dead = known.dead | self.dead
        tickets = tuple(each.ticket for each in requests if isinstance(each, Enter | Leave) and each.ticket is not None)
        self._lives += 1
        facts = Facts(dead, known.life, known.front, tickets, f"{self._scope.presence_name}.{self._lives}")
        if self._guess.wants_look(requests):
            await self.look()
        limits = self._scope.store.capabilities
        needed = self._guess.sure(requests)
        keys = self._guess.within(needed, self._guess.likely(requests))
        for _ in range(TRIES):
            asked_at = self._clock.elapsed()
            try:
                asked = Asked(self.keys, requests, site, keys, facts, self._interest, self._scope.presence, limits)
                decided = await self._scope.update(tuple(keys), partial(decide_step, asked))
            except asyncio.CancelledError as cancelled:
                self._learn_from(cancelled, asked_at)
                raise
            found = decided.answer
            if not found.missing:
                self.dead -= dead
                return self._finish(decided, asked_at), found.outcomes
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

    def _learn_from(self, cancelled: asyncio.CancelledError, asked_at: Instant) -> None:
        """Tell those who were granted by a step whose caller was cancelled too late."""
        verdict = verdict_of(cancelled)
        if isinstance(verdict, Decided) and not cast("Decided[Step]", verdict).answer.missing:
            self._finish(verdict, asked_at)

    def _finish(self, decided: Decided[Step], asked_at: Instant) -> Sight:
        found, line = decided.answer, decided.answer.line
        self._guess.remember(line)
        if found.disagrees:
            self.disagreement = found.head
        fences = dict(found.fences)
        for holder in found.granted:
            fences[holder.entry.id] = decided.versions[self.keys.grant(holder.slot)]
        sight = Sight(line, found.head.life, fences, decided.at, asked_at, decided.versions)
        self._seen(sight)
        return sight

    def likely_keys(self, requests: Sequence[Request]) -> frozenset[RecordKey]:
        """Return the keys that a step is likely to need, from what was last seen of the line."""
        return self._guess.sure(requests) | self._guess.likely(requests)


def _is_halfway(line: Line, dead: frozenset[str]) -> bool:
    """Tell whether somebody out of sight may have to fall, or to move up, which nobody does while all is held."""
    return line.is_cut_off and (bool(dead) or not line.rules.is_full(line.holders))


def _has_dead_holders(sight: Sight, dead: frozenset[str]) -> bool:
    """Tell whether some of a large crowd are left over from a step in which only so many can fall."""
    return any(
        (holder.ends_at is not None and holder.ends_at <= sight.at)
        or (isinstance(holder.entry.anchor, Attended) and holder.entry.anchor.presence in dead)
        for holder in sight.line.holders
    )
