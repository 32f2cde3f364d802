"""One process of a server: started, stopped, continued, killed, and started again on the same data."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, final

from tests.services.kinds import kind
from tests.services.orders import Place
from tests.services.places import MissingError, libraries

if TYPE_CHECKING:
    from tests.services.orders import Order

START_SECONDS = 50.0
POLL_SECONDS = 0.02
LOG_CHARACTERS = 2000
# Whatever happens to the process that watches the server, the server goes with it.
DIES_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


def free_port() -> int:
    """Return a port that the system says is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def family(pid: int) -> list[int]:
    """Return a process and all that came from it, parents first."""
    found = [pid]
    for one in found:
        with suppress(OSError):
            for task in Path(f"/proc/{one}/task").iterdir():
                found.extend(map(int, (task / "children").read_text().split()))
    return found


@final
class ServerProcess:
    """A server that this process started and watches."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._kind = kind(order.kind)
        self._folder = Path(order.folder)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Place:
        """Start it, the first time on a port that is free, later on the same one."""
        if self._process:
            self.kill()
        if not self._port:
            self._kind.prepare(self._folder, self._order.behind)
        attempts = [self._port] if self._port else [free_port() for _ in range(3)]
        for port in attempts:
            if self._comes_up(port):
                self._port = port
                return self._place()
        raise MissingError(f"it does not start:\n{self._log()[-LOG_CHARACTERS:]}")

    def stop(self) -> Place:
        """Freeze it with all its children: connections stay open and nobody answers."""
        return self._signal(signal.SIGSTOP)

    def cont(self) -> Place:
        """Let it go on."""
        return self._signal(signal.SIGCONT)

    def kill(self) -> Place:
        """End it at once, as a power cut would, and wait until all of it is gone.

        A server does not start again while a child of the last one still has its memory or its files.
        """
        self.stop()  # so that it starts no more children
        if self._process and self._process.poll() is None:  # a fork that is under way ends before it stands still
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        with ExitStack() as ends:
            children = []
            for pid in family(self._process.pid)[1:] if self._process else []:
                with suppress(ProcessLookupError):
                    children.append(os.pidfd_open(pid))
                    ends.callback(os.close, children[-1])
            self._signal(signal.SIGKILL)
            for child in children:
                select.select([child], [], [])
        if self._process:
            self._process.wait()
        self._process = None
        return self._place()

    def quit(self) -> Place:
        """Ask it to shut down in good order, and wait until it has."""
        if self._process:
            self._process.send_signal(self._kind.orderly)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(START_SECONDS)
        return self.kill()

    def _place(self) -> Place:
        url = self._kind.url(self._folder, self._port) if self._port else ""
        return Place(url=url, pid=self._process.pid if self._process else 0)

    def _signal(self, number: signal.Signals) -> Place:
        if self._process:
            for pid in family(self._process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        return self._place()

    def _comes_up(self, port: int) -> bool:
        self._process = self._launch(port)
        url = self._kind.url(self._folder, port)
        deadline = time.monotonic() + START_SECONDS
        while not self._kind.ready(url):
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_SECONDS)
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                return False
        return True

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        command = self._kind.command(self._folder, port)
        # A change of user forgets who is to die with whom: said last, it stays.
        at = command.index(str(self._kind.program()))
        command = [*command[:at], *DIES_WITH_PARENT, *command[at:], *self._order.arguments]
        environment = os.environ | {"LD_LIBRARY_PATH": libraries()} | self._order.environment
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self._folder
            )

    def _log(self) -> str:
        return (self._folder / "log").read_text(encoding="utf-8", errors="replace")
