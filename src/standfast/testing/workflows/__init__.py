"""Testing workflows: time that is skipped, crashes at every commit, and histories that are replayed."""

from __future__ import annotations

from standfast.testing.workflows.disturbances import Disturbances, Script, crash_everywhere, unload_everywhere
from standfast.testing.workflows.effects import Effects, Execution
from standfast.testing.workflows.environment import WorkflowEnvironment
from standfast.testing.workflows.histories import Replayed, load_history, replay_history, save_history
from standfast.testing.workflows.interleavings import interleave
from standfast.testing.workflows.operations import OPERATIONS, Operation, operate_everywhere
from standfast.workflows.saved_history import SavedHistory

__all__ = [
    "OPERATIONS",
    "Disturbances",
    "Effects",
    "Execution",
    "Operation",
    "Replayed",
    "SavedHistory",
    "Script",
    "WorkflowEnvironment",
    "crash_everywhere",
    "interleave",
    "load_history",
    "operate_everywhere",
    "replay_history",
    "save_history",
    "unload_everywhere",
]
