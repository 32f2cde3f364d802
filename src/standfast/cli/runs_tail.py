"""``standfast runs tail``: follow a run until it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from standfast.cli.exits import NOT_COMPLETED
from standfast.cli.printing import json_option
from standfast.cli.runs_showing import as_data, coloured, history_line, shown, status_words
from standfast.cli.runs_target import carried_out, run_argument, talking
from standfast.cli.targets import Target, target_options
from standfast.workflows.operating.information import read_history
from standfast.workflows.storing.failure_log import failure_lines

if TYPE_CHECKING:
    import standfast as sf
    from standfast.workflows.operating.information import HistoryEntry, RunInfo

LOOK_EVERY = 1.0
"""Seconds between two looks, if nothing tells earlier."""


@click.command("tail")
@run_argument
@json_option
@target_options
@click.pass_context
def tail_run(context: click.Context, run_id: str, *, as_json: bool) -> None:
    """Print what RUN has done and what it does, until it has ended.

    Exits with 0 if it completed and with 5 if it ended otherwise. With --json, one JSON document a line.
    """
    ended = carried_out(follow(context.ensure_object(Target), run_id, as_json=as_json))
    context.exit(0 if ended.status == "completed" else NOT_COMPLETED)


async def follow(target: Target, run_id: str, *, as_json: bool) -> RunInfo:
    """Print what a run has done and what it does; return how it ended."""
    async with talking(target) as engine:
        space, number, said = engine.space, 0, ""
        async with space.watch(space.key("life", run_id), space.key("step", run_id)) as watch:
            while True:
                run = await engine.get(run_id)  # before the history: what it did to get there is then among it
                number += await _tell_history(space, run, number, as_json=as_json)
                if (words := status_words(run)) != said:
                    _tell_status(run, as_json=as_json)
                    said = words
                if run.has_ended:
                    return run
                await watch.wait(LOOK_EVERY)


async def _tell_history(space: sf.Space, run: RunInfo, number: int, *, as_json: bool) -> int:
    """Print what is new in a history; return how many entries that were."""
    entries = await read_history(space, run.id, first=number)
    for entry in entries:
        _tell_entry(run, entry, as_json=as_json)
    return len(entries)


def _tell_entry(run: RunInfo, entry: HistoryEntry, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"entry": as_data(entry)}).decode())
    else:
        click.echo(history_line(entry, run.started_at))


def _tell_status(run: RunInfo, *, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"run": as_data(run)}).decode())
        return
    click.echo(coloured(run.status, status_words(run)))
    if run.status == "completed":
        click.echo(f"result: {shown(run.result)}")
    for line in failure_lines(run.failure) if run.failure is not None else ():
        click.echo(f"  {line}")
