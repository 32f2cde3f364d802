"""A place in a line in the store: having the turn, committing by it, and giving it back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, final

from standfast.clock import Instant
from standfast.errors import (
    ArbiterUnavailableError,
    LeaseTooShortError,
    StandfastError,
    StoreError,
    WithdrawnError,
)
from standfast.flows.arbiters.body import ending_of, is_cancellation, this_body
from standfast.flows.arbiters.protocol import Stop, Superseded
from standfast.flows.arbiters.taking import SITE, Taking
from standfast.locks.driving.acquiring import give_back
from standfast.locks.driving.requests import Along, Leave, Left
from standfast.locks.driving.run_entries import RunEntries, RunTurn
from standfast.stores.protocol import Check, Decision

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from standfast.errors import RequestCancelledError, RequestInterruptedError, RequestSupersededError
    from standfast.flows.arbiters.protocol import Ask, Beside
    from standfast.flows.arbiters.shared import SharedArbiter
    from standfast.keys import RecordKey
    from standfast.locks.driving.acquiring import Place, Wish
    from standfast.locks.driving.local_line import LocalLine
    from standfast.locks.driving.presence import Presence
    from standfast.locks.driving.requests import Answer, Shown
    from standfast.stores.protocol import Change, Snapshot, Wake

OPERATOR: Final = "an operator took it out of its line"

__all__ = ["SITE", "RunHolding", "SharedHolding", "SharedTurn"]


class _NotHoldingError(Exception):
    """The turn is in other hands. Only raised and caught in here."""


@final
class SharedTurn:
    """One turn, from the moment its request asks for it."""

    def __init__(self, arbiter: SharedArbiter, ask: Ask, entry_id: str = "") -> None:
        self._arbiter: Final = arbiter
        self.ask: Final = ask
        self.body: Final = this_body()
        self.entry_id = entry_id
        self.is_durable = bool(entry_id)
        self.place: Place | None = None
        self.wish: Wish | None = None
        self.line: LocalLine | None = None
        self.guard: Check | None = None
        self.since = self.known_at = Instant(0)
        self.superseded: tuple[Superseded, ...] = ()
        self.stop: Stop | None = None
        self.finishing: asyncio.Task[None] | None = None
        self.is_lost = self.has_left = False

    # --- as the line sees it -------------------------------------------------------------------------------------

    @property
    def presence(self) -> Presence | None:
        """What it is anchored to; None: to its run."""
        return None if self.place is None else self.place.presence

    @property
    def granted_at(self) -> Instant:
        """Since when it has its turn, by the store's time."""
        return self.since

    @property
    def called_from(self) -> str:
        """Who asked for it."""
        return f"the request {self.ask.id}"

    def begin(self, line: LocalLine, guard: Check, since: Instant) -> None:
        """Have the turn from now on."""
        self.line, self.guard, self.since = line, guard, since
        self.known_at = self._arbiter.lines.clock.elapsed()
        line.holds[self.entry_id] = self

    def lose(self, reason: str) -> None:  # noqa: ARG002 -- as a line says it; what it ends with is told by its word
        """Hear that the turn is in other hands."""
        if self.finishing is None:
            self.is_lost = True
            self.body.cancel()

    # --- being stopped -------------------------------------------------------------------------------------------

    def ask_to_stop(self, stop: Stop) -> None:
        """Hear why it is to stop. From now on it commits nothing."""
        if self.stop is None and self.finishing is None and not self.has_left:
            self.stop, self.is_lost = stop, True
            if self.ask.on_stop is not None:
                self.ask.on_stop(stop)

    def cancel(self) -> None:
        """Cancel what it does, if it was asked to stop."""
        if self.is_lost:
            self.body.cancel()

    def check(self) -> None:
        """Raise if it must commit nothing any more."""
        presence = self.presence
        if self.is_lost or (presence is not None and presence.left() <= 0):
            raise ending_of(self.ask.id, self.stop)

    async def ending(self) -> RequestSupersededError | RequestCancelledError | RequestInterruptedError:
        """Return what the request ends with, after its turn was lost: a word may say why."""
        with suppress(StandfastError):
            await self.look_for_word()
        return ending_of(self.ask.id, self.stop)

    async def look_for_word(self) -> None:
        """Find out why it is to stop, if that was written down."""
        if self.stop is None:
            self.stop = (await self._arbiter.words.read([self.entry_id])).get(self.entry_id)

    # --- committing ----------------------------------------------------------------------------------------------

    async def update(self, beside: Beside) -> Mapping[RecordKey, int]:
        """Commit changes while it has its turn."""
        self.check()
        guard = self.guard
        if guard is None:
            raise ending_of(self.ask.id, self.stop)

        def decide(seen: Snapshot) -> Decision[None]:
            if seen.version(guard.key) != guard.expected:
                raise _NotHoldingError
            return Decision(None, (*beside.decide(0, seen), guard))

        try:
            return (await self._arbiter.space.update((guard.key, *beside.keys), decide)).versions
        except _NotHoldingError:
            self.is_lost = True
            raise await self.ending() from None

    async def finish(self, beside: Beside | None = None) -> None:
        """Commit final changes, in the commit that leaves the line."""
        self.check()
        self.body.spare()
        if self.place is None:
            if beside is not None:
                await self.update(beside)
            return
        self.finishing = self._arbiter.lines.own(self._finish(self.place, beside))
        await asyncio.shield(self.finishing)

    async def _finish(self, place: Place, beside: Beside | None) -> None:
        lines, line = self._arbiter.lines, place.line
        leave = Leave(self.entry_id, place.turn.holder.slot, along=_leaving(beside))
        line.holds.pop(self.entry_id, None)  # that it leaves by itself concerns nobody
        try:
            await line.driver.do(leave, SITE)
        except _NotHoldingError:
            self.is_lost = True
            raise await self.ending() from None
        lines.keeper.dismiss(place.presence)
        self.has_left = True

    def keep(self) -> None:
        """Do nothing: a run has its place until it ends."""

    async def leave(self) -> bool:
        """Leave the line, after what is being committed; tell whether it had its turn until now."""
        self._arbiter.remove(self)
        if self.line is not None:
            self.line.holds.pop(self.entry_id, None)
        if self.finishing is None or self.finishing.done():
            return await self._leave()
        return await asyncio.shield(self._arbiter.lines.own(self._leave_after(self.finishing)))

    async def _leave_after(self, finishing: asyncio.Task[None]) -> bool:
        await asyncio.gather(finishing, return_exceptions=True)  # whoever waits for it hears of it
        return await self._leave()

    async def _leave(self) -> bool:
        lines, place, wish = self._arbiter.lines, self.place, self.wish
        if place is None or wish is None:
            return True
        try:
            left = None if self.has_left else await give_back(lines, place, wish)
        finally:
            lines.note_given_back()
        return left is None or left.was_holding


