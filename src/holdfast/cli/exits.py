"""How commands end: exit codes, and errors as people read them."""

from __future__ import annotations

import inspect
import re
from typing import IO, TYPE_CHECKING, Any, Final, final

import click

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError

FAILED: Final = 1
"""The store refused or failed."""

NOT_THERE: Final = 3
"""There is nobody to turn out."""

# For ``run``, out of the way of the command's own codes, as ``timeout`` and ``env`` have them.
LOST: Final = 123
"""The lock was lost, and the command was ended."""

NOT_FREE: Final = 124
"""The lock could not be had, or not in time. The command was not started."""

NOT_RUN: Final = 125
"""Holdfast itself failed. The command was not started."""

NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127
SIGNALLED: Final = 128
"""Added to the number of the signal that ended the command."""


@final
class Ended(click.ClickException):
    """A command ends with a message on stderr and an exit code; no traceback."""

    def __init__(self, message: str, code: int = FAILED, advice: str = "") -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue] -- click reads it there
        self.advice: Final = advice

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it."""
        click.echo(f"{click.style('holdfast:', fg='red')} {self.message}", file=file, err=True)
        if self.advice:
            click.echo(click.style(self.advice, dim=True), file=file, err=True)


def failure(problem: HoldfastError, code: int = FAILED) -> Ended:
    """Return an error as the end of a command: what happened, and what to do next."""
    return Ended(str(problem), code, _advice(problem))


def _advice(problem: HoldfastError) -> str:
    """Return what the documentation of an error says, which is what to do next, without its markup."""
    words = " ".join((inspect.getdoc(type(problem)) or "").split())
    words = re.sub(r":\w+:`[~!]?(?:[\w.]*\.)?(\w+)`", r"\1", words)
    return words.replace("``", "")
