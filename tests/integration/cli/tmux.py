"""A real terminal: tmux from Debian's package, with a server of its own for each test."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
from typing import TYPE_CHECKING, final

from standfast.clock import monotonic
from tests.integration.cli.programs import PATIENCE, ROOT, STANDFAST
from tests.services.places import fetched, libraries

if TYPE_CHECKING:
    from pathlib import Path


@final
class Tmux:
    """One window of a terminal, and what is run in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self._program = str(fetched("terminal/usr/bin/tmux"))
        self._socket = str(folder / "tmux")
        self._environment = {
            **os.environ,
            "LD_LIBRARY_PATH": libraries(),
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
            "STANDFAST_STORE": url,
            "PYTHONPATH": str(ROOT / "src"),
            "TMUX": "",
        }

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            [self._program, "-S", self._socket, "-f", "/dev/null", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        ).stdout

    def run(self, *arguments: str, width: int, height: int) -> None:
        """Run ``standfast`` in a new window; when it has ended, its exit code is shown."""
        command = f"{shlex.join([*STANDFAST, *arguments])}; echo ended with $?; exec cat"
        self._tmux("new-session", "-d", "-x", str(width), "-y", str(height), command)

    def screen(self) -> list[str]:
        """Return the lines that are shown."""
        return self._tmux("capture-pane", "-p").splitlines()

    async def show(self, *words: str) -> list[str]:
        """Return the lines that are shown when all of some words are among them."""
        until = monotonic() + PATIENCE
        while True:
            lines = await asyncio.to_thread(self.screen)
            text = "\n".join(lines)
            if all(word in text for word in words):
                return lines
            assert monotonic() < until, text

    def type(self, keys: str) -> None:
        """Press keys."""
        self._tmux("send-keys", keys)

    def resize(self, width: int, height: int) -> None:
        """Make the window larger or smaller."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def close(self) -> None:
        """End everything that runs in it."""
        self._tmux("kill-server")
