"""Work spreads over the workers that are there, without a setting: real processes on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from tests.integration.fleet.places import place
from tests.integration.workflows.flows import spread

if TYPE_CHECKING:
    from pathlib import Path

    import standfast as sf
    from standfast.workflows.run import Run
    from tests.integration.workflows.nursery import Nursery

RUNS: Final = 300
LEAST: Final = 0.35
"""The part of the runs that each of two workers gets at least."""

PATIENCE: Final = 50

pytestmark = [pytest.mark.timeout(120)]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.services)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store of this test."""
    return f"sqlite:///{tmp_path / 'store.db'}" if request.param == "sqlite" else place(request.param)


async def begin(engine: sf.Engine, number: int = RUNS) -> list[Run[list[int]]]:
    """Start so many runs that take four steps of 10 to 50 ms each."""
    return await asyncio.gather(*(engine.start(spread) for _ in range(number)))


async def ended(runs: list[Run[list[int]]]) -> Counter[int]:
    """Return how many runs each worker has ended, when all have ended."""
    results = await asyncio.gather(*(run.result(timeout=PATIENCE) for run in runs))
    return Counter(result[-1] for result in results)


async def completed(engine: sf.Engine, runs: list[Run[list[int]]]) -> set[str]:
    """Return the ids of those that have ended by now."""
    return {run.id for run in (await engine.list(status=["completed"], limit=len(runs))).runs}


async def test_two_workers_that_are_up_share_what_comes(nursery: Nursery, engine: sf.Engine) -> None:
    """Of runs that are started while both are there."""
    pids = await nursery.spawn_ready(2)
    shares = await ended(await begin(engine))

    assert min(shares[pid] for pid in pids) >= LEAST * RUNS


async def test_two_workers_share_what_was_there_before_them(nursery: Nursery, engine: sf.Engine) -> None:
    """Of runs that were started when there was no worker; both come up at the same time."""
    runs = await begin(engine)
    pids = await nursery.spawn(2)
    shares = await ended(runs)

    assert min(shares[pid] for pid in pids) >= LEAST * RUNS


async def test_a_worker_that_comes_late_gets_its_share_of_what_is_left(nursery: Nursery, engine: sf.Engine) -> None:
    """Also of what the first one has claimed by then."""
    runs = await begin(engine, 3 * RUNS)
    (first,) = await nursery.spawn_ready()
    await runs[0].result(timeout=PATIENCE)
    (second,) = await nursery.spawn_ready()
    done = len(await completed(engine, runs))
    shares = await ended(runs)
    left = len(runs) - done

    assert left > RUNS, "the first worker was too quick: there was nothing left to share"
    assert shares[second] >= LEAST * left
    assert shares[first] - done >= LEAST * left


async def test_the_other_worker_goes_on_with_everything(nursery: Nursery, engine: sf.Engine) -> None:
    """If one of two is killed, every run ends, and most of what was left with the other one."""
    pids = await nursery.spawn_ready(2)
    runs = await begin(engine)
    await runs[0].result(timeout=PATIENCE)
    nursery.kill(pids[0])
    done = await completed(engine, runs)
    left = [run for run in runs if run.id not in done]
    shares = await ended(left)

    assert left, "both workers were too quick: there was nothing left to go on with"
    assert shares.keys() <= set(pids)
    assert shares[pids[1]] > len(left) // 2  # a last commit of the other one may have been under way
    await ended(runs)
