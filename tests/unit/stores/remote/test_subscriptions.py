"""Hearing: watches are told by their own handle, by the server, and by a slow check."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores import Commit, Decision, Delete, Put, Record, Wake
from standfast.stores.remote import open_remote
from standfast.stores.remote import subscriptions as hearing
from standfast.stores.remote.backend import RemoteBackend
from tests.unit.stores.remote.table import Table, TableServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.stores import GroupedStore, Watch
    from standfast.stores.remote.server import Audience, Intent, Listener, Message, WriteRefused, Written

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


def listener_of(store: GroupedStore, table: Table) -> Listener:
    """Return what takes the messages to a store."""
    assert isinstance(store.backend, RemoteBackend)
    assert isinstance(store.backend.server, TableServer)
    return table.listeners[store.backend.server][0]


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
    """Nothing breaks, and nothing is assumed."""
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


async def test_a_watch_that_is_cancelled_while_it_opens_listens_no_more(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody will close it: it leaves nothing behind."""

    async def never(_self: TableServer, *_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TableServer, "subscribe", never)
    async with opened(table) as store:
        watch = store.watch(KEY)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.__aenter__(), 0.01)
        await store.commit(Put(KEY, b""))

        assert await watch.wait(0.01) is None


async def test_watches_that_come_and_go_are_looked_after_by_one_check(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that is under way when the last watch goes and another one comes is not joined by a second."""
    answered = asyncio.Event()

    async def mark(_self: TableServer) -> int:
        table.calls.append("mark")
        await answered.wait()
        return 0

    monkeypatch.setattr(hearing, "SLOW_CHECK", 0.0)
    monkeypatch.setattr(TableServer, "mark", mark)
    async with opened(table) as store:
        for _ in range(20):
            async with store.watch(KEY):
                await asyncio.sleep(0.002)

        assert table.calls.count("mark") <= 2
        answered.set()


class Unhurried(TableServer):
    """A table that says who listens when the third write is under way, and writes that one later."""

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Write."""
        if self.table.calls.count("write") == 2:
            self.table.calls.append("third")
            await asyncio.sleep(0.01)
        return await super().write(intent)

    async def audience(self) -> Audience:
        """Say who listens."""
        while self.table.calls.count("write") >= 2 and "third" not in self.table.calls:  # noqa: ASYNC110 -- the calls are a list
            await asyncio.sleep(0)
        return await super().audience()


async def test_a_commit_under_way_while_another_one_learns_of_a_watch_is_heard_too(table: Table) -> None:
    """It had set out before the list was known, so what it left out is sent as well."""
    other = open_remote(Unhurried(table))
    async with opened(table) as mine:
        await other.commit(Put(KEY.child("before"), b""))
        await asyncio.sleep(0.01)
        async with mine.watch(KEY) as watch:
            await asyncio.sleep(0)
            await other.commit(Put(KEY.child("first"), b""))
            await other.commit(Put(KEY.child("second"), b""))
            about = {key async for key in _heard(watch)}
        await other.aclose()

    assert about == {KEY.child("first"), KEY.child("second")}


async def _heard(watch: Watch) -> AsyncIterator[RecordKey]:
    while (hint := await watch.wait(0.1)) is not None:
        for key in hint.about:
            yield key


async def test_what_a_message_shows_is_heard_and_known(table: Table) -> None:
    """The watch has the record, and a commit that expects it needs no look."""
    grant, inbox = KEY.child("grant"), KEY.child("inbox")
    async with opened(table) as mine, opened(table) as other, mine.watch(inbox) as watch:
        await mine.read(KEY)  # the time is known by then
        listener = listener_of(mine, table)
        done = await other.commit(Put(KEY, b"head"), Put(grant, b"grant"))
        assert isinstance(done, Commit)
        head, made = (Record(key, value, done.versions[key]) for key, value in ((KEY, b"head"), (grant, b"grant")))
        data = hearing.encode_message("another", [Wake(inbox, KEY)])
        listener.take(data, [(inbox, head), (inbox, made)])

        hint = await watch.wait(5)
        assert hint is not None
        assert hint.moved == (head, made)
        assert hint.about == {grant}  # and not about the head, of which it may be told once more
        table.calls.clear()
        seen = await mine.update([KEY], lambda seen: Decision(seen.get(KEY), (Delete(KEY, seen.version(KEY)),)))
        assert seen.answer == head
        assert (table.calls.count("write"), table.calls.count("read")) == (1, 0)


async def test_what_a_late_message_shows_is_not_taken_for_new(table: Table) -> None:
    """What was seen since is kept."""
    async with opened(table) as mine, mine.watch(KEY):
        done = await mine.commit(Put(KEY, b"old"))
        assert isinstance(done, Commit)
        late = Record(KEY, b"old", done.versions[KEY])
        await mine.update([KEY], lambda seen: Decision(None, (Put(KEY, b"new", seen.version(KEY)),)))
        listener = listener_of(mine, table)
        listener.take(hearing.encode_message("another", []), [(KEY, late)], [])
        table.calls.clear()
        seen = await mine.update([KEY], lambda seen: Decision(seen.get(KEY), (Delete(KEY, seen.version(KEY)),)))
        assert seen.answer is not None
        assert seen.answer.value == b"new"
        assert table.calls == ["write"]


async def test_what_a_message_shows_to_be_gone_is_not_expected(table: Table) -> None:
    """A ticket that was moved into a grant, say: it may be created again without a look."""
    ticket = KEY.child("ticket")
    async with opened(table) as mine, opened(table) as other, mine.watch(KEY):
        await mine.update([ticket], lambda _: Decision(None, (Put(ticket, b""),)))
        seen = await other.read(ticket)
        made = await other.commit(Delete(ticket, seen.version(ticket)), Put(KEY, b""))
        assert isinstance(made, Commit)
        listener = listener_of(mine, table)
        listener.take(hearing.encode_message("another", []), [(KEY, Record(KEY, b"", made.versions[KEY]))], [ticket])
        table.calls.clear()
        await mine.update([ticket], lambda seen: Decision(None, (Put(ticket, b"", seen.version(ticket)),)))
        assert (table.calls.count("write"), table.calls.count("read")) == (1, 0)
