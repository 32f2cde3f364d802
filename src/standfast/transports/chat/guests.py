"""How much each user takes of a chat in this process: open connections, and messages a second."""

from __future__ import annotations

import math
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, final

from standfast.clock import monotonic
from standfast.errors import TooManyRequestsError
from standfast.flows.shares import SAID
from standfast.transports.places import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from standfast.transports.chat.declaring import ChatLimits
    from standfast.transports.places import Who

REMEMBERED: Final = 10_000
"""How many users are remembered that have no connection open; those who wrote last."""


@final
class Guests:
    """Counts what users do, and refuses what is too much.

    Args:
        limits: How much that is.
        now: Seconds by some clock.
    """

    def __init__(self, limits: ChatLimits, now: Callable[[], float] = monotonic) -> None:
        self._limits, self._now = limits, now
        self._open: Final = Tally()
        self._written: Final[OrderedDict[Who, tuple[float, float]]] = OrderedDict()

    @contextmanager
    def connected(self, who: Who) -> Generator[None]:
        """Count a connection while it is open.

        Raises:
            TooManyRequestsError: The user has as many as there may be.
        """
        if self._open.of(who) >= self._limits.connections:
            raise TooManyRequestsError("connections of this user", self._limits.connections, SAID)
        with self._open.one_more(who):
            yield

    def write(self, who: Who) -> None:
        """Count a message.

        Raises:
            TooManyRequestsError: They come too fast. It says when the next one is taken.
        """
        now, rate = self._now(), self._limits.rate
        level, at = self._written.pop(who, (0.0, now))
        level = max(0.0, level - (now - at) * rate)
        is_too_many = level + 1 > self._limits.burst
        self._written[who] = (level if is_too_many else level + 1, now)
        if len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        if is_too_many:
            wait = math.ceil(100 * (level + 1 - self._limits.burst) / rate) / 100
            raise TooManyRequestsError("messages of this user", self._limits.burst, wait)
