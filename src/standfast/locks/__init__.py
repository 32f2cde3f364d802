"""Durable locks: in order of arrival, leased, fenced, and safe when a process dies."""

from __future__ import annotations

from standfast.locks.acquire import PermitsWarning
from standfast.locks.inspect import ExplainedEntry, ExplainedHolder, ExplainedWaiter, Explanation, LineSummary
from standfast.locks.lock_record import LockHolder, LockPosition, LockRecord, LockWaiter, Renewal, initial_lock_record
from standfast.locks.locks import Hold, Holding, HoldOptions, ModeLock, Mutex, OnLost, Semaphore
from standfast.locks.manual import DurableMutex, DurableSemaphore, LockByHand, PollWarning
from standfast.locks.rate_limiter import Pass, RateLimiter, RateState, WaitingForTokens
from standfast.locks.run_locks import RunHolding, RunLease, RunLockInfo, RunLocks
from standfast.locks.state import (
    KEEP,
    AtomicState,
    Guard,
    HoldGuard,
    Keep,
    Slot,
    Slots,
    StateChanged,
    StateConflict,
    StateEvent,
    StateEvents,
    StateEventsDropped,
    StateExhausted,
    StateValue,
)

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
