"""Files that a store is exported to and imported from, and how far that is."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from standfast.cli.exits import end

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PIPE: Final = "-"


@contextlib.contextmanager
def new_file(name: str) -> Generator[BinaryIO]:
    """Write to a file that is there only when all of it is, for its owner alone; ``-`` is stdout."""
    if name == PIPE:
        yield sys.stdout.buffer
        return
    path = Path(name)
    if path.exists():
        end(f"{name} is there already", advice="Name another file, or remove it.")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with open(part, "xb", opener=_for_owner) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
        _sync_folder(path.parent)
    except OSError as problem:
        end(f"{name} cannot be written: {problem.strerror}")
    finally:
        part.unlink(missing_ok=True)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def existing_file(name: str) -> Generator[BinaryIO]:
    """Read a file from its beginning as often as needed; ``-`` is stdin, which is kept in a file for that."""
    if name != PIPE:
        try:
            file = Path(name).open("rb")  # noqa: SIM115 -- closed below
        except OSError as problem:
            end(f"{name} cannot be read: {problem.strerror}")
        with file:
            yield file
        return
    with tempfile.TemporaryFile() as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.seek(0)
        yield spool


@contextlib.contextmanager
def telling(verb: str) -> Generator[Callable[..., None]]:
    """Tell a terminal how many records were moved; yields what is called with the number so far, and of all."""
    is_shown = sys.stderr.isatty()
    has_told = False

    def tell(done: int, of: int | None = None) -> None:
        nonlocal has_told
        if is_shown:
            rest = "" if of is None else f" of {of:,}"
            click.echo(f"\r{verb} {done:,}{rest} records", nl=False, err=True)
            has_told = True

    try:
        yield tell
    finally:
        if has_told:
            click.echo(err=True)
