"""The simulated loop: seeded order, virtual time, simulated threads."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import NotSimulatedError, SimulationError
from standfast.testing import SimulatedLoop, simulate
from standfast.threads import Lane, run_beside

SEEDS = range(50)
SOURCE = Path(__file__).resolve().parents[3] / "src"


async def shuffled() -> str:
    """Let four tasks take turns and return in which order they did."""
    turns = ""

    async def take_turns(name: str) -> None:
        nonlocal turns
        for _ in range(3):
            turns += name
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(take_turns(name))
    return turns


def running() -> SimulatedLoop:
    """Return the loop that this code is simulated on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    return loop


# --- order ----------------------------------------------------------------------------------------------------------


def test_other_seeds_give_other_orders() -> None:
    """Tasks that are ready together take turns in an order that depends on the seed."""
    assert len({simulate(seed, shuffled) for seed in SEEDS}) > 40


def test_the_same_seed_gives_the_same_order() -> None:
    """A run can be repeated."""
    assert [simulate(seed, shuffled) for seed in SEEDS] == [simulate(seed, shuffled) for seed in SEEDS]


PROGRAM = """
import asyncio
from standfast.testing import simulate
async def main():
    async def loser(n):
        try: await asyncio.sleep(n % 3)
        finally: await asyncio.to_thread(str, n)
    async def fail():
        await asyncio.sleep(1); raise KeyError
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {group.create_task(loser(n)) for n in range(20)}
            group.create_task(fail())
    except* KeyError: pass
    await asyncio.wait({asyncio.create_task(loser(n)) for n in range(20)}, return_when="FIRST_COMPLETED")
    return asyncio.get_running_loop().trace.digest
print([simulate(seed, main) for seed in range(5)])
"""


def test_the_trace_does_not_depend_on_hashes_or_addresses() -> None:
    """Another process with another hash seed, where sets have another order, takes exactly the same steps."""
    assert len({traces_with_hash_seed(number) for number in (1, 100, 10_000)}) == 1


def traces_with_hash_seed(number: int) -> str:
    """Run the program in a process where hashes and addresses are others."""
    elsewhere = f"ballast = [object() for _ in range({number})]\n"
    environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", elsewhere + PROGRAM]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_callbacks_keep_their_order(seed: int) -> None:
    """What asyncio promises of call_soon holds: first in, first out, whatever tasks do meanwhile."""

    async def main() -> list[int]:
        order: list[int] = []
        for n in range(5):
            asyncio.get_running_loop().call_soon(order.append, n)
        await shuffled()
        return order

    assert simulate(seed, main) == [0, 1, 2, 3, 4]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks_are_simulated_too() -> None:
    """A loop with an eager task factory runs the same programs, repeatably."""

    async def main() -> str:
        running().set_task_factory(getattr(asyncio, "eager_task_factory", None))
        return await shuffled()

    assert len({simulate(seed, main) for seed in SEEDS}) > 40
    assert simulate(3, main) == simulate(3, main)


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_long_sleep_takes_no_time() -> None:
    """Time jumps to the next timer when nothing is ready."""

    async def main() -> float:
        await asyncio.sleep(86_400 * 365)
        return running().time()

    assert simulate(1, main) == 86_400 * 365


def test_timers_fire_in_order() -> None:
    """However tasks are shuffled, who sleeps less wakes earlier."""

    async def main() -> list[float]:
        woken: list[float] = []

        async def sleep(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append(seconds)

        await asyncio.gather(*(sleep(seconds) for seconds in (3, 1, 2)))
        return woken

    assert simulate(1, main) == [1, 2, 3]


def test_a_timeout_can_lose_and_win_a_close_race() -> None:
    """Over the seeds, a timer that is nearly due fires both before and after work that is ready."""

    async def main() -> bool:
        try:
            async with asyncio.timeout(0.0005):
                for _ in range(10):
                    await asyncio.sleep(0)
        except TimeoutError:
            return False
        return True

    assert {simulate(seed, main) for seed in SEEDS} == {True, False}


def _note(notes: list[int], number: int, _: object) -> None:
    notes.append(number)


# --- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_a_lane_does_its_work_in_order(seed: int) -> None:
    """Offloaded work of one lane runs in the order it was given and answers in that order."""

    async def main() -> tuple[list[int], list[int]]:
        lane, done, answered = Lane("test"), list[int](), list[int]()
        for n in range(5):
            lane.start(done.append, n).add_done_callback(functools.partial(_note, answered, n))
        await lane.run(int)
        return done, answered

    assert simulate(seed, main) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])


def test_work_of_two_lanes_is_shuffled() -> None:
    """Two lanes are two threads: either may come first."""

    async def main() -> str:
        order: list[str] = []
        await asyncio.gather(Lane("a").run(order.append, "a"), Lane("b").run(order.append, "b"))
        return "".join(order)

    assert {simulate(seed, main) for seed in SEEDS} == {"ab", "ba"}


