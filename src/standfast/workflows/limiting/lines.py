"""Lines in which a run stands from its start to its end, as the rest of the engine uses them."""

from __future__ import annotations

from standfast.workflows.limiting.admitting import admit, end_if_unstarted
from standfast.workflows.limiting.entering import start_in_lines
from standfast.workflows.limiting.leaving import leave_all, leave_lines
from standfast.workflows.limiting.standing import standings_of

__all__ = ["admit", "end_if_unstarted", "leave_all", "leave_lines", "standings_of", "start_in_lines"]
