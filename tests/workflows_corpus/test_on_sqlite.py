"""The same on SQLite, where runs outlive their processes for real, and steps can share the store's transactions."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from standfast.testing.workflows import crash_everywhere, unload_everywhere
from tests.sizes import rounds
from tests.workflows_corpus.corpus import CORPUS
from tests.workflows_corpus.of_steps import shout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from standfast.stores.sqlite import SqliteWork

MEMORY: Final = "/dev/shm"  # noqa: S108 -- only where TemporaryDirectory makes its own folder


@pytest.fixture
def files() -> Iterator[list[Path]]:
    """The files of the stores that were used, the latest last."""
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        used = [Path(folder)]
        yield used


def fresh(files: list[Path]) -> Callable[[], str]:
    """Return what makes the URL of another store each time."""

    def url() -> str:
        files.append(files[0] / f"{len(files)}.db")
        return f"sqlite:///{files[-1]}?hints=process"

    return url


@pytest.mark.heavy
async def test_shapes_survive_crashes_and_unloads_on_sqlite(files: list[Path]) -> None:
    """What holds in memory holds on a disk."""
    for number in rounds("shapes of workflows on SQLite", full=len(CORPUS), quick=1):
        shape = CORPUS[-1 - number]
        await crash_everywhere(shape.workflow, *shape.args, store=fresh(files), **shape.options())
        await unload_everywhere(shape.workflow, *shape.args, store=fresh(files), **shape.options())


def prepare(sql: SqliteWork) -> None:
    """Make a table."""
    sql.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, name TEXT)")


def book(sql: SqliteWork, name: str) -> int:
    """Put a row into a table of our own."""
    return int(sql.execute("INSERT INTO orders(name) VALUES (?) RETURNING id", (name,))[0][0])


def booked(sql: SqliteWork) -> list[str]:
    """Return what the table has."""
    return [str(row[0]) for row in sql.execute("SELECT name FROM orders ORDER BY id")]


@sf.workflow
async def books_orders(ctx: sf.Context) -> list[str]:
    """Write to a table of its own, exactly once each time."""
    await ctx.transaction(prepare)
    await ctx.transaction(book, "first")
    await ctx.step(shout, "in between")
    await ctx.sleep("1 hour")
    await ctx.transaction(book, "second")
    return await ctx.transaction(booked)


async def test_a_transaction_happens_exactly_once_whenever_its_process_dies(files: list[Path]) -> None:
    """Two orders, two rows, wherever the crash: what the run returns is what the table has in the end."""
    seen = await crash_everywhere(books_orders, store=fresh(files))
    assert seen.crashes >= 10
