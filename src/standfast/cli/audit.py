"""``standfast audit``: who did what, to what, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from standfast.audit import ACTIONS, MOST_LISTED
from standfast.cli.output import json_option, print_json, print_table
from standfast.cli.target import Target, carried_out, target_options
from standfast.locks.inspect import moment, one_line

if TYPE_CHECKING:
    import standfast as sf
    from standfast.audit import AuditRecord

NEWEST = 50
"""How many records are read at each look."""

LOOK_EVERY = 1.0
"""Seconds between two looks for what is new, if nothing tells earlier."""


@click.command()
@click.option(
    "--action", type=click.Choice(tuple(ACTIONS)), metavar="ACTION", help="Only this action, such as run.cancel."
)
@click.option("--subject", metavar="TEXT", help="Only actions on this run, key, schedule or workflow.")
@click.option("--by", "actor", metavar="NAME", help="Only actions of this operator.")
@click.option("--limit", type=click.IntRange(1, MOST_LISTED), default=100, show_default=True, help="How many to list.")
@click.option("--after", metavar="PLACE", help="Continue after a page, with the value that it printed.")
@click.option("--follow", is_flag=True, help="Print new records until interrupted, the newest last.")
@json_option
@target_options
@click.pass_obj
def audit(target: Target, /, *, follow: bool, as_json: bool, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """List what operators did, newest first. It reads one namespace and tenant, and changes nothing.

    With --follow and --json, one JSON document a line.
    """
    if follow:
        if options["after"] is not None:
            raise click.UsageError("--follow begins with the newest, so --after means nothing with it.")
        carried_out(_follow(target, options, as_json=as_json))
        return
    page = target.ask(lambda space: space.audit(**options), looks=True)
    if as_json:
        print_json({"records": [record.as_json() for record in page.records], "next": page.next})
        return
    if page.records:
        print_table(("AT", "WHO", "ACTION", "SUBJECT", "OUTCOME", "MORE"), [_row(each) for each in page.records])
    elif page.next is None:
        click.echo("nothing is recorded that fits")
    if page.next is not None:
        click.echo(f"perhaps more; continue with --after {page.next}")


async def _follow(target: Target, options: dict[str, Any], *, as_json: bool) -> None:
    """Print the last records, and then each that is written, with its outcome."""
    chosen = {name: options[name] for name in ("action", "subject", "actor")}
    async with target.opened() as space, space.watch(space.key("audit")) as watch:
        found = list((await space.audit(**chosen, limit=options["limit"])).records)
        first, told = min((record.id for record in found), default=""), dict[str, str]()
        while True:
            for record in reversed(found):
                if record.id >= first and told.get(record.id) != record.outcome:
                    told[record.id] = record.outcome
                    if as_json:
                        click.echo(msgspec.json.encode(record.as_json()).decode())
                    else:
                        click.echo("  ".join(part for part in _row(record) if part))
            await watch.wait(LOOK_EVERY)
            found = await _newest(space, chosen, told)


async def _newest(space: sf.Space, chosen: dict[str, Any], told: dict[str, str]) -> list[AuditRecord]:
    """Read the newest records, back to one that was printed; those that had only begun may have an outcome by now."""
    found: list[AuditRecord] = []
    last, after = max(told, default=""), None
    while True:
        page = await space.audit(**chosen, limit=NEWEST, after=after)
        found += page.records
        after = page.next
        if after is None or not last or any(record.id <= last for record in page.records):
            return found


def _row(record: AuditRecord) -> tuple[str, ...]:
    details = [f"{name}={value}" for name, value in record.details.items()]
    fence = [] if record.fence is None else [f"fence {record.fence} is void"]
    more = [part for part in (record.reason, record.problem, *fence, *details) if part]
    who = f"{record.actor.name} ({record.actor.via}, {record.actor.host})"
    words = (who, record.action, record.subject, record.outcome, "; ".join(more))
    return moment(record.at), *(one_line(word) for word in words)
