"""``standfast fence``: after a backup was restored, take everybody for gone who is known to the store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from standfast.cli.asking import confirm, yes_option
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, store_option
from standfast.stores.moving.fencing import fence_store

if TYPE_CHECKING:
    from standfast.stores.moving.fencing import Fenced


@click.command("fence")
@yes_option
@json_option
@store_option
@click.pass_obj
def fence_all(target: Target, /, *, yes: bool, as_json: bool) -> None:
    """Take every process for gone that the store knows of, in all namespaces and tenants.

    For a store that was restored from a backup, before anything is started on it: whoever held something when the
    backup was made does not any more, and whoever comes next gets a higher fence. Runs are taken up by new workers.
    """
    confirm("Every process that uses this store loses what it holds. Go on?", yes=yes)
    fenced = asyncio.run(_fence(target))
    if as_json:
        print_json(fenced)
    else:
        click.echo(f"fenced {fenced.presences:,} processes, {fenced.workers:,} of them workers")


async def _fence(target: Target) -> Fenced:
    async with target.opened_store() as store:
        return await fence_store(store)
