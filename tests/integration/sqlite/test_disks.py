"""Disks that are full or write-protected: a clear error in bounded time, nothing lost, and on with the work."""

from __future__ import annotations

import subprocess
import tempfile
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.sqlite.disks import fill, inside, small_disk, without_privileges
from tests.services import require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.sqlite.children import Child
    from tests.integration.sqlite.conftest import Start

MODES = ["auto", "thread"]
SECONDS = 20.0


def commit_until_refused(servant: Child, size: int, most: int = 2000) -> tuple[int, list[str]]:
    """Commit records of some size until one is refused; return how many were taken, and the refusal."""
    for number in count():
        assert number < most, "nothing was refused"
        words = servant.ask("commit", f"n-{number}", size)
        assert float(words[1]) < SECONDS
        if words[0] != "done":
            return number, words
    raise AssertionError


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [30_000, 300_000])
def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path: Path, start: Start, mode: str, size: int) -> None:
    """On a full disk commits fail as full; with space again the same handle goes on, and every answer was true."""
    folder = tmp_path / "disk"
    servant = start("obey", f"sqlite:///{folder}/store.db?commits={mode}", under=small_disk(folder, 64))
    assert servant.hear()[0] == "done"
    filler = fill(inside(servant, folder))

    taken, refusal = commit_until_refused(servant, size)
    assert refusal[0] == "StoreFullError"
    assert servant.ask("read", f"n-{taken}")[2] == "None"
    filler.unlink()

    assert servant.ask("commit", f"n-{taken}", size)[0::2] == ["done", "Commit"]
    assert servant.ask("count", "n")[2] == str(taken + 1)
    assert servant.ask("close")[0] == "done"
    assert servant.ask("open")[0] == "done"
    assert servant.ask("count", "n")[2] == str(taken + 1)


def test_a_full_disk_still_lets_one_read_and_close(tmp_path: Path, start: Start) -> None:
    """Reading needs no space, and neither does closing; opening again finds what was acknowledged."""
    folder = tmp_path / "disk"
    servant = start("obey", f"sqlite:///{folder}/store.db", under=small_disk(folder, 64))
    assert servant.hear()[0] == "done"
    fill(inside(servant, folder))
    taken, _ = commit_until_refused(servant, 100_000)

    assert servant.ask("count", "n")[2] == str(taken)
    assert servant.ask("close")[0] == "done"
    fill(inside(servant, folder), "what closing freed")
    assert servant.ask("open")[0] == "done"
    assert servant.ask("count", "n")[2] == str(taken)


def test_a_database_cannot_be_created_on_a_full_disk_and_can_when_there_is_room(tmp_path: Path, start: Start) -> None:
    """Opening a new database without space is refused as full; with space the same process opens it."""
    folder = tmp_path / "disk"
    servant = start("obey", f"sqlite:///{folder}/first.db", under=small_disk(folder, 64))
    assert servant.hear()[0] == "done"
    filler = fill(inside(servant, folder))

    assert servant.ask("open", f"sqlite:///{folder}/second.db")[0] == "StoreFullError"
    filler.unlink()

    assert servant.ask("open", f"sqlite:///{folder}/second.db")[0] == "done"
    assert servant.ask("commit", "first")[0] == "done"


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_may_not_grow_gives_a_typed_error(url: str, path: Path, start: Start, mode: str) -> None:
    """A limit on the size of files ends in a typed error in bounded time; without the limit, on with the work."""
    servant = start("obey", f"{url}?commits={mode}&busy=200ms")
    assert servant.hear()[0] == "done"
    assert servant.ask("limit", Path(f"{path}-wal").stat().st_size)[0] == "done"

    taken, refusal = commit_until_refused(servant, 300_000)
    assert refusal[0] in {"OutcomeUnknownError", "StoreUnavailableError"}
    assert servant.ask("limit", -1)[0] == "done"

    assert servant.ask("commit", "later")[0::2] == ["done", "Commit"]
    assert int(servant.ask("count", "n")[2]) in {taken, taken + 1}


