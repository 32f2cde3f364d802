"""Telling somebody at a terminal what a command waits for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import click

from standfast.errors import StandfastError
from standfast.locks.explaining.explanation import length, one_line

if TYPE_CHECKING:
    import standfast as sf
    from standfast.keys import Key
    from standfast.locks import Explanation

QUIET: Final = 1.0
"""Seconds for which nothing is said."""

EVERY: Final = 2.0


async def tell_of_wait(space: sf.Space, key: Key | str, owner: str) -> None:
    """Say now and then, until cancelled, who is in front of ``owner``."""
    said = ""
    pause = QUIET
    while True:
        await asyncio.sleep(pause)
        pause = EVERY
        try:
            told = await space.explain(key)
        except StandfastError:  # whoever waits finds out by itself
            continue
        words = described(told, owner)
        if words and words != said:
            click.echo(f"standfast: {words}", err=True)
            said = words


def described(told: Explanation, owner: str) -> str:
    """Return what an owner waits for; nothing if it does not wait any more."""
    own = next((waiter for waiter in told.waiters if waiter.owner == owner), None)
    if own is None and not told.more:
        return ""
    place = f"{len(told.waiters):,} or more" if own is None else f"{own.place:,}"
    estimate = "" if own is None or own.estimate is None else f", likely {length(own.estimate)} more"
    holders = ", ".join(_holder(one_line(each.owner), each.note) for each in told.holders[:3]) or "nobody yet"
    return f"waiting for {one_line(told.key)}: {place} in front, held by {holders}{estimate}"


def _holder(owner: str, note: str) -> str:
    return f"{owner} ({one_line(note)})" if note else owner
