"""Exclusion between the tasks of one process: keyed locks, modes, lock order, and attempts under a key."""

from __future__ import annotations

from holdfast.local._hold import Hold
from holdfast.local.attempts import Attempt, Backoff, attempt_under
from holdfast.local.exclusion import Exclusion
from holdfast.local.inspection import Holder, KeyState, Waiter
from holdfast.local.lock_order import LockOrderWarning

__all__ = [
    "Attempt",
    "Backoff",
    "Exclusion",
    "Hold",
    "Holder",
    "KeyState",
    "LockOrderWarning",
    "Waiter",
    "attempt_under",
]
