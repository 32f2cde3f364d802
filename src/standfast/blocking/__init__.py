"""The same names without ``await``: for threads, Django, Flask, Celery, gunicorn and scripts.

    from standfast import blocking

    with blocking.open("sqlite:///standfast.db") as space:
        with space.mutex("account-42").hold(timeout="10s") as hold:
            ...

    with blocking.Engine("sqlite:///standfast.db", workflows=[fulfil]) as engine:
        print(engine.start(fulfil, "order-7").result())

Nothing is implemented twice. One event loop a process runs in a thread of its own and does what the async
:class:`standfast.Space` and :class:`standfast.Engine` do; a call here hands it the work and waits. Values, events and
errors are the same ones.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from standfast.blocking.hold import Hold, Holding, HoldOptions, Lost, OnLost
from standfast.blocking.locks import DurableMutex, DurableSemaphore, ModeLock, Mutex, RateLimiter, Semaphore
from standfast.blocking.run_locks import RunLease, RunLocks
from standfast.blocking.space import Space, Watch, open
from standfast.blocking.state import AtomicState, Slots, StateEvents

if TYPE_CHECKING:
    from standfast.blocking.engine import Engine
    from standfast.blocking.run import Run
    from standfast.blocking.schedules import Schedules

__all__ = [
    "AtomicState",
    "DurableMutex",
    "DurableSemaphore",
    "Engine",
    "Hold",
    "HoldOptions",
    "Holding",
    "Lost",
    "ModeLock",
    "Mutex",
    "OnLost",
    "RateLimiter",
    "Run",
    "RunLease",
    "RunLocks",
    "Schedules",
    "Semaphore",
    "Slots",
    "Space",
    "StateEvents",
    "Watch",
    "open",
]

# A program that only takes locks does not load workflows. A fixed table, never data.
_HOMES = {
    "Engine": "standfast.blocking.engine",
    "Run": "standfast.blocking.run",
    "Schedules": "standfast.blocking.schedules",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'standfast.blocking' has no attribute {name!r}")
    found: object = getattr(import_module(home), name)  # rule: the module comes from the fixed table above
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
