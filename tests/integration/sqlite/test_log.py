"""The write-ahead log: bounded, written back off the loop, and in nobody's way."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import monotonic
from standfast.events import Checkpointed
from standfast.stores import Commit, Put
from standfast.stores.sqlite import backend as upkeep
from standfast.stores.sqlite import connection as connecting
from standfast.stores.sqlite import database
from standfast.stores.url import open_store
from tests.integration.sqlite.children import PATIENCE
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import size

if TYPE_CHECKING:
    from pathlib import Path

    from standfast.events import Event
    from standfast.stores import Store
    from tests.integration.sqlite.conftest import Look, Open, Start

MOST = 24 * 1024 * 1024


def log_size(path: Path) -> int:
    """Return the size of the log, without opening it."""
    return os.stat(f"{path}-wal").st_size  # noqa: PTH116 -- a name made of the database's


async def write(store: Store, path: Path, commits: int, *, first: int = 0) -> tuple[int, float]:
    """Commit again and again; return the largest size of the log and the longest time of a commit."""
    largest, longest = 0, 0.0
    for number in range(first, first + commits):
        began = monotonic()
        verdict = await store.commit(Put(key("log", f"{number % 5000}", f"{number}"), b"x" * 1000))
        longest = max(longest, monotonic() - began)
        assert isinstance(verdict, Commit)
        if number % 50 == 0:
            largest = max(largest, log_size(path))
    return largest, longest


@pytest.mark.heavy
@pytest.mark.parametrize("mode", ["auto", "thread"])
async def test_the_log_stays_bounded_under_continuous_writing(url: str, path: Path, opened: Open, mode: str) -> None:
    """However much is written without a pause, the log stays below a few megabytes."""
    store = await opened(f"{url}?commits={mode}")

    largest, longest = await write(store, path, size(full=20_000, quick=5_000))

    print(f"log at most {largest / 1e6:.1f} MB, longest commit {longest * 1e3:.0f} ms")
    assert largest <= MOST


@pytest.mark.heavy
def test_the_log_stays_bounded_under_several_writers(url: str, path: Path, start: Start) -> None:
    """The same holds when several processes write flat out."""
    children = [start("flat_out", url, n, size(full=20, quick=2), 10) for n in range(4)]
    assert [child.hear() for child in children] == [["ready"]] * 4
    for child in children:
        child.tell("go")
    largest = 0
    while any(child.is_silent(0.01) for child in children):
        largest = max(largest, log_size(path))
    commits = sum(int(child.hear()[0]) for child in children)

    print(f"log at most {largest / 1e6:.1f} MB during {commits} commits of four processes")
    assert 0 < largest <= MOST


async def test_a_log_is_given_its_size_beside_those_who_use_it(
    url: str, path: Path, start: Start, opened: Open, look: Look
) -> None:
    """Growing a log that already holds commits harms none of them, nor those that follow, nor a repair after a kill."""
    store = await opened(url)
    other = start("obey", url)
    assert other.hear()[0] == "done"
    await write(store, path, 10)
    assert log_size(path) < 1_000_000

    written = 10
    async with asyncio.timeout(PATIENCE):
        while log_size(path) < 8 << 20:  # a part of it is seen while it is written
            await write(store, path, 1, first=written)
            written += 1
    await write(store, path, 20, first=written)
    assert other.ask("commit", "theirs")[0] == "done"
    assert len(look()["records"]) == written + 21
    await store.aclose()
    other.kill()

    assert len(look()["records"]) == written + 21


async def test_a_handle_that_commits_little_leaves_the_log_small(url: str, path: Path, opened: Open) -> None:
    """One that is used gives it its size, once."""
    few, many = await opened(url), await opened(url)
    await write(few, path, 3)
    assert log_size(path) < 200_000

    written = 3
    async with asyncio.timeout(PATIENCE):
        while log_size(path) < 8 << 20:  # a part of it is seen while it is written
            await write(many, path, 1, first=written)
            written += 1
    given = log_size(path)
    await write(few, path, 100, first=written)
    assert log_size(path) == given


async def test_a_new_database_is_small(url: str, path: Path, opened: Open) -> None:
    """Only the log is given its size; the file itself grows with what is in it."""
    await (await opened(url)).aclose()

    assert path.stat().st_size < 100_000


async def test_closing_writes_the_log_back_off_the_loop(
    url: str, path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last to close writes everything back to the one file, on a thread that is not the loop's."""
    threads: list[int] = []

    def disconnect(*arguments: Any) -> None:
        threads.append(threading.get_ident())
        connecting.disconnect(*arguments)

    for module in (database, upkeep):
        monkeypatch.setattr(module, "disconnect", disconnect)
    store = await opened(url)
    await asyncio.gather(*(store.commit(Put(key("log", n), b"x" * 30_000)) for n in range(100)))
    await store.aclose()

    assert len(path.read_bytes()) > 3_000_000
    assert threads
    assert threading.get_ident() not in threads


async def test_the_log_is_written_back_off_the_loop(url: str, path: Path) -> None:
    """No checkpoint ever runs on the thread of the event loop."""
    threads: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, Checkpointed):
            threads.append(threading.get_ident())

    store = await open_store(url, hooks=[note])
    await write(store, path, 1_500)
    await store.aclose()

    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.heavy
async def test_a_long_reader_elsewhere_costs_room_but_no_time(url: str, path: Path, start: Start, look: Look) -> None:
    """While another program reads for long, commits go on without long waits; once it ends the log shrinks again."""
    checkpoints: list[Event] = []
    store = await open_store(url, hooks=[checkpoints.append])
    await write(store, path, 100)
    reader = start("read_for_long", path)
    assert reader.hear() == ["reading"]

    _, longest = await write(store, path, 2_000, first=100)
    pinned, tried = log_size(path), len(checkpoints)
    assert reader.ask("end") == ["same"]
    await write(store, path, 1_500, first=2_100)

    print(
        f"log {pinned / 1e6:.1f} MB beside the reader, {log_size(path) / 1e6:.1f} MB after it, longest {longest:.3f} s"
    )
    assert longest < 2.0
    assert tried <= pinned / 4096 / 1000 + 5, "trying again before there is more to write back is no use"
    assert log_size(path) <= MOST
    await store.aclose()
    assert len(look()["records"]) == 3_600
