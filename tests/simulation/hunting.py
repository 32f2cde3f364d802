"""Hunting a mutant: code that is wrong is run with one seed after the other, until a check notices."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.sizes import Tally, tallies

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Hunt(Tally):
    """The search for one mutant, and what gave it away."""

    problem: str = ""

    def __str__(self) -> str:
        found = f"caught by seed {self.done}" if self.problem else f"not caught by {self.full} seeds"
        return f"mutant {self.label}: {found} in {self.seconds:.0f} s ({self.problem})"


def hunt(name: str, most: int, run: Callable[[int], object]) -> str:
    """Run seeds until one fails; return what it failed with, nothing if none did. The summary tells of it."""
    found = Hunt(name, most)
    tallies.append(found)
    started_at = time.monotonic()
    for found.done in range(most):
        try:
            run(found.done)
        except Exception as problem:  # noqa: BLE001 -- whatever gives it away
            found.problem = f"{type(problem).__name__}: {problem}".partition("\n")[0][:100]
            break
    found.seconds = time.monotonic() - started_at
    return found.problem
