"""A command as our child: started so that it does not outlive us, signalled, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from standfast.cli.exits import SIGNALLED
from standfast.cli.terminals import Foreground

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from standfast.cli.terminals import Arrangement

BECOMING: Final = Path(__file__).with_name("becoming.py")

PASSED_ON: Final = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""The signals that are meant for the command."""

FROM_TERMINAL: Final = frozenset({signal.SIGINT, signal.SIGQUIT})
"""Those that a terminal sends to everybody in the foreground."""


@final
class Child:
    """A running command. ``ended`` is its exit code, once it has one."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        arrangement: Arrangement,
        may_go_on: Callable[[], bool],
    ) -> None:
        self._loop: Final = asyncio.get_running_loop()
        self._is_shared: Final = arrangement == "shared"
        self._foreground: Final = Foreground(arrangement)
        self._may_go_on: Final = may_go_on
        self._is_ending = False
        self.ended: Final[asyncio.Future[int]] = self._loop.create_future()
        self._loop.add_signal_handler(signal.SIGCHLD, self._look)
        self._process: Final = _start(command, environment, arrangement)
        self._look()

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def send(self, number: int) -> None:
        """Send it a signal; to its whole group, if it has one of its own."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.kill if self._is_shared else os.killpg)(self._process.pid, number)

    def pass_on(self, number: int) -> None:
        """Send it a signal that was sent to us, unless the terminal has sent it to both."""
        if not (self._is_shared and number in FROM_TERMINAL):
            self.send(number)

    async def end(self, grace: float) -> None:
        """End it: politely, and after ``grace`` seconds by force."""
        self._is_ending = True
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        await asyncio.wait({self.ended}, timeout=grace)
        self.send(signal.SIGKILL)
        await self.ended

    def _look(self) -> None:
        """See whether it has stopped or ended."""
        while not self.ended.done():
            flags = os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            seen = os.waitid(os.P_PID, self._process.pid, flags)
            if seen is None:
                return
            if seen.si_code not in {os.CLD_EXITED, os.CLD_KILLED, os.CLD_DUMPED}:
                os.waitpid(self._process.pid, os.WUNTRACED | os.WNOHANG)
                self._stop_too()
                continue
            if self._is_ending:  # what is left of its group, while nobody else can have its number
                self.send(signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        _, status = os.waitpid(self._process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code
        self._foreground.take_back()
        self._loop.remove_signal_handler(signal.SIGCHLD)
        self.ended.set_result(code if code >= 0 else SIGNALLED - code)

    def _stop_too(self) -> None:
        """Stop with it, as a shell expects of a job, and go on with it if the lock is still held by then."""
        if not self._foreground.is_ours_to_give:
            return
        self._foreground.take_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        if self._may_go_on():
            self._foreground.give(self._process.pid)
            self.send(signal.SIGCONT)


def _start(command: Sequence[str], environment: Mapping[str, str], arrangement: Arrangement) -> subprocess.Popen[bytes]:
    step = [sys.executable, "-I", "-S", str(BECOMING), str(os.getpid())]
    terminal = "terminal" if arrangement == "terminal" else "none"
    # Until it is the command it must not hear what is meant for the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        return subprocess.Popen(  # noqa: S603 -- running what the user names is the purpose, and no shell is involved
            [*step, terminal, *command], env=environment, process_group=None if arrangement == "shared" else 0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
