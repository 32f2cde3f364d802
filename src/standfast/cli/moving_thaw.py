"""``standfast thaw``: let a store take writes again that was exported, or not imported to the end."""

from __future__ import annotations

import asyncio

import click

from standfast.cli.asking import confirm, yes_option
from standfast.cli.exits import NOT_THERE, end
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, store_option
from standfast.stores.moving.protocol import EXPORTED, OPEN

_REASONS = {
    True: "It was exported: if another store goes on in its place, both would grant the same locks.",
    False: "An import into it is not finished: it holds only a part of what the file has.",
}


@click.command("thaw")
@yes_option
@json_option
@store_option
@click.pass_obj
def thaw(target: Target, /, *, yes: bool, as_json: bool) -> None:
    """Let a store take writes again that was exported.

    Do that only if no other store goes on in its place.
    """
    reason = asyncio.run(_frozen(target))
    if reason == OPEN:
        end("the store is not frozen", NOT_THERE)
    confirm(f"{_REASONS[reason == EXPORTED]} Let it take writes again?", yes=yes)
    asyncio.run(_thaw(target))
    if as_json:
        print_json({"thawed": True})
    else:
        click.echo("the store takes writes again")


async def _frozen(target: Target) -> int:
    async with target.opened_store() as store:
        return await store.moving().frozen()


async def _thaw(target: Target) -> None:
    async with target.opened_store() as store:
        await store.moving().thaw()