def test_tasks_go_on_while_work_is_offloaded() -> None:
    """Between the call, the work and its answer other tasks may run, as with a real thread."""

    async def main() -> str:
        order: list[str] = []

        async def offload() -> None:
            order.append("call")
            await Lane("a").run(order.append, "work")
            order.append("answer")

        async def other() -> None:
            order.append("other")

        await asyncio.gather(offload(), other())
        return " ".join(order)

    orders = {simulate(seed, main) for seed in SEEDS}
    assert {"call other work answer", "call work other answer"} <= orders


def test_offloaded_work_runs_on_no_thread_and_sees_no_loop() -> None:
    """The work runs in the same thread, but cannot tell: no loop is running there, and errors come back."""

    async def main() -> tuple[bool, str]:
        problem = await asyncio.gather(Lane("a").run(asyncio.get_running_loop), return_exceptions=True)
        threads = await asyncio.to_thread(threading.active_count)
        return threads == before, type(problem[0]).__name__

    before = threading.active_count()
    assert simulate(1, main) == (True, "RuntimeError")


def test_work_that_is_cancelled_before_it_begins_is_never_done() -> None:
    """As with a real executor, cancelling the future withdraws work that still waits for its thread."""

    async def main() -> list[str]:
        done: list[str] = []
        work = Lane("a").start(done.append, "work")
        work.cancel()
        await asyncio.sleep(1)
        return done

    assert simulate(1, main) == []


def test_work_may_call_back_from_its_thread() -> None:
    """call_soon_threadsafe reaches the loop from offloaded work."""

    async def main() -> str:
        loop, heard = running(), asyncio.get_running_loop().create_future()
        await Lane("a").run(lambda: loop.call_soon_threadsafe(heard.set_result, "heard"))
        return str(await heard)

    assert simulate(1, main) == "heard"


# --- what cannot go on ----------------------------------------------------------------------------------------------


async def wait_for_ever() -> None:
    """Wait for an event that nobody sets."""
    await asyncio.Event().wait()


def test_a_deadlock_is_found_and_says_where_each_task_waits() -> None:
    """When nothing can ever happen again, the error names the waiting tasks and the lines they wait at."""

    async def main() -> None:
        await asyncio.gather(*(asyncio.create_task(wait_for_ever(), name=name) for name in ("Ann", "Bob")))

    with pytest.raises(SimulationError) as caught:
        simulate(5, main)

    assert [line.split(":")[0] for line in caught.value.waiting[1:]] == ["Ann", "Bob"]
    assert "wait_for_ever (test_simulation_loop.py:" in caught.value.waiting[1]
    assert "> Event.wait (locks.py:" in caught.value.waiting[1]
    assert "seed 5" in caught.value.__notes__[0]


def test_a_program_that_never_ends_is_stopped() -> None:
    """A loop without end is found by counting steps, and the error says where it loops."""

    async def main() -> None:
        while True:  # noqa: ASYNC110 -- a loop without end is what the test is about
            await asyncio.sleep(1)

    with pytest.raises(SimulationError, match=r"1,000 steps(.|\n)*main \(test_simulation_loop.py"):
        simulate(5, main, step_limit=1_000)


@pytest.mark.parametrize(
    "reach_out",
    [
        lambda: asyncio.open_connection("localhost", 1),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
        lambda: asyncio.get_running_loop().add_reader(0, print),
    ],
)
def test_nothing_reaches_outside(reach_out: Any) -> None:
    """Sockets, processes, name look-ups and descriptors are refused, with what to do."""

    async def main() -> None:
        await reach_out()

    with pytest.raises(NotSimulatedError, match="outside of the simulation; replace it by a fake"):
        simulate(1, main)


def test_an_executor_of_ones_own_starts_no_thread() -> None:
    """Work for a given executor is simulated as well; the executor itself never gets it."""

    class Untouched(ThreadPoolExecutor):
        def submit(self, *_args: Any, **_options: Any) -> Any:
            raise AssertionError

    async def main() -> int:
        return await running().run_in_executor(Untouched(), len, "four")

    assert simulate(1, main) == 4


# --- beside ---------------------------------------------------------------------------------------------------------


def test_what_runs_beside_runs_on_the_simulated_loop() -> None:
    """No thread is started: its time and its order come from the same seed, and its result comes back."""

    async def beside() -> tuple[SimulatedLoop, int]:
        await asyncio.sleep(3600)
        return running(), threading.get_ident()

    async def main() -> bool:
        return await run_beside(beside, "test-beside") == (running(), threading.get_ident())

    assert simulate(1, main)


def test_an_error_beside_comes_back() -> None:
    """As from a thread."""

    async def beside() -> None:
        raise ValueError("beside")

    async def main() -> None:
        await run_beside(beside, "test-beside")

    with pytest.raises(ValueError, match="beside"):
        simulate(1, main)


def test_cancelling_the_future_stops_nothing_beside() -> None:
    """As with a thread: only the caller is gone."""
    ended: list[bool] = []

    async def beside() -> None:
        await asyncio.sleep(1)
        ended.append(True)

    async def main() -> None:
        run_beside(beside, "test-beside").cancel()
        await asyncio.sleep(2)

    simulate(1, main)
    assert ended == [True]
