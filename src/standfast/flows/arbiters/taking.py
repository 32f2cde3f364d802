"""Taking a place in a line of the store: the request's record comes along, and refusals tell what that commit saw."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from standfast.clock import MICROSECONDS
from standfast.errors import (
    ArbiterUnavailableError,
    HoldTimeoutError,
    RequestRejectedError,
    WouldWaitError,
)
from standfast.flows.arbiters.protocol import KIND, JoinsError, Superseded, Who
from standfast.flows.arbiters.room import RoomMaking
from standfast.locks.algebra.entries import OfRun
from standfast.locks.algebra.line import Granted, Line, Rules, Waiting
from standfast.locks.driving.acquiring import Wish, acquire, give_back
from standfast.locks.driving.records import Facts, Site, View
from standfast.locks.driving.requests import Along, Refused

if TYPE_CHECKING:
    import asyncio

    from standfast.flows.arbiters.protocol import Ask
    from standfast.flows.arbiters.shared import SharedArbiter
    from standfast.flows.arbiters.shared_turn import SharedTurn
    from standfast.locks.driving.acquiring import Place
    from standfast.locks.driving.records import LineKeys
    from standfast.locks.driving.requests import Answer, Shown
    from standfast.stores.protocol import Change, Wake

SITE: Final = Site(KIND, Rules(1))
"""What kind of line it is."""

TRIES: Final = 5
"""How often a place is asked for in a line that seems to be full and is not."""

PAGE: Final = 500


class _FullError(Exception):
    """As many as may wait seem to wait already. Only raised and caught in here."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


