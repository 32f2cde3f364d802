"""Log lines about what strangers do: a few of each kind, and then how many more there were.

Who is refused decides how often that happens, so it must not decide how much is written down.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, final

from standfast.clock import monotonic
from standfast.log_hook import as_logfmt

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.log_hook import Fact


BURST: Final = 20
"""How many lines of one kind are written at once."""

PER_MINUTE: Final = 20.0
"""How many are written in the long run."""

MINUTE: Final = 60.0


@final
class LogBudget:
    """Writes events to a logger, each kind within a budget of its own.

    Kinds are names in our code, so there are few of them. What was left out is counted, and the next line of its kind
    says how many there were: ``suppressed=1200``.

    Args:
        logger: Where to write.
        burst: How many lines of one kind are written at once.
        per_minute: How many in the long run.
        now: Seconds by some clock.
    """

    def __init__(
        self,
        logger: logging.Logger,
        *,
        burst: int = BURST,
        per_minute: float = PER_MINUTE,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._logger, self._burst, self._per_minute, self._now = logger, burst, per_minute, now
        self._known: Final[dict[str, _Bucket]] = {}

    def info(self, event: str, **facts: Fact) -> None:
        """Write what is as it should be."""
        self._write(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Fact) -> None:
        """Write what a person should look at."""
        self._write(logging.WARNING, event, facts)

    def _write(self, level: int, event: str, facts: dict[str, Fact]) -> None:
        if not self._logger.isEnabledFor(level):
            return
        now = self._now()
        bucket = self._known.get(event)
        if bucket is None:
            bucket = self._known[event] = _Bucket(self._burst, now)
        bucket.left = min(float(self._burst), bucket.left + (now - bucket.at) * self._per_minute / MINUTE)
        bucket.at = now
        if bucket.left < 1.0:
            bucket.suppressed += 1
            return
        bucket.left -= 1.0
        told: dict[str, Fact] = {"event": event, **facts}
        if bucket.suppressed:
            told["suppressed"] = bucket.suppressed
            bucket.suppressed = 0
        self._logger.log(level, "%s", as_logfmt(told), extra={"standfast": told})


@final
class _Bucket:
    __slots__ = ("at", "left", "suppressed")

    def __init__(self, left: float, at: float) -> None:
        self.left, self.at, self.suppressed = left, at, 0
