"""How many sessions of the protocol each user has open: nobody can take those of everybody."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from standfast.clock import monotonic
from standfast.errors import TooManyRequestsError
from standfast.flows.shares import SAID, is_spent
from standfast.transports.places import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from standfast.transports.places import Who

MANY: Final = 1_000
"""Sessions from which it is looked, each time there are twice as many, which of them nobody uses any more."""


@final
class _Session:
    __slots__ = ("busy", "used_at", "who")

    def __init__(self, who: Who, now: float) -> None:
        self.who, self.used_at, self.busy = who, now, 0


@final
class Sessions:
    """What is known about sessions from the messages that pass by; the library has the sessions themselves.

    Args:
        most: How many one user may have.
        in_all: How many there may be. Tenants share them: one gets no more while as many are left to others.
        idle: Seconds after which the library lets go of a session that nobody uses.
        now: Seconds by some clock.
    """

    def __init__(self, most: int, in_all: int, idle: float, now: Callable[[], float] = monotonic) -> None:
        self._most, self._in_all, self._idle, self._now = most, in_all, idle, now
        self._known: Final[dict[str, _Session]] = {}
        self._opening: Final = Tally()
        self._many = MANY

    @contextmanager
    def opening(self, who: Who) -> Generator[None]:
        """Note that somebody is about to open one.

        Raises:
            TooManyRequestsError: They have as many as there may be, or their tenant has its share.
        """
        if self._problem(who) is not None:
            self._forget()
            if (problem := self._problem(who)) is not None:
                raise problem
        with self._opening.one_more(who):
            yield

    def _problem(self, who: Who) -> TooManyRequestsError | None:
        users = Counter(each.who for each in self._known.values()) + self._opening.all
        if users[who] >= self._most:
            return TooManyRequestsError("sessions of this user", self._most, SAID)
        tenants = sum(number for each, number in users.items() if each[0] == who[0])
        if is_spent(tenants, self._in_all - users.total()):
            return TooManyRequestsError("sessions of the tenant", tenants, SAID)
        return None

    def _forget(self) -> None:
        before = self._now() - self._idle
        for session in [name for name, each in self._known.items() if not each.busy and each.used_at < before]:
            del self._known[session]

    def opened(self, session: str, who: Who) -> None:
        """Note that somebody has one; the library names it in every answer."""
        if session not in self._known:
            self._known[session] = _Session(who, self._now())
            if len(self._known) > self._many:  # most clients leave without a word
                self._forget()
                self._many = max(MANY, 2 * len(self._known))

    def closed(self, session: str) -> None:
        """Note that one is gone."""
        self._known.pop(session, None)

    @contextmanager
    def used(self, session: str) -> Generator[None]:
        """Note that a message of one is under way."""
        known = self._known.get(session)
        if known is None:
            yield
            return
        known.busy += 1
        try:
            yield
        finally:
            known.busy -= 1
            known.used_at = self._now()
