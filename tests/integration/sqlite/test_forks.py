"""Forking with an open store: what was inherited is refused, what is opened anew works, the parent is not harmed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from standfast.stores import Put
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import rounds, size

if TYPE_CHECKING:
    from tests.integration.sqlite.children import Child
    from tests.integration.sqlite.conftest import Look, Open, Start

ATTEMPTS = ["read", "scan", "commit", "update", "settle", "another", "watch"]
WAYS = [("os", "quietly"), ("os", "properly"), ("multiprocessing", "quietly"), ("multiprocessing", "properly")]
# Since Python 3.14 a child forked inside a task that has run a loop of its own cannot unwind through the old one.
if sys.version_info >= (3, 14):
    WAYS.remove(("os", "properly"))


def forked(start: Start, url: str, how: str, how_to_exit: str) -> tuple[Child, dict[str, str]]:
    """Start the program that forks and return what its child and it said."""
    child = start("fork", url, how, how_to_exit)
    said = dict(child.hear() for _ in range(len(ATTEMPTS) + 4))
    return child, said


@pytest.mark.parametrize(("how", "how_to_exit"), WAYS)
def test_an_inherited_store_is_refused_and_a_new_one_works(url: str, start: Start, how: str, how_to_exit: str) -> None:
    """In a forked child every use of the inherited store raises StoreClosedError; opening the same file anew works."""
    _, said = forked(start, url, how, how_to_exit)

    assert {name: said[name] for name in ATTEMPTS} == dict.fromkeys(ATTEMPTS, "forked")
    assert said["own"] == "worked"
    assert said["hint"] == "1", "the parent hears of what its child commits, as of any other process"


@pytest.mark.parametrize(("how", "how_to_exit"), WAYS)
async def test_a_child_that_ends_does_not_harm_its_parent(
    url: str, look: Look, start: Start, opened: Open, how: str, how_to_exit: str
) -> None:
    """However the child ends, the parent goes on committing, reading and hearing hints, and the file is sound."""
    parent, said = forked(start, url, how, how_to_exit)
    assert said["status"] == "0"
    assert said["parent"] == "worked"

    store = await opened(url)
    await store.commit(Put(key("after"), b""))
    parent.tell("listen")
    assert parent.hear() == ["heard", "1"]

    await store.aclose()
    assert parent.process.wait(30) == 0
    found = look()
    assert sorted(found["records"]) == ["test/after", "test/after/child", "test/before", "test/child", "test/parent"]


@pytest.mark.heavy
def test_a_child_has_locks_of_its_own_after_its_parent_died(url: str, look: Look, start: Start) -> None:
    """Once its parent is gone, a forked child that opened the file keeps others from starting the log anew."""
    orphan = start("fork_and_die", url)
    assert orphan.hear() == ["ready"]
    assert orphan.process.wait(30) == 0

    acknowledged = 0
    for seed in rounds("openings beside an orphan", full=100, quick=3):
        other = start("count", url, seed, 20, 1, 2)
        assert other.hear() == ["ready"]
        acknowledged += int(other.ask("go")[1])
        assert other.end() == 0

    acknowledged += int(orphan.ask("stop")[1])
    assert int(look()["records"]["test/folded"][1]) == acknowledged


@pytest.mark.heavy
def test_forks_beside_busy_threads_lose_nothing(url: str, look: Look, start: Start) -> None:
    """Children forked while threads of the process commit and read can all open the file; no increment is lost."""
    forks = size(full=500, quick=12)

    words = start("fork_while_busy", url, forks).hear(seconds=600)

    assert words[0] == "children", words
    assert int(words[1]) == forks
    found = look()
    assert int(found["records"]["test/folded"][1]) == forks + int(words[3])


def test_a_fork_in_the_midst_of_a_transaction_harms_nobody(url: str, look: Look, start: Start) -> None:
    """A child that was forked inside a transaction is refused the file; the parent's transaction is not disturbed."""
    parent = start("fork_inside", url)

    assert parent.hear() == ["child", "forked"]
    assert parent.hear() == ["parent", "done"]
    assert sorted(look()["records"]) == ["test/later", "test/parent"]


def test_a_fork_beside_a_thread_that_it_did_not_wait_for_is_told_and_does_not_hang(
    url: str, look: Look, start: Start
) -> None:
    """A child whose parent was inside SQLite without a word of it is refused the file, in place of waiting for ever."""
    parent = start("fork_unseen", url)

    assert parent.hear() == ["child", "forked"]
    assert parent.hear() == ["parent", "done"]
    assert sorted(look()["records"]) == ["test/parent"]


def test_a_fork_waits_for_a_thread_that_opens_the_file(url: str, look: Look, start: Start) -> None:
    """A child that was forked while its parent opened another handle can open the file, and both go on."""
    parent = start("fork_while_opening", url)

    assert parent.hear() == ["child", "wrote"]
    assert parent.hear() == ["told", "the-child"]
    assert parent.hear() == ["status", "0"]
    assert parent.hear() == ["parent", "done"]
    assert sorted(look()["records"]) == ["test/child"]
