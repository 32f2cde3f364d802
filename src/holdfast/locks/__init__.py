"""Durable locks: in order of arrival, leased, fenced, and safe when a process dies."""

from __future__ import annotations

from holdfast.locks.acquiring import PermitsWarning
from holdfast.locks.atomic_state import AtomicState
from holdfast.locks.bucket import Pass
from holdfast.locks.by_hand import DurableMutex, DurableSemaphore, LockByHand
from holdfast.locks.explanation import ExplainedEntry, ExplainedHolder, ExplainedWaiter, Explanation, LineSummary
from holdfast.locks.hold import Hold, Holding, OnLost
from holdfast.locks.mode_lock import ModeLock
from holdfast.locks.mutex import Mutex
from holdfast.locks.options import HoldOptions
from holdfast.locks.rate_limiter import RateLimiter, RateState, WaitingForTokens
from holdfast.locks.record import LockPosition, Renewal, initial_lock_record
from holdfast.locks.run_lease import RunLease
from holdfast.locks.run_line import RunLockInfo
from holdfast.locks.run_locks import RunHolding, RunLocks
from holdfast.locks.semaphore import Semaphore
from holdfast.locks.slot_seam import HoldGuard, Slot
from holdfast.locks.slots import Slots
from holdfast.locks.state_events import (
    StateChanged,
    StateConflict,
    StateEvent,
    StateEvents,
    StateEventsDropped,
    StateExhausted,
)
from holdfast.locks.state_values import KEEP, Guard, Keep, StateValue
from holdfast.locks.stored import LockHolder, LockRecord, LockWaiter

__all__ = [
    "KEEP",
    "AtomicState",
    "DurableMutex",
    "DurableSemaphore",
    "ExplainedEntry",
    "ExplainedHolder",
    "ExplainedWaiter",
    "Explanation",
    "Guard",
    "Hold",
    "HoldGuard",
    "HoldOptions",
    "Holding",
    "Keep",
    "LineSummary",
    "LockByHand",
    "LockHolder",
    "LockPosition",
    "LockRecord",
    "LockWaiter",
    "ModeLock",
    "Mutex",
    "OnLost",
    "Pass",
    "PermitsWarning",
    "RateLimiter",
    "RateState",
    "Renewal",
    "RunHolding",
    "RunLease",
    "RunLockInfo",
    "RunLocks",
    "Semaphore",
    "Slot",
    "Slots",
    "StateChanged",
    "StateConflict",
    "StateEvent",
    "StateEvents",
    "StateEventsDropped",
    "StateExhausted",
    "StateValue",
    "WaitingForTokens",
    "initial_lock_record",
]
