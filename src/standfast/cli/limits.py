"""``standfast limits``: how many runs may be unfinished at a time, how many are, and setting that for all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from standfast.cli.output import json_option, print_json, print_table
from standfast.cli.runs import ask_engine, complete_workflow
from standfast.cli.target import LENGTH, MOMENT, Target, target_options
from standfast.locks.inspect import length, moment, one_line
from standfast.policies import MOST_PERMITS

if TYPE_CHECKING:
    from datetime import datetime

    from standfast.durations import Duration
    from standfast.workflows.limits import LimitInfo


@click.command("show")
@click.argument("workflow", required=False, shell_complete=complete_workflow)
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="How many to show.")
@json_option
@target_options
@click.pass_obj
def show_limits(target: Target, workflow: str | None, limit: int, *, as_json: bool) -> None:
    """Show the limits of unfinished runs. It shows what is in use, how many runs wait, and for how long."""
    page = ask_engine(target, lambda engine: engine.limits(workflow, limit=limit), looks=True)
    if as_json:
        print_json(msgspec.to_builtins(page))
    elif page.limits:
        titles = ("WORKFLOW", "KEY", "MAX", "IN USE", "WAITING", "OLDEST WAIT")
        print_table(titles, [_row(each) for each in page.limits])
        if page.more:
            click.echo(f"and more keys; show them with --limit {limit * 10}")
    else:
        click.echo("no workflow has a limit")


def _row(info: LimitInfo) -> tuple[str, ...]:
    says = "" if info.declared is None or info.declared == info.max else f"; code says {info.declared:,}"
    most = "" if info.max is None else f"{info.max:,}"
    ends = "" if info.until is None else f" until {moment(info.until)}, then {info.then or 0:,}"
    return (
        one_line(info.workflow),
        "(each)" if info.has_key and info.key is None else "" if info.key is None else one_line(info.key),
        f"{most} (set by an operator{ends}{says})" if info.is_set else most,
        f"{info.in_use:,}",
        f"{info.waiting:,}",
        "" if info.waited is None else length(info.waited),
    )


_workflow = click.argument("workflow", shell_complete=complete_workflow)
_key = click.option(
    "--key", metavar="TEXT", help="The key, for a limit of each key; else the limit of all runs together."
)


@click.command("set")
@_workflow
@click.argument("most", metavar="MAX", type=click.IntRange(1, MOST_PERMITS))
@_key
@click.option(
    "--for", "lasts", type=LENGTH, help="Set it for this long, such as 2h; then the limit before it applies again."
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Set it until this time, such as 2026-11-17T18:00, in UTC.")
@json_option
@target_options
@click.pass_obj
def set_limit(
    target: Target,
    workflow: str,
    most: int,
    key: str | None,
    lasts: Duration | None,
    until: datetime | None,
    *,
    as_json: bool,
) -> None:
    """Set how many runs of WORKFLOW may be unfinished. MAX counts in all processes, whatever their code says.

    A larger number lets waiting runs begin at once; a smaller one ends no run. It applies until it is cleared, or until
    the time that --for or --until gives; then the limit before it applies again.
    """
    ends = ask_engine(target, lambda engine: engine.set_limit(workflow, most, key=key, until=until, lasts=lasts))
    if as_json:
        print_json({"workflow": workflow, "key": key, "max": most, "until": ends})
    else:
        words = "until it is cleared" if ends is None else f"until {moment(ends)}"
        click.echo(f"{_named(workflow, key)}: {most:,} unfinished runs at a time, {words}")


@click.command("clear")
@_workflow
@_key
@json_option
@target_options
@click.pass_obj
def clear_limit(target: Target, workflow: str, key: str | None, *, as_json: bool) -> None:
    """Remove a limit of WORKFLOW that was set; its code decides again."""
    ask_engine(target, lambda engine: engine.clear_limit(workflow, key=key))
    if as_json:
        print_json({"workflow": workflow, "key": key, "max": None})
    else:
        click.echo(f"{_named(workflow, key)}: as many unfinished runs as the code says")


def _named(workflow: str, key: str | None) -> str:
    return one_line(workflow) if key is None else f"{one_line(workflow)} for {one_line(key)}"


@click.command("rates")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1_000, show_default=True, help="How many to show.")
@json_option
@target_options
@click.pass_obj
def show_rates(target: Target, limit: int, *, as_json: bool) -> None:
    """Show the rate limiters in use. It shows tokens and waiting callers. One at rest leaves no record."""
    page = target.ask(lambda space: space.rates(limit=limit), looks=True)
    if as_json:
        print_json(msgspec.to_builtins(page))
    elif page.rates:
        rows = [
            (
                one_line(each.key),
                f"{each.tokens:,} of {each.capacity:,}",
                f"one each {length(each.interval)}",
                f"{each.waiting:,}",
                length(each.closed_for) if each.closed_for else "",
            )
            for each in page.rates
        ]
        print_table(("KEY", "TOKENS", "EARNS", "WAITING", "CLOSED FOR"), rows)
        if page.more:
            click.echo(f"and more; show them with --limit {limit * 10}")
    else:
        click.echo("no rate limiter is in use")


@click.group()
def limits() -> None:
    """Show limits and rate limiters, and set limits."""


for _command in (show_limits, set_limit, clear_limit, show_rates):
    limits.add_command(_command)
