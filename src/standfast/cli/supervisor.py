"""``standfast worker --processes N``: several worker processes under one, which starts, restarts and stops them.

A worker is one event loop, so it uses one core. The supervisor loads none of the user's code: it starts the same
command once for each process, says of each line which process it comes from, and starts one again that has died, each
time later than the time before. A process that cannot even start ends all of them, with its exit code: more tries would
not help. Should the supervisor itself be killed, its processes see that and hand their runs back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Final, final

import click
import msgspec
from click.core import ParameterSource

from standfast.cli.probes import listening
from standfast.cli.target import FAILED, SIGNALLED
from standfast.clock import SYSTEM_CLOCK
from standfast.telemetry.health import Readiness
from standfast.telemetry.merged_metrics import MEDIA_TYPE, MergedMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDED_BY_SIGNAL: Final = frozenset({0, *(SIGNALLED + number for number in STOPS)})
"""Exit codes of a worker that was told to stop; one that is not ready to hear a signal yet is ended by it."""

READY: Final = "STANDFAST_SUPERVISOR"
"""Where a worker finds the number of the file to which it writes when it drives runs."""

PROBES: Final = "STANDFAST_SUPERVISOR_PROBES"
"""Where a worker finds the path at which its supervisor asks for its metrics and its health."""

ANSWERS_WITHIN: Final = 3.0
"""Seconds that a worker has to answer its supervisor."""

FIRST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
"""Seconds before a worker that has died is started again: at first, and after it has died many times in a row."""

STEADY: Final = 60.0
"""A worker that has run for this many seconds is started again as if it had died for the first time."""

OK: Final = 200
LONGEST_LINE: Final = 1_000_000
"""How many bytes of a line are kept together with the name of the process that wrote it."""


# --- in a worker: what it has to do with its supervisor ------------------------------------------------------------


def join_supervisor(stop: Callable[[], None]) -> None:
    """Tell the supervisor, if there is one, that this worker drives runs; call ``stop`` when the supervisor is gone."""
    file = os.environ.pop(READY, "")
    if not file:
        return
    with contextlib.suppress(OSError):
        os.write(int(file), b"1")
        os.close(int(file))
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 1):  # nothing is ever written there: it was closed, by the end of the supervisor
            loop.remove_reader(0)
            stop()

    loop.add_reader(0, look)


def supervised_place() -> str | None:
    """Return where this worker is to answer its supervisor; None: it has none, or that does not ask."""
    return os.environ.pop(PROBES, "") or None


# --- in the supervisor ---------------------------------------------------------------------------------------------


def command_of(context: click.Context) -> list[str]:
    """Return the command that was given, as one for a single process."""
    command = [sys.executable, "-m", "standfast", "worker"]
    for parameter in context.command.params:
        name = parameter.name or ""
        if name in ("processes", "listen") or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value: Any = context.params[name]
        if isinstance(parameter, click.Option):
            command.append(parameter.opts[0])
            if not parameter.is_flag:
                command.append(str(value))
        else:
            command.append(str(value))
    return command


@final
class WorkerProcess:
    """One of the processes, and how often it has died lately.

    Attributes:
        number: Which one it is, from 1 on.
        was_ready: It has driven runs at least once.
    """

    def __init__(self, number: int, command: Sequence[str], probes: str = "") -> None:
        self.number: Final = number
        self._command, self._probes = command, probes
        self._process: asyncio.subprocess.Process | None = None
        self._pause = FIRST_PAUSE
        self.was_ready = False

    @property
    def pid(self) -> int:
        """The id of the process; 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def send(self, number: int) -> None:
        """Send a signal to the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def run(self) -> int:
        """Run the process to its end; return its exit code, negative for the signal that killed it."""
        ready, said = os.pipe()
        if self._probes:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._probes)  # noqa: PTH108 -- of the process before, which was killed
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,  # never written to: its end is how the worker sees that of this process
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(said,),
                env={**os.environ, READY: str(said), PROBES: self._probes, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # Ctrl-C is for this process, which tells the others
                limit=LONGEST_LINE,
            )
        finally:
            os.close(said)
        loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        loop.add_reader(ready, self._on_ready, ready)
        try:
            await asyncio.gather(self._relay(process.stdout, sys.stdout), self._relay(process.stderr, sys.stderr))
            code = await process.wait()
        finally:
            loop.remove_reader(ready)
            os.close(ready)
        if loop.time() - began > STEADY:
            self._pause = FIRST_PAUSE
        return code

    def _on_ready(self, file: int) -> None:
        self.was_ready = bool(os.read(file, 1)) or self.was_ready
        asyncio.get_running_loop().remove_reader(file)

    async def _relay(self, stream: asyncio.StreamReader | None, to: Any) -> None:  # noqa: ANN401 -- a stream of text over bytes
        """Pass lines on, each with the number of this process."""
        while stream is not None:
            try:
                line = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError as ended:
                if ended.partial:
                    _write(to, marked(self.number, ended.partial) + b"\n")
                return
            except asyncio.LimitOverrunError as long:
                line = await stream.readexactly(long.consumed)
            _write(to, marked(self.number, line))

    async def ask(self, path: str) -> tuple[int, bytes] | None:
        """Return the status and the body of what the process answers; None: it does not, or there is none."""
        if self._process is None or self._process.returncode is not None:
            return None
        try:
            async with asyncio.timeout(ANSWERS_WITHIN):
                reader, writer = await asyncio.open_unix_connection(self._probes)
                try:
                    writer.write(f"GET {path} HTTP/1.1\r\nAccept: text/plain\r\n\r\n".encode())
                    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
                finally:
                    writer.close()
            return int(head.split(b" ", 2)[1]), body
        except (OSError, TimeoutError, ValueError, IndexError):
            return None

    def next_pause(self) -> float:
        """Return in how many seconds it is to be started again."""
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return pause


def marked(number: int, line: bytes) -> bytes:
    """Return a line with the number of the process that wrote it: in front, or as a field of a JSON object."""
    if line.startswith(b'{"') and line.rstrip().endswith(b"}"):
        return b'{"number":%d,' % number + line[1:]
    return b"[%d] " % number + line


def _write(to: Any, line: bytes) -> None:  # noqa: ANN401 -- a stream of text over bytes
    with contextlib.suppress(BrokenPipeError):  # its reader has gone; the workers go on
        to.buffer.write(line)
        to.buffer.flush()


@final
class WorkerProbes:
    """What is shown of all workers together: sums of what they count, and whether each of them takes work.

    Args:
        workers: The processes.
        is_draining: Says whether they are about to stop.
    """

    def __init__(self, workers: Sequence[WorkerProcess], is_draining: Callable[[], bool]) -> None:
        self._workers, self._is_draining = workers, is_draining
        self._metrics: Final = MergedMetrics()

    async def _answers(self, path: str) -> list[tuple[WorkerProcess, int, bytes]]:
        told = await asyncio.gather(*(worker.ask(path) for worker in self._workers))
        return [(worker, *answer) for worker, answer in zip(self._workers, told, strict=True) if answer is not None]

    async def ready(self) -> Readiness:
        """Return whether every worker takes work."""
        if self._is_draining():
            return Readiness(is_ready=False, reason="it is about to stop")
        taking = {worker.number for worker, status, _ in await self._answers("/health/ready") if status == OK}
        missing = [str(worker.number) for worker in self._workers if worker.number not in taking]
        reason = f"{len(missing)} of {len(self._workers)} workers take no work: {', '.join(missing)}" if missing else ""
        return Readiness(is_ready=not missing, reason=reason)

    async def scale(self) -> dict[str, Any]:
        """Return what an autoscaler needs to know: of the store by one of them, and how busy they are on average."""
        told = [msgspec.json.decode(body) for _, status, body in await self._answers("/scale") if status == OK]
        if not told:
            return {"reason": "no worker answers"}  # no load: an autoscaler leaves things as they are
        busy = [each["utilisation"] for each in told if each["utilisation"] is not None]
        return {**told[0], "utilisation": round(sum(busy) / len(self._workers), 3) if busy else None}

    async def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Return the sums of what the workers count; None: they have no metrics."""
        del accept  # the plain text, which all that scrape take
        told = await self._answers("/metrics")
        if told and all(status != OK for _, status, _ in told):
            return None
        for worker, status, body in told:
            if status == OK:
                self._metrics.take(worker.number, worker.pid, body.decode())
        return self._metrics.text([worker.number for worker, _, _ in told]).encode(), MEDIA_TYPE


