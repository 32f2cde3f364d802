"""Many who start and signal one run at once: engines of one process, and processes."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack

import pytest

import standfast as sf
from tests.fork_server import forked_exec
from tests.integration.workflows.nursery import ROOT
from tests.integration.workflows.programs.starters import gathers
from tests.sizes import size


@pytest.mark.heavy
async def test_of_many_processes_one_starts_the_run_and_all_signals_arrive(url: str) -> None:
    """They start one id at the same moment, and each sends every signal twice: one run, none lost, none doubled."""
    processes, signals = size(full=50, quick=16), size(full=100, quick=4)
    racing = await forked_exec(
        sys.executable, "-m", "tests.integration.workflows.programs.starters", url, str(processes), str(signals),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    told, _ = await racing.communicate()

    assert racing.returncode == 0
    assert sorted(told.split()) == [b"new"] + [b"old"] * (processes - 1)
    async with sf.Engine(url, workflows=[gathers]) as engine:
        taken = await engine.result("one", timeout=60)
    assert sorted(taken) == sorted(f"{number}-{n}" for number in range(processes) for n in range(signals))


@pytest.mark.heavy
async def test_a_thousand_signals_from_several_engines_arrive_once(url: str) -> None:
    """Each engine has a store of its own open; those of one engine arrive in the order of its calls."""
    count = 1_000
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(sf.Engine(url, workflows=[gathers], drive=number < 2))
            for number in range(5)
        ]
        run = await engines[0].start(gathers, count)
        sends = (engines[n % 5].signal(run.id, "item", f"{n:04d}", signal_id=str(n)) for n in range(count))
        assert all(await asyncio.gather(*sends))
        taken = await run.result()
    assert sorted(taken) == [f"{n:04d}" for n in range(count)]
    for number in range(5):
        own = [name for name in taken if int(name) % 5 == number]
        assert own == sorted(own)


@pytest.mark.heavy
async def test_of_fifty_starts_in_several_engines_one_starts_the_run(url: str) -> None:
    """All get the same run, whether its id or its idempotency key says that it is the same."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(sf.Engine(url, workflows=[gathers], drive=number % 2 == 0))
            for number in range(5)
        ]
        same = await asyncio.gather(*(engines[n % 5].start(gathers, 0, id="one") for n in range(50)))
        keyed = await asyncio.gather(*(engines[n % 5].start(gathers, 0, idempotency_key="k") for n in range(50)))
        assert [sum(run.is_new for run in runs) for runs in (same, keyed)] == [1, 1]
        assert len({run.id for run in keyed}) == 1
        assert len((await engines[0].list()).runs) == 2
