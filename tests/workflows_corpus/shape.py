"""A shape of workflow: what to run, and what happens to it from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from standfast.testing.workflows import Script, WorkflowEnvironment
from standfast.workflows.definition import Workflow
from standfast.workflows.run import Run


class Shape(Struct, frozen=True):
    """A workflow with everything that is needed to disturb it."""

    workflow: Workflow[..., Any]
    args: tuple[Any, ...] = ()
    workflows: tuple[Workflow[..., Any], ...] = ()
    script: Script | None = None
    before: Callable[[], None] | None = None
    check: Callable[[WorkflowEnvironment, Run[Any]], None] | None = None

    @property
    def name(self) -> str:
        """What it is called in the names of tests."""
        return self.workflow.name

    def options(self) -> dict[str, Any]:
        """Return what crash_everywhere and unload_everywhere take by name."""
        return {"workflows": self.workflows, "script": self.script, "before": self.before, "check": self.check}