def test_a_read_only_disk_is_refused_at_opening(tmp_path: Path, start: Start) -> None:
    """A database on a write-protected disk is refused as such; once it can be written, opening works."""
    folder = tmp_path / "disk"
    servant = start("obey", f"sqlite:///{folder}/store.db", under=small_disk(folder, 64))
    assert servant.hear()[0] == "done"
    assert servant.ask("commit", "before")[0] == "done"
    assert servant.ask("close")[0] == "done"
    assert servant.ask("run", "mount", "-o", "remount,ro", folder)[2] == "0"

    assert servant.ask("open")[0] == "StoreReadOnlyError"
    assert servant.ask("run", "mount", "-o", "remount,rw", folder)[2] == "0"

    assert servant.ask("open")[0] == "done"
    assert servant.ask("read", "before")[2] == "4"
    assert servant.ask("commit", "after")[0] == "done"


def written_once(start: Start, folder: Path) -> Child:
    """Return a child without privileges that has written to a database and closed it."""
    servant = start("obey", f"sqlite:///{folder}/store.db", under=without_privileges())
    assert servant.hear()[0] == "done"
    assert servant.ask("commit", "before")[0] == "done"
    assert servant.ask("close")[0] == "done"
    return servant


@pytest.mark.parametrize("name", ["store.db", "store.db-turn", "store.db-alive", "store.db-wal", "store.db-shm"])
def test_a_write_protected_file_is_refused_at_opening(tmp_path: Path, start: Start, name: str) -> None:
    """Without the permission to write, opening is refused as such; with it, opening works."""
    servant = written_once(start, tmp_path)
    (tmp_path / name).chmod(0o400)

    assert servant.ask("open")[0] == "StoreReadOnlyError"
    (tmp_path / name).chmod(0o600)

    assert servant.ask("open")[0] == "done"
    assert servant.ask("read", "before")[2] == "4"
    assert servant.ask("commit", "after")[0] == "done"


def test_a_database_cannot_be_created_in_a_write_protected_folder(tmp_path: Path, start: Start) -> None:
    """A folder that may not be written to is refused at opening, and taken once it may."""
    servant = written_once(start, tmp_path)
    other = tmp_path / "other"
    other.mkdir(mode=0o500)
    urls = [f"sqlite:///{other}/store.db", f"sqlite:///{other}/deeper/store.db?folder=create"]

    assert [servant.ask("open", url)[0] for url in urls] == ["StoreReadOnlyError"] * 2
    other.chmod(0o700)

    assert [servant.ask("open", url)[0] for url in urls] == ["done"] * 2


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk: a file in memory that is open can be written though it is immutable."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.mark.parametrize("mode", MODES)
def test_a_log_that_became_immutable_gives_a_typed_error(disk: Path, start: Start, mode: str) -> None:
    """When the open log can suddenly not be written, commits fail in bounded time; when it can, they go on."""
    path = disk / "store.db"
    servant = start("obey", f"sqlite:///{path}?commits={mode}&busy=200ms")
    assert servant.hear()[0] == "done"
    assert servant.ask("commit", "before")[0] == "done"
    require(_immutable(path, "+i"), "the right to make a file immutable (chattr +i)")
    try:
        words = servant.ask("commit", "during")
    finally:
        assert _immutable(path, "-i")

    assert words[0] in {"OutcomeUnknownError", "StoreReadOnlyError", "StoreUnavailableError"}
    assert float(words[1]) < SECONDS
    assert servant.ask("commit", "after")[0::2] == ["done", "Commit"]
    assert servant.ask("read", "before")[2] == "4"


def _immutable(path: Path, how: str) -> bool:
    return subprocess.run(["chattr", how, f"{path}-wal"], check=False, capture_output=True).returncode == 0
