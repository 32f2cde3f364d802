"""Other libraries on our file in the same process: refused as they come, found when they slipped in."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import os
import shutil
import socket
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from standfast.errors import UnsuitableStoreError
from standfast.stores import Commit, Put
from standfast.stores.sqlite import backend as upkeep
from tests.integration.sqlite.programs.dialogue import key

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.stores import Store
    from tests.integration.sqlite.conftest import Open


def linked_folder(path: Path) -> Path:
    """Return the database's path through a symbolic link to its folder."""
    link = path.parent.parent / f"{path.parent.name}-link"
    link.symlink_to(path.parent)
    return link / path.name


def linked(path: Path) -> Path:
    """Return a symbolic link, of another name, to the database."""
    link = path.parent / "link"
    link.symlink_to(path)
    return link


def hard_linked(path: Path) -> Path:
    """Return another name of the database."""
    name = path.parent / "other-name"
    name.hardlink_to(path)
    return name


CONNECTIONS: dict[str, Callable[[Path], Any]] = {
    "text": lambda path: sqlite3.connect(str(path)),
    "path": sqlite3.connect,
    "bytes": lambda path: sqlite3.connect(os.fsencode(path)),
    "relative": lambda path: sqlite3.connect(path.name),
    "dotted": lambda path: sqlite3.connect(path.parent / ".." / path.parent.name / path.name),
    "uri": lambda path: sqlite3.connect(f"file://{path}?mode=ro", uri=True),
    "uri-short": lambda path: sqlite3.connect(f"file:{path}?immutable=1", uri=True),
    "uri-relative": lambda path: sqlite3.connect(f"file:{path.name}", uri=True),
    "uri-host": lambda path: sqlite3.connect(f"file://localhost{path}#part", uri=True),
    "uri-escaped": lambda path: sqlite3.connect(f"file:{path.parent}/%73tore.db", uri=True),
    "linked-folder": lambda path: sqlite3.connect(linked_folder(path)),
    "linked": lambda path: sqlite3.connect(linked(path)),
    "hard-linked": lambda path: sqlite3.connect(hard_linked(path)),
}

