"""What happens to commits and watches on Durable Objects when answers, WebSockets or the runtime get lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.errors import StoreError, StoreRewoundError, StoreUnavailableError
from standfast.events import OutcomeSettled
from standfast.stores import Commit, Conflict, Delete, Put
from standfast.stores.cloudflare import connection
from standfast.stores.remote.subscriptions import RemoteSubscriptions
from tests.integration.cloudflare.conftest import counted, data_of, open_databases, opened, set_back
from tests.integration.faults.proxy import Fault, proxy_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.keys import RecordKey
    from tests.services.server import Server

    MakeKey = Callable[..., RecordKey]

pytestmark = pytest.mark.services


async def test_a_commit_whose_answer_is_lost_happens_once(url: str, key: MakeKey) -> None:
    """The attempt tells that it was written, and with which version."""
    settled: list[object] = []
    async with proxy_to(url) as proxy, opened(proxy.url, hooks=[settled.append]) as store:
        await store.commit(Put(key("first"), b""))  # from here on it knows the time, and reads nothing
        proxy.fault = Fault("reply", proxy.carried["reply"] + 1, "lose")
        verdict = await store.commit(Put(key("a"), b"once"))

        assert isinstance(verdict, Commit)
        assert (await store.read(key("a"))).version(key("a")) == verdict.versions[key("a")]
        assert [event.written for event in settled if isinstance(event, OutcomeSettled)] == [True]


async def test_a_commit_that_never_arrives_is_sent_again(url: str, key: MakeKey) -> None:
    """Its attempt is closed first, so that it cannot arrive any more."""
    settled: list[object] = []
    async with proxy_to(url) as proxy, opened(proxy.url, hooks=[settled.append]) as store:
        await store.commit(Put(key("first"), b""))
        proxy.fault = Fault("request", proxy.carried["request"] + 1, "lose")
        assert isinstance(await store.commit(Put(key("a"), b"once")), Commit)
        assert [event.written for event in settled if isinstance(event, OutcomeSettled)] == [False]


async def test_a_killed_runtime_keeps_what_it_acknowledged(server: Server, key: MakeKey) -> None:
    """After SIGKILL and a start, records are there, versions go on growing, and the handle is used again."""
    async with opened(server.url) as store:
        first = await store.commit(Put(key("a"), b"1"))
        assert isinstance(first, Commit)
        await asyncio.to_thread(server.kill)
        with pytest.raises(StoreError):
            await store.read(key("a"))
        await asyncio.to_thread(server.restart)
        second = await store.commit(Put(key("a"), b"2", expected=first.versions[key("a")]))

        assert isinstance(second, Commit)
        assert second.versions[key("a")] > first.versions[key("a")]


async def test_an_object_that_was_set_back_is_noticed_by_who_knows_more(server: Server, key: MakeKey) -> None:
    """By a writer and by a reader, which do nothing more; who opens it anew goes on, with higher versions."""
    async with opened(server.url) as writer, opened(server.url) as reader, opened(server.url) as late:
        await late.commit(Put(key("late"), b"1"))
        folder = data_of(server)
        await asyncio.to_thread(server.kill)
        with set_back(folder):
            await asyncio.to_thread(server.restart)
            second = await writer.commit(Put(key("b"), b"2"))
            assert isinstance(second, Commit)
            await reader.read(key("b"))
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        for _ in range(2):
            with pytest.raises(StoreRewoundError, match="accept-loss"):
                await reader.read(key("b"))
            with pytest.raises(StoreRewoundError):
                await writer.commit(Put(key("c"), b"3"))
        async with opened(server.url) as anew:
            again = await anew.commit(Put(key("b"), b"2"))
            assert isinstance(again, Commit)
            assert again.versions[key("b")] > second.versions[key("b")]


async def test_a_writer_whose_commits_are_gone_notices_although_others_have_written_since(
    server: Server, key: MakeKey
) -> None:
    """Versions are higher again than it has seen, but its own last attempt is not there."""
    async with opened(server.url) as other:
        await other.commit(Put(key("a"), b"1"))
    async with opened(server.url) as writer:
        folder = data_of(server)
        await asyncio.to_thread(server.kill)
        with set_back(folder):
            await asyncio.to_thread(server.restart)
            await writer.commit(Put(key("b"), b"2"))
            await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.restart)
        async with opened(server.url) as anew:
            await anew.commit(Put(key("d"), b"2"))
        with pytest.raises(StoreRewoundError):
            await writer.commit(Put(key("c"), b"3"))


async def test_a_runtime_that_does_not_answer_is_given_up_in_time(server: Server, key: MakeKey) -> None:
    """Calls end within their limits while it is frozen, and go on when it is back."""
    async with opened(f"{server.url}&timeout=500ms&connect_timeout=500ms") as store:
        await asyncio.to_thread(server.stop)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnavailableError):
                await store.read(key("a"))
        await asyncio.to_thread(server.cont)
        assert isinstance(await store.commit(Put(key("a"), b"")), Commit)


async def test_a_watch_whose_websocket_is_cut_is_told_that_anything_may_have_changed(url: str, key: MakeKey) -> None:
    """And it is notified of what comes later, over a new one."""
    async with proxy_to(url) as proxy, opened(proxy.url) as store, opened(url) as other, store.watch(key("a")) as watch:
        proxy.cut()
        lost = await watch.wait(10)
        assert lost is not None
        assert not lost.complete
        while (await watch.wait(0.1)) is not None:
            pass  # polls may have found it as well
        await other.commit(Put(key("a"), b""))
        assert (await watch.wait(10)) is not None


async def test_a_websocket_that_falls_silent_is_noticed_without_a_question(
    url: str, key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No end is told that the network has swallowed everything: the missing answer to a ping tells."""
    monkeypatch.setattr(connection, "HEARTBEAT", 0.2)
    async with proxy_to(url) as proxy, opened(proxy.url) as store:
        await store.commit(Put(key("a"), b""))
        backend = store._backend.server._sockets  # type: ignore[attr-defined]  # what is seen there is the point
        socket = await backend.socket(key("a").namespace)
        lost = asyncio.Event()
        socket.when_lost(lost.set)
        proxy.swallow()
        async with asyncio.timeout(10):
            await lost.wait()
        proxy.carry_on()


