"""Looking at a store that cannot be written: a copy is shown, and what would change something is refused."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from tests.integration.cli.programs import PATIENCE, ROOT, STANDFAST
from tests.integration.sqlite.disks import small_disk, without_privileges

if TYPE_CHECKING:
    from pathlib import Path


@sf.workflow
async def greet(ctx: sf.Context, name: str) -> str:
    """Greet."""
    return f"hello {name} from {ctx.run_id}"


async def _store(folder: Path) -> None:
    async with sf.Engine(f"sqlite:///{folder}/store.db", workflows=[greet]) as engine:
        await (await engine.start(greet, "ann", id="run-1")).result()


def _standfast(under: list[str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    ended = subprocess.run(
        [*under, *STANDFAST, "--store", f"sqlite:///{folder}/store.db", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder.parent)},
    )
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    return ended


@pytest.mark.parametrize("place", ["folder", "disk"])
async def test_a_store_that_cannot_be_written_can_be_looked_at(tmp_path: Path, place: str) -> None:
    """What lists and shows reads a copy, says so, and leaves nothing behind; what would change it is refused."""
    folder = tmp_path / "store"
    folder.mkdir()
    await _store(folder)
    if place == "folder":
        for path in folder.iterdir():
            path.chmod(0o500 if path.is_dir() else 0o400)
        folder.chmod(0o500)
        under, seen = without_privileges(), folder
    else:
        seen = tmp_path / "disk"
        under = small_disk(seen, 64)
        copy = f'cp -rp {folder}/store.db* "$0"; mount -o remount,ro "$0" && exec "$@"'
        under = [*under, "sh", "-c", copy, str(seen)]
    before = sorted(tmp_path.iterdir())
    for words in (("runs", "list"), ("runs", "show", "run-1")):
        listed = _standfast(under, seen, *words)
        assert (listed.returncode, "completed" in listed.stdout) == (0, True), listed
        assert listed.stderr == f"standfast: {seen}/store.db cannot be written, so this shows a copy of it\n"
    looked = _standfast(under, seen, "status")
    assert (looked.returncode, "1 completed" in looked.stdout) == (0, True), looked
    refused = _standfast(under, seen, "runs", "purge", "run-1", "--yes")
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert sorted(tmp_path.iterdir()) == before
    for path in (folder, *folder.iterdir()):
        path.chmod(0o700)
