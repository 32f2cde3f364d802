"""Testing workflows: time that is skipped, crashes at every commit, and histories that are replayed."""

from __future__ import annotations

from holdfast.testing.workflows.disturbing import Disturbances, Script, crash_everywhere, unload_everywhere
from holdfast.testing.workflows.effects import Effects, Execution
from holdfast.testing.workflows.environment import WorkflowEnvironment

__all__ = [
    "Disturbances",
    "Effects",
    "Execution",
    "Script",
    "WorkflowEnvironment",
    "crash_everywhere",
    "unload_everywhere",
]
