"""Small disks to fill and to write-protect, made for one child and gone with it, with or without being root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from tests.services import require

if TYPE_CHECKING:
    from tests.integration.sqlite.children import Child

_BLOCK = b"\0" * 65536


def small_disk(folder: Path, megabytes: int) -> list[str]:
    """Return the command that runs another one with a small disk of its own mounted at ``folder``."""
    folder.mkdir()
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = f'mount -t tmpfs -o size={megabytes}m none "$0" && exec "$@"'
    under = ["unshare", *as_root, "--mount", "sh", "-c", mount, str(folder)]
    require(_works([*under, "true"]), "a mount namespace of one's own (unshare)")
    return under


def without_privileges() -> list[str]:
    """Return the command that runs another one so that permissions count, which root would ignore."""
    if os.geteuid() != 0:
        return []
    under = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    require(_works([*under, "true"]), "a way to drop root's privileges (setpriv)")
    return under


def _works(command: list[str]) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    return False


def inside(child: Child, folder: Path) -> Path:
    """Return the way to a folder as the child sees it."""
    return Path(f"/proc/{child.pid}/root{folder}")


def fill(folder: Path, name: str = "filler") -> Path:
    """Write a file that takes all the space there is; delete it to free the space."""
    filler = folder / name
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(_BLOCK)
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(b"\0")
    return filler
