"""Taking places in several lines, in one commit: all that are free, up to the first that is not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeAlias, final

from msgspec import Struct

from standfast.ids import new_id
from standfast.locks.algebra.line import Granted, Line, Waiting
from standfast.locks.driving.deciding import Asked, decide_step
from standfast.locks.driving.records import Facts
from standfast.locks.driving.requests import Along, Enter, Lacks, Poke, Refused
from standfast.workflows.limiting.standing import entry_of, site_of
from standfast.workflows.storing.records import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.locks.driving.driver import Answered
    from standfast.locks.driving.local_line import LocalLine
    from standfast.locks.driving.requests import Answer, Shown
    from standfast.stores.protocol import Change, Snapshot, Wake
    from standfast.workflows.running.host import Host

    Write = Callable[["Place", Snapshot], Sequence[Change]]

WAITS: Final = ("queue", "cancel_running")
"""What to do at a limit that means to stand in line."""

JOIN_ALIKE: Final = "join_alike"
"""What to do in the line of a request: join one of which the same is said; if there is none, stand in line."""


class Admitted(Struct, frozen=True):
    """It holds a place in each of its lines."""


class InLine(Struct, frozen=True):
    """It waits in a line, and holds a place in each one before that."""

    standing: Standing
    admitted: int
    waiting: Waiting


class Full(Struct, frozen=True):
    """A line is full, and it would not wait. It stands nowhere."""

    standing: Standing
    line: Line


Place: TypeAlias = Admitted | InLine | Full


@final
class _Next:
    """A further line that is entered in the step of the first one. It is decided like a step of its own."""

    def __init__(self, host: Host, standing: Standing, enter: Enter) -> None:
        self._scope, self._site, self._enter = host.space, site_of(standing), enter
        self.address: Final = standing.address
        self.line: Final = host.lines.line(standing.address)
        self.door: Final = host.doors.setdefault(standing.address, asyncio.Lock())
        self._life: Final = new_id()
        self.is_cut_off = False

    def keys(self) -> frozenset[RecordKey]:
        """Return what a step there will likely look at, as the line was last seen."""
        return self.line.driver.likely_keys((self._enter,))

    def decide(self, seen: Shown) -> tuple[Answer, tuple[Change, ...], tuple[Wake, ...]] | Lacks:
        """Return what is answered, and what enters the line."""
        nobody, limits = self._scope.key("nobody"), self._scope.store.capabilities
        facts = Facts(new_life=self._life)
        asked = Asked(self.line.driver.keys, (self._enter,), self._site, seen.given, facts, (), nobody, limits)
        decision = decide_step(asked, seen)
        if decision.answer.missing:
            return Lacks(decision.answer.missing)
        self.is_cut_off = decision.answer.line.is_cut_off
        [outcome] = decision.answer.outcomes
        if isinstance(outcome, Exception):
            raise outcome
        return outcome, decision.changes, decision.wake


@final
class Arrival:
    """A run that takes its places in lines.

    Args:
        host: Where.
        run_id: The run.
        standings: Its lines.
        admitted: In how many of them it holds a place already.
        ticket: Its ticket in the next one.
        is_start: The run is being started: it may be refused, and brings the number of permits that its code says.
            Later it waits whatever its code says, because its start has been confirmed.
    """

    def __init__(
        self,
        host: Host,
        run_id: str,
        standings: Sequence[Standing],
        *,
        admitted: int = 0,
        ticket: int | None = None,
        is_start: bool = False,
    ) -> None:
        self._host, self._run_id, self._standings = host, run_id, standings
        self._admitted, self._is_start = admitted, is_start
        self._enter: Final = self._request(standings[admitted], ticket)
        self._next: Final = [_Next(host, each, self._request(each)) for each in standings[admitted + 1 :]]
        self.place: Place | None = None

    @property
    def line(self) -> LocalLine:
        """The first line that it enters."""
        return self._host.lines.line(self._standings[self._admitted].address)

    def _request(self, standing: Standing, ticket: int | None = None) -> Enter:
        waits = not self._is_start or standing.on_limit in WAITS
        permits = standing.permits if self._is_start else None
        return Enter(entry_of(self._run_id, standing), waits, ticket=ticket, permits=permits)

    async def take_places(self, keys: Iterable[RecordKey], write: Write) -> Answered:
        """Enter the lines; commit what ``write`` returns for the place found. If it raises, nothing happens."""

        def decide(answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | Lacks:
            found = self._find_place(answer, seen)
            if isinstance(found, Lacks):
                return found
            place, changes, wakes = found
            self.place = place
            written = write(place, seen)
            taken = {change.key for change in written}  # of two who have news for a run, the more exact one is heard
            return (*written, *(change for change in changes if change.key not in taken)), wakes

        site = site_of(self._standings[self._admitted])
        async with AsyncExitStack() as doors:  # of many at once, each would find the line changed by those before it
            for each in sorted(self._next, key=attrgetter("address")):  # in one order: no two wait for each other
                await doors.enter_async_context(each.door)
            named = frozenset(keys).union(*(each.keys() for each in self._next))
            enter = Enter(
                self._enter.entry,
                self._enter.waits,
                ticket=self._enter.ticket,
                permits=self._enter.permits,
                along=Along(tuple(named), decide),
            )
            answered = await self.line.driver.do(enter, site)
        for each, standing in zip(self._next, self._standings[self._admitted + 1 :], strict=True):
            if each.is_cut_off:
                await each.line.driver.do(Poke(), site_of(standing))  # the next one there is out of sight
        return answered

    def _find_place(self, answer: Answer, seen: Shown) -> tuple[Place, tuple[Change, ...], tuple[Wake, ...]] | Lacks:
        changes: tuple[Change, ...] = ()
        wakes: tuple[Wake, ...] = ()
        at = self._admitted
        for following in (*self._next, None):
            if not isinstance(answer, Granted):
                return _stopped(self._standings[at], at, answer), changes, wakes
            if following is not None:
                found = following.decide(seen)
                if isinstance(found, Lacks):
                    return found
                answer, changes, wakes = found[0], (*changes, *found[1]), (*wakes, *found[2])
                at += 1
        return Admitted(), changes, wakes


def _stopped(standing: Standing, admitted: int, answer: Answer) -> InLine | Full:
    if isinstance(answer, Waiting):
        return InLine(standing, admitted, answer)
    return Full(standing, answer.line if isinstance(answer, Refused) else Line(site_of(standing).rules))
