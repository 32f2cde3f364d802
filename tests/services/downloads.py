"""Fetch what is not there yet."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

from tests.services.places import MissingError, cache, locked
from tests.services.sources import SOURCES

if TYPE_CHECKING:
    from tests.services.sources import Source


def fetch_all() -> None:
    """Fetch every server that is missing or no longer the pinned one; say which could not be had."""
    with locked(cache() / "lock"):
        for source in SOURCES:
            try:
                fetch(source)
            except MissingError as problem:
                print(f"cannot fetch {source.name}: {problem}", file=sys.stderr)


def fetch(source: Source) -> None:
    """Fetch one source unless it is there."""
    folder, mark = cache() / source.name, cache() / source.name / ".pin"
    if mark.exists() and mark.read_text() == source.pin():
        return
    print(f"fetching {source.package} ({source.size}) ...", end=" ", file=sys.stderr, flush=True)
    began = time.monotonic()
    half = folder.with_suffix(".new")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    source.fetch(half)
    (half / ".pin").write_text(source.pin())
    for old in (folder, cache() / "templates"):
        shutil.rmtree(old, ignore_errors=True)
    half.rename(folder)
    print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
