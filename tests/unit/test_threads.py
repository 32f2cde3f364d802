"""Lanes, for blocking work in order on one thread, and loops that run beside the caller's."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreClosedError
from standfast.testing import simulate
from standfast.threads import Lane, run_beside

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def lane() -> Lane:
    """A lane that has not started yet."""
    return Lane("test")


def named_threads() -> list[str]:
    """Return the names of the lane's threads that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("standfast-test")]


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


# --- a loop beside --------------------------------------------------------------------------------------------------


async def thread_ends() -> None:
    """Return when no thread that the tests started beside is left."""
    for thread in threading.enumerate():
        if thread.name.startswith("standfast-test"):
            await asyncio.to_thread(thread.join, 30)


async def test_what_runs_beside_has_a_loop_and_a_thread_of_its_own() -> None:
    """Its loop is not the caller's, its thread is named and keeps no program from ending, and its result comes back."""

    async def main() -> tuple[str, bool, bool]:
        thread = threading.current_thread()
        return thread.name, thread.daemon, asyncio.get_running_loop() is loop

    loop = asyncio.get_running_loop()

    assert await run_beside(main, "test-beside") == ("standfast-test-beside", True, False)


async def test_what_runs_beside_goes_on_while_the_caller_blocks() -> None:
    """Code that holds up the calling loop does not hold up the other one."""
    began, went_on = threading.Event(), threading.Event()

    async def main() -> None:
        began.set()
        for _ in range(10):
            await asyncio.sleep(0.001)
        went_on.set()

    future = run_beside(main, "test-beside")

    assert began.wait(30)
    assert went_on.wait(30)
    assert not future.done(), "the calling loop has not had its turn yet"
    await future


async def _raises(problem: BaseException) -> None:
    raise problem


@pytest.mark.parametrize("problem", [ValueError("beside"), SystemExit(3), KeyboardInterrupt()])
async def test_an_error_beside_comes_back(problem: BaseException) -> None:
    """Whatever ends it is raised to whoever waits for it, and the thread ends."""
    with pytest.raises(type(problem)) as caught:
        await run_beside(lambda: _raises(problem), "test-beside")

    assert caught.value is problem
    await thread_ends()


async def test_a_cancellation_beside_comes_back() -> None:
    """If it ends by being cancelled, the future is cancelled."""
    future = run_beside(lambda: _raises(asyncio.CancelledError()), "test-beside")

    with pytest.raises(asyncio.CancelledError):
        await future
    assert future.cancelled()


async def test_cancelling_the_future_stops_nothing_beside() -> None:
    """Only the caller is gone: what runs beside goes on to its end, and its result is dropped."""
    may_end, ended = threading.Event(), threading.Event()

    async def main() -> None:
        await asyncio.to_thread(may_end.wait, 30)
        ended.set()

    future = run_beside(main, "test-beside")
    future.cancel()
    may_end.set()
    await thread_ends()

    assert ended.is_set()
    assert future.cancelled()


async def test_an_error_that_nobody_waits_for_is_dropped() -> None:
    """A cancelled future stays cancelled, and the loop has nothing to complain of."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    future = run_beside(lambda: _raises(ValueError("beside")), "test-beside")
    future.cancel()

    await thread_ends()
    await asyncio.sleep(0)

    assert future.cancelled()
    assert complaints == []


async def test_tasks_that_are_left_beside_are_cancelled() -> None:
    """Its loop is closed cleanly: every task of it has cleaned up."""
    cleaned_up: list[bool] = []
    left: list[asyncio.Task[None]] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    async def main() -> asyncio.AbstractEventLoop:
        left.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)
        return asyncio.get_running_loop()

    loop = await run_beside(main, "test-beside")

    assert cleaned_up == [True]
    assert loop.is_closed()


def test_the_end_of_the_calling_loop_harms_nothing_beside() -> None:
    """What runs beside ends in its own time; nobody is there to be told, and that is no error."""
    may_end, ended = threading.Event(), threading.Event()

    async def main() -> None:
        await asyncio.to_thread(may_end.wait, 30)
        ended.set()

    async def call() -> None:
        run_beside(main, "test-beside")

    asyncio.run(call())
    may_end.set()
    asyncio.run(thread_ends())

    assert ended.is_set()


VARIABLE = contextvars.ContextVar("VARIABLE", default="nothing")


async def _seen_beside() -> str:
    VARIABLE.set("the caller's")

    async def main() -> str:
        return VARIABLE.get()

    return await run_beside(main, "test-beside")


@pytest.mark.parametrize("run", [asyncio.run, lambda main: simulate(1, lambda: main)], ids=["real", "simulated"])
def test_what_runs_beside_begins_with_an_empty_context(run: Callable[..., str]) -> None:
    """It outlives whoever happened to start it, so it takes nothing of that one's context along."""
    assert run(_seen_beside()) == "nothing"
