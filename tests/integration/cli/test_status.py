"""``standfast status`` and ``workers`` with real workers, one of which is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from tests.integration.cli.programs import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.cli.conftest import Start

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

MODULE = """
import asyncio, os
import standfast as sf

async def stay():
    print("staying", flush=True)
    await asyncio.sleep(600)

@sf.workflow
async def stays(ctx):
    await ctx.step(stay)

engine = sf.Engine(os.environ["STANDFAST_STORE"], workflows=[stays])
"""


def told(url: str, *arguments: str) -> tuple[int, Any]:
    """Return the exit code of a command, and what it says as JSON."""
    command = [sys.executable, "-m", "standfast", "--store", url, *arguments, "--json"]
    ended = subprocess.run(command, capture_output=True, check=False, env={"PYTHONPATH": str(ROOT / "src")}, timeout=60)
    return ended.returncode, json.loads(ended.stdout)


async def test_a_killed_worker_is_seen_until_another_one_has_taken_over(start: Start, url: str, tmp_path: Path) -> None:
    """Who it was and what it left; with a second worker all is well again, and the first is gone from the list."""
    (tmp_path / "flows.py").write_text(MODULE)
    first = start("worker", "flows:engine", "--app-dir", str(tmp_path))
    first.hear()
    async with sf.Engine(url, drive=False) as engine:
        await engine.start("stays", id="a", unknown="start")
        while first.hear() != "staying":
            pass
        code, well = told(url, "status")
        assert (code, well["is_well"], well["runs"]["running"]["number"]) == (0, True, 1)
        first.send(signal.SIGKILL)
        first.process.wait(30)

        code, seen = told(url, "status")
        assert code == 6
        assert [concern["kind"] for concern in seen["concerns"]] == ["dead-workers"]
        _, listed = told(url, "workers")
        [dead] = listed["workers"]
        assert (dead["process"], dead["is_alive"], dead["runs"]) == (first.process.pid, False, 1)

        second = start("worker", "flows:engine", "--app-dir", str(tmp_path))
        while second.hear() != "staying":
            pass
        while len(listed["workers"]) != 1 or not listed["workers"][0]["is_alive"]:
            _, listed = told(url, "workers")
        assert listed["workers"][0]["process"] == second.process.pid
        assert told(url, "status")[0] == 0
