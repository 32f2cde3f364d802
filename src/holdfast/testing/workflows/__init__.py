"""Testing workflows: time that is skipped, crashes at every commit, and histories that are replayed."""

from __future__ import annotations

from holdfast.testing.workflows.effects import Effects, Execution
from holdfast.testing.workflows.environment import WorkflowEnvironment

__all__ = ["Effects", "Execution", "WorkflowEnvironment"]
