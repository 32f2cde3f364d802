"""The contracts as test suites. They need pytest, and any plugin that runs ``async def`` tests."""

from __future__ import annotations

from holdfast.testing.conformance.locks import LockConformance
from holdfast.testing.conformance.run_locks import RunLockConformance
from holdfast.testing.conformance.store import StoreConformance

__all__ = ["LockConformance", "RunLockConformance", "StoreConformance"]