def _leaving(beside: Beside | None) -> Along:
    def decide(answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]]:
        if not isinstance(answer, Left) or not answer.was_holding:
            raise _NotHoldingError
        return (() if beside is None else tuple(beside.decide(0, seen))), ()

    return Along(() if beside is None else beside.keys, decide)


@final
class SharedHolding:
    """A turn to be had for the length of an ``async with`` block."""

    __slots__ = ("_arbiter", "_ask", "_turn")

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._turn: SharedTurn | None = None

    async def __aenter__(self) -> SharedTurn:
        self._arbiter.check_open()
        turn = self._turn = SharedTurn(self._arbiter, self._ask)
        taking = Taking(self._arbiter, turn)
        try:
            place, turn.wish = await taking.take()
        except BaseException as error:
            self._arbiter.remove(turn)
            await self._explain(turn, error)
            raise
        turn.place, turn.superseded = place, taking.superseded()
        guard = Check(place.line.driver.keys.grant(place.turn.holder.slot), place.turn.fence)
        turn.begin(place.line, guard, place.turn.holder.granted_at)
        self._arbiter.lines.note_taken()
        return turn

    async def _explain(self, turn: SharedTurn, error: BaseException) -> None:
        """Raise what a request is told that did not get its turn, if that is not the error itself."""
        was_stopped = turn.body.was_cancelled and await turn.body.take_back(error) is None
        if was_stopped and is_cancellation(error):
            raise await turn.ending() from None
        if isinstance(error, WithdrawnError):
            try:
                await turn.look_for_word()
            except StandfastError as unknown:
                raise ArbiterUnavailableError(str(unknown)) from error
            raise ending_of(turn.ask.id, turn.stop or Stop(reason=OPERATOR, cancelled_by="operator")) from None
        if isinstance(error, StoreError | LeaseTooShortError):
            raise ArbiterUnavailableError(str(error)) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._turn is not None:
            await _end(self._turn, error)


@final
class RunHolding:
    """The turn of a durable run, for the length of a block in its step."""

    __slots__ = ("_arbiter", "_ask", "_turn")

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._turn: SharedTurn | None = None

    async def __aenter__(self) -> SharedTurn:
        arbiter, ask = self._arbiter, self._ask
        turn = self._turn = SharedTurn(arbiter, ask, ask.id)
        found = await RunEntries(arbiter.lines).look(ask.address, ask.id)
        if not isinstance(found, RunTurn):
            raise await turn.ending()
        if ask.manner.supersedes != "nobody":
            followed = await arbiter.words.followed(ask.id)
            turn.superseded = tuple(map(Superseded, followed.get(ask.id, ())))
        arbiter.add(turn)
        turn.begin(arbiter.lines.line(ask.address), found.guard, found.granted_at)
        return turn

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._turn is not None:
            await _end(self._turn, error)


async def _end(turn: SharedTurn, error: BaseException | None) -> None:
    """Leave the line, and raise what the request ends with if it did not have its turn to the end."""
    by_us = turn.body.was_cancelled
    try:
        others = await turn.body.take_back(error)
    finally:
        has_had_it = await turn.leave()
    if others is not None:
        raise others
    if not has_had_it:
        turn.is_lost = True
    if turn.is_lost and (error is None or isinstance(error, Exception) or (by_us and is_cancellation(error))):
        raise await turn.ending() from error
