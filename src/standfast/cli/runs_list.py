"""``standfast runs list``: which runs there are, and how they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import click

from standfast.cli.printing import json_option, print_json, print_table
from standfast.cli.runs_showing import as_data, status_words
from standfast.cli.runs_target import carried_out, talking
from standfast.cli.targets import Target, target_options
from standfast.locks.explaining.explanation import length, moment, one_line
from standfast.workflows.storing.records import Status

if TYPE_CHECKING:
    from standfast.workflows.operating.information import Page, RunInfo

STATUSES = get_args(Status)


@click.command("list")
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--status", "statuses", multiple=True, type=click.Choice(STATUSES), help="Only these; may be repeated.")
@click.option("--parent", metavar="RUN", help="Only the children of this run.")
@click.option("--tag", metavar="TAG", help="Only runs with this tag.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many to list.")
@click.option("--after", metavar="RUN", help="Go on after this run, where the page before ended.")
@click.option("--newest-first", is_flag=True, help="Begin at the other end.")
@json_option
@target_options
@click.pass_obj
def list_runs(target: Target, /, *, as_json: bool, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """List runs in the order of their ids, which is that of their starts for those without an id of their own."""
    page = carried_out(_read(target, options))
    if as_json:
        print_json({"runs": [as_data(run) for run in page.runs], "next": page.next})
    elif page.runs:
        print_table(("RUN", "WORKFLOW", "STARTED", "TOOK", "STATUS"), [_row(run) for run in page.runs])
        if page.next is not None:
            click.echo(f"perhaps more; go on with --after {page.next}")
    else:
        click.echo("there are no such runs")


async def _read(target: Target, options: dict[str, Any]) -> Page:
    chosen = {name: options[name] for name in ("workflow", "parent", "tag", "limit", "after", "newest_first")}
    async with talking(target) as engine:
        return await engine.list(status=set(options["statuses"]) or None, **chosen)


def _row(run: RunInfo) -> tuple[str, ...]:
    name = f"{run.workflow}@{run.version}" if run.version else run.workflow
    took = length(run.seconds) if run.has_ended else ""
    return one_line(run.id), one_line(name), moment(run.started_at), took, status_words(run)
