"""What the simulation of durable locks keeps in mind: attempts of contenders, records of lines, grants of slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from standfast.locks.line import Holder, Waiter, has_fallen
from standfast.locks.line_records import Head, is_slotted
from standfast.locks.mutex_line import is_mutex

if TYPE_CHECKING:
    from standfast.locks.locks import Hold


class Attempt(Struct):
    """One try of a contender to hold a lock, known in the records by its note."""

    note: str
    process: Any
    waits: bool = True
    entry: str = ""
    hold: Any = None
    is_inside: bool = False
    is_forced: bool = False
    has_left: bool = False

    def believes(self) -> bool:
        """Tell whether it goes by its own clock on holding the lock."""
        hold: Hold | None = self.hold
        lives = self.is_inside and not self.process.is_dead
        if hold is None or not lives or hold.reason or hold.presence.left() <= 0:
            return False
        return hold._ends_at is None or hold._ends_at > self.process.clock.elapsed()


class LineState(Struct, frozen=True):
    """The records of one line. A mutex and slots are held by those that grants are for; of others, the head has a list.

    Those that a head only counts have a record each (``held``). One whose presence is not counted holds nothing.
    """

    head: Head | None = None
    waiters: dict[str, Waiter] = field(default_factory=dict)
    grants: dict[int | str, tuple[int, str]] = field(default_factory=dict)
    held: dict[str, Holder] = field(default_factory=dict)
    granted: dict[int, Holder] = field(default_factory=dict)

    @property
    def is_queued(self) -> bool:
        """Whether it is a mutex, or has slots: then the store has drawn the tickets."""
        return self.head is not None and (is_mutex(self.head) or is_slotted(self.head))

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Everyone who holds, in order of their grants."""
        if self.granted:
            return tuple(sorted(self.granted.values(), key=lambda each: (each.granted_at, each.slot)))
        if self.head is None:
            return ()
        counted = self.head.unseen_of
        return (*self.head.holders, *(each for each in self.held.values() if not has_fallen(each, counted)))


class Grants(Struct):
    """The grants of one slot in their order, what fence each was told, and the highest that a writer came with."""

    order: list[tuple[str, int]] = field(default_factory=list)
    version: int = 0
    fences: dict[int, int] = field(default_factory=dict)
    highest_fence: int = -(2**60)
    latest: int = -1
