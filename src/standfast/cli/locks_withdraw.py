"""``standfast locks withdraw``: turn out a waiter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from standfast.cli.asking import confirm, yes_option
from standfast.cli.exits import NOT_THERE, end
from standfast.cli.naming import key_arguments, key_of
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, target_options
from standfast.locks.explaining.explanation import one_line

if TYPE_CHECKING:
    from standfast.keys import Key


@click.command("withdraw")
@key_arguments
@click.option("--entry", metavar="ID", required=True, help="The waiter with this entry; see explain.")
@yes_option
@json_option
@target_options
@click.pass_obj
def withdraw_waiter(
    target: Target, words: tuple[str, ...], family: str | None, entry: str, *, yes: bool, as_json: bool
) -> None:
    """Turn out one who waits for KEY. One that holds it by now keeps it: use release for that.

    If its process lives, it is told with WithdrawnError and does not come back by itself.
    """
    key = key_of(words, family)
    confirm(f"Withdraw {one_line(entry)} from the line of {one_line(str(key))}?", yes=yes)
    if not asyncio.run(_withdraw(target, key, entry)):
        advice = (
            "See who does with: standfast locks explain. One that holds it is turned out by: standfast locks release"
        )
        end(f"{one_line(entry)} does not wait for {one_line(str(key))}", NOT_THERE, advice)
    if as_json:
        print_json({"key": str(key), "withdrawn": entry})
    else:
        click.echo(f"withdrawn from {one_line(str(key))}: {one_line(entry)} no longer waits")


async def _withdraw(target: Target, key: Key | str, entry: str) -> bool:
    async with target.opened() as space:
        return await space.mutex(key).withdraw(entry)
