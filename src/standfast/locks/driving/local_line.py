"""One line as this process takes part in it: its own waiters and holds, and what they are told."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, Protocol, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.locks.algebra.entries import Holder
from standfast.locks.driving.driver import LineDriver

if TYPE_CHECKING:
    from collections.abc import Iterable

    from standfast.clock import Clock
    from standfast.locks.algebra.entries import Entry
    from standfast.locks.driving.driver import Sight
    from standfast.locks.driving.presence import Presence
    from standfast.locks.driving.records import LineKeys, Site
    from standfast.scope import Scope

NEAR: Final = 3
"""How many at the front look after those before them most often. Those behind do so now and then."""

TAKEN_AWAY: Final = "it was released by force, or this process was taken for dead"


class Turn(Struct, frozen=True):
    """That an entry holds: its holder record and fence, and when that was seen, by both clocks."""

    holder: Holder
    fence: int
    at: Instant
    asked_at: Instant


def turn_of(holder: Holder, sight: Sight) -> Turn | None:
    """Return a holder's turn; None if it was over before it was seen."""
    fence = sight.fences.get(holder.entry.id)
    return None if fence is None else Turn(holder, fence, sight.at, sight.asked_at)


@final
class Wait:
    """An entry of this process that waits, or is about to. ``turn`` is set when it holds; to None when it is gone.

    ``is_gone``: it was turned out after it was granted, before anybody here took note of the grant.
    """

    __slots__ = ("entry", "is_gone", "joined", "presence", "since", "site", "ticket", "turn")

    def __init__(self, entry: Entry, presence: Presence, site: Site) -> None:
        self.entry, self.presence, self.site = entry, presence, site
        self.ticket: int | None = None
        self.joined = 0
        self.is_gone = False
        loop = asyncio.get_running_loop()
        self.since: Final = loop.time()
        self.turn: Final[asyncio.Future[Turn | None]] = loop.create_future()

    def settle(self, turn: Turn | None) -> None:
        """Tell whoever waits."""
        if not self.turn.done():
            self.turn.set_result(turn)
        elif turn is None:
            self.is_gone = True


class Tenure(Protocol):
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
        due_in: In how many seconds somebody at the front may fall, when it was last looked after.
        next_end: When that is by the store's time; None: nobody there falls by time.
    """

    __slots__ = ("_joined", "driver", "due_in", "holds", "last", "lifelines", "next_end", "waits")

    def __init__(self, scope: Scope, keys: LineKeys, clock: Clock) -> None:
        self.waits: Final[dict[str, Wait]] = {}
        self.holds: Final[dict[str, Tenure]] = {}
        self.lifelines: dict[str, str] = {}
        self.last: Sight | None = None
        self.due_in = 0.0
        self.next_end: Instant | None = None
        self._joined = 0
        self.driver: Final = LineDriver(scope, keys, clock, self.waits, self._saw)

    @property
    def is_idle(self) -> bool:
        """Whether this process has nothing to do with the line at the moment."""
        return not self.waits and not self.holds and self.driver.is_idle

    @property
    def waiting_since(self) -> float:
        """Since when the first of those here waits, by the loop's time."""
        return next(iter(self.waits.values())).since

    @property
    def is_near(self) -> bool:
        """Whether somebody here waits so near to the front that it looks after those before it most often."""
        if self.last is None:
            return False
        place, first = self.last.line.place, itertools.islice(self.waits.values(), NEAR)
        return any(wait.ticket is not None and place(wait.ticket) < NEAR for wait in first)

    def note_ticket(self, wait: Wait, ticket: int) -> None:
        """Note the place that one who waits here has got."""
        self._joined += 1  # tickets would not do: those of another life of the line begin anew
        wait.ticket, wait.joined = ticket, self._joined

    async def look(self) -> Sight:
        """Read the line and tell those who wait and hold here."""
        # One that joins after the line was read is not in what was read: its fate cannot be told from it.
        joined, held = self._joined, tuple(self.holds)
        sight = await self.driver.look()
        self._tell_waits(sight, joined)
        self._tell_holds(sight, held)
        return sight

    async def glance(self) -> None:
        """Read as much of the line as a hint is about, and tell those who wait and hold here."""
        joined, held = self._joined, tuple(self.holds)
        first = itertools.islice(self.waits.items(), NEAR)
        sight = await self.driver.glance({entry: wait.ticket for entry, wait in first if wait.ticket is not None})
        self._tell_waits(sight, joined)
        self._tell_holds(sight, held)

    def _saw(self, sight: Sight) -> None:
        self._tell_waits(sight, self._joined)
        self._tell_holds(sight, tuple(self.holds))

    def _tell_waits(self, sight: Sight, joined: int) -> None:
        self.last = sight
        holders = {holder.entry.id: holder for holder in sight.line.holders}
        for entry_id in sight.fences.keys() & self.waits.keys():
            wait, holder = self.waits[entry_id], holders[entry_id]
            if holder.entry.anchor == wait.entry.anchor:  # by another one it holds only until that is noticed
                wait.settle(turn_of(holder, sight))
        waiting, horizon = {waiter.entry.id for waiter in sight.line.waiters}, sight.line.horizon
        for entry_id, wait in self.waits.items():  # in the order in which they joined
            if wait.ticket is None or wait.joined > joined or (horizon is not None and wait.ticket >= horizon):
                return
            if entry_id not in holders and entry_id not in waiting:
                wait.settle(None)

    def _tell_holds(self, sight: Sight, held: Iterable[str]) -> None:
        holders = {holder.entry.id: holder.granted_at for holder in sight.line.holders}
        for entry_id in held:
            hold = self.holds.get(entry_id)
            # What was asked for before the hold was known of may be older than its grant, and show it still waiting.
            if hold is not None and sight.asked_at >= hold.known_at and holders.get(entry_id) != hold.granted_at:
                hold.lose(TAKEN_AWAY)
