"""``standfast locks explain``: who holds a key, who waits for it, and how long it may take."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from standfast.cli.naming import key_arguments, key_of
from standfast.cli.printing import json_option, print_explanation, print_json
from standfast.cli.targets import Target, target_options
from standfast.locks.explaining.reading import LISTED, MOST_LISTED

if TYPE_CHECKING:
    from standfast.keys import Key
    from standfast.locks import Explanation


@click.command("explain")
@key_arguments
@click.option(
    "--limit", type=click.IntRange(0, MOST_LISTED), default=LISTED, show_default=True, help="Waiters to list."
)
@json_option
@target_options
@click.pass_obj
def explain_lock(target: Target, words: tuple[str, ...], family: str | None, limit: int, *, as_json: bool) -> None:
    """Say who holds KEY and who waits for it, since when, and how long it may take.

    Nothing is changed by looking. The same answer as lock.explain() in Python.
    """
    told = asyncio.run(_explain(target, key_of(words, family), limit))
    if as_json:
        print_json(told.as_json())
    else:
        print_explanation(told.as_text())


async def _explain(target: Target, key: Key | str, limit: int) -> Explanation:
    async with target.opened() as space:
        return await space.explain(key, limit=limit)
