"""Which SQLite libraries are warned of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.stores import sqlite
from standfast.stores.sqlite.connection import OldSqliteWarning, library_is_safe, warn_of_old_library
from standfast.stores.url import open_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("version", ["3.51.3", "3.51.10", "3.52.0", "3.100.0", "4.0.0", "3.51.3.1"])
def test_a_library_past_the_fix_is_safe(version: str) -> None:
    """From 3.51.3 on a log that starts over cannot damage the file."""
    assert library_is_safe(version)
    warn_of_old_library(version)


@pytest.mark.parametrize("version", ["3.51.2", "3.51.0", "3.50.99", "3.9.5", "3.7.0", "2.8.17"])
def test_a_library_before_the_fix_is_warned_of(version: str) -> None:
    """Anything older is warned of, with what to install."""
    assert not library_is_safe(version)
    with pytest.warns(OldSqliteWarning, match=rf"{version}.*apsw 3\.51\.3"):
        warn_of_old_library(version)


def test_the_library_that_comes_with_the_driver_is_safe() -> None:
    """What is installed here, and what the pins install, is past the fix."""
    assert library_is_safe()


async def test_opening_with_an_old_library_warns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning comes when a store is opened, and opening works all the same."""
    monkeypatch.setattr(sqlite, "warn_of_old_library", lambda: warn_of_old_library("3.45.1"))

    with pytest.warns(OldSqliteWarning):
        store = await open_store(f"sqlite:///{tmp_path}/store.db")

    await store.aclose()
