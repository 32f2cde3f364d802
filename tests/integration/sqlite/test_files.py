"""The files a store makes: private to their owner, where they are named, and not on a network disk."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import re
import stat
from typing import TYPE_CHECKING

import pytest

from standfast.errors import (
    InvalidUrlError,
    StoreCorruptError,
    StoreGoneError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores import Put
from standfast.stores.sqlite import file as files
from tests.integration.sqlite.programs.dialogue import key

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.sqlite.conftest import Open, Start


def modes(folder: Path) -> dict[str, int]:
    """Return the permissions of everything below a folder."""
    return {str(each.relative_to(folder)): stat.S_IMODE(each.lstat().st_mode) for each in folder.rglob("*")}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_every_file_is_private_whatever_the_umask(tmp_path: Path, start: Start, umask: int) -> None:
    """The database, its side files and all the folders made for it are for their owner alone."""
    servant = start("obey", f"sqlite:///{tmp_path}/one/two/store.db?folder=create", umask=umask)
    assert servant.hear()[0] == "done"
    assert servant.ask("commit", "something")[0] == "done"

    assert modes(tmp_path) == {
        "one": 0o700,
        "one/two": 0o700,
        "one/two/store.db": 0o600,
        "one/two/store.db-wal": 0o600,
        "one/two/store.db-shm": 0o600,
        "one/two/store.db-alive": 0o600,
        "one/two/store.db-turn": 0o600,
        "one/two/store.db-wakes": 0o700,
    }


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db-shm", "store.db-alive", "store.db-turn"])
async def test_a_file_that_others_can_change_is_refused(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, name: str, mode: int
) -> None:
    """The database itself and all that lies beside it; the error has the command, and after that it opens."""
    monkeypatch.setattr(files, "_is_alone_in", lambda _: False)
    path = tmp_path / name
    (tmp_path / "store.db").touch(0o600)
    path.touch(0o600)
    path.chmod(mode)

    with pytest.raises(UnsuitableStoreError, match=rf"run: chmod go?-w {re.escape(str(path))} ") as refused:
        await opened(f"sqlite:///{tmp_path}/store.db")

    command = refused.value.problem.partition("run: ")[2].partition(" (or")[0]
    assert await (await asyncio.create_subprocess_shell(command)).wait() == 0
    await opened(f"sqlite:///{tmp_path}/store.db")


@pytest.mark.parametrize(
    ("mode", "ok"), [(0o770, False), (0o707, False), (0o777, False), (0o755, True), (0o1777, True)]
)
async def test_a_folder_that_others_can_change_is_refused(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch, mode: int, *, ok: bool
) -> None:
    """They could put another file in its place. With the sticky bit they cannot; and who trusts them says so."""
    monkeypatch.setattr(files, "_is_alone_in", lambda _: False)
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(mode)
    if not ok:
        with pytest.raises(UnsuitableStoreError, match=re.escape(f"chmod g{'' if mode == 0o770 else 'o'}-w {folder} ")):
            await opened(f"sqlite:///{folder}/store.db")

    await opened(f"sqlite:///{folder}/store.db{'' if ok else '?others=allow'}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db-shm", ""])
async def test_a_file_of_another_user_is_refused(tmp_path: Path, opened: Open, name: str) -> None:
    """Whatever its mode is: its owner can change it at any time."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "store.db").touch(0o600)
    path = folder / name if name else folder
    path.touch()
    os.chown(path, 12_345, -1)

    with pytest.raises(UnsuitableStoreError, match=re.escape(f"run: chown 0 {path} ")):
        await opened(f"sqlite:///{folder}/store.db")


def test_a_group_of_ones_own_is_nobody_else() -> None:
    """Many systems let new files be open to a group that only their owner is in."""
    own = pwd.getpwuid(os.geteuid())
    others = [each for each in grp.getgrall() if each.gr_name != own.pw_name]

    assert not any(files._is_alone_in(each.gr_gid) for each in others)
    assert not files._is_alone_in(2**31 - 7)


async def test_a_missing_folder_is_refused_unless_it_is_asked_for(tmp_path: Path, opened: Open) -> None:
    """A mistake in the name of a folder is no new store; the error says how to have it made."""
    with pytest.raises(InvalidUrlError, match=r"there is no folder .*two; .*\?folder=create"):
        await opened(f"sqlite:///{tmp_path}/one/two/store.db")
    assert list(tmp_path.iterdir()) == []

    await opened(f"sqlite:///{tmp_path}/one/two/store.db?folder=create")

    assert (tmp_path / "one/two/store.db").is_file()


