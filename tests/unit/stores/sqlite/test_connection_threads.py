"""Threads of one process may open the same file at the same time."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Self

import apsw

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Decision, Put
from standfast.stores.sqlite import connection as connecting
from standfast.stores.sqlite import open_sqlite
from standfast.stores.sqlite.backend import Upkeep
from standfast.stores.sqlite.connection import connect, disconnect, open_connection, share, unshare
from standfast.stores.sqlite.file import SqliteOptions, prepare

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from standfast.stores.sqlite.connection import SqliteConnection


async def open_and_close(path: Path) -> None:
    """Open a store on a loop of its own."""
    store = await open_sqlite(str(path))
    await store.aclose()


def test_a_file_is_not_opened_while_another_thread_creates_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who creates the file has closed it before anybody has locks on it: closing it would drop them."""
    creating, may_go_on, close = threading.Event(), threading.Event(), os.close

    def close_late(descriptor: int) -> None:
        monkeypatch.undo()
        creating.set()
        may_go_on.wait(timeout=10)
        close(descriptor)

    monkeypatch.setattr(os, "close", close_late)
    with ThreadPoolExecutor() as threads:
        first = threads.submit(prepare, str(tmp_path / "x.db"), SqliteOptions())
        creating.wait(timeout=10)
        second = threads.submit(asyncio.run, open_and_close(tmp_path / "x.db"))
        wait([second], timeout=0.2)  # it must not come to an end before the first one
        may_go_on.set()
        first.result()
        second.result()


async def test_a_connection_that_a_thread_is_opening_is_no_strangers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for foreign descriptors and opening one of our own do not get into each other's way."""
    path, looks = str(tmp_path / "x.db"), list[Future[None]]()
    store = await open_sqlite(path)
    file = share(path)
    upkeep = store.backend._upkeep  # type: ignore[attr-defined]  # the test looks behind the protocol
    assert isinstance(upkeep, Upkeep)

    def open_while_looking(path: str) -> SqliteConnection:
        connection = open_connection(path)
        looks.append(threads.submit(upkeep._look_for_strangers))
        wait(looks, timeout=0.2)  # it must not look now
        return connection

    monkeypatch.setattr(connecting, "open_connection", open_while_looking)
    with ThreadPoolExecutor() as threads:
        connection = connect(file, busy_seconds=1.0)
        looks[0].result()
    disconnect(file, connection)
    unshare(file)
    await store.aclose()


async def test_every_call_into_sqlite_is_made_where_a_fork_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a child inherits a connection that a thread has locked, and hangs for ever when it closes that."""
    path, careless = str(tmp_path / "x.db"), set[str]()

    def note(name: str) -> None:
        file = connecting._files[path]
        if not any(each.locked() for each in (file.turn.here, file.lock, *file._sections)):
            careless.add(f"{name} in {sys._getframe(2).f_code.co_name}")

    class Watched(apsw.Connection):
        """A connection that notes which calls no fork would wait for."""

        def __getattribute__(self, name: str) -> Any:  # whatever it is
            if not name.startswith("__"):
                note(name)
            return super().__getattribute__(name)

        def __enter__(self) -> Self:
            note("with")
            super().__enter__()
            return self

    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW
    monkeypatch.setattr(connecting, "open_connection", lambda path: Watched(path, flags=flags))
    for commits in ("loop", "thread"):
        store = await open_sqlite(path, SqliteOptions(commits=commits))
        backend: Any = store.backend
        await store.commit(Put(RecordKey("ns", "a"), b"1"), Put(RecordKey("ns", "old"), b"", expires_at=Instant(1)))
        await store.update(
            (RecordKey("ns", "a"),),
            lambda seen: Decision(None, (Put(RecordKey("ns", "a"), b"2", seen.version(RecordKey("ns", "a"))),)),
        )
        await store.commit_with(lambda sql: sql.execute("SELECT 1"), Put(RecordKey("ns", "b"), b""))
        await store.read(RecordKey("ns", "a"))
        await store.scan(*RecordKey("ns").within(), limit=1, reverse=True)
        await backend.transfer().frozen()
        backend.size()
        backend.count(10)
        await asyncio.to_thread(backend._upkeep._do, grow=True, checkpoint=True, sweep=True)
        await (await store.another()).aclose()
        await store.aclose()
    assert not careless
