"""``standfast export``: everything in a store, as a file, once nobody can write to it any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from standfast.cli.asking import confirm, yes_option
from standfast.cli.moving_files import PIPE, new_file, telling
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, store_option
from standfast.stores.moving.exporting import export_store

if TYPE_CHECKING:
    from standfast.stores.moving.files import Footer


@click.command("export")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@click.option("--namespace", "namespaces", metavar="NAME", multiple=True, help="Only this one; may be repeated [all].")
@yes_option
@json_option
@store_option
@click.pass_obj
def export_all(target: Target, /, file: str, namespaces: tuple[str, ...], *, yes: bool, as_json: bool) -> None:
    """Write everything in the store to FILE, all namespaces and tenants; '-' is stdout.

    From then on the store takes no writes, by anybody: programs that use it are told that it was moved. Import the file
    into another store, and let them open that one. To go on with this one after all, there is 'standfast thaw'.

    Processes do not move: what they held falls, and their runs are taken up by others.

    With --namespace the whole store is frozen all the same. Thaw it when nobody uses that namespace here any more.
    """
    confirm("Nobody can write to this store from then on. Export it?", yes=yes)
    if not namespaces and target.namespace != "default":
        namespaces = (target.namespace,)  # said in front of the command
    footer = asyncio.run(_export(target, file, namespaces))
    if as_json and file != PIPE:
        facts = {"records": footer.records, "highest_version": footer.highest, "sha256": footer.sha256}
        print_json({"file": file, **facts})
    else:
        click.echo(f"exported {footer.records:,} records; the store takes no more writes", err=file == PIPE)


async def _export(target: Target, file: str, namespaces: tuple[str, ...]) -> Footer:
    async with target.opened_store() as store:
        with telling("exported") as tell:
            return await export_store(store, new_file(file), tell, namespaces=namespaces)
