"""``standfast run``: run a program under a durable lock."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import click
from msgspec import Struct

import standfast as sf
from standfast.cli.output import Foreground, arrange, tell_of_wait
from standfast.cli.target import (
    LENGTH,
    LOST,
    NOT_EXECUTABLE,
    NOT_FOUND,
    NOT_FREE,
    NOT_RUN,
    NOT_TYPED,
    SIGNALLED,
    Target,
    complete_key,
    end,
    fail,
    family_option,
    key_of,
    target_options,
)
from standfast.durations import seconds
from standfast.errors import (
    HoldTimeoutError,
    InvalidArgumentError,
    LeaseTooShortError,
    StandfastError,
    WithdrawnError,
    WouldWaitError,
)
from standfast.keys import Key
from standfast.locks.entry import owner_of_task
from standfast.locks.inspect import one_line
from standfast.locks.locks import LONGEST_NOTE, Holding

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from standfast.cli.output import Arrangement
    from standfast.locks.locks import Hold, HoldOptions


# --- A command as our child: started so that it does not outlive us, signalled, watched, and ended -----------------

LAUNCHER: Final = Path(__file__).with_name("launcher.py")

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
"""The signals that a terminal sends to every process in the foreground."""


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
            if self._is_ending:  # what is left of its group, while no other can have its number
                self.send(signal.SIGKILL)
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
    step = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
    terminal = "terminal" if arrangement == "terminal" else "none"
    # Until it is the command it must not hear what is meant for the command.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    try:
        return subprocess.Popen(  # noqa: S603 -- running what the user names is the purpose, and no shell is involved
            [*step, terminal, *command], env=environment, process_group=None if arrangement == "shared" else 0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- running a command for as long as a lock is held, and no longer ------------------------------------------------


class Job(Struct, frozen=True):
    """What to run, and under which lock.

    ``holding`` makes the lock of a space, with ``on_lost="tell"``; ``grace`` is how many seconds the command has to end
    when the lock is lost.
    """

    command: tuple[str, ...]
    key: Key | str
    holding: Callable[[sf.Space], Holding]
    grace: float


async def run_job(target: Target, job: Job) -> int:
    """Run a command under its lock and return the exit code to end with."""
    signals = _ForwardedSignals()
    try:
        async with target.opened(create=True) as space, _told_of(space, job.key) as done, job.holding(space) as hold:
            done()
            return await _run_under(hold, job, signals)
    except asyncio.CancelledError:
        if signals.received is None:
            raise
        return SIGNALLED + signals.received


@contextlib.asynccontextmanager
async def _told_of(space: sf.Space, key: Key | str) -> AsyncGenerator[Callable[[], object]]:
    """Tell a terminal about the wait, until the yielded function is called."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    telling = asyncio.create_task(tell_of_wait(space, key, owner_of_task()))
    try:
        yield telling.cancel
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _run_under(hold: Hold, job: Job, signals: _ForwardedSignals) -> int:
    environment = {**os.environ, "STANDFAST_KEY": hold.key, "STANDFAST_FENCE": str(hold.fence)}
    child = Child(job.command, environment, arrange(), lambda: not hold.is_lost)
    signals.pass_to(child)
    lost: asyncio.Future[Any] = asyncio.ensure_future(hold.lost.wait())
    ends: set[asyncio.Future[Any]] = {child.ended, lost}
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost.cancel()
    if not child.ended.done():
        await child.end(job.grace)
    if hold.is_lost:
        message = f"the lock was lost while the command ran: {one_line(hold.key)}, fence {hold.fence}: {hold.reason}"
        end(message, LOST, "The command was ended. What it protects may be in other hands.")
    return child.ended.result()


SAID_AFTER: Final = 1.0
"""Seconds after which a command that goes on after a signal is mentioned."""


