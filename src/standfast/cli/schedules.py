"""``standfast schedules``: look at schedules, pause and resume them, start their runs now, make up for missed ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from standfast.cli.output import json_option, print_json, print_table
from standfast.cli.runs import ask_engine, talking
from standfast.cli.target import (
    MOMENT,
    MOST_COMPLETED,
    NOT_THERE,
    Target,
    completing,
    confirm,
    end,
    target_options,
    yes_option,
)
from standfast.clock import seconds_between
from standfast.locks.inspect import counted, length, moment, one_line
from standfast.workflows.schedules.spec import OVERLAPS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    import standfast as sf
    from standfast.clock import Instant
    from standfast.workflows.schedules.schedules import ScheduleInfo, Schedules

T = TypeVar("T")

SHOWN_TICKS = 10
"""How many ticks of a backfill are printed as text; JSON has all."""


async def _names(target: Target) -> list[str]:
    async with talking(target) as engine:
        return [each.id for each in (await engine.schedules.list())[: 5 * MOST_COMPLETED]]


complete_schedule = completing(_names)


def _argument(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("schedule_id", metavar="SCHEDULE", shell_complete=complete_schedule)(command)


# --- ``standfast schedules list`` and ``show`` ---------------------------------------------------------------------


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="How many to list.")
@json_option
@target_options
@click.pass_obj
def list_schedules(target: Target, limit: int, *, as_json: bool) -> None:
    """List the schedules: when they fire, and if they are late."""
    found, now = _ask(target, lambda schedules: schedules.list(), looks=True)
    listed = found[:limit]
    if as_json:
        print_json({"schedules": [_data(each, now) for each in listed], "more": len(found) > limit})
    elif listed:
        titles = ("SCHEDULE", "WORKFLOW", "WHEN", "NEXT", "STARTED", "SKIPPED", "MISSED", "STATE")
        print_table(titles, [row_of(each, now) for each in listed])
        if len(found) > limit:
            click.echo(f"and {len(found) - limit:,} more; list them with --limit {len(found)}")
    else:
        click.echo("there are no schedules")


def _ask(target: Target, work: Callable[[Schedules], Awaitable[T]], *, looks: bool = False) -> tuple[T, Instant]:
    """Ask the schedules of the store for something; return the answer and the time by the store."""

    async def ask(engine: sf.Engine) -> tuple[T, Instant]:
        return await work(engine.schedules), engine.runtime.now()

    return ask_engine(target, ask, looks=looks)


def _data(info: ScheduleInfo, now: Instant) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(info)
    return told | {"when": info.when, "is_late": info.is_late(now)}


def row_of(info: ScheduleInfo, now: Instant) -> tuple[str, ...]:
    """Return a schedule as a row of the list."""
    return (
        one_line(info.id),
        one_line(info.workflow),
        one_line(info.when),
        "" if info.next_at is None else moment(info.next_at),
        f"{info.started:,}",
        f"{info.skipped + info.refused:,}",
        f"{info.missed:,}{'+' if info.more_missed else ''}",
        _state(info, now),
    )


def _state(info: ScheduleInfo, now: Instant) -> str:
    if info.is_paused:
        return f"paused: {one_line(info.note)}" if info.note else "paused"
    if info.fires_at is not None and info.is_late(now):
        return f"late by {length(seconds_between(info.fires_at, now))}: no worker fires it"
    return "on time"


@click.command("show")
@_argument
@click.option(
    "--ticks", type=click.IntRange(1, 1_000), default=5, show_default=True, help="How many of the next ticks to show."
)
@json_option
@target_options
@click.pass_obj
def show_schedule(target: Target, schedule_id: str, ticks: int, *, as_json: bool) -> None:
    """Show everything about SCHEDULE. It shows the next ticks, what was started, and what went wrong."""

    async def read(schedules: Schedules) -> tuple[ScheduleInfo, tuple[Instant, ...]]:
        return await schedules.get(schedule_id), await schedules.next_ticks(schedule_id, ticks)

    (info, upcoming), now = _ask(target, read, looks=True)
    if as_json:
        print_json({"schedule": _data(info, now), "next": upcoming})
        return
    click.echo(click.style(f"{one_line(info.id)}: {_state(info, now)}", bold=True))
    rule = f"cron {info.cron}" if info.cron is not None else f"a period of {length(info.every or 0.0)}"
    jitter = f", up to {length(info.jitter)} later" if info.jitter else ""
    click.echo(f"when:     {info.when} ({rule}{jitter})")
    click.echo(f"starts:   {one_line(info.workflow)} with {msgspec.json.encode(info.input).decode()}")
    click.echo(f"overlap:  {info.overlap}; missed ticks are {'made up for' if info.backfill else 'left out'}")
    counts = (("started", info.started), ("skipped", info.skipped), ("refused", info.refused), ("missed", info.missed))
    click.echo("so far:   " + ", ".join(f"{number:,} {name}" for name, number in counts))
    if info.last_run:
        click.echo(f"last run: {one_line(info.last_run)}")
    if info.problem and info.last_skipped_at is not None:
        click.echo(f"problem:  at {moment(info.last_skipped_at)}: {one_line(info.problem)}")
    if info.queued:
        click.echo(f"queued:   {counted(len(info.queued), 'run')}, the first is {one_line(info.queued[0])}")
    title = "would be: " if info.is_paused else "next:     "
    for number, tick in enumerate(upcoming):
        click.echo(f"{title if not number else ' ' * len(title)}{moment(tick)}")


# --- ``standfast schedules pause``, ``resume`` and ``trigger`` -----------------------------------------------------


@click.command("pause")
@_argument
@click.option("--note", metavar="TEXT", default="", help="Why; shown with the schedule.")
@json_option
@target_options
@click.pass_obj
def pause_schedule(target: Target, schedule_id: str, note: str, *, as_json: bool) -> None:
    """Stop SCHEDULE from firing until it is resumed. Runs that wait for their turn are cancelled; others continue."""
    info, now = _ask(target, lambda schedules: schedules.pause(schedule_id, note))
    _report(info, now, f"{one_line(schedule_id)} is paused", as_json=as_json)


@click.command("resume")
@_argument
@json_option
@target_options
@click.pass_obj
def resume_schedule(target: Target, schedule_id: str, *, as_json: bool) -> None:
    """Let a paused SCHEDULE fire again, from its next tick on. For ticks that passed meanwhile, see backfill."""
    info, now = _ask(target, lambda schedules: schedules.resume(schedule_id))
    following = "" if info.next_at is None else f", next at {moment(info.next_at)}"
    _report(info, now, f"{one_line(schedule_id)} fires again{following}", as_json=as_json)


def _report(info: ScheduleInfo, now: Instant, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"schedule": _data(info, now)})
    else:
        click.echo(words)


_overlap = click.option(
    "--overlap", type=click.Choice(OVERLAPS), help="What to do while a run is unfinished, instead of the default."
)


@click.command("trigger")
@_argument
@_overlap
@json_option
@target_options
@click.pass_obj
def trigger_schedule(target: Target, schedule_id: str, overlap: Any, *, as_json: bool) -> None:  # noqa: ANN401 -- one of the choices
    """Start a run of SCHEDULE now, even if it is paused. Its code is not needed here."""
    run_id = ask_engine(target, lambda engine: engine.schedules.trigger(schedule_id, overlap=overlap)).id
    if as_json:
        print_json({"schedule": schedule_id, "run": run_id})
    else:
        click.echo(f"{one_line(run_id)} is started")


# --- ``standfast schedules backfill`` ------------------------------------------------------------------------------


@click.command("backfill")
@_argument
@click.option("--from", "start", type=MOMENT, required=True, help="The first moment, or how long ago: '2 hours'.")
@click.option("--to", "stop", type=MOMENT, default="0s", help="The moment after the last.  [default: now]")
@_overlap
@click.option("--dry-run", is_flag=True, help="Only print the ticks that would be made up for.")
@yes_option
@json_option
@target_options
@click.pass_obj
def backfill_schedule(target: Target, /, schedule_id: str, start: datetime, stop: datetime, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Start the runs of past ticks of SCHEDULE, oldest first.

    A tick that has had its run does not get another one. By default the runs wait for each other.
    """
    ticks = ask_engine(target, lambda engine: engine.schedules.ticks(schedule_id, start, stop))
    missing = [tick for tick in ticks if not tick.is_started]
    if options["dry_run"] and options["as_json"]:
        print_json({"schedule": schedule_id, "ticks": msgspec.to_builtins(ticks), "dry_run": True})
        return
    if options["dry_run"]:
        click.echo(f"{len(missing):,} of {len(ticks):,} ticks would be made up for; nothing was done")
        for tick in missing[:SHOWN_TICKS]:
            click.echo(f"  {moment(tick.nominal_at)}  {one_line(tick.run)}")
        if len(missing) > SHOWN_TICKS:
            click.echo(f"  and {len(missing) - SHOWN_TICKS:,} more")
        return
    if not missing:
        end(f"no tick of {one_line(schedule_id)} is to be made up for: {len(ticks):,} have had their run", NOT_THERE)
    confirm(f"Start {counted(len(missing), 'run')} of {one_line(schedule_id)}?", yes=options["yes"])
    overlap: Any = options["overlap"] or "queue"
    runs = ask_engine(target, lambda engine: engine.schedules.backfill(schedule_id, start, stop, overlap=overlap))
    started = [run.id for run in runs]
    if options["as_json"]:
        print_json({"schedule": schedule_id, "started": started})
    else:
        click.echo(f"started {counted(len(started), 'run')} of {one_line(schedule_id)}")


# --- ``standfast schedules`` ---------------------------------------------------------------------------------------


@click.group()
def schedules() -> None:
    """List, pause, resume, trigger and backfill schedules."""


for _command in (
    list_schedules,
    show_schedule,
    pause_schedule,
    resume_schedule,
    trigger_schedule,
    backfill_schedule,
):
    schedules.add_command(_command)
