"""Hearing: watches are told by their own handle, by the server, and by a slow check."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from holdfast.keys import RecordKey
from holdfast.stores import Decision, Put, Wake
from holdfast.stores.remote import hearing, open_remote
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.stores import GroupedStore
    from holdfast.stores.remote.server import Message

KEY = RecordKey("n", "t", "kind", "a")


@pytest.fixture
def table() -> Table:
    """A server's table."""
    return Table()


@contextlib.asynccontextmanager
async def opened(table: Table) -> AsyncIterator[GroupedStore]:
    """A store on a table."""
    store = open_remote(TableServer(table))
    try:
        yield store
    finally:
        await store.aclose()


async def test_a_commit_that_nobody_waits_for_sends_nothing(table: Table) -> None:
    """Neither a message, nor a look at who listens after the first."""
    async with opened(table) as store:
        await store.commit(Put(KEY, b""))
        await store.commit(Put(KEY.child("b"), b""))
        await asyncio.sleep(0)

    assert table.calls.count("write") == 2
    assert table.calls.count("audience") <= 1
    assert "send" not in table.calls


async def test_a_watch_is_heard_of_when_it_is_open(table: Table) -> None:
    """The first commit after it finds it, though its handle had not known of any."""
    async with opened(table) as mine, opened(table) as other:
        await other.commit(Put(KEY.child("before"), b""))
        async with mine.watch(KEY) as watch:
            await other.commit(Put(KEY, b""))
            hint = await watch.wait(5)

        assert hint is not None
        assert KEY in hint.about


async def test_a_second_watch_below_a_topic_costs_no_round_trip(table: Table) -> None:
    """The server knows already."""
    async with opened(table) as store, store.watch(KEY):
        before = table.calls.count("subscribe")
        async with store.watch(KEY), store.watch(KEY.child("x")):
            assert table.calls.count("subscribe") == before


async def test_a_handle_is_not_told_twice_of_its_own_commits(table: Table) -> None:
    """What comes back from the server is known by then."""
    async with opened(table) as store, store.watch(KEY) as watch:
        await store.commit(Put(KEY, b""))
        assert await watch.wait(5) is not None
        await store.commit(Put(KEY.child("again"), b""))
        assert await watch.wait(5) is not None

        assert await watch.wait(0.01) is None


async def test_a_lost_message_is_noticed_by_the_slow_check(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says to look at everything, and says it once."""
    monkeypatch.setattr(hearing, "SLOW_CHECK", 0.01)
    monkeypatch.setattr(TableServer, "_tell", lambda _self, _messages: None)
    async with opened(table) as mine, opened(table) as other, mine.watch(KEY) as watch:
        await watch.wait(0.1)
        await other.commit(Put(KEY, b""))

        hint = await watch.wait(5)
        assert hint is not None
        assert not hint.complete
        assert await watch.wait(0.1) is None


async def test_a_server_that_cannot_be_told_does_not_keep_a_watch_from_opening(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens after a while, and the slow check serves it."""

    async def never(_self: TableServer, *_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(hearing, "SUBSCRIBED_WITHIN", 0.01)
    monkeypatch.setattr(TableServer, "subscribe", never)
    async with opened(table) as store, store.watch(KEY):
        pass


async def test_a_message_of_nonsense_says_to_look_at_everything(table: Table) -> None:
    """Nothing breaks, and nothing is believed."""
    async with opened(table) as store, store.watch(KEY) as watch:
        listener, _ = next(iter(table.listeners.values()))
        listener.take(b"\xc1nonsense")

        hint = await watch.wait(5)
        assert hint is not None
        assert not hint.complete


async def test_wakes_without_changes_are_sent_too(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision may wake and write nothing."""
    sent: list[Message] = []
    tell = TableServer._tell

    def note(self: TableServer, messages: Sequence[Message]) -> None:
        sent.extend(messages)
        tell(self, messages)

    monkeypatch.setattr(TableServer, "_tell", note)
    async with opened(table) as mine, opened(table) as other, mine.watch(KEY) as watch:
        await other.commit(Put(KEY.child("known"), b""))
        assert await watch.wait(5) is not None
        await other.update([KEY], lambda _: Decision(None, wake=(Wake(KEY),)))

        assert await watch.wait(5) is not None
        assert sent
