"""The store contract as a test suite. It needs pytest, and any plugin that runs ``async def`` tests."""

from __future__ import annotations

from holdfast.testing.conformance.store import StoreConformance

__all__ = ["StoreConformance"]
