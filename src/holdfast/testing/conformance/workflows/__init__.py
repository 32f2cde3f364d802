"""The promises of durable workflows as tests, over any store."""

from __future__ import annotations

from holdfast.testing.conformance.workflows.suite import WorkflowConformance

__all__ = ["WorkflowConformance"]
