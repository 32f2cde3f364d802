"""Asking before something is done that cannot be undone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")


def yes_option(command: F) -> F:
    """Let a command take ``--yes``."""
    return click.option("--yes", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, yes: bool) -> None:
    """Ask on a terminal; without one, ``--yes`` must have been given."""
    if yes:
        return
    if not is_terminal():
        raise click.UsageError("There is no terminal to ask on; say --yes if this is meant.")
    click.confirm(question, abort=True, err=True)


def is_terminal() -> bool:
    """Tell whether somebody can be asked."""
    return sys.stdin.isatty()
