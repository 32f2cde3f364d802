"""Exports and imports that are killed half-way, and repeated."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreMovedError
from standfast.keys import RecordKey
from standfast.stores import Commit, Put, Record
from standfast.stores.backend import EXPORTED
from standfast.stores.transfer import FORMAT, ExportHeader, ExportWriter, kind_of
from standfast.testing.conformance.workflows.ground import eventually
from tests.fork_server import forked_exec
from tests.integration.moving.places import fresh_url
from tests.integration.moving.transfers import content, opened

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.stores import GroupedStore

K = RecordKey("space", "default", "k")
MANY = 20_000


async def test_an_export_that_is_killed_is_repeated(tmp_path: Path) -> None:
    """The store is frozen, and there is no file; the next export has everything."""
    url, file = fresh_url("sqlite", tmp_path), tmp_path / "all.jsonl"
    async with opened(url) as store:
        for number in range(10):
            await store.commit(*(Put(K.child(f"{number}-{place}"), bytes(2_000)) for place in range(50)))

    stuck = await standfast(url, "export", "-", "--yes")  # nobody reads what it writes
    async with opened(url) as store:
        await eventually(lambda: is_frozen(url))
        stuck.kill()
        assert await ended(stuck) != 0
        with pytest.raises(StoreMovedError):
            await store.commit(Put(K, b"late"))

    assert await ended(await standfast(url, "export", str(file), "--yes")) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(file.read_bytes().splitlines()) == 500 + 4 + 2  # what was exported first is in the audit


async def test_an_import_that_is_killed_is_repeated(tmp_path: Path) -> None:
    """Nobody writes to a store that is half there; the next import of the same file finishes it."""
    url, file = fresh_url("sqlite", tmp_path), tmp_path / "all.jsonl"
    with file.open("wb") as sink:
        writer = ExportWriter(sink, ExportHeader(FORMAT, "test", 1))
        for number in range(MANY):
            writer.add(Record(K.child(f"{number}"), b"value", number + 1))
        writer.end(0)

    async with opened(url) as store:
        killed = await standfast(url, "import", str(file))
        await eventually(lambda: has_some(store))
        killed.kill()
        assert await ended(killed) != 0
        with pytest.raises(StoreMovedError, match="import"):
            await store.commit(Put(K, b"early"))

    assert await ended(await standfast(url, "import", str(file))) == 0
    assert len([key for key in await content(url) if kind_of(key) not in {"audit", "audited"}]) == MANY
    async with opened(url) as store:
        assert isinstance(await store.commit(Put(K, b"now")), Commit)


async def is_frozen(url: str) -> bool:
    """Tell whether a store was exported, or is about to be."""
    async with opened(url) as store:
        return await store.transfer().frozen() == EXPORTED


async def has_some(store: GroupedStore) -> bool:
    """Tell whether a store has any records."""
    async for _ in store.transfer().dump():
        return True
    return False


async def ended(process: asyncio.subprocess.Process) -> int | None:
    """Return the exit code of a command; what it says is read, without which its end is not noticed."""
    await process.communicate()
    return process.returncode


async def standfast(url: str, *arguments: str) -> asyncio.subprocess.Process:
    """Start the command."""
    command = (sys.executable, "-m", "standfast", *arguments, "--store", url)
    return await forked_exec(*command, stdout=asyncio.subprocess.PIPE)
