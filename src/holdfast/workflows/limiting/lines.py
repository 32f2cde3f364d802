"""Lines in which a run stands from its start to its end, as the rest of the engine uses them."""

from __future__ import annotations

from holdfast.workflows.limiting.admitting import admit, end_if_unstarted
from holdfast.workflows.limiting.entering import start_in_lines
from holdfast.workflows.limiting.leaving import leave_all, leave_lines
from holdfast.workflows.limiting.standing import standings_of

__all__ = ["admit", "end_if_unstarted", "leave_all", "leave_lines", "standings_of", "start_in_lines"]
