"""A simulated store does exactly the same again, in another process and with other hashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, sys, tempfile
from standfast.testing import simulate
from tests.simulation import test_stores

async def traced(work, *args):
    await work(*args)
    return asyncio.get_running_loop().trace.digest

for seed in range(3):
    with tempfile.TemporaryDirectory() as folder:
        args = {"memory": (), "a_faulty_store": (), "sqlite": (f"{folder}/store.db",)}[sys.argv[1]]
        print(simulate(seed, traced, getattr(test_stores, f"work_on_{sys.argv[1]}"), seed, *args))
"""


def traces(kind: str, hash_seed: int) -> str:
    """Return the digests of a few simulations in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, "-c", PROGRAM, kind]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("kind", ["memory", "a_faulty_store", "sqlite"])
def test_the_same_seed_takes_the_same_steps_everywhere(kind: str) -> None:
    """Faults, threads and interleavings included: a failure that was seen once can be looked at again."""
    first, second = traces(kind, 1), traces(kind, 2)
    assert first == second
    assert len(set(first.split())) == 3
