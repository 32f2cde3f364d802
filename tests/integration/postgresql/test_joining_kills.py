"""Processes are killed at every point of a start, a step and a transaction: each effect is there once, or never."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

import pytest

from standfast.errors import RunNotFoundError
from standfast.ids import new_id
from tests.fork_server import forked_exec
from tests.integration.postgresql.charges import POINTS, engine_of
from tests.integration.postgresql.joined import Ground, make_ground
from tests.sizes import rounds

ROOT = Path(__file__).resolve().parents[3]
BEFORE_THE_COMMIT = {"order written", "order started"}


@pytest.fixture
async def ground(postgresql_url: str) -> Ground:
    """A place of its own."""
    return await make_ground(postgresql_url)


async def kill_at(ground: Ground, points: dict[str, str]) -> dict[str, int]:
    """Let processes live until they are killed at their point; return how each of them ended."""
    program = await forked_exec(
        sys.executable, "-m", "tests.integration.postgresql.programs.victims", ground.url, ground.server,
        *(f"{point}={space}" for point, space in points.items()),
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    told, _ = await program.communicate()
    return {point: int(code) for point, _, code in (line.partition(" = ") for line in told.decode().splitlines())}


async def take_over(ground: Ground, space: str) -> tuple[list[str] | None, list[str]]:
    """Drive what a process has left behind to its end; return its result, None if there is no run, and the effects."""
    async with engine_of(ground.url, space) as engine:
        try:
            result = await engine.result("order", timeout=50)
        except RunNotFoundError:
            result = None
    return result, await Ground(ground.server, space).effects()


@pytest.mark.heavy
async def test_whoever_is_killed_at_any_point_leaves_no_effect_without_its_record(ground: Ground) -> None:
    """Before the commit of its start there is nothing; after it, others end the run with each effect once."""
    points = {point: f"k{new_id()}" for point in POINTS}
    ends = await kill_at(ground, points)
    found = await asyncio.gather(*(take_over(ground, space) for space in points.values()))

    assert set(ends.items()) == {(point, -signal.SIGKILL) for point in POINTS}
    for point, (result, effects) in zip(points, found, strict=True):
        if point in BEFORE_THE_COMMIT:
            assert (result, effects) == (None, []), point
        else:
            assert (result, effects) == (["a", "b", "c"], ["order", "a", "b", "c"]), point


@pytest.mark.heavy
async def test_whoever_is_killed_at_any_time_does_neither(ground: Ground, seed: int) -> None:
    """The same at random times, several processes side by side."""
    chance = random.Random(seed)
    for _ in rounds("processes killed in transactions of their own, by eight", full=40, quick=1):
        times = {f"{chance.uniform(0.05, 1.5):.4f}": f"k{new_id()}" for _ in range(8)}
        await kill_at(ground, times)
        found = await asyncio.gather(*(take_over(ground, space) for space in times.values()))

        assert all(each in ((None, []), (["a", "b", "c"], ["order", "a", "b", "c"])) for each in found), found


@pytest.mark.heavy
@pytest.mark.parametrize("point", ["a recorded", "b recorded"])
async def test_whoever_is_stopped_with_its_transaction_open_is_taken_over(ground: Ground, point: str) -> None:
    """The server ends a transaction that sits idle; when the process goes on, it can commit nothing any more."""
    victim = await forked_exec(
        sys.executable, "-m", "tests.integration.postgresql.programs.victims", ground.url, ground.server,
        f"stop at {point}={ground.namespace}",
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert victim.stdout is not None
    stopped, _, pid = (await victim.stdout.readline()).decode().partition(" = ")
    assert stopped == "stopped"
    found = await take_over(ground, ground.namespace)
    os.kill(int(pid), signal.SIGCONT)
    told, _ = await victim.communicate()

    assert found == (["a", "b", "c"], ["order", "a", "b", "c"])
    assert told.decode().rpartition(" = ")[2].strip() == "0"
    assert await ground.effects() == ["order", "a", "b", "c"]
