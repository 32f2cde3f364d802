"""How many streams are open, in all and of one user: nobody can take the places of everybody."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, final

from standfast.errors import TooManyRequestsError
from standfast.flows.shares import SAID

if TYPE_CHECKING:
    from collections.abc import Generator

    from standfast.flows.arrival import Principal
    from standfast.flows.shares import Shares

Who: TypeAlias = tuple[str, str, str]
"""The tenant, the user, and the address of a user who has no name."""


def who_is(principal: Principal, address: str) -> Who:
    """Return what is counted as one user: who has no name is told apart by the address."""
    return (principal.tenant, principal.user, "" if principal.user else address)


@final
class Tally:
    """How many of something each user has open; who has none takes no memory."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: Final[dict[Who, int]] = {}

    @property
    def all(self) -> Counter[Who]:
        """How many each of them has open."""
        return Counter(self._open)

    def of(self, who: Who) -> int:
        """Return how many a user has open."""
        return self._open.get(who, 0)

    @contextmanager
    def one_more(self, who: Who) -> Generator[None]:
        """Count one of a user while it is open."""
        self._open[who] = self.of(who) + 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]


@final
class Places:
    """Counts what is open in all, and of each user.

    Args:
        shares: How all of them are shared.
        what: What they are called in a refusal.
        most: How many one user may have.
    """

    def __init__(self, shares: Shares, what: str, most: int) -> None:
        self._shares, self._what, self._most = shares, what, most
        self._open: Final = Tally()

    @contextmanager
    def of(self, who: Who) -> Generator[None]:
        """Count one of a user while it is open.

        Raises:
            TooManyRequestsError: There are as many as there may be, in all, of the tenant or of this user.
        """
        if self._open.of(who) >= self._most:
            raise TooManyRequestsError(self._what, self._most, SAID)
        with self._shares.of(who[0], who), self._open.one_more(who):
            yield
