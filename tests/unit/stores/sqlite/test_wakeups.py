"""Hints find their way whatever the prefix and the path look like."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores.protocol import Record, Wake
from standfast.stores.sqlite import wakeups as doorbells
from standfast.stores.sqlite.wakeups import WakeSockets

if TYPE_CHECKING:
    from pathlib import Path


class Subscriber(asyncio.Queue[RecordKey | None]):
    """Keeps what it hears."""

    moved: Record | None = None

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:
        """Keep a hint."""
        self.put_nowait(about)
        self.moved = moved


@pytest.mark.parametrize("length", [0, 1, 50, 900])
async def test_a_doorbell_is_found_by_prefixes_of_any_length(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket's address has little room, but a prefix may be as long as a key."""
    folder = tmp_path / ("deep" * 20)
    folder.mkdir()
    here, there, subscriber = WakeSockets(str(folder / "x.db")), WakeSockets(str(folder / "x.db")), Subscriber()
    key = RecordKey("n" * length, "child")
    here.subscribe([RecordKey("n" * length), RecordKey("else")], subscriber)
    monkeypatch.setattr(doorbells, "_process", "another")
    there.notify([RecordKey("m" * length, "child"), key], [])
    assert await asyncio.wait_for(subscriber.get(), 5) == key
    here.close()
    there.close()


async def test_two_prefixes_with_the_same_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is rung by mistake, because a name says less than a prefix, does not pass it on."""
    monkeypatch.setattr(doorbells, "_name_of", lambda prefix: f"{len(prefix)}-same")
    here, there, subscriber = WakeSockets(str(tmp_path / "x.db")), WakeSockets(str(tmp_path / "x.db")), Subscriber()
    here.subscribe([RecordKey("a")], subscriber)
    monkeypatch.setattr(doorbells, "_process", "another")
    there.notify([RecordKey("b")], [Wake(RecordKey("a"), RecordKey("about"))])
    assert await asyncio.wait_for(subscriber.get(), 5) == RecordKey("about")
    assert subscriber.empty()
    here.close()
    there.close()


@pytest.mark.parametrize(("size", "is_heard"), [(0, True), (5_000, True), (9_000, False)])
async def test_a_moved_record_comes_along_if_it_is_not_too_long(
    size: int, *, is_heard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise only its key does, and its reader looks for itself."""
    here, there, subscriber = WakeSockets(str(tmp_path / "x.db")), WakeSockets(str(tmp_path / "x.db")), Subscriber()
    here.subscribe([RecordKey("inbox")], subscriber)
    monkeypatch.setattr(doorbells, "_process", "another")
    moved = Record(RecordKey("grant"), b"x" * size, 2**53 - 1)
    there.notify([], [Wake(RecordKey("inbox", "1"), moved.key, moved)])
    assert await asyncio.wait_for(subscriber.get(), 5) == moved.key
    assert subscriber.moved == (moved if is_heard else None)
    here.close()
    there.close()
