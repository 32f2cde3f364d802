"""What opening finds: nothing, our own database, somebody else's, or no database at all."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from typing import TYPE_CHECKING

import pytest

from standfast.errors import FormatTooNewError, StoreCorruptError
from standfast.stores import Commit, Put
from standfast.stores.sqlite.connection import open_connection
from standfast.stores.sqlite.file import descriptors_of
from standfast.stores.url import open_store
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import rounds, size

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.sqlite.conftest import Open, Start

TABLES = ["counters", "facts", "records", "records_that_expire", "standfast_locks", "standfast_runs", "standfast_steps"]


def identity_of(path: Path) -> tuple[int, int]:
    """Return device and inode of a file."""
    found = path.stat()
    return found.st_dev, found.st_ino


@pytest.mark.heavy
def test_many_processes_create_one_schema(tmp_path: Path, start: Start) -> None:
    """Processes that open a new database at the same moment all succeed, on one schema."""
    many = size(full=20, quick=8)
    for number in rounds(f"databases created by {many} processes at once", full=20, quick=1):
        path = tmp_path / f"{number}.db"
        children = [start("open_at_once", f"sqlite:///{path}", n) for n in range(many)]
        assert [child.hear() for child in children] == [["ready"]] * many
        for child in children:
            child.tell("go")

        assert [child.hear() for child in children] == [["done"]] * many
        assert [child.end() for child in children] == [0] * many
        found = json.loads(start("look", path).hear()[0])
        assert found["integrity"] == "ok"
        assert [name for name in found["tables"] if not name.startswith("sqlite_")] == TABLES
        assert len(found["records"]) == many


@pytest.mark.heavy
def test_creators_that_are_killed_leave_a_database_that_opens(tmp_path: Path, start: Start) -> None:
    """Killing processes while they create the database leaves a file that the next one can open."""
    for seed in rounds("kills while creating", full=50, quick=2):
        path, chooser = tmp_path / f"{seed}.db", random.Random(seed)
        children = [start("open_at_once", f"sqlite:///{path}", n) for n in range(4)]
        assert [child.hear() for child in children] == [["ready"]] * 4
        for child in children:
            child.tell("go")
            if chooser.random() < 0.7:
                child.kill()

        last = start("open_at_once", f"sqlite:///{path}", "last")
        assert last.hear() == ["ready"]
        assert last.ask("go") == ["done"]


async def test_an_empty_file_becomes_a_database(path: Path, url: str, opened: Open) -> None:
    """A file of no bytes is taken for a new database."""
    path.touch(mode=0o600)

    store = await opened(url)

    assert isinstance(await store.commit(Put(key("first"), b"")), Commit)


async def test_opening_again_keeps_what_was_written(url: str, opened: Open) -> None:
    """A second opening finds the records of the first, and versions go on growing."""
    first = await opened(url)
    await first.commit(Put(key("kept"), b"value"))
    before = (await first.read(key("kept"))).records[key("kept")]
    await first.aclose()

    second = await opened(url)

    assert (await second.read(key("kept"))).records[key("kept")] == before
    await second.commit(Put(key("kept"), b"again", expected=before.version))
    assert (await second.read(key("kept"))).version(key("kept")) > before.version


async def test_a_newer_format_is_refused(path: Path, url: str, opened: Open) -> None:
    """A database that a later version has upgraded is refused, naming both formats, and not touched."""
    await (await opened(url)).aclose()
    database = open_connection(str(path))
    database.pragma("user_version", 99)
    database.pragma("journal_mode", "delete")
    database.close()
    before = path.read_bytes()

    with pytest.raises(FormatTooNewError, match="99"):
        await opened(url)

    assert path.read_bytes() == before


@pytest.mark.parametrize("mark", ["", "PRAGMA application_id = 1234", "PRAGMA user_version = 1"])
async def test_the_database_of_another_program_is_refused_untouched(
    path: Path, url: str, opened: Open, mark: str
) -> None:
    """Somebody else's database is refused, and not one byte of it changes."""
    with sqlite3.connect(path) as database:
        database.executescript(f"CREATE TABLE orders (id INTEGER); {mark};")
    database.close()
    before = path.read_bytes()

    with pytest.raises(StoreCorruptError, match="another program"):
        await opened(url)

    assert path.read_bytes() == before


@pytest.mark.parametrize("size", [15, 100, 4096, 100_000])
async def test_random_bytes_are_refused(path: Path, url: str, opened: Open, seed: int, size: int) -> None:
    """A file that is no database is refused as damaged, and not touched."""
    content = random.Random(seed).randbytes(size)
    path.write_bytes(content)

    with pytest.raises(StoreCorruptError):
        await opened(url)

    assert path.read_bytes() == content


async def test_opening_can_be_tried_again_after_a_refusal(path: Path, url: str, opened: Open) -> None:
    """A refused opening leaves nothing behind in the process: once the file is gone, opening works."""
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StoreCorruptError):
        await opened(url)
    path.unlink()

    store = await opened(url)

    assert isinstance(await store.commit(Put(key("first"), b"")), Commit)


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_opening_leaves_nothing_open(path: Path, url: str, opened: Open, steps: int) -> None:
    """Whatever a cancelled opening has opened by then, or opens later, is closed."""
    task = asyncio.create_task(open_store(url))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await (await opened(url)).aclose()  # takes longer than the other one needs to end

    async with asyncio.timeout(5):
        users = 1
        while users:
            await asyncio.sleep(0)
            users = len(descriptors_of(identity_of(path)))


async def test_a_store_that_was_not_closed_is_told(tmp_path: Path) -> None:
    """Whoever forgets to close a store is warned, with its name."""
    store = await open_store(f"sqlite:///{tmp_path}/forgotten.db")

    with pytest.warns(ResourceWarning, match=r"forgotten\.db was not closed"):
        store.backend.__del__()  # type: ignore[attr-defined]  # what the garbage collector calls

    await store.aclose()
