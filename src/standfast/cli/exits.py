"""How commands end: exit codes, and errors as people read them."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final, NoReturn

import click

if TYPE_CHECKING:
    from standfast.errors import StandfastError

FAILED: Final = 1
"""The store refused or failed."""

NOT_TYPED: Final = 2
"""The command was not typed as it should be; nothing was done. The library of the command line uses it too."""

NOT_THERE: Final = 3
"""There is nobody to turn out, no such run, or nothing to be done about it."""

NOT_LOADED: Final = 4
"""There is no engine where one was said to be."""

NOT_COMPLETED: Final = 5
"""The run that was followed has ended, and not with a result."""

# For ``run``, out of the way of the command's own codes, as ``timeout`` and ``env`` have them.
LOST: Final = 123
"""The lock was lost, and the command was ended."""

NOT_FREE: Final = 124
"""The lock could not be had, or not in time. The command was not started."""

NOT_RUN: Final = 125
"""Standfast itself failed. The command was not started."""

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Added to the number of the signal that ended the command."""

_ROLE: Final = re.compile(r":\w+:`[~!]?(?:[\w.]*\.)?(\w+)`")


def end(message: str, code: int = FAILED, advice: str = "") -> NoReturn:
    """End the command with a message on stderr and an exit code; no traceback."""
    click.echo(f"{click.style('standfast:', fg='red')} {message}", err=True)
    if advice:
        click.echo(click.style(advice, dim=True), err=True)
    raise click.exceptions.Exit(code)


def fail(problem: StandfastError, code: int = FAILED) -> NoReturn:
    """End the command with an error: what happened, and what to do next."""
    end(str(problem), code, advice_of(problem))


def advice_of(problem: StandfastError) -> str:
    """Return what the documentation of an error says, which is what to do next, without its markup."""
    words = " ".join((inspect.getdoc(type(problem)) or "").split())
    words = _ROLE.sub(r"\1", words)
    return words.replace("``", "")
