"""Runs with which several workers have died in a row, so that one of them may be what kills workers.

All runs in the memory of a worker die with it, and only one of them is to blame. A worker therefore drives one suspect
at a time: the next death tells whether it was this one, and the others get on and are suspects no longer.
"""

from __future__ import annotations

from typing import Final, final

SUSPICIOUS: Final = 2
"""How many deaths make a suspect. After a single one, which is mostly nobody's fault, all go on at full speed."""


@final
class Suspects:
    """Which suspect this worker drives, and which wait for their turn here.

    Args:
        most_deaths: How many deaths quarantine a run.
    """

    def __init__(self, most_deaths: int) -> None:
        self._from: Final = max(1, min(SUSPICIOUS, most_deaths - 1))
        self._driven: str | None = None
        self._waiting: Final[dict[str, None]] = {}

    def may_take(self, run_id: str, deaths: int) -> bool:
        """Tell whether a run may be taken up now; if it is a suspect, no other one may before it is gone."""
        if deaths < self._from:
            return True
        if self._driven not in (None, run_id):
            self._waiting[run_id] = None
            return False
        self._driven = run_id
        self._waiting.pop(run_id, None)
        return True

    def gone(self, run_id: str) -> list[str]:
        """Say that a run is not driven here any more; return the suspects that can be looked at now."""
        if run_id != self._driven:
            return []
        waiting = list(self._waiting)
        self._driven = None
        self._waiting.clear()  # others may have them by now
        return waiting
