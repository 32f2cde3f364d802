"""Where the servers lie that were fetched, and how one that is not there is named."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


class MissingError(Exception):
    """A server cannot be had on this machine; the text says why."""


def cache() -> Path:
    """Return the folder of everything that was fetched; ``STANDFAST_SERVICES_FOLDER`` names another."""
    return Path(os.environ.get("STANDFAST_SERVICES_FOLDER") or ROOT / ".cache" / "services")


def fetched(place: str) -> Path:
    """Return a file of what was fetched."""
    path = cache() / place
    if not path.exists():
        raise MissingError("it has not been fetched: run `make fetch-services`")
    return path


def libraries() -> str:
    """Return the folders of the shared libraries that came with the Debian packages."""
    folders = (cache() / name for name in ("debian", "proxies", "terminal"))
    return ":".join(str(found) for folder in folders for found in folder.glob("usr/lib/*-linux-gnu"))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes out while the block runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
