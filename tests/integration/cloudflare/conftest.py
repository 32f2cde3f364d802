"""Stores of a test's own on Cloudflare's runtime, and runtimes that a test may kill."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sqlite3
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from standfast.keys import RecordKey
from standfast.stores.url import open_store
from tests import services

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from standfast.stores import GroupedStore
    from tests.services.server import Server


@pytest.fixture
def url(cloudflare_url: str) -> str:
    """Objects that no other test uses, on the runtime that all share."""
    return f"{cloudflare_url}&prefix=t{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[GroupedStore]:
    """A store in those objects."""
    async with opened(url) as store:
        yield store


@pytest.fixture
def key() -> Callable[..., RecordKey]:
    """Makes keys."""
    return functools.partial(RecordKey, "cloudflare")


@pytest.fixture
def server() -> Iterator[Server]:
    """A runtime of the test's own."""
    with services.private("cloudflare") as server:
        yield server


@contextlib.asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[GroupedStore]:
    """Open a store, and close it in the end."""
    store = await open_store(url, **options)
    try:
        yield store
    finally:
        await store.aclose()


def data_of(server: Server) -> Path:
    """Return where a runtime of the test's own, which is up, keeps its objects."""
    return Path(f"/proc/{server.pid}/cwd").resolve() / "data"


@contextlib.contextmanager
def set_back(folder: Path) -> Iterator[None]:
    """Undo in the end what a block does to objects; their runtime is down at its beginning and at its end."""
    kept = folder.with_name("kept")
    shutil.copytree(folder, kept)
    yield
    shutil.rmtree(folder)
    kept.rename(folder)


def counted(server: Server, table: str) -> int:
    """Return how many rows a table has in all objects of a runtime of the test's own, expired ones included."""
    count = 0
    for file in data_of(server).rglob("*.sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as database:
            if database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
                count += database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608 -- a name of the test's own
    return count


def open_databases(server: Server) -> int:
    """Return how many objects of a runtime of the test's own are in memory: those have their database open."""
    links = []
    for each in Path(f"/proc/{server.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(str(each.readlink()))
    return sum(link.endswith(".sqlite") and "metadata" not in link for link in links)
