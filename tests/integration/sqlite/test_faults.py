"""Files that are deleted, moved, replaced, damaged or locked underneath an open store."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from standfast.clock import monotonic
from standfast.errors import StoreBusyError, StoreCorruptError, StoreGoneError
from standfast.stores import Commit, Put
from standfast.stores.sqlite.connection import LOOK_EVERY
from tests.integration.sqlite.loop_watch import LoopWatch
from tests.integration.sqlite.programs.dialogue import key

if TYPE_CHECKING:
    from standfast.stores import Store
    from tests.integration.sqlite.conftest import Look, Open, Start

MODES = ["auto", "thread"]


async def values(store: Store) -> list[bytes]:
    """Return the values of all records, in order."""
    return [record.value for record in (await store.scan(*key().within(), limit=1000)).records.values()]


async def let_it_be_noticed() -> None:
    """Let the time pass for which a busy process may not look at its file."""
    await asyncio.sleep(LOOK_EVERY)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("commits_before", [0, 1])
async def test_a_moved_file_is_missed_and_taken_up_again(
    path: Path, url: str, opened: Open, mode: str, commits_before: int
) -> None:
    """While the file is away commits and reads fail; once it is back the same handle goes on."""
    store = await opened(f"{url}?commits={mode}")
    if commits_before:
        await store.commit(Put(key("1"), b"before"))
    path.rename(path.with_name("away.db"))
    await let_it_be_noticed()

    with pytest.raises(StoreGoneError):
        await store.commit(Put(key("2"), b"lost"))
    with pytest.raises(StoreGoneError):
        await values(store)
    path.with_name("away.db").rename(path)

    assert isinstance(await store.commit(Put(key("3"), b"after")), Commit)
    assert await values(store) == [b"before", b"after"][-1 - commits_before :]


@pytest.mark.parametrize("mode", MODES)
async def test_a_deleted_file_is_never_written_to(path: Path, url: str, opened: Open, mode: str) -> None:
    """After its file is deleted a handle refuses for good; a new one starts afresh, and the old closes harmlessly."""
    old = await opened(f"{url}?commits={mode}")
    await old.commit(Put(key("1"), b"old"))
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink()
    await let_it_be_noticed()
    with pytest.raises(StoreGoneError):
        await old.commit(Put(key("2"), b"lost"))

    new = await opened(f"{url}?commits={mode}")
    await new.commit(Put(key("1"), b"new"))
    with pytest.raises(StoreGoneError):
        await old.read(key("1"))
    await old.aclose()

    assert isinstance(await new.commit(Put(key("2"), b"new")), Commit)
    assert await values(new) == [b"new", b"new"]


async def test_a_replaced_file_is_not_mistaken_for_the_old_one(path: Path, url: str, opened: Open) -> None:
    """When another database takes the place of ours, nothing is written to it; put back, ours goes on."""
    other_path = path.with_name("other.db")
    other = await opened(f"sqlite:///{other_path}")
    await other.commit(Put(key("theirs"), b""))
    await other.aclose()
    before = other_path.read_bytes()
    store = await opened(url)
    await store.commit(Put(key("1"), b"ours"))
    path.rename(path.with_name("away.db"))
    other_path.rename(path)
    await let_it_be_noticed()

    with pytest.raises(StoreGoneError):
        await store.commit(Put(key("2"), b"lost"))
    path.rename(other_path)
    path.with_name("away.db").rename(path)

    assert isinstance(await store.commit(Put(key("3"), b"ours")), Commit)
    assert await values(store) == [b"ours", b"ours"]
    assert other_path.read_bytes() == before


@pytest.mark.parametrize("name", ["-wal", "-shm"])
@pytest.mark.parametrize("commits_before", [0, 1])
async def test_a_deleted_side_file_stops_commits(
    path: Path, url: str, opened: Open, name: str, commits_before: int
) -> None:
    """Without its log or its index nothing more is acknowledged; opened anew, everything acknowledged is there."""
    store = await opened(url)
    if commits_before:
        await store.commit(Put(key("1"), b"before"))
    Path(f"{path}{name}").unlink()
    await let_it_be_noticed()

    with pytest.raises(StoreGoneError, match=name):
        await store.commit(Put(key("2"), b"lost"))
    await store.aclose()

    anew = await opened(url)
    assert isinstance(await anew.commit(Put(key("3"), b"after")), Commit)
    assert await values(anew) == [b"before", b"after"][-1 - commits_before :]


async def test_a_moved_folder_is_missed_and_taken_up_again(tmp_path: Path, opened: Open) -> None:
    """Moving the whole folder away is noticed like moving the file."""
    folder = tmp_path / "folder"
    store = await opened(f"sqlite:///{folder}/store.db?folder=create")
    await store.commit(Put(key("1"), b"before"))
    folder.rename(tmp_path / "away")
    await let_it_be_noticed()

    with pytest.raises(StoreGoneError):
        await store.commit(Put(key("2"), b"lost"))
    (tmp_path / "away").rename(folder)

    assert isinstance(await store.commit(Put(key("3"), b"after")), Commit)
    assert await values(store) == [b"before", b"after"]


async def test_damage_is_reported_and_a_backup_works(path: Path, url: str, opened: Open, seed: int) -> None:
    """A page of records overwritten while nobody had the file open gives a clear error; restored, all is well."""
    store = await opened(url)
    for number in range(200):
        await store.commit(Put(key(f"{number:03}"), b"<%03d>" % number * 30))
    await store.aclose()
    backup = path.read_bytes()
    page = backup.index(b"<150>") // 4096
    with path.open("r+b") as file:
        file.seek(4096 * page)
        file.write(random.Random(seed).randbytes(4096))

    store = await opened(url)
    with pytest.raises(StoreCorruptError, match="backup"):
        await values(store)
    with pytest.raises(StoreCorruptError, match="backup"):
        await store.commit(Put(key("150"), b"", expected=151))
    await store.aclose()
    path.write_bytes(backup)

    assert len(await values(await opened(url))) == 200


@pytest.mark.parametrize("mode", ["auto", "loop", "thread"])
async def test_a_database_locked_by_another_program_is_busy(
    path: Path, url: str, start: Start, opened: Open, mode: str
) -> None:
    """A commit that finds the file locked fails in bounded time without holding up the loop, then goes on."""
    store = await opened(f"{url}?busy=300ms&commits={mode}")
    await store.commit(Put(key("1"), b"before"))
    locker = start("lock", path)
    assert locker.hear() == ["locked"]

    began = monotonic()
    async with LoopWatch() as ticking:
        with pytest.raises(StoreBusyError, match="another program"):
            await store.commit(Put(key("2"), b"lost"))
        assert await values(store) == [b"before"]

    assert monotonic() - began < 2
    assert ticking.longest_gap < 0.25
    assert locker.ask("unlock") == ["unlocked"]
    assert isinstance(await store.commit(Put(key("3"), b"after")), Commit)
    assert await values(store) == [b"before", b"after"]


def test_a_copy_of_the_closed_file_is_a_whole_database(path: Path, start: Start, url: str, look: Look) -> None:
    """After the last close the one file holds everything: it can be copied alone."""
    servant = start("obey", url)
    assert servant.hear()[0] == "done"
    for number in range(20):
        assert servant.ask("commit", f"n-{number}", 1000)[0] == "done"
    assert servant.ask("close")[0] == "done"
    copy = path.with_name("copy.db")
    shutil.copy(path, copy)
    for name in ("", "-wal", "-shm"):
        Path(f"{path}{name}").unlink()
    copy.rename(path)

    assert len(look()["records"]) == 20
