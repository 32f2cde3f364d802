"""Making room: a newcomer asks those whose place it takes to stop, and revokes the grant of one that does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from holdfast.errors import HoldfastError
from holdfast.flows.arbiters.protocol import Stop, Superseded, handed_over
from holdfast.locks.explaining.explanation import ExplainedHolder

if TYPE_CHECKING:
    from holdfast.flows.arbiters.protocol import Ask
    from holdfast.flows.arbiters.shared import SharedArbiter
    from holdfast.locks.explaining.explanation import ExplainedEntry

LOOK_EVERY: Final = 0.5
"""Seconds between two looks at those in front. Whoever was missed, or has just got its turn, is asked then."""

SHORTEST: Final = 0.005
"""The least seconds between two looks."""


@final
class RoomMaking:
    """Works until the newcomer has its turn or is gone, or until it is cancelled."""

    def __init__(self, arbiter: SharedArbiter, ask: Ask) -> None:
        self._arbiter, self._ask = arbiter, ask
        self._asked: Final[dict[str, float]] = {}
        self.superseded: tuple[Superseded, ...] = ()

    async def run(self) -> None:
        """Ask, wait, and revoke. A store that does not answer is asked again."""
        while True:
            try:
                if await self._look():
                    return
            except HoldfastError:
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
        front: list[ExplainedEntry] = [*(seen.holders if ask.manner.supersedes == "all" else ())]
        front += [each for each in seen.waiters if each.ticket < own.ticket]
        alike = [each for each in front if each.note == ask.action and each.owner != ask.id]
        await self._ask_to_stop([each for each in alike if each.entry not in self._asked])
        for each in alike:
            is_over = self._asked[each.entry] + ask.manner.grace <= asyncio.get_running_loop().time()
            if is_over and isinstance(each, ExplainedHolder):
                await arbiter.turn_out(ask.address, each.entry)
        return False

    async def _ask_to_stop(self, others: list[ExplainedEntry]) -> None:
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