OPENINGS: dict[str, Callable[[Path], Any]] = {
    "open": lambda path: open(path, "rb"),  # noqa: PTH123, SIM115 -- one of the ways to open a file
    "path": lambda path: path.read_bytes(),
    "os": lambda path: os.open(path, os.O_RDONLY),
    "bytes": lambda path: os.open(os.fsencode(path), os.O_RDONLY),
    "copy": lambda path: shutil.copy(path, path.with_suffix(".copy")),
    "copy-of-the-log": lambda path: shutil.copy(f"{path}-wal", path.with_suffix(".copy")),
    "index": lambda path: Path(f"{path}-shm").read_bytes(),
    "linked": lambda path: linked(path).read_bytes(),
    "hard-linked": lambda path: hard_linked(path).read_bytes(),
}


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_the_standard_library_cannot_connect_to_our_file(
    path: Path, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """``sqlite3.connect`` on an open database is refused, however the file is named; the store goes on."""
    store = await opened(url)
    monkeypatch.chdir(path.parent)

    with pytest.raises(UnsuitableStoreError, match="file of its own"):
        CONNECTIONS[way](path)

    assert isinstance(await store.commit(Put(key("after"), b"")), Commit)


@pytest.mark.parametrize("way", OPENINGS)
async def test_our_files_cannot_be_opened_plainly(path: Path, url: str, opened: Open, way: str) -> None:
    """Opening the database, its log or its index in this process is refused; the store goes on."""
    store = await opened(url)
    await store.commit(Put(key("before"), b""))

    with pytest.raises(UnsuitableStoreError, match="file of its own"):
        OPENINGS[way](path)

    assert isinstance(await store.commit(Put(key("after"), b"")), Commit)


async def test_other_files_may_be_opened(path: Path, url: str, opened: Open) -> None:
    """A file of the same name elsewhere, one that is not there, and a database in memory are nobody's business."""
    await opened(url)
    elsewhere = path.parent / "elsewhere"
    elsewhere.mkdir()

    with closing(sqlite3.connect(elsewhere / path.name)) as database:
        database.execute("CREATE TABLE theirs (x)")
    with closing(sqlite3.connect(":memory:")), pytest.raises(FileNotFoundError):
        (path.parent / "missing" / path.name).read_bytes()

    assert (elsewhere / path.name).read_bytes()


async def test_a_closed_store_leaves_its_file_to_everyone(path: Path, url: str, opened: Open) -> None:
    """Once the last handle is closed, the file may be opened again."""
    first, second = await opened(url), await opened(url)
    await first.aclose()
    with pytest.raises(UnsuitableStoreError, match="file of its own"):
        path.read_bytes()

    await second.aclose()

    assert path.read_bytes().startswith(b"SQLite format 3")


async def test_a_file_that_another_library_has_open_is_refused(path: Path, url: str, opened: Open) -> None:
    """A descriptor that was there before us is found at opening; when it is closed, opening works."""
    await (await opened(url)).aclose()
    with closing(sqlite3.connect(path)) as theirs:
        theirs.execute("SELECT * FROM records").fetchall()
        with pytest.raises(UnsuitableStoreError, match="descriptor"):
            await opened(url)

    assert isinstance(await (await opened(url)).commit(Put(key("after"), b"")), Commit)


def attached(path: Path) -> Callable[[], None]:
    """Attach the database to a connection of the standard library, which nobody is told about."""
    theirs = sqlite3.connect(":memory:")
    theirs.execute(f"ATTACH '{path}' AS ours")
    theirs.execute("SELECT * FROM ours.records").fetchall()
    return theirs.close


def open_in_c(path: Path) -> int:
    """Open the database as a library written in C would."""
    descriptor: int = ctypes.CDLL(None).open(os.fsencode(path), os.O_RDONLY)
    assert descriptor >= 0
    return descriptor


def opened_in_c(path: Path) -> Callable[[], None]:
    """Have the database open in a library written in C."""
    return functools.partial(os.close, open_in_c(path))


def received(path: Path) -> Callable[[], None]:
    """Receive an open descriptor of the database through a socket."""
    descriptor = open_in_c(path)
    left, right = socket.socketpair()
    with left, right:
        socket.send_fds(left, [b"."], [descriptor])
        os.close(descriptor)
        return functools.partial(os.close, socket.recv_fds(right, 1, 1)[1][0])


async def refused_in_time(store: Store) -> UnsuitableStoreError:
    """Commit until the search for strangers has found one."""
    async with asyncio.timeout(10):
        while True:
            try:
                current = await store.read(key("counter"))
                await store.commit(Put(key("counter"), b"", expected=current.version(key("counter"))))
            except UnsuitableStoreError as problem:
                return problem


@pytest.mark.parametrize("slip_in", [attached, opened_in_c, received])
async def test_a_stranger_that_slipped_in_is_found(
    path: Path,
    url: str,
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    slip_in: Callable[[Path], Callable[[], None]],
) -> None:
    """A descriptor that came past the refusal is found by the search; commits and reads are refused from then on."""
    monkeypatch.setattr(upkeep, "EVERY", 0.0)
    store = await opened(url)
    close = slip_in(path)

    problem = await refused_in_time(store)

    assert "descriptor" in str(problem)
    with pytest.raises(UnsuitableStoreError, match="file of its own"):
        await store.read(key("counter"))
    close()  # its locks fell with that descriptor, so this handle is done for
    with pytest.raises(UnsuitableStoreError, match="file of its own"):
        await store.commit(Put(key("later"), b""))
    await store.aclose()
    assert isinstance(await (await opened(url)).commit(Put(key("later"), b"")), Commit)
