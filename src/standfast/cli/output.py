"""What commands print, for people and for programs, and how they share the terminal with a child process."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, final

import click
import msgspec

from standfast.errors import StandfastError
from standfast.locks.inspect import length, one_line
from standfast.logs import configure
from standfast.workflows.steps import step_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import standfast as sf
    from standfast.keys import Key
    from standfast.locks.inspect import Explanation
    from standfast.logs import LogFormat


# --- what commands print: JSON for programs, text for people -------------------------------------------------------

F = TypeVar("F", bound="Callable[..., Any]")


def json_option(command: F) -> F:
    """Let a command take ``--json``."""
    text = "Print JSON instead of text."
    return click.option("--json", "as_json", is_flag=True, help=text)(command)


def log_options(command: F) -> F:
    """Let a command take ``--log-format`` and ``--log-level``."""
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        help="The lowest level that is logged.  [default: info with --log-format, else as the program says]",
    )
    style = click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        help="Write all logs of the process to stderr in this format; json writes one object a line.",
    )
    return style(level(command))


def configure_log(log_format: LogFormat | None, log_level: str | None) -> bool:
    """Configure the logs as the options say; return False if none was given: then the program configures them."""
    if log_format is None and log_level is None:
        return False
    configure(log_format or "text", log_level or "info", step_fields)
    return True


def print_json(value: object) -> None:
    """Print a value as one JSON document."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


ELLIPSIS: Final = "\u2026"
NARROWEST: Final = 8
"""How many characters of a column are left at least, however narrow the terminal is."""


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns under their titles. On a terminal the longest columns are cut, so that each row fits."""
    widths = fitted([max(map(len, column)) for column in zip(titles, *rows, strict=True)], terminal_width())
    click.echo(click.style(_in_columns(titles, widths), bold=True))
    for row in rows:
        click.echo(_in_columns(row, widths))


def terminal_width() -> int | None:
    """Return how many characters a line of the terminal has; None if stdout is no terminal: then nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(widths: Sequence[int], width: int | None) -> list[int]:
    """Return the widths of columns that fit into a line together: the widest give way first."""
    fitting = list(widths)
    if width is None:
        return fitting
    room = width - 2 * (len(fitting) - 1)
    while sum(fitting) > room and max(fitting) > NARROWEST:
        widest = max(fitting)
        others = [each for each in fitting if each < widest]
        floor = max(NARROWEST, max(others, default=0))
        count = len(fitting) - len(others)
        cut = min(widest - floor, -(-(sum(fitting) - room) // count)) or 1
        fitting = [widest - cut if each == widest else each for each in fitting]
    return fitting


def _in_columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    shown: list[str] = []
    for cell, width in zip(cells, widths, strict=True):
        cut = cell if len(cell) <= width else cell[: max(0, width - 1)] + ELLIPSIS
        shown.append(cut.ljust(width))
    return "  ".join(shown).rstrip()


def print_explanation(text: str) -> None:
    """Print an explanation, with what matters most in colour."""
    head, *rest = text.splitlines()
    click.echo(click.style(head, bold=True))
    colours = {"  dead:": "red", "holding:": "green", "waiting,": "yellow"}
    for line in rest:
        colour = next((colour for start, colour in colours.items() if line.startswith(start)), None)
        click.echo(click.style(line, fg=colour))


# --- how a command shares the terminal with us, so that what is typed there works as usual -------------------------

Arrangement: TypeAlias = Literal["terminal", "shared", "apart"]
"""How the command stands to the terminal.

``terminal``: it gets a process group of its own, and the terminal. ``shared``: it stays in our group, in a script or a
pipeline, and the terminal's signals reach it by themselves. ``apart``: there is no terminal, or we are in the
background; it gets a group of its own.
"""


def arrange() -> Arrangement:
    """Decide how the next command stands to the terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return "apart"
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            return "apart"
    except OSError:
        return "apart"
    finally:
        os.close(terminal)
    is_alone = os.getpgrp() == os.getpid() and all(os.isatty(descriptor) for descriptor in range(3))
    return "terminal" if is_alone else "shared"


@final
class Foreground:
    """The right to be typed to, handed to a command and taken back."""

    def __init__(self, arrangement: Arrangement) -> None:
        self.is_ours_to_give: Final = arrangement == "terminal"

    def take_back(self) -> None:
        """Become the foreground again."""
        self._set(os.getpgrp())

    def give(self, group: int) -> None:
        """Let another group be the foreground, if we are."""
        if self.is_ours_to_give and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp():
            self._set(group)

    def _set(self, group: int) -> None:
        if not self.is_ours_to_give:
            return
        # A process in the background is stopped for this, unless it ignores the signal.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            os.tcsetpgrp(0, group)
        except OSError:  # the terminal is gone
            return
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- what a command waits for, told at a terminal ------------------------------------------------------------------

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
        except StandfastError:  # the waiting command meets the error itself
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
    holders = [one_line(each.owner) + (f" ({one_line(each.note)})" if each.note else "") for each in told.holders[:3]]
    held = ", ".join(holders) or "no one yet"
    return f"waiting for {one_line(told.key)}: {place} in front, held by {held}{estimate}"
