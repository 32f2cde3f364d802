"""Liveness tokens: the death of a process is seen at once, and no living process is taken for dead."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from standfast.errors import UnsuitableStoreError
from standfast.stores.sqlite import locks as file_locks
from standfast.stores.sqlite.file import opening_our_own

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.sqlite.conftest import Open, Start

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has a lock")


def kill_and_wait(pid: int) -> None:
    """Kill a process and return when it has ended, without reaping it."""
    descriptor = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([descriptor], [], [], 30)[0]
    finally:
        os.close(descriptor)


def changed(line: str, field: int, value: object) -> str:
    """Return a liveness token with one of its fields replaced."""
    fields = line.split(":")
    fields[field] = str(value)
    return ":".join(fields)


BOOT, DEVICE, INODE, OFFSET = 1, 2, 3, 4


async def test_a_killed_process_is_severed_at_once(url: str, start: Start, opened: Open) -> None:
    """As soon as the process is gone, without waiting for anything to run out."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()
    assert not store.is_dead(line)

    child.kill()

    assert store.is_dead(line)


async def test_a_death_that_nobody_reaps_is_seen(url: str, start: Start, opened: Open) -> None:
    """A zombie has died, although its parent has not asked for it yet."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()

    kill_and_wait(child.pid)

    assert store.is_dead(line)


async def test_a_stopped_process_is_not_severed(url: str, start: Start, opened: Open) -> None:
    """It may go on at any moment, and then it believes that it holds what it held."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()
    child.stop()

    assert not store.is_dead(line)

    child.kill()
    assert store.is_dead(line)


async def test_a_process_that_has_closed_the_store_is_severed(url: str, start: Start, opened: Open) -> None:
    """It lives on, but holds nothing here any more."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()

    assert child.ask("close") == ["closed"]

    assert store.is_dead(line)


async def test_closing_one_of_two_handles_severs_nothing(url: str, start: Start, opened: Open) -> None:
    """The liveness token lasts as long as the last handle of the process."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()

    assert child.ask("again") == [line]

    assert not store.is_dead(line)


async def test_a_forked_child_does_not_keep_its_parent_alive(url: str, start: Start, opened: Open) -> None:
    """The death of the parent is seen while the child lives on with a token of its own, until it dies itself."""
    store = await opened(url)
    parent = start("live", url)
    [line] = parent.hear()
    pid, childs_line = parent.ask("fork")
    assert childs_line != line

    parent.send(signal.SIGKILL)
    parent.process.wait(30)
    assert store.is_dead(line)
    assert not store.is_dead(childs_line)

    kill_and_wait(int(pid))
    assert store.is_dead(childs_line)


async def test_a_forked_child_that_ends_does_not_sever_its_parent(url: str, start: Start, opened: Open) -> None:
    """Whatever it closes, the parent's lock is the parent's."""
    store = await opened(url)
    parent = start("live", url)
    [line] = parent.hear()

    assert parent.ask("fork-and-exit") == ["0"]

    assert not store.is_dead(line)


async def test_a_started_program_does_not_keep_its_parent_alive(url: str, start: Start, opened: Open) -> None:
    """What a process starts inherits nothing of its liveness token."""
    store = await opened(url)
    parent = start("live", url)
    [line] = parent.hear()
    assert parent.ask("exec") == ["started"]

    parent.send(signal.SIGKILL)
    parent.process.wait(30)

    assert store.is_dead(line)


# --- what is not certain --------------------------------------------------------------------------------------------


async def test_a_process_of_an_earlier_boot_is_severed(url: str, start: Start, opened: Open) -> None:
    """Nobody has its byte, and a disk may have had another number then."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()
    of_another_boot = changed(changed(line, BOOT, "another-boot"), DEVICE, 12345)
    assert not store.is_dead(of_another_boot), "a byte that somebody has is nobody's death, whatever boot it names"

    child.kill()

    assert store.is_dead(of_another_boot)


@pytest.mark.parametrize("field", [DEVICE, INODE])
async def test_a_liveness_token_of_another_file_says_nothing(url: str, start: Start, opened: Open, field: int) -> None:
    """What is tied elsewhere cannot be seen from here, even if it is severed there."""
    store = await opened(url)
    child = start("live", url)
    [line] = child.hear()
    child.kill()

    assert not store.is_dead(changed(line, field, 12345))


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_deleted_file_makes_nobody_dead(
    url: str, path: Path, start: Start, opened: Open, *, is_replaced: bool
) -> None:
    """Those who opened it before and after do not see each other any more: then nothing is certain."""
    early = await opened(url)
    before = start("live", url)
    [line] = before.hear()
    path.with_name("store.db-alive").unlink()
    if is_replaced:
        after = start("live", url)
        [line_after] = after.hear()
        assert after.ask("severed", line) == ["False"]
        assert not early.is_dead(line_after)

    assert not early.is_dead(line)
    before.kill()
    assert not early.is_dead(line), "a death, but not one that everybody can see"


async def test_a_database_that_was_replaced_takes_no_liveness_token_with_it(
    url: str, path: Path, start: Start, opened: Open
) -> None:
    """Opening the new one and closing the old one, which are tied to the same file, sever nothing."""
    old = await opened(url)
    line = old.liveness_token()
    for name in ("store.db", "store.db-wal", "store.db-shm"):
        path.with_name(name).rename(path.with_name(f"old-{name}"))
    await opened(url)
    child = start("live", url)
    child.hear()
    assert child.ask("severed", line) == ["False"]

    await old.aclose()

    assert child.ask("severed", line) == ["False"]


# --- the lock -------------------------------------------------------------------------------------------------------


async def test_other_code_cannot_open_the_file(url: str, path: Path, opened: Open) -> None:
    """Closing it again would sever the liveness token of a living process, so opening it is refused."""
    await opened(url)

    with pytest.raises(UnsuitableStoreError, match="file of its own"):
        path.with_name("store.db-alive").read_bytes()


async def test_a_liveness_token_that_was_lost_is_tied_anew(url: str, path: Path, start: Start, opened: Open) -> None:
    """Closing the file by ways that cannot be refused does harm only until the liveness token is asked for again."""
    store = await opened(url)
    line = store.liveness_token()
    child = start("live", url)
    child.hear()
    with opening_our_own():
        os.close(os.open(path.with_name("store.db-alive"), os.O_RDONLY))
    assert child.ask("severed", line) == ["True"]

    assert store.liveness_token() == line

    assert child.ask("severed", line) == ["False"]


async def test_without_a_lock_there_is_no_liveness_token(
    url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that cannot get a lock says so by an empty text, which is never severed."""

    def no_locks(descriptor: int, offset: int) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK), descriptor, offset)

    store = await opened(url)
    monkeypatch.setattr(file_locks, "try_lock", no_locks)

    assert store.liveness_token() == ""


async def test_two_processes_never_share_a_byte(
    url: str, start: Start, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that draws the number of another draws again."""
    [line] = start("live", url).hear()
    numbers = iter([int(line.split(":")[OFFSET]), 7])
    monkeypatch.setattr(file_locks, "_draw", lambda: next(numbers))
    store = await opened(url)

    assert store.liveness_token().split(":")[OFFSET] == "7"
    assert not store.is_dead(line)


async def test_nothing_is_seen_over_a_network(url: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where locks may not be what they seem, the store says that it sees no deaths."""
    monkeypatch.setattr(file_locks, "filesystem_of", lambda _: "nfs4")
    store = await opened(url)

    assert not store.capabilities.sees_process_death
    assert store.liveness_token() == ""
