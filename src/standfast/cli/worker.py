"""``standfast worker`` and ``workers``: execute the runs of an engine until a signal says to stop, and list workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, final

import click
import msgspec
from msgspec.structs import asdict

from standfast.cli.output import configure_log, json_option, log_options, print_json, print_table
from standfast.cli.probes import listen_at, listen_option, listening, watch
from standfast.cli.runs import ask_engine
from standfast.cli.supervisor import Supervisor, command_of, join_supervisor, supervised_place
from standfast.cli.target import (
    LENGTH,
    NOT_LOADED,
    SIGNALLED,
    Target,
    Wanted,
    end,
    load,
    made,
    settle_in,
    target_options,
)
from standfast.clock import SYSTEM_CLOCK
from standfast.durations import seconds
from standfast.events import RunMoved, StepRecorded, WorkerWaits
from standfast.locks.inspect import length, moment, one_line
from standfast.log_hook import LogHook, as_json, as_logfmt, event_name
from standfast.redaction import mask_text
from standfast.telemetry.health import Health, notifying_systemd
from standfast.telemetry.listener import EngineProbes
from standfast.workflows.engine import Engine
from standfast.workflows.records import ENDED
from standfast.workflows.worker import waiting_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from standfast.durations import Duration
    from standfast.events import Event
    from standfast.logs import LogFormat
    from standfast.workflows.fleet import WorkerInfo
    from standfast.workflows.worker import Worker


# --- executing the runs of an engine until a signal stops it -------------------------------------------------------

F = TypeVar("F", bound="Callable[..., Any]")

STOPS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STATUS_EVERY: Final = 0.5
"""Seconds between two updates of the status line on a terminal."""


async def serve(engine: Engine, telling: Telling, grace: float, place: tuple[str, int] | str | None = None) -> int:
    """Execute runs until a signal comes, hand them back, and return the exit code to end with."""
    signals, place = _StopSignals(), supervised_place() or place
    if engine.worker is not None:
        end("the engine is open already", NOT_LOADED, "Leave that to the worker: make the engine, and do not open it.")
    if place is not None:
        watch(engine)
    await engine.open(drive=True, hooks=[telling] if telling.writes_log else [telling, LogHook()])
    worker = engine.worker
    assert worker is not None  # noqa: S101 -- it was told to drive
    signals.hurries = worker
    health = Health(engine, signals.first.done)
    settle_in()
    try:
        async with listening(place, EngineProbes(engine, health)) as listener:
            telling.started(engine)
            join_supervisor(signals.stop)
            if listener is not None and not isinstance(place, str):
                telling.listening(listener.address)
            async with notifying_systemd(), _status(engine, telling):
                await _until_stopped(worker, signals)
            telling.stopping(signals.name, len(engine.runtime.loaded))
            await engine.aclose(grace=grace)
            telling.stopped()
            return signals.exit_code
    except BaseException:
        await engine.aclose(grace=0)
        raise


async def _until_stopped(worker: Worker, signals: _StopSignals) -> None:
    joined = asyncio.ensure_future(worker.join())
    ends: set[asyncio.Future[Any]] = {joined, signals.first}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if joined.done():
        await joined  # it ends by itself only with an error that it cannot go on after: raise that
    joined.cancel()


@contextlib.asynccontextmanager
async def _status(engine: Engine, telling: Telling) -> AsyncGenerator[None]:
    """Show the progress on a terminal."""
    if not telling.is_live:
        yield
        return

    async def show() -> None:
        while True:
            telling.show_status(len(engine.runtime.loaded))
            await asyncio.sleep(STATUS_EVERY)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


@final
class _StopSignals:
    """Signals that are sent to us: the first stops the worker, the second waits for no step, the third ends us."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.first: Final[asyncio.Future[int]] = loop.create_future()
        self.hurries: Worker | None = None
        self._signals: Final[list[int]] = []
        for number in STOPS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if not self.first.done():
            self.first.set_result(number)
        elif self.hurries is not None and len(self._signals) == 2:  # noqa: PLR2004 -- the second
            self.hurries.hurry()
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def stop(self) -> None:
        """Stop as if a signal had come."""
        if not self.first.done():
            self._on_signal(signal.SIGTERM)

    @property
    def name(self) -> str:
        """The name of the signal that stopped the worker."""
        return signal.Signals(self.first.result()).name

    @property
    def exit_code(self) -> int:
        """0, or that of the signal that made it hurry."""
        return SIGNALLED + self._signals[1] if len(self._signals) > 1 else 0


