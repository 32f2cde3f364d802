"""Replay: a run's recorded marks, handed to the code that asks for them, in the order in which they were made.

Marks of all branches share one order. A mark is taken when its branch resumes with it, and the next one only after
that; so what the code does between its operations is interleaved just as it was when the marks were made, and plain
variables that branches share have the same values again. No I/O and no clock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from standfast.workflows.storing.records import Mark

BY_THE_WAY: Final = frozenset({"update"})
"""Marks that no operation asks for: what came from outside."""

ANYWHERE: Final = "lost"
"""The kind of mark that any operation may have: that it raised the loss of a lock instead."""


class Mismatch(Struct, frozen=True):
    """The code asks for something else than what is recorded there. Either may be empty: nothing at all."""

    recorded: str
    asked: str


class Later(Struct, frozen=True):
    """It is not this operation's turn: another branch resumes first."""


class Live(Struct, frozen=True):
    """Everything recorded was replayed, and this operation is not among it."""


LATER: Final = Later()
LIVE: Final = Live()


@final
class Replay:
    """The marks of a history, and how far they were replayed."""

    __slots__ = ("_by_branch", "_marks", "_position")

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._marks: Final = tuple(marks)
        self._position = 0
        self._by_branch: Final[dict[str, deque[int]]] = {}
        for position, mark in enumerate(self._marks):
            if mark.kind not in BY_THE_WAY:
                self._by_branch.setdefault(branch_of(mark.id), deque()).append(position)

    @property
    def is_over(self) -> bool:
        """Whether everything recorded was replayed."""
        return self._position == len(self._marks)

    @property
    def by_the_way(self) -> Mark | None:
        """The mark whose turn it is, if it is one that no operation asks for; see :meth:`pass_by`."""
        if self._position < len(self._marks) and self._marks[self._position].kind in BY_THE_WAY:
            return self._marks[self._position]
        return None

    def pass_by(self) -> None:
        """Go past the mark that no operation asks for."""
        self._position += 1

    def ask(self, branch: str, kinds: Collection[str], operation_id: str) -> Mark | Later | Live | Mismatch:
        """Ask for the next mark of a branch. A mark that is returned was taken.

        Args:
            branch: The path of the branch that asks.
            kinds: The kinds of marks that the operation makes.
            operation_id: Its id, with the path.
        """
        waiting = self._by_branch.get(branch)
        if not waiting:
            return LIVE if self._position == len(self._marks) else LATER
        mark = self._marks[waiting[0]]
        if mark.id != operation_id or (mark.kind not in kinds and mark.kind != ANYWHERE):
            return Mismatch(show(mark.kind, mark.id), show(next(iter(kinds)), operation_id))
        if waiting[0] != self._position:
            return LATER
        waiting.popleft()
        self._position += 1
        return mark

    def has(self, operation_id: str) -> bool:
        """Tell whether an operation is the next one that is recorded in its branch."""
        waiting = self._by_branch.get(branch_of(operation_id))
        return waiting is not None and bool(waiting) and self._marks[waiting[0]].id == operation_id

    def is_live(self, branch: str) -> bool:
        """Tell whether everything that a branch has recorded was replayed."""
        return not self._by_branch.get(branch)

    def left_over(self) -> str:
        """Say which mark comes next, for an error."""
        return show(self._marks[self._position].kind, self._marks[self._position].id) if not self.is_over else ""

    @property
    def next_branch(self) -> str | None:
        """The branch whose turn it is; None if it is nobody's."""
        if self.is_over or self._marks[self._position].kind in BY_THE_WAY:
            return None
        return branch_of(self._marks[self._position].id)


def branch_of(operation_id: str) -> str:
    """Return the path of the branch in which an operation was asked for."""
    return operation_id.rpartition("/")[0]


def show(kind: str, operation_id: str) -> str:
    """Show an operation in an error."""
    return f"{kind} {operation_id!r}"