@final
class Taking:
    """One request on its way to its turn."""

    def __init__(self, arbiter: SharedArbiter, turn: SharedTurn) -> None:
        self._arbiter, self._turn = arbiter, turn
        self._ask: Final = turn.ask
        self._began_at: Final = arbiter.lines.clock.elapsed()
        self._refused_by: Line | None = None
        self._has_stood = False
        self._room: RoomMaking | None = None
        self._making_room: asyncio.Task[None] | None = None

    async def take(self) -> tuple[Place, Wish]:
        """Return the place at the front of the line, or raise why there is none."""
        manner = self._ask.manner
        try:
            if not manner.waits or manner.joins:
                return await self._take_at_once()
            return await self._take_in_turn()
        except HoldTimeoutError:
            raise await self._arbiter.late(self._ask) from None
        finally:
            if self._making_room is not None:
                self._making_room.cancel()

    @property
    def _keys(self) -> LineKeys:
        return self._arbiter.lines.line(self._ask.address).driver.keys

    def superseded(self) -> tuple[Superseded, ...]:
        """Return whom it has asked to stop."""
        return () if self._room is None else self._room.superseded

    async def _take_at_once(self) -> tuple[Place, Wish]:
        try:
            return await self._acquire(None, waits=False)
        except WouldWaitError:
            line = self._refused_by or Line(SITE.rules)
            if not self._ask.manner.joins:
                raise _rejected(self._ask, line) from None
            self._check_nobody_to_join(line)
        return await self._take_in_turn()

    async def _take_in_turn(self) -> tuple[Place, Wish]:
        room = self._ask.manner.most_waiting
        for _ in range(TRIES):
            try:
                return await self._acquire(room, waits=True)
            except _FullError as full:
                room = await self._look_closer(full.place)
        raise ArbiterUnavailableError(f"the line of {self._ask.label} moves on too quickly")

    async def _acquire(self, room: int | None, *, waits: bool) -> tuple[Place, Wish]:
        """Take a place, under an id of its own: what becomes of an earlier try has no say in this one."""
        arbiter, ask, turn = self._arbiter, self._ask, self._turn
        arbiter.remove(turn)
        turn.entry_id = arbiter.lines.new_entry_id()
        arbiter.add(turn)
        wish = Wish(
            ask.label,
            ask.address,
            SITE,
            arbiter.space.lease,
            turn.called_from,
            owner=ask.id,
            waits=waits,
            timeout=self._left() if waits else None,
            note=ask.action,
            along=self._along(room),
            may_circle=False,
            on_waiting=self._waits,
            keeps_age=True,
            entry_id=turn.entry_id,
        )
        place = await acquire(arbiter.lines, wish)
        if waits and ask.manner.budget is not None and self._left() == 0:
            await give_back(arbiter.lines, place, wish)
            raise await arbiter.late(ask)
        return place, wish

    def _left(self) -> float | None:
        """Return for how many seconds it may still wait."""
        if self._ask.manner.budget is None:
            return None
        gone = (self._arbiter.lines.clock.elapsed() - self._began_at) / MICROSECONDS
        return max(0.0, self._ask.manner.budget - gone)

    def _waits(self, place: int, is_back: bool) -> None:  # noqa: FBT001 -- as a wish calls it
        ask, self._has_stood = self._ask, True
        if ask.on_waiting is not None:
            ask.on_waiting(place + 1)
        if ask.manner.supersedes == "nobody":
            return
        self._room = self._room or RoomMaking(self._arbiter, ask)
        self._room.is_back = self._room.is_back or is_back
        if self._making_room is None or self._making_room.done():  # it ends when it does not find its own request
            self._making_room = self._arbiter.own(self._room.run())

    # --- what is committed, or refused ---------------------------------------------------------------------------

    def _along(self, room: int | None) -> Along:
        beside = self._ask.beside

        def decide(answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
            if not isinstance(answer, Granted | Waiting):
                self._refused_by = answer.line if isinstance(answer, Refused) else None
                return (), ()
            position = 0
            if isinstance(answer, Waiting):
                if self._room is not None:  # it asks again, and may be back: that is known before anybody sees it there
                    self._room.is_back = True
                self._check_may_wait(answer, seen, room)
                position = answer.place + 1
            return (() if beside is None else tuple(beside.decide(position, seen))), ()

        return Along(() if beside is None else beside.keys, decide)

    def _check_may_wait(self, answer: Waiting, seen: Shown, room: int | None) -> None:
        if room is not None and answer.place >= room and not self._has_stood:  # who was let in is not refused any more
            raise _FullError(answer.place)
        if self._ask.manner.joins:  # somebody to join may have come meanwhile
            self._check_nobody_to_join(View(self._keys, seen, seen.given, SITE, Facts()).line)

    def _check_nobody_to_join(self, line: Line) -> None:
        for holder in line.holders:
            if holder.entry.note == self._ask.action and holder.entry.owner != self._ask.id:
                entry = holder.entry
                raise JoinsError(Who(entry.owner, entry.note, holder.granted_at, isinstance(entry.anchor, OfRun)))
        for waiter in line.waiters:
            if waiter.entry.note == self._ask.action and waiter.entry.owner != self._ask.id:
                entry = waiter.entry
                raise JoinsError(Who(entry.owner, entry.note, entry.entered_at, isinstance(entry.anchor, OfRun)))

    async def _look_closer(self, place: int) -> int:
        """Return up to which place it may wait, after counting those who wait one by one."""
        arbiter, ask = self._arbiter, self._ask
        most = ask.manner.most_waiting or 0
        await arbiter.lines.look_after(arbiter.lines.line(ask.address))  # the dead count for nothing
        waiting = await self._count_waiting(most)
        if waiting >= most:
            raise await arbiter.full(ask, waiting) from None
        return place + most - waiting

    async def _count_waiting(self, most: int) -> int:
        start, end = self._keys.tickets_from(0)
        found = 0
        while found < most:
            page = await self._arbiter.space.scan(start, end, limit=min(PAGE, most - found))
            found += len(page.records)
            if page.more is None:
                break
            start = page.more
        return found


def _rejected(ask: Ask, line: Line) -> RequestRejectedError:
    """Say who is in the way: whoever holds, or whoever has its turn next if nobody does at the moment."""
    for holder in line.holders:
        is_run = isinstance(holder.entry.anchor, OfRun)
        return RequestRejectedError(ask.label, holder.entry.owner, holder.granted_at, holder_is_durable=is_run)
    for waiter in line.waiters:
        entry, is_run = waiter.entry, isinstance(waiter.entry.anchor, OfRun)
        return RequestRejectedError(ask.label, entry.owner, entry.entered_at, "waiting", is_run)
    return RequestRejectedError(ask.label, "", 0, "waiting", holder_is_durable=False)