async def test_expired_records_are_swept_by_the_alarm_of_their_object(server: Server, key: MakeKey) -> None:
    """Nothing asks for it, and nothing else is swept."""
    async with opened(server.url) as store:
        at = (await store.read(key("a"))).at
        await store.commit(Put(key("a"), b"", expires_at=at), Put(key("b"), b""))
        assert counted(server, "records") == 2
        async with asyncio.timeout(30):
            while counted(server, "records") > 1:  # noqa: ASYNC110 -- the object tells nobody
                await asyncio.sleep(0.1)
        assert (await store.read(key("b"))).get(key("b")) is not None


async def test_records_that_are_too_much_for_one_refusal_are_shown_all_the_same(url: str, key: MakeKey) -> None:
    """They are read, a few at a time, and the commit that lost gets all of them."""
    keys = [key(f"{number:02}") for number in range(40)]
    async with opened(url) as store, opened(url) as other:
        for each in keys:
            await store.commit(Put(each, b"x" * 350_000))
        conflict = await other.commit(*(Delete(each, 1) for each in keys))

        assert isinstance(conflict, Conflict)
        assert len(conflict.current) == len(keys)
        assert len((await store.scan(*key().within(), limit=100)).records) < len(keys)


async def test_what_a_handle_listened_to_is_forgotten_when_it_is_gone(server: Server, key: MakeKey) -> None:
    """By the object, which sees its WebSocket close; and after a restart that no handle survived."""
    async with opened(server.url) as store:
        async with opened(server.url) as other, other.watch(key("a")):
            assert counted(server, "topics") == 1
        await store.commit(Put(key("a"), b""))
        assert counted(server, "topics") == 0
        async with store.watch(key("a")):
            await asyncio.to_thread(server.kill)
    await asyncio.to_thread(server.restart)
    async with opened(server.url) as store:
        await store.commit(Put(key("b"), b""))
        assert counted(server, "topics") == 0


async def test_an_object_that_hibernates_wakes_up_knowing_who_listens(server: Server, key: MakeKey) -> None:
    """A handle that only waits lets it: its pings are answered without the object."""
    async with opened(server.url) as store, opened(server.url) as other, store.watch(key("a")) as watch:
        await watch.wait(5)  # the first poll, which knows nothing of what was written before
        assert open_databases(server)
        async with asyncio.timeout(60):
            while open_databases(server):  # noqa: ASYNC110 -- the runtime tells nobody
                await asyncio.sleep(0.2)
        await other.commit(Put(key("a"), b""))
        assert (await watch.wait(10)) is not None


async def test_who_listens_is_told_by_a_committer_that_does_not_know_of_it(
    server: Server, key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object tells them: the committer may be gone before it has caught up."""
    async with opened(server.url) as store, opened(server.url) as other:
        await other.commit(Put(key("a"), b""))
        async with store.watch(key("b")) as watch:
            while (await watch.wait(1.5)) is not None:
                pass  # the first poll
            monkeypatch.setattr(RemoteSubscriptions, "note_generation", lambda *_: None)  # as if it died right here
            await other.commit(Put(key("b"), b""))
            told = await watch.wait(10)
        assert told is not None
        assert not told.complete


async def test_more_namespaces_than_websockets_are_kept_work_side_by_side(
    url: str, key: MakeKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was not used for longest is closed, and opened again when it is needed."""
    monkeypatch.setattr(connection, "MOST_IDLE", 2)
    async with opened(url) as store:
        keys = [type(key("a"))(f"namespace-{number}", "a") for number in range(8)]
        for each in (*keys, *keys):
            assert isinstance(await store.commit(Put(each, b"")), Commit | Conflict)
        sockets = store._backend.server._sockets  # type: ignore[attr-defined]  # what is kept there is the point
        assert len(sockets.namespaces()) <= 4