@pytest.mark.parametrize("name", ["store.db", "store.db-turn", "store.db-alive", "store.db-wakes"])
async def test_a_symbolic_link_is_not_followed(tmp_path: Path, opened: Open, name: str) -> None:
    """A link in the place of the database or of what lies beside it is refused, and what it points to untouched."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = elsewhere if name.endswith("wakes") else elsewhere / "file"
    (tmp_path / name).symlink_to(target)

    with pytest.raises(InvalidUrlError):
        await opened(f"sqlite:///{tmp_path}/store.db")

    assert not list(elsewhere.iterdir())


async def test_a_second_name_of_the_file_is_refused(tmp_path: Path, opened: Open) -> None:
    """Two names of one file would have two logs, each of which overwrites what the other has written."""
    store = await opened(f"sqlite:///{tmp_path}/store.db")
    await store.aclose()
    (tmp_path / "other.db").hardlink_to(tmp_path / "store.db")

    for name in ("store.db", "other.db"):
        with pytest.raises(InvalidUrlError, match="hard link"):
            await opened(f"sqlite:///{tmp_path}/{name}")


async def test_a_working_folder_that_is_gone_is_named(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path leads nowhere then."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()

    with pytest.raises(StoreUnavailableError, match="working folder is gone"):
        await opened("sqlite:///store.db")


@pytest.mark.parametrize("name", ["store.db-wal", "store.db-shm"])
async def test_a_linked_side_file_is_not_followed(tmp_path: Path, opened: Open, name: str) -> None:
    """A link in the place of the log or of its index is never written through."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    (tmp_path / name).symlink_to(elsewhere)

    with pytest.raises(StoreUnavailableError):
        await opened(f"sqlite:///{tmp_path}/store.db")

    assert not elsewhere.read_bytes()


async def test_a_linked_folder_is_the_folder(tmp_path: Path, opened: Open) -> None:
    """Two handles that reach the file by different ways share it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    one = await opened(f"sqlite:///{tmp_path}/real/store.db")
    other = await opened(f"sqlite:///{tmp_path}/link/store.db")

    await one.commit(Put(key("shared"), b"value"))

    assert (await other.read(key("shared"))).records[key("shared")].value == b"value"


@pytest.mark.parametrize("name", ["folder", "fifo", "file/store.db"])
async def test_what_is_no_file_is_refused(tmp_path: Path, opened: Open, name: str) -> None:
    """A folder or a pipe in the place of the database, or a file in the place of its folder, is refused."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").touch()

    with pytest.raises(InvalidUrlError):
        await opened(f"sqlite:///{tmp_path}/{name}")


async def test_nothing_is_made_beside_a_file_that_is_no_database(tmp_path: Path, opened: Open) -> None:
    """A URL with the wrong file leaves no lock files there."""
    (tmp_path / "notes.txt").write_text("milk, bread and tea")
    with pytest.raises(StoreCorruptError, match="not an SQLite database"):
        await opened(f"sqlite:///{tmp_path}/notes.txt")
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]


async def test_a_relative_path_stays_where_it_was_opened(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing the working folder later moves no open store."""
    monkeypatch.chdir(tmp_path)
    store = await opened("sqlite:///relative.db")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")

    await store.commit(Put(key("here"), b""))

    assert (tmp_path / "relative.db").exists()
    assert not list((tmp_path / "other").iterdir())


async def test_a_network_file_system_is_refused_unless_allowed(
    url: str, path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system nothing is created, unless the URL takes the risk."""
    monkeypatch.setattr(files, "filesystem_of", lambda _: "nfs4")

    with pytest.raises(UnsuitableStoreError, match=r"nfs4.*network=allow"):
        await opened(url)
    assert not list(path.parent.iterdir())

    await (await opened(f"{url}?network=allow")).commit(Put(key("risky"), b""))


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_another_handle_is_one_on_the_same_file_or_none(
    path: Path, url: str, opened: Open, start: Start, *, is_replaced: bool
) -> None:
    """If the database was deleted or replaced, another handle is refused, and no new database is made."""
    store = await opened(url)
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        path.with_name(name).rename(path.with_name(f"old-{name}"))
    if is_replaced:
        start("live", url).hear()

    with pytest.raises(StoreGoneError):
        await store.another()

    assert path.exists() == is_replaced
