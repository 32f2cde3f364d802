"""Hints find their way whatever the prefix and the path look like."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores.protocol import Wake
from standfast.stores.sqlite import wakeups as doorbells
from standfast.stores.sqlite.wakeups import Doorbells

if TYPE_CHECKING:
    from pathlib import Path


class Ear(asyncio.Queue[RecordKey | None]):
    """Keeps what it hears."""

    def hear(self, about: RecordKey | None) -> None:
        """Keep a hint."""
        self.put_nowait(about)


@pytest.mark.parametrize("length", [0, 1, 50, 900])
async def test_a_doorbell_is_found_by_prefixes_of_any_length(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's address has little room, but a prefix may be as long as a key."""
    folder = tmp_path / ("deep" * 20)
    folder.mkdir()
    here, there, ear = Doorbells(str(folder / "x.db")), Doorbells(str(folder / "x.db")), Ear()
    key = RecordKey("n" * length, "child")
    here.listen([RecordKey("n" * length), RecordKey("else")], ear)
    monkeypatch.setattr(doorbells, "_process", "another")
    there.ring([RecordKey("m" * length, "child"), key], [])
    assert await asyncio.wait_for(ear.get(), 5) == key
    here.close()
    there.close()


async def test_two_prefixes_with_the_same_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is rung by mistake, because a name says less than a prefix, does not pass it on."""
    monkeypatch.setattr(doorbells, "_name_of", lambda prefix: f"{len(prefix)}-same")
    here, there, ear = Doorbells(str(tmp_path / "x.db")), Doorbells(str(tmp_path / "x.db")), Ear()
    here.listen([RecordKey("a")], ear)
    monkeypatch.setattr(doorbells, "_process", "another")
    there.ring([RecordKey("b")], [Wake(RecordKey("a"), RecordKey("about"))])
    assert await asyncio.wait_for(ear.get(), 5) == RecordKey("about")
    assert ear.empty()
    here.close()
    there.close()
