"""``standfast locks release``: turn out a holder by force."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from standfast.cli.asking import confirm, yes_option
from standfast.cli.exits import NOT_THERE, end
from standfast.cli.naming import key_arguments, key_of
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, target_options
from standfast.locks.explaining.explanation import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.keys import Key
    from standfast.locks import ExplainedHolder, Explanation


@click.command("release")
@key_arguments
@click.option("--entry", metavar="ID", help="The holder with this entry; see explain.")
@click.option("--holder", metavar="OWNER", help="The holder with this owner; see explain.")
@click.option("--all", "everybody", is_flag=True, help="All who hold it.")
@yes_option
@json_option
@target_options
@click.pass_obj
def release_lock(target: Target, /, words: tuple[str, ...], family: str | None, **options: Any) -> None:  # noqa: ANN401 -- options, as click passes them
    """Release KEY by force: its holder no longer holds it, and whoever is next does.

    The fence moves on: what the former holder still writes with its own is refused. If its process lives, its body is
    cancelled. Without --entry, --holder or --all there must be just one holder.
    """
    asyncio.run(_release(target, key_of(words, family), options))


async def _release(target: Target, key: Key | str, options: dict[str, Any]) -> None:
    async with target.opened() as space:
        told = await space.explain(key, limit=0)
        chosen = _choose(told, options)
        owners = ", ".join(one_line(holder.owner) for holder in chosen)
        confirm(f"Release {one_line(told.key)} by force, held by {owners}?", yes=options["yes"])
        lock = space.mutex(key)
        released = [holder for holder in chosen if await lock.force_release(holder.entry)]
    _report(told.key, released, as_json=options["as_json"])


def _choose(told: Explanation, options: dict[str, Any]) -> Sequence[ExplainedHolder]:
    entry, owner, everybody = options["entry"], options["holder"], options["everybody"]
    chosen = [
        holder
        for holder in told.holders
        if (entry is None or holder.entry == entry) and (owner is None or holder.owner == owner)
    ]
    if not chosen:
        advice = "One that waits is turned out by: standfast locks withdraw" if entry else ""
        named: str = entry or owner or ""
        who = f"{one_line(named)} does not hold" if named else "nobody holds"
        end(f"{who} {one_line(told.key)}", NOT_THERE, advice)
    if len(chosen) > 1 and not everybody:
        entries = ", ".join(holder.entry for holder in chosen[:10])
        raise click.UsageError(f"There are {len(chosen)} holders; choose with --entry ID, or take --all: {entries}")
    return chosen


def _report(key: str, released: Sequence[ExplainedHolder], *, as_json: bool) -> None:
    if as_json:
        facts = [{"entry": each.entry, "owner": each.owner, "fence": each.fence} for each in released]
        print_json({"key": key, "released": facts})
    for holder in released if not as_json else ():
        click.echo(
            f"released {one_line(key)}: {one_line(holder.owner)} no longer holds it; fence {holder.fence} is void"
        )
    if not released:
        end(f"nobody was turned out of {one_line(key)}: whoever held it left meanwhile", NOT_THERE)
