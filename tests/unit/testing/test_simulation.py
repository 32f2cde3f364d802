"""Running a program in a simulation."""

from __future__ import annotations

import asyncio

import pytest

from standfast.errors import SimulationError
from standfast.testing import simulate


def test_a_failure_names_its_seed() -> None:
    """Whatever a simulated program raises says which seed repeats it."""

    async def main() -> None:
        raise ValueError

    with pytest.raises(ValueError, match=r".*") as caught:
        simulate(42, main)
    assert "seed 42" in caught.value.__notes__[0]


def test_an_exception_in_a_callback_fails_the_simulation() -> None:
    """What asyncio would only log is not silent here."""

    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 // 0)
        await asyncio.sleep(1)

    with pytest.raises(ZeroDivisionError):
        simulate(1, main)


def test_what_is_left_is_cancelled_and_cleans_up() -> None:
    """Tasks and generators that outlive the program get to run their cleanup."""
    cleaned: list[str] = []

    async def main() -> None:
        async def linger(name: str) -> None:
            try:
                await asyncio.sleep(1e9)
            finally:
                await asyncio.sleep(1)
                cleaned.append(name)

        lingering.extend(asyncio.create_task(linger(name)) for name in "abc")
        await asyncio.sleep(1)

    lingering: list[asyncio.Task[None]] = []
    simulate(1, main)

    assert sorted(cleaned) == ["a", "b", "c"]


def test_a_task_that_resists_its_cancellation_does_not_hang_the_end() -> None:
    """The simulation ends even if a task that is left never does."""

    async def main() -> str:
        async def stubborn() -> None:
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    continue

        task = asyncio.create_task(stubborn())
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # or asyncio logs that it was left
        await asyncio.sleep(1)
        return "over"

    assert simulate(1, main) == "over"


async def test_a_simulation_inside_of_an_event_loop_is_refused() -> None:
    """It needs a loop of its own, and says so."""
    with pytest.raises(SimulationError, match="call it from a plain function"):
        simulate(1, asyncio.sleep, 1)
