"""Places that nobody will come for: the run that one is kept for has ended before its step began.

That happens to a run that waits for something else, and is ended by somebody who knows nothing of its place: its
schedule was paused, or an operator cancelled it from another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.space import Space

LOOK_EVERY: Final = 1.0
"""Seconds between two looks."""

MOST_READ: Final = 100


async def ended_runs(space: Space, run_ids: Sequence[str]) -> list[str]:
    """Return those runs that have ended, or are not there any more."""
    ended: list[str] = []
    most = space.at_most(MOST_READ)
    for start in range(0, len(run_ids), most):
        keys = {RunKeys(space, each).life: each for each in run_ids[start : start + most]}
        seen = await space.read(*keys)
        for key, run_id in keys.items():
            record = seen.get(key)
            if record is None or LIVES.decode(record.value).has_ended:
                ended.append(run_id)
    return ended
