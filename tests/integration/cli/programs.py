"""Real processes of ``standfast``, and what they run: started, listened to and ended."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import monotonic
from tests.fork_server import ForkedPopen

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE: Final = 40.0
"""How many seconds a healthy process may take on a busy machine."""

TOKEN: Final = "sf_a-token-of-the-tests"  # noqa: S105 -- made up for the tests
"""The token of an application without authentication that a process serves."""

SHOWN: Final = {"Authorization": f"Bearer {TOKEN}"}

# Become the owner of the terminal on stdin, as a shell does, and run the arguments.
OWN_TERMINAL: Final = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""

STANDFAST: Final = (sys.executable, "-m", "standfast")


@final
class Program:
    """One process of ``standfast``."""

    def __init__(self, url: str, *arguments: str, owns_terminal: bool = False, **options: Any) -> None:
        before = [sys.executable, "-c", OWN_TERMINAL] if owns_terminal else []
        self.process: Final[subprocess.Popen[bytes]] = ForkedPopen[bytes](
            [*before, *STANDFAST, *arguments],
            stdin=options.pop("stdin", subprocess.PIPE),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE),
            env={
                **os.environ,
                "STANDFAST_STORE": url,
                "STANDFAST_TOKEN": TOKEN,
                "PYTHONPATH": str(ROOT / "src"),
                **options.pop("environment", {}),
            },
            **options,
        )
        self._heard = b""

    def hear(self) -> str:
        """Return the next line that it, or what it runs, says on stdout."""
        assert self.process.stdout is not None
        while b"\n" not in self._heard:
            more = read_some(self.process.stdout.fileno())
            assert more, f"it ended: {self.process.communicate(timeout=PATIENCE)}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def rest(self, more: bytes) -> list[str]:
        """Return the lines that were said and not heard yet, with what was read since."""
        return (self._heard + more).decode().splitlines()

    def hear_the_end(self) -> None:
        """Return when nobody is left who could say anything."""
        assert self.process.stdout is not None
        while read_some(self.process.stdout.fileno()):
            pass

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit code and what it said on stderr."""
        _, said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, "" if said is None else said.decode()


def read_some(descriptor: int) -> bytes:
    """Return what comes next from a descriptor; nothing at its end."""
    deadline = monotonic() + PATIENCE
    ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - monotonic()))
    assert ready, f"nothing was said for {PATIENCE:g} s"
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other end of a terminal was closed
        return b""


def python(code: str) -> Sequence[str]:
    """Return a command that runs some Python."""
    return ["--", sys.executable, "-c", code]


def answer(url: str, *arguments: str) -> tuple[int, str]:
    """Run ``standfast`` to its end; return its exit code and what it printed."""
    program = Program(url, *arguments, stdin=subprocess.DEVNULL)
    out, err = program.process.communicate(timeout=PATIENCE)
    return program.process.returncode, (out + err).decode()
