"""Durable locks: in order of arrival, leased, fenced, and safe when a process dies."""

from __future__ import annotations

from holdfast.locks.algebra.record import LockPosition, Renewal, initial_lock_record
from holdfast.locks.algebra.stored import LockHolder, LockRecord, LockWaiter
from holdfast.locks.driving.acquiring import PermitsWarning
from holdfast.locks.driving.hold import Hold, Holding, OnLost
from holdfast.locks.explaining.explanation import (
    ExplainedEntry,
    ExplainedHolder,
    ExplainedWaiter,
    Explanation,
    LineSummary,
)
from holdfast.locks.mode_lock import ModeLock
from holdfast.locks.mutex import Mutex
from holdfast.locks.options import HoldOptions
from holdfast.locks.rates.bucket import Pass
from holdfast.locks.rates.rate_limiter import RateLimiter, RateState, WaitingForTokens
from holdfast.locks.runs.run_lease import RunLease
from holdfast.locks.runs.run_line import RunLockInfo
from holdfast.locks.runs.run_locks import RunHolding, RunLocks
from holdfast.locks.semaphore import Semaphore
from holdfast.locks.state.atomic_state import AtomicState
from holdfast.locks.state.by_hand import DurableMutex, DurableSemaphore, LockByHand
from holdfast.locks.state.events import (
    StateChanged,
    StateConflict,
    StateEvent,
    StateEvents,
    StateEventsDropped,
    StateExhausted,
)
from holdfast.locks.state.slot_seam import HoldGuard, Slot
from holdfast.locks.state.slots import Slots
from holdfast.locks.state.values import KEEP, Guard, Keep, StateValue

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
