"""Leaving several lines in one commit: a run that ends gives back all that it holds, or has not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.locks.driving.deciding import Asked, decide_step
from standfast.locks.driving.records import Facts, Site
from standfast.locks.driving.requests import Along, Lacks, Leave

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.keys import RecordKey
    from standfast.locks.driving.local_line import LocalLine
    from standfast.locks.driving.requests import Answer, Shown
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Wake


class Leaving(Struct, frozen=True):
    """Who leaves which line. ``slot`` and ``ticket`` say where to look, ``owner`` that it has entered with a marker."""

    address: tuple[str, ...]
    site: Site
    entry_id: str
    slot: int | None = None
    ticket: int | None = None
    owner: str | None = None


@final
class Departure:
    """One line that is left in the step of another one, by one or several. It is decided like a step of its own."""

    def __init__(self, scope: Scope, line: LocalLine, leaves: Sequence[Leave], site: Site) -> None:
        self._scope, self._leaves, self._site = scope, leaves, site
        self.line: Final = line
        self.keys: Final = line.driver.likely_keys(leaves)
        self.is_cut_off = False

    def decide(self, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | Lacks:
        """Return what takes the entry out of the line, and tells whoever comes next."""
        # No line of this process sees what becomes of it: those who wait here are woken like all others.
        nobody, limits = self._scope.key("nobody"), self._scope.store.capabilities
        tickets = tuple(each.ticket for each in self._leaves if each.ticket is not None)
        facts = Facts(tickets=tickets, new_life=self._scope.presence_name)
        asked = Asked(self.line.driver.keys, self._leaves, self._site, seen.given, facts, (), nobody, limits)
        decision = decide_step(asked, seen)
        if decision.answer.missing:
            return Lacks(decision.answer.missing)
        self.is_cut_off = decision.answer.line.is_cut_off
        return decision.changes, decision.wake


def leaving_as_well(departures: Sequence[Departure], along: Along | None) -> Along:
    """Return what comes along, with further lines that are left in the same commit."""

    def decide(answer: Answer, seen: Shown) -> tuple[tuple[Change, ...], tuple[Wake, ...]] | Lacks:
        found = () if along is None else (along.decide(answer, seen),)
        lacking: frozenset[RecordKey] = frozenset()
        changes: dict[RecordKey, Change] = {}
        wakes: list[Wake] = []
        for each in (*found, *(departure.decide(seen) for departure in departures)):
            if isinstance(each, Lacks):
                lacking |= each.keys
            else:
                changes.update((change.key, change) for change in each[0])  # two may make the same run ready
                wakes.extend(each[1])
        return Lacks(lacking) if lacking else (tuple(changes.values()), tuple(wakes))

    named = frozenset(() if along is None else along.keys).union(*(each.keys for each in departures))
    return Along(tuple(named), decide, None if along is None else along.welcome)
