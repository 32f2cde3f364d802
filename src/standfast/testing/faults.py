"""What may go wrong between a program and its store, how often, and in an order that a seed decides."""

from __future__ import annotations

import asyncio
import random
from enum import Enum, auto
from typing import Final, final

from msgspec import Struct

from standfast.errors import InvalidFaultsError, OutcomeUnknownError, StoreUnavailableError


class Faults(Struct, frozen=True, kw_only=True):
    """How often what goes wrong: each a chance between 0 and 1, all 0 unless given.

    A commit or update meets at most one of ``refuse``, ``lose_request``, ``lose_reply`` and ``land_late``.
    """

    refuse: float = 0.0
    """The store says at once that it cannot work: ``StoreUnavailableError``, and nothing is written."""
    lose_request: float = 0.0
    """Nothing is written, but the caller cannot know that: ``OutcomeUnknownError``."""
    lose_reply: float = 0.0
    """It is written, but the caller cannot know that: ``OutcomeUnknownError``."""
    land_late: float = 0.0
    """``OutcomeUnknownError``, and it is written some time later, unless the attempt is settled first."""
    fail_read: float = 0.0
    """A read or scan fails: ``StoreUnavailableError``."""
    fail_settle: float = 0.0
    """Settling fails and has to be tried again: it is refused, or its own reply is lost."""
    delay: float = 0.0
    """A call takes a while, up to ``longest_delay``, before anything else happens."""
    drop_hint: float = 0.0
    """A hint is lost."""
    double_hint: float = 0.0
    """A hint is heard twice."""
    delay_hint: float = 0.0
    """A hint is heard later, up to ``longest_delay``."""
    longest_delay: float = 0.05
    """The longest delay, in seconds."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: float = getattr(self, name)
            if not value >= 0 or (name != "longest_delay" and value > 1):
                raise InvalidFaultsError(f"{name}={value!r}: a chance lies between 0 and 1, a delay is not negative")
        if self.refuse + self.lose_request + self.lose_reply + self.land_late > 1:
            raise InvalidFaultsError("refuse, lose_request, lose_reply and land_late together are at most 1")


ROUGH: Final = Faults(
    refuse=0.03,
    lose_request=0.05,
    lose_reply=0.05,
    land_late=0.05,
    fail_read=0.05,
    fail_settle=0.2,
    delay=0.3,
    drop_hint=0.2,
    double_hint=0.2,
    delay_hint=0.3,
)
"""A bad day: every kind of fault, often enough to be met within a few dozen calls."""


class Fate(Enum):
    """What becomes of one commit."""

    FINE = auto()
    REFUSED = auto()
    REQUEST_LOST = auto()
    REPLY_LOST = auto()
    LATE = auto()


@final
class Dice:
    """Draws faults from a seed. The same draws in the same order give the same faults."""

    __slots__ = ("_faults", "_random")

    def __init__(self, faults: Faults, seed: int) -> None:
        self._faults: Final = faults
        self._random: Final = random.Random(seed)

    def happens(self, chance: float) -> bool:
        """Draw whether something of this chance happens now."""
        return self._random.random() < chance

    def fate(self) -> Fate:
        """Draw what becomes of a commit."""
        faults, lot = self._faults, self._random.random()
        for chance, fate in (
            (faults.refuse, Fate.REFUSED),
            (faults.lose_request, Fate.REQUEST_LOST),
            (faults.lose_reply, Fate.REPLY_LOST),
            (faults.land_late, Fate.LATE),
        ):
            if lot < chance:
                return fate
            lot -= chance
        return Fate.FINE

    def moment(self) -> float:
        """Draw a delay in seconds."""
        return self._random.uniform(0, self._faults.longest_delay)

    async def linger(self) -> None:
        """Take a while, now and then."""
        if self.happens(self._faults.delay):
            await asyncio.sleep(self.moment())

    async def before_reading(self, store: str) -> None:
        """Take a while and fail, now and then."""
        await self.linger()
        if self.happens(self._faults.fail_read):
            raise refusal(store, "read")

    async def before_settling(self, store: str, attempt: str) -> None:
        """Take a while and fail, now and then."""
        await self.linger()
        if self.happens(self._faults.fail_settle):
            raise lost(store, attempt) if self.happens(0.5) else refusal(store, "settle")


def refusal(store: str, what: str) -> StoreUnavailableError:
    """Return the error of a call that was refused."""
    return StoreUnavailableError(store, f"it refused to {what}: an injected fault; nothing was written")


def lost(store: str, attempt: str) -> OutcomeUnknownError:
    """Return the error of a commit whose outcome the caller cannot know."""
    return OutcomeUnknownError(store, "the connection broke: an injected fault", attempt)
