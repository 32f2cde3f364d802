"""The contracts as test suites. They need pytest, and any plugin that runs ``async def`` tests."""

from __future__ import annotations

from standfast.testing.conformance.locks import LockConformance
from standfast.testing.conformance.run_locks import RunLockConformance
from standfast.testing.conformance.store import StoreConformance
from standfast.testing.conformance.workflows import WorkflowConformance

__all__ = ["LockConformance", "RunLockConformance", "StoreConformance", "WorkflowConformance"]
