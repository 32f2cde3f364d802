"""Which file system a folder lies on, told by the kernel's table of mounts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from standfast.errors import InvalidUrlError
from standfast.stores.sqlite import file as files
from standfast.stores.sqlite import open_sqlite
from standfast.stores.sqlite.file import NETWORK_FILESYSTEMS, filesystem_of, is_mounted_alone

if TYPE_CHECKING:
    from pathlib import Path

OTHER = "9999:1"


def device(folder: Path) -> str:
    """Return the device of a folder as the table shows it."""
    number = folder.stat().st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def line(device: str, point: object, kind: str, *, options: str = "shared:1 ") -> str:
    """Return a line of the table."""
    shown = str(point).replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011").replace("\n", "\\012")
    return f"36 35 {device} / {shown} rw,noatime {options}- {kind} server:/export rw,addr=1.2.3.4\n"


def asked(tmp_path: Path, folder: Path, *lines: str) -> str | None:
    """Ask about a folder with a table of our own."""
    table = tmp_path / "mountinfo"
    table.write_text("".join(lines))
    return filesystem_of(str(folder), str(table))


@pytest.mark.parametrize("kind", sorted(NETWORK_FILESYSTEMS))
@pytest.mark.parametrize("options", ["", "shared:1 ", "master:2 propagate_from:3 unbindable "])
def test_the_device_tells_the_file_system(tmp_path: Path, kind: str, options: str) -> None:
    """The line with the folder's device counts, whatever optional fields it has."""
    lines = (line(OTHER, "/", "ext4"), line(device(tmp_path), "/mnt", kind, options=options))

    assert asked(tmp_path, tmp_path, *lines) == kind


@pytest.mark.parametrize("name", ["plain", "with space", "tab\tand\nline", "back\\slash", "- dash - ", "é\udce9"])
def test_the_longest_mount_point_counts_where_the_device_does_not(tmp_path: Path, name: str) -> None:
    """Where the device is not in the table (btrfs, some overlays), the deepest mount point above the folder counts."""
    folder = tmp_path / name / "deeper"
    folder.mkdir(parents=True)
    lines = [line(OTHER, "/", "ext4"), line(OTHER, tmp_path, "btrfs"), line(OTHER, tmp_path / name, "nfs4")]
    table = tmp_path / "mountinfo"
    table.write_bytes(os.fsencode("".join(lines)))

    assert filesystem_of(str(folder), str(table)) == "nfs4"


def test_a_mount_point_with_the_same_beginning_does_not_count(tmp_path: Path) -> None:
    """``/srv/data`` does not lie below ``/srv/dat``."""
    (tmp_path / "data").mkdir()
    lines = (line(OTHER, tmp_path, "xfs"), line(OTHER, tmp_path / "dat", "nfs"))

    assert asked(tmp_path, tmp_path / "data", *lines) == "xfs"


def test_a_later_mount_covers_an_earlier_one(tmp_path: Path) -> None:
    """Of two mounts on the same point the one on top counts."""
    lines = (line(OTHER, tmp_path, "ext4"), line(OTHER, tmp_path, "nfs"))

    assert asked(tmp_path, tmp_path, *lines) == "nfs"


def test_a_bind_mount_is_what_it_binds(tmp_path: Path) -> None:
    """A bind mount of a network folder into a local one has the network's device."""
    lines = (line(OTHER, "/", "ext4"), line(device(tmp_path), tmp_path, "cifs"))

    assert asked(tmp_path, tmp_path, *lines) == "cifs"


@pytest.mark.parametrize("table", ["", "\n", "nonsense", "1 2\n", "36 35 8:1 / / rw\n", "36 35 8:1 / / rw - \n"])
def test_a_table_that_makes_no_sense_tells_nothing(tmp_path: Path, table: str) -> None:
    """A table that cannot be read is no reason to fail."""
    assert asked(tmp_path, tmp_path, table) is None


def test_a_missing_table_tells_nothing(tmp_path: Path) -> None:
    """Without ``/proc`` nothing is known."""
    assert filesystem_of(str(tmp_path), str(tmp_path / "missing")) is None


def test_this_machine_can_tell(tmp_path: Path) -> None:
    """The real table answers for a real folder."""
    assert filesystem_of(str(tmp_path))


def test_a_file_that_is_a_mount_of_its_own_is_noticed(tmp_path: Path) -> None:
    """A container that is given one file of its host would keep another log beside it than the host does."""
    table = tmp_path / "mountinfo"
    table.write_text(line(OTHER, "/", "ext4") + line(OTHER, tmp_path / "given.db", "ext4"))

    assert is_mounted_alone(str(tmp_path / "given.db"), str(table))
    assert not is_mounted_alone(str(tmp_path / "other.db"), str(table))


async def test_opening_a_file_that_is_a_mount_of_its_own_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message says what to mount instead."""
    monkeypatch.setattr(files, "is_mounted_alone", lambda _: True)

    with pytest.raises(InvalidUrlError, match="mount its folder"):
        await open_sqlite(str(tmp_path / "h.db"))
