"""How much the repeating tests do: the one place that decides.

``make test`` gives each of them a time box; ``make prove`` (``STANDFAST_PROVE=1``) lets them run to
their full size. What each of them really did is printed after the last test.

    @pytest.mark.heavy
    def test_a_killed_writer_loses_no_acknowledged_commit(tmp_path):
        for seed in rounds("kills", full=200, quick=5, seconds=60):
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

SHARE = 0.2
"""How much of its time box a repeating test gets in ``make test``: all of them, and the servers, share 15 minutes."""

PROVE = os.environ.get("STANDFAST_PROVE", "") not in ("", "0")
"""Whether this run is ``make prove``: full sizes, no time boxes."""


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


def rounds(label: str, *, full: int, quick: int = 1, seconds: float = 60.0) -> Iterator[int]:
    """Yield 0, 1, 2 ... up to ``full``, fewer when the time box closes first.

    Under ``make prove`` there is no box. At least ``quick`` rounds are always done.
    A round's number makes a good seed: the same number means the same round.

    Args:
        label: What is repeated, as it appears in the summary: ``"kills"``.
        full: How many rounds ``make prove`` does.
        quick: How many rounds are done even when they take longer than the box.
        seconds: The time box of ``make test``, of which it gets a share.
    """
    tally = Tally(label, full)
    tallies.append(tally)
    started_at = time.monotonic()
    for number in range(full):
        if not PROVE and number >= quick and tally.seconds >= seconds * SHARE:
            return
        yield number
        tally.done = number + 1
        tally.seconds = time.monotonic() - started_at


def remark(label: str, found: str) -> None:
    """Say in the summary what the rounds of ``label`` found so far: ``"took 3 ms (p50), 8 ms (max)"``."""
    next(tally for tally in reversed(tallies) if tally.label == label).found = found