# --- what a worker prints about its work: lines of text or of JSON, and a status line on a terminal ----------------

Style: TypeAlias = Literal["text", "json", "quiet"]
CLEAR: Final = "\r\x1b[K"
LOUD: Final = frozenset({"warning", "error"})


@final
class Telling:
    """A hook that counts what happens and prints it.

    Args:
        style: How it prints.
        writes_log: Whether it prints warnings and errors too, because no log was asked for.
    """

    def __init__(self, style: Style, *, writes_log: bool = True) -> None:
        self._style: Final = style
        self.writes_log: Final = writes_log
        self._counts: Final[Counter[str]] = Counter()
        self._shown = ""
        self.is_live: Final = style == "text" and writes_log and sys.stderr.isatty()

    def __call__(self, event: Event, /) -> None:
        """Count an event, and print it as JSON, or as text if it is a warning or an error."""
        if isinstance(event, StepRecorded):
            self._counts["steps"] += 1
        elif isinstance(event, RunMoved):
            self._counts["handed back" if event.status == "running" and not event.fence else event.status] += 1
        if self._style == "json":
            click.echo(as_json({"event": event_name(type(event)), **_facts(event)}))
        elif not self.writes_log:
            return
        elif isinstance(event, WorkerWaits) and self._style == "text":
            self._line(f"{waiting_line(event)}. Ctrl-C once more waits for nothing", event.level, err=True)
        elif event.level in LOUD and self._style == "text":
            self._line(as_logfmt({"event": event_name(type(event)), **_facts(event)}), event.level)

    def started(self, engine: Engine) -> None:
        """Tell that the worker drives runs now."""
        runtime = engine.runtime
        workflows = [f"{name}@{version}" if version else name for name, version in sorted(runtime.workflows)]
        facts: dict[str, Any] = {
            "store": engine.address,
            "namespace": runtime.space.namespace,
            "tenant": runtime.space.tenant,
            "worker": "" if runtime.worker is None else runtime.worker.presence,
            "process": os.getpid(),
        }
        if self._style == "json":
            known = [{"name": name, "version": version} for name, version in sorted(runtime.workflows)]
            self._data("worker-started", facts | {"workflows": known})
        else:
            place = f"{facts['store'] or 'a space'}, namespace {facts['namespace']}, tenant {facts['tenant']}"
            self._line(f"worker {facts['worker']} (process {facts['process']}) drives runs of {place}")
            self._line(f"workflows: {', '.join(workflows) or 'none; it only hands on what other workers left'}")

    def listening(self, address: str) -> None:
        """Tell where probes and scrapes are answered."""
        if self._style == "json":
            self._data("worker-listening", {"address": address})
        else:
            self._line(f"probes and metrics at {address}/health/ready and {address}/metrics")

    def stopping(self, signal_name: str, loaded: int) -> None:
        """Tell that the worker is about to stop."""
        if self._style == "json":
            self._data("worker-stopping", {"signal": signal_name, "loaded": loaded})
        else:
            self._line(f"{signal_name}: handing back what is in memory ({loaded}); once more to wait for no step")

    def stopped(self) -> None:
        """Tell what was done in all."""
        done = {name: self._counts[name] for name in ("steps", *sorted(ENDED), "handed back")}
        if self._style == "json":
            self._data("worker-stopped", {name.replace(" ", "_"): number for name, number in done.items()})
        else:
            self._line("stopped: " + self._summary(done))

    def show_status(self, loaded: int) -> None:
        """Show the progress on a terminal, in one line that is written over."""
        done = {name: self._counts[name] for name in ("steps", *sorted(ENDED))}
        status = f"{loaded:,} in memory, {self._summary(done)}"
        if status != self._shown:
            self._shown = status
            click.echo(CLEAR + click.style(status, dim=True), err=True, nl=False)

    @staticmethod
    def _summary(done: dict[str, int]) -> str:
        return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in done.items() if number) or "nothing"

    def _data(self, event: str, facts: dict[str, Any]) -> None:
        line = {"event": event, "at": SYSTEM_CLOCK.wall(), **facts}
        click.echo(msgspec.json.encode(line).decode())

    def _line(self, words: str, level: str = "info", *, err: bool = False) -> None:
        if self._style == "quiet":
            return
        if self._shown:
            click.echo(CLEAR, err=True, nl=False)
            self._shown = ""
        click.echo(click.style(words, fg={"error": "red", "warning": "yellow"}.get(level)), err=err)