@final
class Supervisor:
    """Runs several workers until a signal says to stop."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        place: tuple[str, int] | None = None,
        *,
        as_json: bool,
        quiet: bool,
    ) -> None:
        self._place, self._folder = place, contextlib.ExitStack()
        folder = "" if place is None else self._folder.enter_context(tempfile.TemporaryDirectory(prefix="standfast-"))
        probes = ["" if place is None else f"{folder}/{number}" for number in range(1, processes + 1)]
        self._workers: Final = [WorkerProcess(number, command, each) for number, each in enumerate(probes, 1)]
        self._as_json, self._quiet = as_json, quiet
        self._stopping: Final = asyncio.Event()
        self._signals: Final[list[int]] = []
        self._failed = 0

    async def run(self) -> int:
        """Run them; return the exit code to end with."""
        loop = asyncio.get_running_loop()
        for number in STOPS:
            loop.add_signal_handler(number, self._on_signal, number)
        self._tell("supervisor-started", f"starts {len(self._workers)} workers", processes=len(self._workers))
        with self._folder:
            async with listening(self._place, WorkerProbes(self._workers, self._stopping.is_set)) as listener:
                if listener is not None:
                    words = f"/metrics, /health and /scale of all workers at {listener.address}"
                    self._tell("supervisor-listening", words, address=listener.address)
                await asyncio.gather(*(self._keep(worker) for worker in self._workers))
        code = self._failed or (SIGNALLED + self._signals[1] if len(self._signals) > 1 else 0)
        self._tell("supervisor-stopped", f"all workers have ended, exit code {code}", exit_code=code)
        return code

    def _on_signal(self, number: int) -> None:
        """Pass a signal on: the first stops the workers, at the second they wait for no step, the third kills them.

        A worker that has not handled the first one when the second arrives would see one signal if both had the same
        number, and could still claim a run and wait for its steps. So the second is passed on as another one.
        """
        self._signals.append(number)
        self._stopping.set()
        if len(self._signals) == 2 and number == self._signals[0]:  # noqa: PLR2004 -- the second
            number = next(other for other in STOPS if other != number)
        for worker in self._workers:
            worker.send(signal.SIGKILL if len(self._signals) > 2 else number)  # noqa: PLR2004 -- the third

    async def _keep(self, worker: WorkerProcess) -> None:
        """Keep one worker running until it is to stop."""
        while not self._stopping.is_set():
            code = await worker.run()
            if self._stopping.is_set():
                if _exit_code(code) not in ENDED_BY_SIGNAL:
                    self._failed = self._failed or _exit_code(code)
                return
            if not worker.was_ready:
                self._failed = _exit_code(code) or FAILED
                self._tell_end(worker, code, "it could not start, so all others are stopped")
                self._stopping.set()
                for other in self._workers:
                    other.send(signal.SIGTERM)
                return
            pause = worker.next_pause()
            self._tell_end(worker, code, f"it is started again in {pause:g} s", pause=pause)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)

    def _tell_end(self, worker: WorkerProcess, code: int, words: str, **facts: object) -> None:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        about = f"worker {worker.number} (process {worker.pid}) ended with {how}; {words}"
        self._tell("worker-ended", about, number=worker.number, ended=worker.pid, how=how, **facts)

    def _tell(self, event: str, words: str, **facts: object) -> None:
        if self._as_json:
            line = {"event": event, "at": SYSTEM_CLOCK.wall(), "process": os.getpid(), **facts}
            click.echo(msgspec.json.encode(line).decode())
        elif not self._quiet or event == "worker-ended":
            click.echo(f"supervisor (process {os.getpid()}): {words}", err=event == "worker-ended")


def _exit_code(code: int) -> int:
    """Return the exit code of a process as a shell tells it."""
    return code if code >= 0 else SIGNALLED - code
