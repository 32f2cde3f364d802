"""What commands print: JSON for programs, text for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

F = TypeVar("F", bound="Callable[..., Any]")


def json_option(command: F) -> F:
    """Let a command take ``--json``."""
    text = "Print JSON instead of text."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def print_json(value: object) -> None:
    """Print a value as one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns under their titles."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    click.echo(click.style(_in_columns(titles, widths), bold=True))
    for row in rows:
        click.echo(_in_columns(row, widths))


def _in_columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def print_explanation(text: str) -> None:
    """Print an explanation, with what matters most in colour."""
    head, *rest = text.splitlines()
    click.echo(click.style(head, bold=True))
    for line in rest:
        click.echo(click.style(line, fg=_colour(line)))


def _colour(line: str) -> str | None:
    if line.startswith("  dead:"):
        return "red"
    return "green" if line.startswith("holding:") else "yellow" if line.startswith("waiting,") else None
