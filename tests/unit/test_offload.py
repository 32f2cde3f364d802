"""Lanes: blocking work in order, on one thread, off the event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.errors import StoreClosedError
from holdfast.offload import Lane


@pytest.fixture
def lane() -> Lane:
    """A lane that has not started yet."""
    return Lane("test")


def named_threads() -> list[str]:
    """Return the names of the lane's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-test")]


async def test_work_runs_on_one_thread_in_the_order_given(lane: Lane) -> None:
    """Calls are made one at a time, first come first served, and never on the loop's thread."""
    order: list[tuple[int, int]] = []

    def work(number: int) -> None:
        order.append((number, threading.get_ident()))

    await asyncio.gather(*(lane.start(work, number) for number in range(20)))
    assert [number for number, _ in order] == list(range(20))
    assert len({thread for _, thread in order} - {threading.get_ident()}) == 1
    lane.close()


async def test_the_answer_and_the_error_come_back(lane: Lane) -> None:
    """What the work returns or raises reaches the caller, arguments included."""
    assert await lane.run(divmod, 17, 5) == (3, 2)
    assert await lane.run(sorted, [1, 2], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await lane.run(divmod, 1, 0)
    lane.close()


async def test_the_loop_goes_on_while_the_thread_works(lane: Lane) -> None:
    """Blocking work does not block the event loop."""
    gate = threading.Event()
    working = lane.start(gate.wait, 30)
    await asyncio.sleep(0)
    assert not working.done()
    gate.set()
    assert await working
    lane.close()


async def test_a_cancelled_caller_does_not_stop_work_that_has_begun(lane: Lane) -> None:
    """The thread finishes what it started; only the caller is gone."""
    begun, gate, finished = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        gate.wait(30)
        finished.set()

    caller = asyncio.ensure_future(lane.run(work))
    await asyncio.get_running_loop().run_in_executor(None, begun.wait, 30)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.set()
    await asyncio.get_running_loop().run_in_executor(None, lane.close)
    assert finished.is_set()


async def test_cancelled_work_that_has_not_begun_is_withdrawn(lane: Lane) -> None:
    """Work still in line behind other work never starts once its caller is cancelled."""
    gate, ran = threading.Event(), threading.Event()
    first, second = lane.start(gate.wait, 30), lane.start(ran.set)
    second.cancel()
    await asyncio.sleep(0)  # asyncio passes a cancellation on in the next tick
    gate.set()
    await first
    lane.close()
    assert not ran.is_set()


async def test_the_thread_starts_when_needed_and_ends_when_closed(lane: Lane) -> None:
    """A lane that does nothing costs no thread, and a closed one leaves none behind."""
    assert named_threads() == []
    await lane.run(int)
    assert len(named_threads()) == 1
    lane.close()
    assert named_threads() == []


async def test_a_closed_lane_refuses_work(lane: Lane) -> None:
    """No second thread is started by accident; closing again is fine."""
    await lane.run(int)
    lane.close()
    lane.close()
    with pytest.raises(StoreClosedError):
        lane.start(int)
    assert named_threads() == []
