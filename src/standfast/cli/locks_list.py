"""``standfast locks list``: which keys are held or waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from standfast.cli.printing import json_option, print_json, print_table
from standfast.cli.targets import Target, target_options
from standfast.locks.explaining.explanation import length, one_line

if TYPE_CHECKING:
    from standfast.locks import LineSummary


@click.command("list")
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="How many to list.")
@json_option
@target_options
@click.pass_obj
def list_locks(target: Target, limit: int, *, as_json: bool) -> None:
    """List the keys that are held or waited for. Nothing is changed by looking."""
    found = asyncio.run(_read(target, limit + 1))
    listed, more = found[:limit], len(found) > limit
    if as_json:
        print_json({"lines": [line.as_json() for line in listed], "more": more})
    elif listed:
        print_table(("KEY", "KIND", "HOLDERS", "WAITING", "HELD FOR"), [_row(line) for line in listed])
        if more:
            click.echo(f"and more; list them with --limit {limit * 10}")
    else:
        click.echo("no key is held or waited for")


async def _read(target: Target, most: int) -> list[LineSummary]:
    found: list[LineSummary] = []
    async with target.opened() as space:
        async for line in space.lines():
            found.append(line)
            if len(found) == most:
                break
    return found


def _row(line: LineSummary) -> tuple[str, ...]:
    of = f" of {line.permits}" if line.kind == "semaphore" else ""
    held = "" if line.held_for is None else length(line.held_for)
    return one_line(line.key), line.kind, f"{line.holders}{of}", str(line.waiting), held
