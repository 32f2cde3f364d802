"""``standfast status``: one screen of everything, and what needs a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from msgspec import structs

from standfast.cli.output import json_option, print_json
from standfast.cli.runs import ask_engine
from standfast.cli.target import FAILED, LENGTH, NEEDS_A_PERSON, Target, fail, target_options
from standfast.errors import StoreError
from standfast.locks.inspect import counted, length, moment, one_line
from standfast.redaction import mask_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import standfast as sf
    from standfast.durations import Duration
    from standfast.workflows.overview import Concern, Overview

F = TypeVar("F", bound="Callable[..., Any]")

UNFINISHED = ("pending", "running", "suspended", "quarantined")


def threshold_options(command: F) -> F:
    """Let a command take ``--lately`` and ``--patience``: from when on something needs a person."""
    text = "How long a wait in a line may last."
    command = click.option("--patience", type=LENGTH, default="10 minutes", show_default=True, help=text)(command)
    text = "How old a failure may be that still counts."
    return click.option("--lately", type=LENGTH, default="1 day", show_default=True, help=text)(command)


@click.command()
@click.option("--check", is_flag=True, help="Print one line, for a monitor.")
@threshold_options
@json_option
@target_options
@click.pass_context
def status(context: click.Context, lately: Duration, patience: Duration, *, check: bool, as_json: bool) -> None:
    """Show the store, workers, runs, and what needs a person. It changes nothing.

    Exits with 0 if nothing needs a person, with 6 if something does, and with 1 if the store does not answer.
    """
    target = context.ensure_object(Target)
    try:
        seen = ask_engine(target, lambda engine: look(engine, target, lately, patience), looks=True)
    except StoreError as problem:
        if not as_json:
            fail(problem)
        print_json({"store": {"is_reachable": False, "problem": mask_text(str(problem))}})
        context.exit(FAILED)
    if as_json:
        print_json(as_data(seen))
    elif check:
        click.echo(check_line(seen))
    else:
        for line in screen(seen, target):
            click.echo(line)
    context.exit(NEEDS_A_PERSON if seen.concerns else 0)


async def look(engine: sf.Engine, target: Target, lately: Duration, patience: Duration) -> Overview:
    """Look at everything once."""
    seen = await engine.overview(lately=lately, patience=patience)
    return structs.replace(seen, store=structs.replace(seen.store, address=target.shown))


def as_data(seen: Overview) -> dict[str, Any]:
    """Return it as JSON-shaped data."""
    told: dict[str, Any] = msgspec.to_builtins(seen)
    told["store"]["is_reachable"] = True
    return told | {"is_well": not seen.concerns}


def check_line(seen: Overview) -> str:
    """Return how it is in one line, for a monitor."""
    if not seen.concerns:
        alive = sum(worker.is_alive for worker in seen.workers)
        return f"OK: {counted(alive, 'worker')}, {seen.runs['running']} running, {seen.ready} ready"
    return "; ".join(concern.words for concern in seen.concerns)


def screen(seen: Overview, target: Target) -> Iterator[str]:
    """Yield the lines of one screen."""
    store = seen.store
    size = "" if store.size is None else f", {megabytes(store.size)}"
    records = "" if store.records is None else f", about {counted(store.records, 'record')}"
    address = f" at {one_line(store.address)}" if store.address else ""
    yield f"store:    {store.backend}{address}, answers in {store.round_trip * 1000:.3g} ms{size}{records}"
    yield f"place:    namespace {one_line(seen.namespace)}, tenant {one_line(seen.tenant)}, at {moment(seen.at)}"
    yield f"workers:  {_workers(seen)}"
    yield f"runs:     {_runs(seen, UNFINISHED)}; {seen.ready} ready for a worker"
    yield f"ended:    {_runs(seen, ('completed', 'failed', 'timed_out', 'cancelled'))}; {seen.ended} in the last minute"
    if seen.lines:
        first = seen.lines[0]
        among = ", of those looked at" if seen.more_lines else ""
        longest = f"{one_line(first.key)}: {length(first.waited or 0.0)}, {first.waiting:,} waiting{among}"
        yield f"waits:    the longest is for {longest}"
    if not seen.concerns:
        yield click.style("nothing needs a person", fg="green")
        return
    yield click.style("needs a person:", fg="red", bold=True)
    for concern in seen.concerns:
        yield from concern_lines(concern, target)


def megabytes(size: int) -> str:
    """Return a number of bytes as people write it, roughly."""
    for limit, unit in ((1_000_000, "kB"), (1_000_000_000, "MB"), (1_000_000_000_000, "GB")):
        if size < limit:
            return f"{size / limit * 1000:,.3g} {unit}"
    return f"{size / 1e12:,.3g} TB"


def _workers(seen: Overview) -> str:
    alive = [worker for worker in seen.workers if worker.is_alive]
    if not alive:
        return "none" if not seen.workers else f"none alive, {len(seen.workers):,} dead"
    oldest = max(worker.silent_for or 0.0 for worker in alive)
    dead = len(seen.workers) - len(alive)
    driven = sum(worker.runs for worker in alive)
    more = f", {dead:,} dead" if dead else ""
    return f"{len(alive):,}{more}, driving {counted(driven, 'run')}; the oldest renewal: {length(oldest)} ago"


def _runs(seen: Overview, statuses: tuple[str, ...]) -> str:
    return ", ".join(f"{seen.runs[status]} {status.replace('_', ' ')}" for status in statuses)


def concern_lines(concern: Concern, target: Target) -> Iterator[str]:
    """Yield what needs a person, and what to type."""
    yield f"  {concern.words}{' (or more)' if concern.has_more and '+' not in concern.words else ''}"
    if concern.kind not in ("long-waits", "circles") and concern.examples:
        left_out = concern.count > len(concern.examples) or concern.has_more
        yield f"    {', '.join(map(one_line, concern.examples))}{', ...' if left_out else ''}"
    if concern.command:
        yield click.style(f"    {command_of(concern, target)}", dim=True)


def command_of(concern: Concern, target: Target) -> str:
    """Return what to type next."""
    return target.command(*concern.command)