@final
class _ForwardedSignals:
    """Signals that are sent to us: before the command runs they end the wait for the lock, then they are passed on."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._child: Child | None = None
        self._task: Final = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in PASSED_ON:
            loop.add_signal_handler(number, self._on_signal, number)

    def pass_to(self, child: Child) -> None:
        """From now on, pass signals on to the command."""
        self._child = child
        if self.received is not None:
            child.pass_on(self.received)

    def _on_signal(self, number: int) -> None:
        if self._child is not None:
            self._child.pass_on(number)
            asyncio.get_running_loop().call_later(SAID_AFTER, self._say, self._child, number)
        elif self._task is not None and self.received is None:
            self.received = number
            self._task.cancel()

    @staticmethod
    def _say(child: Child, number: int) -> None:
        """Say what we wait for, if the command did not end at once."""
        if not child.ended.done():
            name = signal.Signals(number).name
            click.echo(
                f"{name} was passed on to the command (process {child.pid}), which still runs; it is waited for, and"
                " the lock is held until it ends. Another signal is passed on as well.",
                err=True,
            )


# --- ``standfast run``: run a program under a durable lock ---------------------------------------------------------


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--lock", "words", metavar="KEY", multiple=True, required=True, help="The key.", shell_complete=complete_key
)
@family_option
@click.option("--timeout", type=LENGTH, help="Wait at most this long, such as 10s.")
@click.option("--no-wait", is_flag=True, help="Do not wait.")
@click.option("--lease", type=LENGTH, help="How long others wait after this process stops responding.  [default: 30s]")
@click.option("--max-hold", type=LENGTH, help="Give up the lock, and end the command, after this long.")
@click.option(
    "--grace", type=LENGTH, default="10s", show_default=True, help="Time to end after SIGTERM, if the lock is lost."
)
@click.option("--permits", type=click.IntRange(1), help="Use a semaphore with this number of permits.")
@click.option("--weight", type=click.IntRange(1), default=1, show_default=True, help="How many permits to take.")
@click.option("--mode", metavar="MODE", help="Use a lock with modes, and hold it in this mode.")
@click.option("--modes", metavar="A,B", default="read", show_default=True, help="The shared modes.")
@click.option("--alone", metavar="A,B", default="write", show_default=True, help="The exclusive modes.")
@click.option(
    "--note", metavar="TEXT", help="A note for people who look at the line.  [default: the name of the command]"
)
@target_options
@click.argument("command", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, words: tuple[str, ...], family: str | None, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Run COMMAND while holding a durable lock.

    It exits with the exit code of the command. Signals are passed on, and the lease is renewed. If the lock is lost,
    the command is ended. Its environment has STANDFAST_KEY and STANDFAST_FENCE.

    \b
    standfast run --lock nightly-report --timeout 10m -- ./report --full
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    command: tuple[str, ...] = options["command"]
    _refuse_unusable(words, options)
    _find(command[0])
    key = key_of(words, family)
    try:
        job = Job(command, key, _holding(key, options), seconds(options["grace"]))
        code = asyncio.run(run_job(context.ensure_object(Target), job))
    except (HoldTimeoutError, WouldWaitError, WithdrawnError) as problem:
        fail(problem, NOT_FREE)
    except (InvalidArgumentError, LeaseTooShortError) as problem:
        fail(problem, NOT_TYPED)
    except StandfastError as problem:
        fail(problem, NOT_RUN)
    context.exit(code)


def _refuse_unusable(words: tuple[str, ...], options: dict[str, Any]) -> None:
    if options["permits"] and options["mode"]:
        raise click.UsageError("--permits makes a semaphore and --mode a lock with modes; choose one.")
    if options["no_wait"] and options["timeout"] is not None:
        raise click.UsageError("--no-wait does not wait at all, so --timeout means nothing; choose one.")
    if options["weight"] > 1 and not options["permits"]:
        raise click.UsageError("--weight takes several permits; say how many there are with --permits.")
    for word in words:  # an unset variable gives an empty key, and all scripts with that mistake would share it
        if not word.strip() or "\n" in word or "\r" in word:
            raise click.UsageError("The key of --lock is empty, blank or more than a line; is a variable not set?")


def _find(name: str) -> None:
    """End at once if there is no such command: not after waiting for a lock."""
    if shutil.which(name) is not None:
        return
    if "/" in name and os.path.exists(name):  # noqa: PTH110 -- what the user typed, as it is
        end(f"{name} cannot be run: it is not an executable file", NOT_EXECUTABLE)
    end(f"there is no command {name}", NOT_FOUND, "Check its name and PATH.")


def _holding(key: Key | str, options: dict[str, Any]) -> Callable[[sf.Space], Holding]:
    note: str | None = options["note"]
    if note is None:  # the name of the command, without its arguments: there may be secrets among them
        file: str = options["command"][0].rpartition("/")[2]
        note = "".join(each for each in file if each.isprintable())[:LONGEST_NOTE]
    chosen: HoldOptions = {"on_lost": "tell", "note": note}
    for name in ("timeout", "lease", "max_hold"):
        if options[name] is not None:
            chosen[name] = options[name]

    def holding(space: sf.Space) -> Holding:
        if options["mode"]:
            modes = space.mode_lock(key, modes=_names(options["modes"]), alone=_names(options["alone"]))
            return (modes.try_hold if options["no_wait"] else modes.hold)(options["mode"], **chosen)
        if options["permits"]:
            permits = space.semaphore(key, permits=options["permits"])
            return (permits.try_hold if options["no_wait"] else permits.hold)(options["weight"], **chosen)
        mutex = space.mutex(key)
        return (mutex.try_hold if options["no_wait"] else mutex.hold)(**chosen)

    return holding


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)
