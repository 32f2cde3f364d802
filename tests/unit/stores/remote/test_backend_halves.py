"""A crowd travels in halves: while the server works for one, this process works for the other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores import group_commit as group
from standfast.stores.backend import Batching
from standfast.stores.group_commit import A_CROWD
from standfast.stores.remote import open_remote
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from standfast.stores import GroupedStore
    from standfast.stores.remote import Intent, WriteRefused, Written


class Hands:
    """A clock that is turned by hand."""

    now = 1.0


clock = Hands()


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the group read the clock that is turned by hand."""
    monkeypatch.setattr(group, "monotonic", lambda: clock.now)


class Slow(TableServer):
    """A table that answers after a few turns of the loop, and notes what happens."""

    def __init__(self) -> None:
        super().__init__(Table(), Batching(in_halves=True))
        self.log: list[str] = []
        self.under_way = 0
        self.takes = 0.001

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Take one at a time."""
        self.log.append(f"sent {len(intent.puts)}")
        self.under_way += 1
        assert self.under_way == 1
        for _ in range(10):
            await asyncio.sleep(0)
        clock.now += self.takes
        self.under_way -= 1
        self.log.append("answered")
        return await super().write(intent)


async def commits(store: GroupedStore, server: Slow, task: int, times: int) -> None:
    """Commit one after another."""
    key = RecordKey("n", str(task))
    version = 0
    for number in range(times):
        verdict = await store.commit(Put(key, b"%d" % number, version))
        assert isinstance(verdict, Commit)
        version = verdict.versions[key]
        server.log.append("told")
        clock.now += 0.0001  # of work


async def crowd(tasks: int, times: int = 6, takes: float = 0.001) -> list[str]:
    """Let tasks commit at the same time; return what happened."""
    server = Slow()
    server.takes = takes
    store = open_remote(server)
    await asyncio.gather(*(commits(store, server, task, times) for task in range(tasks)))
    await store.aclose()
    assert len(server.table.records) == tasks
    return server.log


async def test_a_crowd_is_parted_into_halves_that_take_turns() -> None:
    """One transaction is under way at a time, as ever."""
    log = await crowd(A_CROWD)

    sent = [each for each in log if each.startswith("sent")]
    assert f"sent {A_CROWD // 2}" in sent[1:3]
    assert log.count("told") == 6 * A_CROWD


async def test_the_other_half_leaves_before_those_who_arrived_are_told() -> None:
    """So the server has something to do while they work."""
    log = await crowd(A_CROWD)

    half = log.index(f"sent {A_CROWD // 2}")
    answered = log.index("answered", half)
    assert log[answered + 1] == f"sent {A_CROWD // 2}"
    assert log[answered + 2] == "told"


async def test_a_few_travel_together() -> None:
    """For them a transaction of their own costs more than waiting for each other."""
    log = await crowd(A_CROWD - 1)

    assert [each for each in log if each.startswith("sent")] == [f"sent {A_CROWD - 1}"] * 6


async def test_a_crowd_stays_together_where_the_server_takes_longer_than_this_process() -> None:
    """Over a long line, or to a slow disk, two transactions would take twice as long as one."""
    log = await crowd(A_CROWD, takes=1.0)

    assert [each for each in log if each.startswith("sent")] == [f"sent {A_CROWD}"] * 6
