"""Who gets which part of a number of places: no group takes the last ones from others, and none of its members does.

There is one rule: **one that has some gets one more only while as many are left to others.** A group that is alone can
so have half of all places. The next one gets half of the rest; as places are given back and taken again, it becomes a
third each. One that has none finds one while any is left. Inside a group the same holds for its members, of what the
group may still get. So nothing is set aside for those that may come, and nothing is taken from those that are there.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from standfast.errors import TooManyRequestsError

if TYPE_CHECKING:
    from collections.abc import Generator, Hashable, Iterable

SAID: Final = 1.0
"""After how many seconds a caller that was refused may try again."""


def sharer_of(user: str, transport: str) -> str:
    """Return as whom a request is counted within its tenant: its user, or all webhooks, or all schedules.

    No user has such a name, since names are printable.
    """
    return f"\0{transport}" if transport in ("webhook", "schedule") else user


def is_spent(own: int, left: int) -> bool:
    """Return True if a sharer with ``own`` places gets no more while ``left`` are free for all."""
    return left <= 0 or (own > 0 and own >= left)


@final
class Counts:
    """How many of something each has, and all together. Who has none takes no memory.

    Attributes:
        total: How many all have.
    """

    __slots__ = ("_own", "total")

    def __init__(self, own: Iterable[tuple[Hashable, int]] = ()) -> None:
        self.total = 0
        self._own: Final[dict[Hashable, int]] = {}
        for who, number in own:
            self.add(who, number)

    def of(self, who: Hashable) -> int:
        """Return how many one has."""
        return self._own.get(who, 0)

    def add(self, who: Hashable, number: int = 1) -> None:
        """Count more of one, or fewer."""
        self.total += number
        own = self._own.get(who, 0) + number
        if own:
            self._own[who] = own
        else:
            self._own.pop(who, None)

    def copy(self) -> Counts:
        """Return the same counts, to be changed on their own."""
        return Counts(self._own.items())

    def take_off(self, other: Counts) -> None:
        """Count as many fewer of each as another has."""
        for who, number in other._own.items():
            self.add(who, -number)


@final
class Shares:
    """Places that groups and their members share, in one process. Who has none takes no memory.

    Args:
        most: How many places there are.
        what: What has a place, in a refusal: ``"requests"``.
        group: What a group is called there: ``"the tenant"``.
        member: What a member is called there: ``"this user"``.

    Attributes:
        most: How many places there are.
        open: How many are taken.
    """

    __slots__ = ("_group", "_groups", "_member", "_what", "most", "open")

    def __init__(self, most: int, what: str, group: str = "the tenant", member: str = "this user") -> None:
        self.most: Final = most
        self.open = 0
        self._what, self._group, self._member = what, group, member
        self._groups: Final[dict[str, Counts]] = {}

    def enter(self, group: str, member: Hashable) -> None:
        """Take a place.

        Raises:
            TooManyRequestsError: All are taken, or the group or its member has its share of them; it says which.
        """
        left, mine = self.most - self.open, self._groups.get(group)
        if left <= 0:
            raise TooManyRequestsError(self._what, self.open, SAID)
        if mine is None:
            mine = self._groups[group] = Counts()
        elif mine.total >= left:
            raise TooManyRequestsError(f"{self._what} of {self._group}", mine.total, SAID)
        own = mine.of(member)
        if is_spent(own, left - mine.total):
            raise TooManyRequestsError(f"{self._what} of {self._member}", own, SAID)
        mine.add(member)
        self.open += 1

    def leave(self, group: str, member: Hashable) -> None:
        """Give a place back."""
        mine = self._groups[group]
        mine.add(member, -1)
        self.open -= 1
        if not mine.total:
            del self._groups[group]

    @contextmanager
    def of(self, group: str, member: Hashable) -> Generator[None]:
        """Have a place for a while.

        Raises:
            TooManyRequestsError: As :meth:`enter`.
        """
        self.enter(group, member)
        try:
            yield
        finally:
            self.leave(group, member)
