"""The promises of durable locks as tests, over any store."""

from __future__ import annotations

from standfast.testing.conformance.locks.suite import LockConformance

__all__ = ["LockConformance"]
