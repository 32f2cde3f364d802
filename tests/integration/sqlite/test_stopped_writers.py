"""A process that is stopped inside its write transaction: the others are told, and go on when it does."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from standfast.clock import monotonic
from standfast.errors import StoreBusyError
from standfast.stores import Commit, Decision, Put
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import size

if TYPE_CHECKING:
    from standfast.stores import Snapshot
    from tests.integration.sqlite.children import Child
    from tests.integration.sqlite.conftest import Look, Open, Start

MODES = ["auto", "loop", "thread"]


def stopped_inside(start: Start, url: str) -> Child:
    """Return a child that is stopped in the middle of its transaction."""
    child = start("stop_inside", url)
    assert child.hear() == ["ready"]
    child.tell("go")
    child.wait_until_stopped()
    return child


@pytest.mark.parametrize("mode", MODES)
async def test_a_stopped_writer_is_named_in_bounded_time(url: str, start: Start, opened: Open, mode: str) -> None:
    """A commit that finds a stopped process inside its transaction fails soon and names that process."""
    store = await opened(f"{url}?busy=300ms&commits={mode}")
    child = stopped_inside(start, url)

    began = monotonic()
    with pytest.raises(StoreBusyError, match=rf"process {child.pid}\b"):
        await store.commit(Put(key("mine"), b""))

    assert 0.25 < monotonic() - began < 1.5
    child.send(signal.SIGCONT)


@pytest.mark.parametrize("mode", MODES)
async def test_all_go_on_after_a_stopped_writer_continues(url: str, start: Start, opened: Open, mode: str) -> None:
    """After SIGCONT the stopped process finishes its commit, and those it held up commit on the same handle."""
    store = await opened(f"{url}?busy=300ms&commits={mode}")
    child = stopped_inside(start, url)
    with pytest.raises(StoreBusyError):
        await store.commit(Put(key("mine"), b"refused"))

    child.send(signal.SIGCONT)
    assert child.hear() == ["continued"]
    verdict = await store.commit(Put(key("mine"), b"taken"))

    found = await store.read(key("mine"), key("stopped"))
    assert isinstance(verdict, Commit)
    assert {record.value for record in found.records.values()} == {b"taken", b"continued"}


async def test_a_refused_commit_is_never_written_later(url: str, start: Start, opened: Open) -> None:
    """What was refused because of a stopped writer does not appear once that writer goes on."""
    store = await opened(f"{url}?busy=100ms")
    child = stopped_inside(start, url)
    refused = await asyncio.gather(*(store.commit(Put(key("late", n), b"")) for n in range(5)), return_exceptions=True)
    child.send(signal.SIGCONT)
    assert child.hear() == ["continued"]

    await store.commit(Put(key("later"), b""))

    assert all(isinstance(answer, StoreBusyError) for answer in refused)
    assert not (await store.scan(*key("late").within(), limit=10)).records


async def test_commits_return_to_the_loop_after_a_stopped_writer_continues(
    url: str, start: Start, opened: Open
) -> None:
    """Having once waited in vain does not leave a handle on the slow path."""
    store = await opened(f"{url}?busy=100ms&commits=loop")
    child = stopped_inside(start, url)
    with pytest.raises(StoreBusyError):
        await store.commit(Put(key("mine"), b"refused"))
    child.send(signal.SIGCONT)
    assert child.hear() == ["continued"]

    def where(_: Snapshot) -> Decision[int]:
        return Decision(threading.get_ident())

    async with asyncio.timeout(5):
        place = None
        while place != threading.get_ident():
            place = (await store.update((key("mine"),), where)).answer


async def test_reads_do_not_wait_for_a_stopped_writer(url: str, start: Start, opened: Open) -> None:
    """Reading goes on at full speed beside a process that is stopped inside its transaction."""
    store = await opened(f"{url}?busy=300ms")
    await store.commit(Put(key("mine"), b"before"))
    child = stopped_inside(start, url)

    began = monotonic()
    found = await store.read(key("mine"), key("stopped"))

    assert monotonic() - began < 0.25
    assert [record.value for record in found.records.values()] == [b"before"]
    child.send(signal.SIGCONT)


async def test_a_store_closes_in_bounded_time_beside_a_stopped_writer(url: str, start: Start, opened: Open) -> None:
    """Closing does not wait for a process that may never continue."""
    store = await opened(f"{url}?busy=100ms")
    child = stopped_inside(start, url)
    with pytest.raises(StoreBusyError):
        await store.commit(Put(key("mine"), b"refused"))

    async with asyncio.timeout(5):
        await store.aclose()

    child.send(signal.SIGCONT)


def test_a_process_ends_in_bounded_time_beside_a_stopped_writer(url: str, start: Start) -> None:
    """A process that was refused by a stopped writer can still end."""
    other = start("obey", f"{url}?busy=100ms")
    assert other.hear()[0] == "done"
    child = stopped_inside(start, url)

    assert other.ask("commit", "mine")[0] == "StoreBusyError"

    assert other.end() == 0
    child.send(signal.SIGCONT)


def test_a_store_opens_beside_a_stopped_writer(url: str, start: Start) -> None:
    """Opening needs no turn once the file exists."""
    child = stopped_inside(start, url)

    assert start("obey", f"{url}?busy=100ms").hear(seconds=10)[0] == "done"
    child.send(signal.SIGCONT)


def test_the_turn_falls_when_a_stopped_writer_is_killed(url: str, start: Start) -> None:
    """Killing the stopped process frees its turn, and its transaction is undone."""
    other = start("obey", f"{url}?busy=20s")
    assert other.hear()[0] == "done"
    child = stopped_inside(start, url)
    other.tell("commit", "mine")
    assert other.is_silent()

    child.kill()

    assert other.hear(seconds=5)[0] == "done"


@pytest.mark.heavy
async def test_processes_that_are_stopped_at_any_moment_lose_nothing(
    url: str, start: Start, look: Look, seed: int
) -> None:
    """Stopped and continued again and again wherever they happen to be, processes lose no acknowledged increment."""
    chooser = random.Random(seed)
    increments = size(full=5_000, quick=400)
    children = [start("count", f"{url}?busy=60s", seed + n, increments, 5, 4) for n in range(4)]
    assert [child.hear() for child in children] == [["ready"]] * 4
    for child in children:
        child.tell("go")

    while any(child.is_silent(chooser.uniform(0, 0.02)) for child in children):
        child = chooser.choice(children)
        child.stop()
        child.is_silent(chooser.uniform(0, 0.05))
        child.send(signal.SIGCONT)

    acknowledged = sum(int(child.hear()[1]) for child in children)
    assert int(look()["records"]["test/folded"][1]) == acknowledged == 4 * increments
