"""The virtual clock does what it is told, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

from standfast.errors import InvalidArgumentError
from standfast.testing import VirtualClock, simulate


def test_time_stands_still_until_it_is_advanced() -> None:
    """Reading the clock does not move it; advancing moves both of its hands."""
    clock = VirtualClock()
    before = (clock.wall(), clock.elapsed())
    assert (clock.wall(), clock.elapsed()) == before

    clock.advance(1.5)

    assert (clock.wall() - before[0], clock.elapsed() - before[1]) == (1_500_000, 1_500_000)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_stepping_the_wall_clock_lets_no_time_pass(seconds: float) -> None:
    """A stepped time of day leaves the elapsed time alone."""
    clock = VirtualClock()
    wall, elapsed = clock.wall(), clock.elapsed()

    clock.step_wall(seconds)

    assert clock.wall() - wall == seconds * 1_000_000
    assert clock.elapsed() == elapsed


def test_a_reboot_starts_the_elapsed_time_anew() -> None:
    """After a reboot the elapsed time starts at zero, and the time of day goes on."""
    clock = VirtualClock()
    clock.advance(100)
    wall = clock.wall()

    clock.reboot()
    clock.advance(2)

    assert clock.elapsed() == 2_000_000
    assert clock.wall() - wall == 2_000_000


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_cannot_pass_backwards(seconds: float) -> None:
    """A negative or meaningless advance is refused."""
    with pytest.raises(InvalidArgumentError):
        VirtualClock().advance(seconds)


def test_a_clock_follows_the_time_of_its_loop() -> None:
    """Sleeping on a simulated loop moves a clock that follows it; advancing adds time that the loop did not see."""

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        clock = VirtualClock(loop)
        await asyncio.sleep(60)
        clock.advance(5)
        return clock.elapsed(), loop.time()

    assert simulate(1, main) == (65_000_000, 60.0)
