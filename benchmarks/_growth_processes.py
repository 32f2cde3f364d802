"""The worker command on several cores: how many runs a second one process carries, and two.

Runs are started by a client before, in a namespace of their own, so that the workers find all of them when they come.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import standfast as sf
from benchmarks.harness import ROOT
from standfast.ids import new_id

RUNS: Final = 600
WARM: Final = 100
"""How many of them have ended when the time begins to count: by then all processes are at work."""

STEPS: Final = 5
BUSY: Final = 0.001
"""Seconds of CPU that a step takes."""


@sf.step
async def compute(number: int) -> int:
    """Use the processor for a moment."""
    until = time.thread_time() + BUSY
    while time.thread_time() < until:
        number += 1
    return number


@sf.workflow
async def computing(ctx: sf.Context) -> None:
    """Take some steps that compute."""
    for number in range(STEPS):
        await ctx.step(compute, number)


def engine() -> sf.Engine:
    """Return the engine of the worker command, as its environment says."""
    url, namespace = os.environ["STANDFAST_BENCH_URL"], os.environ["STANDFAST_BENCH_NAMESPACE"]
    return sf.Engine(url, namespace=namespace, workflows=[computing])


class Carried(NamedTuple):
    """What a number of processes did.

    Attributes:
        rate: Runs a second.
        cores: How many cores of the machine were busy meanwhile, with all that ran there.
    """

    rate: float
    cores: float


def carried_by(url: str, count: int) -> Carried:
    """Return what a number of processes carry."""
    return asyncio.run(_measure(url, new_id(), count))


def _busy() -> float:
    """Return for how many seconds the cores of the machine have worked, all together."""
    user, nice, system, _idle, _waiting, *interrupts = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8]
    )
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


async def _measure(url: str, namespace: str, count: int) -> Carried:
    async with sf.Engine(url, namespace=namespace, workflows=[computing], drive=False) as client:
        for _ in range(RUNS // 50):
            await asyncio.gather(*(client.start(computing) for _ in range(50)))
        command = [sys.executable, "-m", "standfast", "worker", "benchmarks._growth_processes:engine", "--quiet"]
        environment = {**os.environ, "STANDFAST_BENCH_URL": url, "STANDFAST_BENCH_NAMESPACE": namespace}
        command += ["--processes", str(count)]
        worker = subprocess.Popen(command, cwd=ROOT, env=environment)  # noqa: ASYNC220 -- nothing else is done here
        try:
            first, began = await _until(client, WARM)
            busy = _busy()
            last, ended = await _until(client, RUNS)
            return Carried((last - first) / (ended - began), (_busy() - busy) / (ended - began))
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(30)


async def _until(client: sf.Engine, wanted: int) -> tuple[int, float]:
    """Wait until so many runs have ended; return how many it were then, and when that was."""
    while (ended := (await client.count(status="completed")).number) < wanted:  # noqa: ASYNC110 -- nothing tells it
        await asyncio.sleep(0.02)
    return ended, time.perf_counter()
