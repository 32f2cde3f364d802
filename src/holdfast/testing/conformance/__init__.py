"""The contracts as test suites. They need pytest, and any plugin that runs ``async def`` tests."""

from __future__ import annotations

from holdfast.testing.conformance.locks import LockConformance
from holdfast.testing.conformance.run_locks import RunLockConformance
from holdfast.testing.conformance.store import StoreConformance
from holdfast.testing.conformance.workflows import WorkflowConformance

__all__ = ["LockConformance", "RunLockConformance", "StoreConformance", "WorkflowConformance"]
