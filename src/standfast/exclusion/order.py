"""The order in which keys are taken while others are held: declared, or learnt from what tasks do.

A declared order (``KeyFamily(..., after=...)``) is a rule: a task that breaks it is stopped. Where none is declared,
the orders that tasks do use are noted, and two that contradict each other are reported once for each pair of places,
before the day on which they meet and both tasks wait for ever.

Orders are noted between families, and within one family between keys. Both memories are bounded.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import LockOrderError
from standfast.events import NO_HOOKS, Hooks, LockOrderInverted
from standfast.exclusion.table import NEVER_WAITS, site

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    from standfast.clock import Clock
    from standfast.exclusion.table import TaskEntry
    from standfast.keys import KeyFamily

    Mark: TypeAlias = tuple[KeyFamily, KeyFamily, int, int, int, int]

K = TypeVar("K")
V = TypeVar("V")

MAX_NOTED: Final = 1_024
"""How many nestings of keys of one family, and how many pairs of places, are remembered; the oldest go first."""


class LockOrderWarning(RuntimeWarning):
    """Two keys are taken in both orders: one day two tasks will wait for each other for ever.

    Decide which comes first and declare it, ``KeyFamily(..., after=(FIRST,))``; for keys of one family, sort them.
    Given by an :class:`~standfast.exclusion.Exclusion` without hooks. Run tests with ``-W error`` to make it an error.
    """


class Nesting(NamedTuple):
    """One key asked for on top of another: where the one was taken, and where the other was asked for."""

    held: CodeType
    held_offset: int
    wanted: CodeType
    wanted_offset: int

    @classmethod
    def of(cls, held: TaskEntry, wanted: TaskEntry) -> Nesting:
        """Note the places of two entries, raw: nearly all of them are never shown to anybody."""
        return cls(held.code, held.offset, wanted.code, wanted.offset)

    def then(self, further: Nesting) -> Nesting:
        """Join two nestings to one that begins like this one and ends like ``further``."""
        return Nesting(self.held, self.held_offset, further.wanted, further.wanted_offset)


class LockOrder:
    """Knows the declared order and learns the one that is used."""

    __slots__ = ("_clock", "_families", "_has_contradictions", "_hooks", "_keys", "_seen")

    def __init__(self, hooks: Hooks = NO_HOOKS, clock: Clock = SYSTEM_CLOCK) -> None:
        self._hooks = hooks
        self._clock = clock
        self._families: dict[KeyFamily, dict[KeyFamily, Nesting]] = {}
        self._has_contradictions = False
        self._keys: OrderedDict[tuple[bytes, bytes], Nesting] = OrderedDict()
        # The nestings keep the code alive, so that no other code gets its identity.
        self._seen: OrderedDict[Mark, Nesting] = OrderedDict()

    def check(self, held: Iterable[TaskEntry], wanted: TaskEntry) -> None:
        """Refuse ``wanted`` if a key that is held must come after it; report it if the opposite has been seen.

        Called before anything is taken. What is refused rather than waited for can be part of no deadlock, so
        it is not noted.
        """
        for entry in held:
            first, then = entry.key.family, wanted.key.family
            # One pair of places. Code is compared by identity: by value would be slow.
            mark = first, then, id(entry.code), entry.offset, id(wanted.code), wanted.offset
            if mark in self._seen:
                continue  # these two places are known: in order, or reported
            if then in families_before(first):
                raise LockOrderError(str(entry.key), entry.site, str(wanted.key), wanted.site)
            if wanted.timeout == NEVER_WAITS:
                continue
            nesting = Nesting.of(entry, wanted)
            if first is then:
                self._note_keys(mark, nesting, entry, wanted)
            else:
                remember(self._seen, mark, nesting)
                self._note_families(nesting, entry, wanted)

    def _note_families(self, nesting: Nesting, held: TaskEntry, wanted: TaskEntry) -> None:
        first, then = held.key.family, wanted.key.family
        later = self._families.setdefault(first, {})
        if then in later and not self._has_contradictions:
            return  # searched when it was new, and every order noted since was searched as well
        later.setdefault(then, nesting)
        opposite = self._path(then, first)
        self._has_contradictions |= opposite is not None
        self._report(held, wanted, opposite)

    def _note_keys(self, mark: Mark, nesting: Nesting, held: TaskEntry, wanted: TaskEntry) -> None:
        pair = held.key.encoded, wanted.key.encoded
        if pair not in self._keys:
            remember(self._keys, pair, nesting)
        opposite = self._keys.get((pair[1], pair[0]))
        if opposite is not None and mark not in self._seen:
            remember(self._seen, mark, nesting)
            self._report(held, wanted, opposite)

    def _path(self, start: KeyFamily, end: KeyFamily) -> Nesting | None:
        """Find nestings that lead from ``start`` to ``end``, and join them to one."""
        reached: set[KeyFamily] = set()
        to_follow = list(self._families.get(start, {}).items())
        while to_follow:
            family, so_far = to_follow.pop()
            if family is end:
                return so_far
            if family not in reached:
                reached.add(family)
                to_follow += [(then, so_far.then(more)) for then, more in self._families.get(family, {}).items()]
        return None

    def _report(self, held: TaskEntry, wanted: TaskEntry, opposite: Nesting | None) -> None:
        if opposite is None:
            return
        event = LockOrderInverted(
            at=self._clock.wall(),
            held=held.key,
            wanted=wanted.key,
            held_from=held.site,
            wanted_from=wanted.site,
            opposite_held_from=site(opposite.held, opposite.held_offset),
            opposite_wanted_from=site(opposite.wanted, opposite.wanted_offset),
        )
        if self._hooks:
            self._hooks.emit(event)
        else:
            warn(event)


@cache
def families_before(family: KeyFamily) -> frozenset[KeyFamily]:
    """Return the families whose keys must be taken before those of ``family``, however far back."""
    return frozenset(family.after).union(*map(families_before, family.after))


def warn(event: LockOrderInverted) -> None:
    """Give an inversion as a warning, at the place that asked for the second key."""
    message = (
        f"{event.wanted} was asked for at {event.wanted_from} while {event.held} was held since {event.held_from}; "
        f"the opposite order was used at {event.opposite_held_from}, then {event.opposite_wanted_from}"
    )
    file, _, line = event.wanted_from.rpartition(":")
    warnings.warn_explicit(LockOrderWarning(message), None, file, int(line))


def remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    """Put something into a bounded memory; the oldest gives way."""
    memory[key] = value
    if len(memory) > MAX_NOTED:
        memory.popitem(last=False)
