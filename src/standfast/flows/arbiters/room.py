"""Making room: a newcomer asks those whose place it takes to stop, and revokes the grant of one that does not.

Whoever stands in front of it came earlier, unless it has lost its place and joined again. Then it may find newer ones
there, and gives way to them: the newest request wins, however long an older one was not heard of.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.errors import StandfastError
from standfast.flows.arbiters.protocol import Stop, Superseded, handed_over
from standfast.locks.explaining.explanation import ExplainedHolder, ExplainedWaiter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.flows.arbiters.protocol import Ask
    from standfast.flows.arbiters.shared import SharedArbiter
    from standfast.locks.explaining.explanation import ExplainedEntry

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at those in front. Whoever was missed, or has just got its turn, is asked then."""

SHORTEST: Final = 0.005
"""The least seconds between two looks."""


@final
class RoomMaking:
    """Works until the newcomer has its turn or is gone, or until it is cancelled.

    Attributes:
        superseded: Whom it has asked to stop.
        is_back: Whether the request has lost a place that it had: those in front of it may be newer.
    """

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._asked: Final[dict[str, float]] = {}
        self.superseded: tuple[Superseded, ...] = ()
        self.is_back = False

    async def run(self) -> None:
        """Ask, wait, and revoke. A store that does not answer is asked again."""
        while True:
            try:
                if await self._look():
                    return
            except StandfastError:
                await asyncio.sleep(LOOK_EVERY)
            else:
                await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return in how many seconds somebody's grace is over, or it is time to look."""
        left = (at + self._ask.manner.grace - asyncio.get_running_loop().time() for at in self._asked.values())
        return min((each for each in left if each > SHORTEST), default=LOOK_EVERY)

    async def _look(self) -> bool:
        """Do what is to be done now; tell whether the newcomer waits no longer."""
        arbiter, ask = self._arbiter, self._ask
        seen = await arbiter.explain(ask.address)
        own = next((each for each in reversed(seen.waiters) if each.owner == ask.id), None)
        if own is None:
            return True
        front: tuple[ExplainedEntry, ...] = (
            *seen.holders,
            *(each for each in seen.waiters if each.ticket < own.ticket),
        )
        alike = [each for each in front if each.note == ask.action and each.owner != ask.id]
        older = [each for each in alike if self._is_older(each, own.since)]
        newer = [each for each in alike if each not in older and each.is_alive and _entered_at(each) > own.since]
        if newer:
            await arbiter.stop_entry(ask.address, own, Stop(by=max(newer, key=_entered_at).owner))
            return True
        await self._replace(older)
        return False

    def _is_older(self, other: ExplainedEntry, since: Instant) -> bool:
        return not self.is_back or other.entry in self._asked or _entered_at(other) < since

    async def _replace(self, older: Sequence[ExplainedEntry]) -> None:
        """Ask those to stop whose place it takes, and revoke the grant of one that has had the time to."""
        ask = self._ask
        others = [each for each in older if ask.manner.supersedes == "all" or isinstance(each, ExplainedWaiter)]
        await self._ask_to_stop([each for each in others if each.entry not in self._asked])
        for each in others:
            is_over = self._asked[each.entry] + ask.manner.grace <= asyncio.get_running_loop().time()
            if is_over and isinstance(each, ExplainedHolder):
                await self._arbiter.turn_out(ask.address, each.entry)

    async def _ask_to_stop(self, others: Sequence[ExplainedEntry]) -> None:
        arbiter, ask = self._arbiter, self._ask
        if not others:
            return
        followed = await arbiter.words.followed(*(each.owner for each in others))
        for each in others:  # before any of them hears of it: then the newcomer's turn may come at once
            self._note(each, followed.get(each.owner, ()))
        await arbiter.words.note_followed(ask.id, tuple(each.id for each in self.superseded))
        for each in others:
            await arbiter.stop_entry(ask.address, each, Stop(by=ask.id))
            self._asked[each.entry] = asyncio.get_running_loop().time()

    def _note(self, other: ExplainedEntry, followed: tuple[str, ...]) -> None:
        known = {each.id for each in self.superseded}
        before = (Superseded(each) for each in followed if each not in known)
        own = Superseded(other.owner, self._arbiter.packed_of(other.entry))
        self.superseded = handed_over(*self.superseded, *before, own)


def _entered_at(each: ExplainedEntry) -> Instant:
    """Return when one joined the line, and be it that it did so again since: by this all processes agree who is newer.

    It is the store's time. Of two that joined in the same instant neither is newer, and the one behind waits.
    """
    return each.entered_at if isinstance(each, ExplainedHolder) else each.since
