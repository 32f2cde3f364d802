"""Exclusion between the tasks of one process: keyed locks, modes, lock order, and attempts under a key."""

from __future__ import annotations

from standfast.local._hold import Hold
from standfast.local.attempts import Attempt, Backoff, attempt_under
from standfast.local.exclusion import Exclusion
from standfast.local.inspection import Holder, KeyState, Waiter
from standfast.local.lock_order import LockOrderWarning

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
