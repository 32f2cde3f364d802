"""Durable locks: in order of arrival, leased, fenced, and safe when a process dies."""

from __future__ import annotations

from holdfast.locks.record import LockPosition, Renewal, initial_lock_record
from holdfast.locks.stored import LockHolder, LockRecord, LockWaiter

__all__ = [
    "LockHolder",
    "LockPosition",
    "LockRecord",
    "LockWaiter",
    "Renewal",
    "initial_lock_record",
]
