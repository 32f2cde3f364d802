"""How much the repeating tests do: the one place that decides.

``make test`` does a fixed small number of rounds, the same on every machine; ``make prove`` (``STANDFAST_PROVE=1``)
does the full number. What each of them did, and how long it took, is printed after the last test.

    @pytest.mark.heavy
    def test_a_killed_writer_loses_no_acknowledged_commit(tmp_path):
        for seed in rounds("kills", full=200, quick=5):
            ...

    commits = size(full=10_000, quick=500)
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PROVE = os.environ.get("STANDFAST_PROVE", "") not in ("", "0")
"""Whether this run is ``make prove``: full sizes."""


@dataclass
class Tally:
    """What one repeating test has done so far."""

    label: str
    full: int
    done: int = 0
    seconds: float = 0.0
    found: str = ""

    def __str__(self) -> str:
        found = f"; {self.found}" if self.found else ""
        return f"{self.label}: {self.done} in {self.seconds:.0f} s (make prove: {self.full}){found}"


tallies: list[Tally] = []
"""What the repeating tests did, in the order they began; printed after the last test."""


def size(*, full: int, quick: int) -> int:
    """Return ``full`` under ``make prove``, else ``quick``."""
    return full if PROVE else quick


def rounds(label: str, *, full: int, quick: int) -> Iterator[int]:
    """Yield 0, 1, 2 ..., as many as `size` says.

    A round's number makes a good seed: the same number means the same round.

    Args:
        label: What is repeated, as it appears in the summary: ``"kills"``.
        full: How many rounds ``make prove`` does.
        quick: How many rounds ``make test`` does.
    """
    tally = Tally(label, full)
    tallies.append(tally)
    started_at = time.monotonic()
    for number in range(size(full=full, quick=quick)):
        yield number
        tally.done = number + 1
        tally.seconds = time.monotonic() - started_at


def remark(label: str, found: str) -> None:
    """Say in the summary what the rounds of ``label`` found so far: ``"took 3 ms (p50), 8 ms (max)"``."""
    next(tally for tally in reversed(tallies) if tally.label == label).found = found
