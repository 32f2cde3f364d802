"""The same names without ``await``: for threads, Django, Flask, Celery, gunicorn and scripts.

    from holdfast import blocking

    with blocking.open("sqlite:///holdfast.db") as space:
        with space.mutex("account-42").hold(timeout="10s") as hold:
            ...

Nothing is implemented twice. One event loop a process runs in a thread of its own and does what the async
:class:`holdfast.Space` does; a call here hands it the work and waits. Values, events and errors are the same ones.
"""

from __future__ import annotations

from holdfast.blocking.by_hand import DurableMutex, DurableSemaphore
from holdfast.blocking.hold import Hold, Holding, Lost
from holdfast.blocking.locks import ModeLock, Mutex, Semaphore
from holdfast.blocking.options import HoldOptions, OnLost
from holdfast.blocking.rates import RateLimiter
from holdfast.blocking.runs import RunLease, RunLocks
from holdfast.blocking.space import Space, open
from holdfast.blocking.states import AtomicState, Slots, StateEvents
from holdfast.blocking.watching import Watch

__all__ = [
    "AtomicState",
    "DurableMutex",
    "DurableSemaphore",
    "Hold",
    "HoldOptions",
    "Holding",
    "Lost",
    "ModeLock",
    "Mutex",
    "OnLost",
    "RateLimiter",
    "RunLease",
    "RunLocks",
    "Semaphore",
    "Slots",
    "Space",
    "StateEvents",
    "Watch",
    "open",
]
