"""Starting real processes and talking to them line by line, so that no test has to sleep."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from standfast.clock import monotonic
from tests.fork_server import ForkedPopen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT: Final = Path(__file__).resolve().parents[3]
PATIENCE: Final = 40.0
"""How many seconds a healthy child may take to answer on a busy machine."""


@final
class Child:
    """A program of ``programs/``, or any module by its full name, in a process of its own.

    ``tell`` sends it a line, ``hear`` waits for a line from it; a child that ends or stays silent fails the test.
    """

    def __init__(
        self,
        program: str,
        *arguments: object,
        under: Sequence[str] = (),
        umask: int = -1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        module = program if "." in program else f"tests.integration.sqlite.programs.{program}"
        self.process: Final = ForkedPopen(
            [*under, sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **(environment or {})},
            umask=umask,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._in: Final = self.process.stdin.fileno()
        self._out: Final = self.process.stdout.fileno()
        self._heard = b""

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def tell(self, *words: object) -> None:
        """Send the child one line."""
        os.write(self._in, (" ".join(map(str, words)) + "\n").encode())

    def hear(self, seconds: float = PATIENCE) -> list[str]:
        """Return the words of the child's next line."""
        deadline = monotonic() + seconds
        while b"\n" not in self._heard:
            ready, _, _ = select.select([self._out], [], [], max(0.0, deadline - monotonic()))
            assert ready, f"the child said nothing for {seconds:g} s"
            more = os.read(self._out, 65536)
            assert more, f"the child ended with status {self.process.wait(PATIENCE)}"
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode().split()

    def ask(self, *words: object) -> list[str]:
        """Send a line and return the answer."""
        self.tell(*words)
        return self.hear()

    def is_silent(self, seconds: float = 0.0) -> bool:
        """Tell whether the child says nothing for a while that was not heard yet."""
        return not self._heard and not select.select([self._out], [], [], seconds)[0]

    def send(self, signal_number: signal.Signals) -> None:
        """Send the child a signal."""
        self.process.send_signal(signal_number)

    def stop(self) -> None:
        """Stop the child with SIGSTOP and return when it has stopped."""
        self.send(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Return when the child has stopped, by whoever's doing."""
        result = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)
        assert result is not None

    def kill(self) -> None:
        """Kill the child, whatever it is doing, and return when nothing is left of it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def end(self) -> int:
        """Close the child's input, wait for it to end by itself and return its status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)
