"""How many runs a worker works on at a time, so that others get their share of what is left.

A worker that claimed everything it finds would leave nothing to one that comes a moment later. So it begins with a few,
and takes more as these end. Their number doubles while more are waiting and more at a time do not make each of them
slower: runs whose steps wait for something outside are worked on by the thousand, and a worker that has its hands full
leaves the rest to others. One that meets another worker begins with a few again, and hands back what is more than its
share. Runs that sleep or wait for something do not count.

Pure functions: the worker says how it is, and is told how many. What it may take on at the most is declared
(:class:`WorkerLimits`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from msgspec import Struct, structs

from standfast.durations import seconds
from standfast.errors import DeclarationError

if TYPE_CHECKING:
    from standfast.durations import Duration


# --- what a worker may take on at the most, as it is declared ------------------------------------------------------

LINGER: Final = 0.25
"""Seconds that a run in which everything waits stays in memory."""


@final
class WorkerLimits:
    """What the worker of an engine takes on at the most.

        sf.Engine(url, workflows=[fulfil], worker=sf.admin.WorkerLimits(threads=8, max_loaded=1_000))

    Args:
        max_loaded: How many runs are in memory.
        threads: How many steps that are plain functions run at a time.
        linger: How long a run in which everything waits stays in memory.
        quarantine_after: How many workers may die with a run before it is left alone.

    Raises:
        DeclarationError: One of them is out of its range.
    """

    __slots__ = ("linger", "max_loaded", "quarantine_after", "threads")

    def __init__(
        self,
        *,
        max_loaded: int = 10_000,
        threads: int = 32,
        linger: Duration = LINGER,
        quarantine_after: int = 5,
    ) -> None:
        counts = {"max_loaded": max_loaded, "threads": threads, "quarantine_after": quarantine_after}
        for name, given in counts.items():
            if type(given) is not int or given < 1:
                raise DeclarationError("WorkerLimits", f"{name} is {given!r:.40}; it must be a whole number from 1 on")
        self.max_loaded: Final = max_loaded
        self.threads: Final = threads
        self.linger: Final = seconds(linger, what="linger")
        self.quarantine_after: Final = quarantine_after

    def __repr__(self) -> str:
        return (
            f"WorkerLimits(max_loaded={self.max_loaded}, threads={self.threads}, linger={self.linger:g}, "
            f"quarantine_after={self.quarantine_after})"
        )


# --- how many runs it works on at a time ---------------------------------------------------------------------------

FEWEST: Final = 16
"""How many runs every worker may work on at a time."""

GROW_AFTER: Final = 0.1
"""Seconds between two looks at whether it may be more."""

GROW_SLOWLY: Final = 1.0
"""The same if there are other workers, or may be in a moment."""

ALONE_AFTER: Final = 2.0
"""Seconds after which workers that are started together have met."""

LONG: Final = 1.0
"""Seconds after which runs are taken for long ones if too few have ended to say how long they take."""

SLOWER: Final = 1.5
"""Runs that take this many times as long as they did when there were fewer have to wait for each other."""

LATE: Final = 0.1
"""An event loop that is late by this many seconds has enough to do."""

STARTED: Final = 128
"""How many runs that are started here are driven here, if there are other workers: it saves claiming them."""


class Load(Struct, frozen=True):
    """How a worker was since its capacity was last set.

    Attributes:
        active: How many runs it worked on at most, those included that it was about to claim.
        waiting: How many more it knows of that could be claimed.
        seconds: For how long.
        ended: How many runs it is done with since: they have ended, or wait for something.
        took: How many seconds these took together.
        late: By how many seconds its event loop is late.
        queued: How many steps wait for a thread.
    """

    active: int
    waiting: int = 0
    seconds: float = LONG
    ended: int = 0
    took: float = 0.0
    late: float = 0.0
    queued: int = 0

    @property
    def each(self) -> float:
        """How many seconds a run took, from its claim until it had ended or waited."""
        return self.took / self.ended if self.ended else 0.0


class Capacity(Struct, frozen=True):
    """How many runs a worker may work on at a time, and how quickly they have gone at best since it was so few."""

    runs: int = FEWEST
    quickest: float = 0.0


def next_capacity(capacity: Capacity, load: Load, most: int) -> Capacity | None:
    """Return how many runs a worker may work on from now on, at most ``most``; None: look again later."""
    if load.active < capacity.runs or not load.waiting:
        return Capacity(min(most, max(FEWEST, min(capacity.runs, 2 * load.active))))
    if load.ended < capacity.runs and load.seconds < LONG:
        return None  # too few to say how long they take
    if load.late >= LATE or load.queued:
        # If none has ended at all, perhaps these wait for runs that no worker has claimed yet.
        more = 0 if load.ended else min(FEWEST, capacity.runs)
        return structs.replace(capacity, runs=min(most, capacity.runs + more))
    if load.ended and capacity.quickest and load.each > SLOWER * capacity.quickest:
        return structs.replace(capacity, runs=min(most, capacity.runs))
    quickest = min(capacity.quickest, load.each) if capacity.quickest and load.ended else load.each
    return Capacity(min(most, 2 * capacity.runs), quickest)


def room(capacity: Capacity, active: int, waiting: int, workers: int) -> int:
    """Return how many runs a worker claims now: as many as it has capacity for, and its share of those that wait."""
    return max(0, min(capacity.runs - active, -(-waiting // workers)))


def grow_after(others: int, met: float) -> float:
    """Return in how many seconds a worker may take more.

    Args:
        others: How many other workers there are, who may take the rest.
        met: How many seconds ago it was started, or another one came or went.
    """
    return GROW_AFTER if not others and met > ALONE_AFTER else GROW_SLOWLY


def surplus(active: int, workers: int) -> int:
    """Return how many runs a worker hands back that has met another one; ``workers`` is how many there are now."""
    share = -(-active * (workers - 1) // workers)
    return max(0, active - max(FEWEST, share))
