"""Durable locks: in order of arrival, leased, fenced, and safe when a process dies."""

from __future__ import annotations

from standfast.locks.algebra.record import LockPosition, Renewal, initial_lock_record
from standfast.locks.algebra.stored import LockHolder, LockRecord, LockWaiter
from standfast.locks.driving.acquiring import PermitsWarning
from standfast.locks.driving.hold import Hold, Holding, OnLost
from standfast.locks.explaining.explanation import (
    ExplainedEntry,
    ExplainedHolder,
    ExplainedWaiter,
    Explanation,
    LineSummary,
)
from standfast.locks.mode_lock import ModeLock
from standfast.locks.mutex import Mutex
from standfast.locks.options import HoldOptions
from standfast.locks.rates.bucket import Pass
from standfast.locks.rates.rate_limiter import RateLimiter, RateState, WaitingForTokens
from standfast.locks.runs.run_lease import RunLease
from standfast.locks.runs.run_line import RunLockInfo
from standfast.locks.runs.run_locks import RunHolding, RunLocks
from standfast.locks.semaphore import Semaphore
from standfast.locks.state.atomic_state import AtomicState
from standfast.locks.state.by_hand import DurableMutex, DurableSemaphore, LockByHand, PollWarning
from standfast.locks.state.events import (
    StateChanged,
    StateConflict,
    StateEvent,
    StateEvents,
    StateEventsDropped,
    StateExhausted,
)
from standfast.locks.state.slot_seam import HoldGuard, Slot
from standfast.locks.state.slots import Slots
from standfast.locks.state.values import KEEP, Guard, Keep, StateValue

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
    "PollWarning",
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
