"""Where commands that stay answer probes."""

from __future__ import annotations

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from tests.fork_server import forked_exec

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import standfast as sf
engine = sf.Engine("sqlite:///{folder}/store.db")
app = sf.App("sqlite:///{folder}/app.db", flows=[sf.Flow("a")])
"""


@pytest.mark.parametrize(
    "command",
    [("worker", "desk:engine"), ("worker", "desk:engine", "--processes", "2"), ("serve", "desk:app", "--port", "0")],
)
async def test_a_place_that_is_taken_ends_the_command_with_a_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    """It says which place and what to change, and has driven nothing: no traceback."""
    (tmp_path / "desk.py").write_text(PROGRAM.format(folder=tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = await forked_exec(
            *(sys.executable, "-m", "standfast", *command, "--app-dir", str(tmp_path), "--listen", str(port)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"STANDFAST_TOKEN": "sf_a-token-of-the-tests"},
        )
        out, err = await asyncio.wait_for(started.communicate(), 40)
    assert started.returncode == 1
    assert err.decode().splitlines() == [
        f"standfast: cannot listen on 127.0.0.1 port {port}: Address already in use",
        "Choose another place with --listen.",
    ]
    assert b"drives runs" not in out
