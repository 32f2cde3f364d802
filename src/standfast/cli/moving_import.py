"""``standfast import``: everything in a file, into an empty store."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from standfast.cli.moving_files import existing_file, telling
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, store_option
from standfast.stores.moving.importing import import_store

if TYPE_CHECKING:
    from standfast.stores.moving.files import Footer


@click.command("import")
@click.argument("file", metavar="FILE", type=click.Path(allow_dash=True))
@json_option
@store_option
@click.pass_obj
def import_all(target: Target, /, file: str, *, as_json: bool) -> None:
    """Write everything in FILE into the store, which must be empty; '-' is stdin.

    Nothing is written unless the file is whole. Until all of it is there, the store takes no other writes. If this is
    interrupted, repeat it with the same file.
    """
    footer = asyncio.run(_import(target, file))
    if as_json:
        print_json({"file": file, "records": footer.records, "highest_version": footer.highest})
    else:
        click.echo(f"imported {footer.records:,} records; the store is in use from now on")


async def _import(target: Target, file: str) -> Footer:
    with existing_file(file) as source:
        async with target.opened_store(create=True) as store:
            with telling("imported") as tell:
                return await import_store(store, source, file, tell)
