"""The promises of durable workflows as tests, over any store."""

from __future__ import annotations

from standfast.testing.conformance.workflows.suite import WorkflowConformance

__all__ = ["WorkflowConformance"]
