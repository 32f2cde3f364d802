"""Ids that sort by the time they were made.

Attempts, presences and handles are named by UUIDs of version 7: unique across machines without coordination,
and near each other in an index when they were made at nearly the same time, which is what makes them cheap to
insert. They are names, not secrets: 62 bits of each are random.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from standfast.clock import Clock

_MILLISECOND: Final = 1_000
_FRACTIONS: Final = 4_096  # the 12 bits after the milliseconds hold parts of one, then count
_RANDOM_BITS: Final = (1 << 62) - 1
_VARIANT: Final = 0b10 << 62
_FAR: Final = 1 << 58
"""A moment that no clock shows: from there on ids only count."""

_TEXT: Final = "%08x-%04x-7%03x-%04x-%012x"

_lock = threading.Lock()
_random_bytes: Callable[[int], bytes] = os.urandom


_EIGHT: Final = 8
_AT_ONCE: Final = 256
_eights: Final[list[bytes]] = []
_tails: Final[list[str]] = []


def random_eight() -> bytes:
    """Return eight random bytes of the system's, which are fetched many at a time: each call of it costs as much."""
    try:
        return _eights.pop()
    except IndexError:
        fetched = _random_bytes(_EIGHT * _AT_ONCE)
        _eights.extend(fetched[start : start + _EIGHT] for start in range(_EIGHT, len(fetched), _EIGHT))
        return fetched[:_EIGHT]


def _begin_anew() -> None:
    """Take a new lock in a forked child, and other random bytes than the parent's.

    A thread that does not exist there may hold the old lock.
    """
    global _lock  # noqa: PLW0603 -- shared by all makers, so that one place can renew it
    _lock = threading.Lock()
    _eights.clear()
    _tails.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


@final
class IdMaker:
    """Makes ids that are unique everywhere and, from one maker, strictly increasing as text.

    They keep increasing when the clock stands still or is set back. A maker may be shared by threads, and a
    forked child may go on with its parent's.

    Args:
        clock: Where the time in an id comes from.
        random: Returns that many random bytes, by default the system's; ``random.Random(seed).randbytes`` makes a
            repeatable sequence.
    """

    __slots__ = ("_clock", "_last", "_random")

    def __init__(self, clock: Clock = SYSTEM_CLOCK, random: Callable[[int], bytes] | None = None) -> None:
        self._clock: Final = clock
        self._random: Final = random
        self._last = 0

    def _moment(self) -> int:
        """Return the time, in 4,096ths of a millisecond; later than any that was returned before."""
        now = self._clock.wall() * _FRACTIONS // _MILLISECOND
        with _lock:
            moment = self._last = now if now > self._last else self._last + 1
        return moment

    def go_on_from(self, moment: int) -> int:
        """Let the next id be the first after a moment, if the clock is before that; return the last one so far."""
        with _lock:
            last, self._last = self._last, moment
        return last

    def long(self) -> str:
        """Make an id that cannot be guessed: the time, and 128 random bits of the system's."""
        try:
            return f"{self._moment():015x}-{_tails.pop()}"
        except IndexError:  # fetch the random parts of many ids
            digits = _random_bytes(2 * _EIGHT * _AT_ONCE).hex()
            own, *others = [digits[start : start + 4 * _EIGHT] for start in range(0, len(digits), 4 * _EIGHT)]
            _tails.extend(others)
            return f"{self._moment():015x}-{own}"

    def __call__(self) -> str:
        """Make an id."""
        moment = self._moment()
        eight = random_eight() if self._random is None else self._random(_EIGHT)
        tail = _VARIANT | (int.from_bytes(eight) & _RANDOM_BITS)
        return _TEXT % (moment >> 28, moment >> 12 & 0xFFFF, moment & 0xFFF, tail >> 48, tail & 0xFFFFFFFFFFFF)


new_id: Final = IdMaker()
"""Make an id by the machine's clock and the system's randomness."""


@contextmanager
def repeatable_ids(seed: int) -> Generator[None]:
    """Make ids in a block that are the same for the same seed, whatever was made before: for simulations alone.

    They can be guessed, and are not unique. Nothing else of the process may make ids meanwhile.
    """
    global _random_bytes  # noqa: PLW0603 -- the makers have one source of randomness
    last = new_id.go_on_from(_FAR)
    _eights.clear()
    _tails.clear()
    _random_bytes = Random(seed).randbytes  # noqa: S311 -- that it repeats is what it is for
    try:
        yield
    finally:
        _random_bytes = os.urandom
        new_id.go_on_from(last)
        _eights.clear()
        _tails.clear()