def _facts(event: Event) -> dict[str, Any]:
    """Return the fields of an event as they may be shown."""
    return {name: mask_text(value) if isinstance(value, str) else value for name, value in asdict(event).items()}


# --- ``standfast worker``: execute the runs of an engine -----------------------------------------------------------

ENGINE = Wanted("engine", Engine, "shop.flows:engine", "sf.Engine(url, workflows=[...])")


@click.command()
@click.argument("name", metavar="MODULE:ENGINE")
@click.option("--grace", type=LENGTH, default="10s", show_default=True, help="Time for steps to end when stopped.")
@listen_option
@click.option("--app-dir", metavar="FOLDER", default=".", show_default=True, help="Where to look for the module.")
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many processes; each uses a core.",
)
@click.option("--quiet", is_flag=True, help="Print nothing but why it failed.")
@log_options
@json_option
@click.pass_context
def worker(  # noqa: PLR0913 -- the options of the command
    context: click.Context,
    name: str,
    grace: Duration,
    listen: str,
    app_dir: str,
    processes: int,
    log_format: LogFormat | None,
    log_level: str | None,
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Execute the runs of an engine until a signal stops it.

    MODULE:ENGINE names an sf.Engine, or a function that returns one; the default for ENGINE is engine. After SIGTERM or
    SIGINT it hands every run back, so that other workers resume it at once; a second signal waits for no step. With
    --processes a supervisor starts that many workers and restarts one that dies; a signal to it stops all.

    \b
    standfast worker shop.flows:engine --grace 30s --listen 9464
    standfast worker shop.flows:engine --processes 4
    """  # noqa: D301 -- click keeps the lines after a backspace as they are
    if context.ensure_object(Target).store:
        raise click.UsageError("The engine says which store it works on, so --store means nothing here.")
    limit = seconds(grace)
    place = listen_at(listen)
    if processes > 1:
        supervisor = Supervisor(command_of(context), processes, place, as_json=as_json, quiet=quiet)
        context.exit(asyncio.run(supervisor.run()))
    found = load(name, app_dir, ENGINE)
    has_log = configure_log(log_format, log_level)
    telling = Telling("json" if as_json else "quiet" if quiet else "text", writes_log=not has_log)

    async def drive() -> int:
        return await serve(await made(found, name, ENGINE), telling, limit, place)

    context.exit(asyncio.run(drive()))


# --- ``standfast workers``: which processes execute runs -----------------------------------------------------------


@click.command()
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="How many to list.")
@json_option
@target_options
@click.pass_obj
def workers(target: Target, limit: int, *, as_json: bool) -> None:
    """List the workers. It shows where they run, since when, what they execute, and their workflows.

    A worker that died is listed until another one has taken over its runs. It changes nothing.
    """
    found = ask_engine(target, lambda engine: engine.workers(limit=limit), looks=True)
    if as_json:
        print_json({"workers": msgspec.to_builtins(found)})
    elif found:
        titles = ("WORKER", "HOST", "PROCESS", "PROGRAM", "VERSION", "SINCE", "HEARD", "HELD UP", "RUNS", "WORKFLOWS")
        print_table(titles, [_worker_row(each) for each in found])
    else:
        click.echo("no worker is here: nothing is driven. Start one with: standfast worker MODULE:ENGINE")


def _worker_row(worker: WorkerInfo) -> tuple[str, ...]:
    names = [f"{name}@{version}" if version else name for name, version in worker.workflows]
    return (
        worker.id,
        one_line(worker.host),
        str(worker.process or ""),
        one_line(worker.program),
        worker.package,
        moment(worker.since) if worker.since else "",
        "dead" if worker.silent_for is None else f"{length(worker.silent_for)} ago",
        "" if worker.loop is None else length(max(worker.loop.worst, worker.loop.stands_for)),
        f"{worker.runs:,}{'+' if worker.more else ''}",
        one_line(", ".join(names)) + ("" if worker.is_whole else ", ..."),
    )
