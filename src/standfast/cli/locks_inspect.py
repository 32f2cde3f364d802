"""``standfast locks inspect``: the records of a line, as they are stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click
import msgspec

from standfast.cli.naming import key_arguments, key_of
from standfast.cli.printing import json_option, print_json
from standfast.cli.targets import Target, target_options
from standfast.locks.explaining.reading import LISTED, MOST_LISTED, stored_records
from standfast.scope import address_of

if TYPE_CHECKING:
    from standfast.keys import Key


@click.command("inspect")
@key_arguments
@click.option(
    "--limit", type=click.IntRange(0, MOST_LISTED), default=LISTED, show_default=True, help="Waiters to show."
)
@json_option
@target_options
@click.pass_obj
def inspect_lock(target: Target, words: tuple[str, ...], family: str | None, limit: int, *, as_json: bool) -> None:
    """Show what is stored for KEY: its head, grants, presences and waiters, with their versions.

    For reports of trouble. To find out who holds a key, use explain. Nothing is changed by looking.
    """
    records = asyncio.run(_read(target, key_of(words, family), limit))
    if as_json:
        print_json({"records": records})
        return
    for record in records:
        _print(record)
    if not records:
        click.echo("nothing is stored: nobody holds it and nobody waits for it")


async def _read(target: Target, key: Key | str, limit: int) -> list[dict[str, Any]]:
    async with target.opened() as space:
        return await stored_records(space, address_of(key), limit=limit)


def _print(record: dict[str, Any]) -> None:
    version, expires_at = record["version"], record["expires_at"]
    expiry = "" if expires_at is None else f", expires at {expires_at}"
    click.echo(click.style(f"{record['record']} {record['parts']}, version {version}{expiry}", bold=True))
    click.echo("  " + msgspec.json.encode(record["value"]).decode())
