"""When those who were refused come again: not all at the same moment."""

from __future__ import annotations

import random
from typing import Final

LEAST: Final = 2.0
"""Seconds over which those are spread who may come again at once."""

_random: Final = random.Random()  # noqa: S311 -- spreads out who tries again when


def spread(seconds: float) -> float:
    """Return a time between this and half as much again: never earlier, and for each who asks another one."""
    return round(seconds + _random.uniform(0.0, max(LEAST, seconds / 2)), 3)
