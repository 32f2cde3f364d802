"""How many runs a worker works on at a time, and how that shares work between workers."""

from __future__ import annotations

import heapq
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from standfast.workflows.capacity import FEWEST, LATE, LONG, Capacity, Load, grow_after, next_capacity, room, surplus

MOST: Final = 10_000
TICK: Final = 0.01

counts = st.integers(0, 20_000)
loads = st.builds(
    Load, counts, counts, st.floats(0.01, 10), counts, st.floats(0, 100), st.floats(0, 2), st.integers(0, 100)
)
capacities = st.builds(Capacity, st.integers(1, MOST), st.floats(0, 10))


@given(capacities, loads, st.integers(1, MOST))
def test_capacity_is_bounded_and_at_most_doubles(capacity: Capacity, load: Load, most: int) -> None:
    """It never goes past what may be loaded, nor below what every worker may do, nor up by more than twice."""
    after = next_capacity(capacity, load, most)
    if after is not None:
        assert min(FEWEST, capacity.runs, most) <= after.runs <= most
        assert after.runs <= max(2 * capacity.runs, FEWEST)


@given(capacities, counts, counts, st.integers(1, 50))
def test_a_worker_claims_no_more_than_its_capacity_and_its_share(
    capacity: Capacity, active: int, waiting: int, workers: int
) -> None:
    """What it works on and what it claims stay within its capacity, and somebody always claims the last run."""
    claimed = room(capacity, active, waiting, workers)
    assert 0 <= claimed <= max(0, capacity.runs - active)
    assert (claimed > 0) == (waiting > 0 and active < capacity.runs)
    assert claimed * workers < waiting + workers


@given(counts, st.integers(2, 50))
def test_a_worker_keeps_its_share_and_every_other_worker_gets_one(active: int, workers: int) -> None:
    """It hands back the share of the one that has come, and keeps a few in any case."""
    given_back = surplus(active, workers)
    assert 0 <= given_back <= active / workers
    assert active - given_back >= min(active, FEWEST)
    assert given_back == 0 or active - given_back >= given_back * (workers - 1)


def test_runs_that_take_long_are_worked_on_by_the_thousand() -> None:
    """A step that waits for an hour for somebody else does not keep thousands of others from beginning."""
    capacity, seconds = Capacity(), 0.0
    while capacity.runs < MOST:
        capacity = next_capacity(capacity, Load(capacity.runs, waiting=1), MOST) or capacity
        seconds += LONG
    assert seconds <= 10 * LONG


def test_a_worker_that_has_its_hands_full_takes_no_more() -> None:
    """Neither while its event loop is late, nor while steps wait for threads, nor if each run gets slower by it."""
    capacity = Capacity(64, quickest=0.1)
    assert next_capacity(capacity, Load(64, 9, 0.1, ended=64, took=64 * 0.12), MOST) == Capacity(128, 0.1)
    for busy in (
        Load(64, 9, 0.1, ended=64, took=64 * 0.16),
        Load(64, 9, 0.1, ended=64, took=64 * 0.12, late=LATE),
        Load(64, 9, 0.1, ended=64, took=64 * 0.12, queued=1),
    ):
        assert next_capacity(capacity, busy, MOST) == capacity


def test_runs_that_wait_for_runs_that_nobody_has_claimed_are_not_held_up_for_ever() -> None:
    """If none ends, more are claimed, also by a worker whose threads are all taken."""
    capacity = Capacity(32)
    after = next_capacity(capacity, Load(32, waiting=1, queued=5), MOST)
    assert after is not None
    assert after.runs > capacity.runs


# --- two workers on one backlog -----------------------------------------------------------------------------------


class Worker:
    """A worker as the rules see it: it claims when it looks, and each of its runs ends after a while."""

    def __init__(self, since: float) -> None:
        self.since, self.met_at, self.capacity = since, since, Capacity()
        self.ends: list[float] = []
        self.claimed = self.ended = self.peak = 0
        self.set_at = self.looked_at = since

    def look(self, now: float, backlog: int, others: int, takes: float) -> int:
        """Do what a worker does now and then; return how many runs are left."""
        while self.ends and self.ends[0] <= now:
            heapq.heappop(self.ends)
            self.ended += 1
        if now - self.looked_at >= grow_after(others, now - self.met_at):
            self.looked_at = now
            load = Load(self.peak, backlog, now - self.set_at, self.ended, self.ended * takes)
            after = next_capacity(self.capacity, load, MOST)
            if after is not None:
                self.capacity, self.set_at, self.ended, self.peak = after, now, 0, 0
        number = min(backlog, room(self.capacity, len(self.ends), backlog, others + 1))
        for _ in range(number):
            heapq.heappush(self.ends, now + takes)
        self.claimed += number
        self.peak = max(self.peak, len(self.ends))
        return backlog - number

    def meet(self, now: float, workers: int) -> int:
        """Meet another worker; return how many runs are handed back."""
        self.met_at = self.looked_at = self.set_at = now
        self.capacity, self.ended, self.peak = Capacity(), 0, 0
        back = surplus(len(self.ends), workers)
        for _ in range(back):
            self.ends.pop()
        heapq.heapify(self.ends)
        self.claimed -= back
        return back


class Shared(Struct, frozen=True):
    """What came of a backlog: which part of what was left when the second worker came it got, and how long all took."""

    second: float
    seconds: float


def share(runs: int, takes: float, second_at: float) -> Shared:
    """Let one worker begin with a backlog, and another one come later."""
    workers, backlog, now, left = [Worker(0.0)], runs, 0.0, runs
    while backlog or any(each.ends for each in workers):
        if len(workers) == 1 and now >= second_at:
            backlog += workers[0].meet(now, 2)
            workers.append(Worker(now))
            left = backlog + len(workers[0].ends)
        for each in workers:
            backlog = each.look(now, backlog, len(workers) - 1, takes)
        now += TICK
    return Shared(workers[1].claimed / left if len(workers) > 1 and left else 0.5, now)


@pytest.mark.parametrize("takes", [0.03, 0.1, 0.25, 1.0, 5.0])
@pytest.mark.parametrize("second_at", [0.0, 0.02, 0.5, 3.0])
def test_two_workers_share_a_backlog(takes: float, second_at: float) -> None:
    """Each gets between 35 and 65 % of what is left when the second one comes."""
    shared = share(3_000, takes, second_at)
    assert 0.35 <= shared.second <= 0.65


@given(st.floats(0.02, 2.0), st.floats(0.0, 0.2))
def test_two_workers_share_three_hundred_runs(takes: float, second_at: float) -> None:
    """Whatever the runs take; started at the same time, but for what processes take to start."""
    assert 0.35 <= share(300, takes, second_at).second <= 0.65


@pytest.mark.parametrize("takes", [0.1, 1.0, 30.0])
def test_one_worker_is_not_held_up_for_long_by_runs_that_wait_for_something_outside(takes: float) -> None:
    """A backlog of a thousand takes some seconds more than one run of it."""
    assert share(1_000, takes, second_at=1e9).seconds <= takes + 8.0
