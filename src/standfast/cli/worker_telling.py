"""What a worker says about its work: lines for people, lines of JSON for programs, and a status on a terminal."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import click
import msgspec
from msgspec.structs import asdict

from standfast.clock import SYSTEM_CLOCK
from standfast.events import RunMoved, StepRecorded, WorkerWaits
from standfast.logs import as_json, as_logfmt, event_name
from standfast.masking import mask_text
from standfast.workflows.storing.records import ENDED
from standfast.workflows.working.worker import waiting_line

if TYPE_CHECKING:
    from standfast.events import Event
    from standfast.workflows.engine import Engine

Style: TypeAlias = Literal["text", "json", "quiet"]
CLEAR: Final = "\r\x1b[K"
LOUD: Final = frozenset({"warning", "error"})


@final
class Telling:
    """A hook that counts what happens and tells of it."""

    def __init__(self, style: Style) -> None:
        self._style: Final = style
        self._counts: Final[Counter[str]] = Counter()
        self._shown = ""
        self.is_live: Final = style == "text" and sys.stderr.isatty()

    def __call__(self, event: Event, /) -> None:
        """Count an event, and tell of it if it is worth that."""
        self._count(event)
        if self._style == "json":
            click.echo(as_json({"event": event_name(type(event)), **_facts(event)}))
        elif isinstance(event, WorkerWaits) and self._style == "text":
            self._line(waiting_line(event), event.level, err=True)
        elif event.level in LOUD and self._style == "text":
            self._line(as_logfmt({"event": event_name(type(event)), **_facts(event)}), event.level)

    def _count(self, event: Event) -> None:
        if isinstance(event, StepRecorded):
            self._counts["steps"] += 1
        elif isinstance(event, RunMoved):
            self._counts["handed back" if event.status == "running" and not event.fence else event.status] += 1

    def started(self, engine: Engine) -> None:
        """Tell that the worker drives runs now."""
        host = engine.host
        workflows = [f"{name}@{version}" if version else name for name, version in sorted(host.workflows)]
        facts: dict[str, Any] = {
            "store": engine.address,
            "namespace": host.space.namespace,
            "tenant": host.space.tenant,
            "worker": "" if host.worker is None else host.worker.presence,
            "process": os.getpid(),
        }
        if self._style == "json":
            known = [{"name": name, "version": version} for name, version in sorted(host.workflows)]
            self._data("worker-started", facts | {"workflows": known})
        else:
            place = f"{facts['store'] or 'a space'}, namespace {facts['namespace']}, tenant {facts['tenant']}"
            self._line(f"worker {facts['worker']} (process {facts['process']}) drives runs of {place}")
            self._line(f"workflows: {', '.join(workflows) or 'none; it only looks after what other workers left'}")

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
        """Show on a terminal how it goes, in one line that is written over."""
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
