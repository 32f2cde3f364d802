"""The line of one key in memory: who has its turn, who waits, and what becomes of a newcomer.

It reads no clock, awaits nothing and knows no tasks, so that it can be compared with a model. At most one holds, and
whatever becomes free goes to the front at once: there is no moment in which a newcomer could slip in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeAlias, TypeVar, final

from msgspec import Struct

if TYPE_CHECKING:
    from standfast.flows.arbiters.protocol import Manner


class Entrant(Protocol):
    """One that stands in a line, told apart by identity. ``action`` says whom it can be joined or superseded by."""

    @property
    def action(self) -> str:
        """Flow and action."""
        ...


E = TypeVar("E", bound=Entrant)


class Enters(Struct, Generic[E], frozen=True):
    """It may enter, and takes the place of those ``superseded``: the oldest first, the holder perhaps among them."""

    superseded: tuple[E, ...] = ()


class Refused(Struct, Generic[E], frozen=True):
    """It would have to wait, and does not. ``holder`` is in its way."""

    holder: E


class Full(Struct, frozen=True):
    """As many wait as may."""

    waiting: int


class Joins(Struct, Generic[E], frozen=True):
    """It shares the run of another one."""

    other: E


Verdict: TypeAlias = "Enters[E] | Refused[E] | Full | Joins[E]"
"""What becomes of a newcomer."""


@final
class RequestLine(Generic[E]):
    """One line. ``holder`` has its turn; ``waiters`` are in the order in which they entered."""

    __slots__ = ("holder", "waiters")

    def __init__(self, holder: E | None = None) -> None:
        self.holder = holder
        self.waiters: Final[dict[E, None]] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nobody is there. Nobody waits unless somebody holds."""
        return self.holder is None

    def judge(self, action: str, manner: Manner) -> Enters[E] | Refused[E] | Full | Joins[E]:
        """Say what becomes of a newcomer, without letting it in."""
        holder = self.holder
        if holder is None:
            return Enters()
        if not manner.waits:
            return Refused(holder)
        alike = [each for each in (holder, *self.waiters) if each.action == action]
        if manner.joins and alike:
            return Joins(alike[0])
        superseded = self.superseded_by(action, manner)
        waiting = len(self.waiters) - sum(each is not holder for each in superseded)
        if manner.most_waiting is not None and waiting >= manner.most_waiting:
            return Full(waiting)
        return Enters(superseded)

    def superseded_by(self, action: str, manner: Manner) -> tuple[E, ...]:
        """Return those whose place a newcomer takes, the oldest first."""
        if self.holder is None or manner.supersedes == "nobody":
            return ()
        standing = (self.holder, *self.waiters) if manner.supersedes == "all" else self.waiters
        return tuple([each for each in standing if each.action == action])

    def enter(self, entrant: E) -> int:
        """Let one in, and return its position: 0 has its turn, 1 is next."""
        if self.holder is None:
            self.holder = entrant
            return 0
        self.waiters[entrant] = None
        return len(self.waiters)

    def leave(self, entrant: E) -> E | None:
        """Take one out; return who has its turn because of that. Leaving twice, or without being there, is nothing."""
        if self.holder is not entrant:
            self.waiters.pop(entrant, None)
            return None
        self.holder = next(iter(self.waiters), None)
        if self.holder is not None:
            del self.waiters[self.holder]
        return self.holder

    def position(self, entrant: E) -> int | None:
        """Return the place of one that stands here; None: it does not."""
        if self.holder is entrant:
            return 0
        return next((place for place, each in enumerate(self.waiters, 1) if each is entrant), None)
