"""Keys on the command line: plain text, or a family and its parts."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from standfast.cli.targets import Target
from standfast.errors import StandfastError
from standfast.keys import KeyFamily, find_family

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.keys import Key

F = TypeVar("F", bound="Callable[..., Any]")

MOST_COMPLETED = 200


def key_of(words: Sequence[str], family: str | None) -> Key | str:
    """Return the key that is meant. A family need not be declared by a program: its name and parts are enough."""
    if family is not None:
        return (find_family(family) or KeyFamily(family))(*words)
    if len(words) != 1:
        raise click.UsageError("Name one key; several words are the parts of a key with --family NAME.")
    return words[0]


def family_option(command: F) -> F:
    """Let a command take ``--family``."""
    text = "The family of the key; the words are its parts then."
    return click.option("--family", metavar="NAME", help=text)(command)


def key_arguments(command: F) -> F:
    """Let a command take a key, as text or with ``--family``."""
    words = click.argument("words", metavar="KEY", nargs=-1, shell_complete=complete_key)
    return words(family_option(command))


def complete_key(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Return the keys in use that begin so; nothing if the store cannot be asked."""
    del parameter
    target = context.ensure_object(Target)
    try:
        found = asyncio.run(_keys(target)) if target.is_there() else []
    except (StandfastError, click.ClickException):
        return []
    return [CompletionItem(key) for key in islice((key for key in found if key.startswith(incomplete)), MOST_COMPLETED)]


async def _keys(target: Target) -> list[str]:
    async with target.opened() as space:
        return [line.key async for line in space.lines() if not line.family]
