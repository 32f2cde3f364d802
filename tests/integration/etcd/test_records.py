"""How records lie in etcd: versions, reserved ones, what has expired, and messages that history has lost."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, cast

import pytest

from standfast.clock import Instant, later
from standfast.stores import Commit, Conflict, Delete, Put
from standfast.stores.etcd.gateway import EtcdConnection
from standfast.stores.remote.server import Intent, Row, WriteRefused, Written
from tests.integration.etcd.clusters import ask
from tests.integration.etcd.conftest import key, opened

if TYPE_CHECKING:
    from standfast.stores import GroupedStore
    from standfast.stores.etcd.server import EtcdServer

pytestmark = pytest.mark.services


def server_of(store: GroupedStore) -> EtcdServer:
    """Return the server underneath a store."""
    return cast("EtcdServer", cast("Any", store.backend).server)


def keys_below(url: str, kind: str) -> int:
    """Return how many keys of a kind there are."""
    prefix = url.rpartition("/")[2].encode()
    first, last = (base64.b64encode(b"%b/%b%b" % (prefix, kind.encode(), end)).decode() for end in (b"/", b"0"))
    return int(ask(url, "/v3/kv/range", key=first, range_end=last, count_only=True).get("count", 0))


async def commit(store: GroupedStore, *changes: Put | Delete) -> dict[Any, int]:
    """Commit what cannot be refused."""
    verdict = await store.commit(*changes)
    assert isinstance(verdict, Commit)
    return verdict.versions


async def test_a_version_that_was_made_up_guards_nothing(url: str) -> None:
    """It is close to the real one, and of the same revision; but it is not the real one."""
    async with opened(url) as store, opened(url) as other:
        version = (await commit(store, Put(key("a"), b"")))[key("a")]
        for wrong in (version - 1, version + 1, version + 2, version + (1 << 12)):
            assert isinstance(await other.commit(Put(key("a"), b"wrong", wrong)), Conflict)
        assert isinstance(await other.commit(Put(key("a"), b"right", version)), Commit)


async def test_a_reserved_version_is_stale_if_its_key_came_and_went(url: str) -> None:
    """It would be below one that the key has had: a fence must never go back."""
    async with opened(url) as store, opened(url) as other:
        await commit(store, Put(key("first"), b""))
        server = server_of(store)
        reserved = await server.reserve(1, b"")
        passing = (await commit(other, Put(key("a"), b"")))[key("a")]
        await commit(other, Delete(key("a"), passing))

        intent = Intent("h", 1, {key("a"): 0}, (Row(key("a"), b"", 0),), (), 1, exact=reserved)
        refused = await server.write(intent)
        assert isinstance(refused, WriteRefused)
        assert refused.stale

        again = Intent("h", 2, {key("a"): 0}, (Row(key("a"), b"", 0),), (), 1, exact=await server.reserve(1, b""))
        written = await server.write(again)
        assert isinstance(written, Written)
        assert written.versions[0] > passing


async def test_a_reserved_version_is_stale_if_its_key_was_written_and_expired(url: str) -> None:
    """The record is still there, with a version that is not below the reserved one."""
    async with opened(url) as store, opened(url) as other:
        await commit(store, Put(key("first"), b""))
        server = server_of(store)
        reserved = await server.reserve(1, b"")
        at = (await other.read(key("a"))).at
        passing = (await commit(other, Put(key("a"), b"", expires_at=later(at, -1))))[key("a")]
        assert passing > reserved[0]
        assert not (await store.read(key("a"))).records

        intent = Intent("h", 1, {key("a"): 0}, (Row(key("a"), b"", 0),), (), 1, exact=reserved)
        refused = await server.write(intent)
        assert isinstance(refused, WriteRefused)
        assert refused.stale


async def test_what_has_expired_is_removed_and_what_was_renewed_is_not(url: str) -> None:
    """The index is in the way of nobody: it goes too."""
    async with opened(url) as store:
        at = (await store.read(key("a"))).at
        past = later(at, -60)
        await commit(store, *(Put(key(f"gone-{n}"), b"", expires_at=past) for n in range(50)))
        await commit(store, Put(key("renewed"), b"", expires_at=past))
        await commit(store, Put(key("renewed"), b"kept", expires_at=later(at, 3_600)))

        assert await server_of(store).sweep(500) > 0
        assert keys_below(url, "r") == 1
        assert keys_below(url, "x") == 1
        assert key("renewed") in (await store.read(key("renewed"))).records


async def test_nothing_is_removed_from_a_store_that_is_being_moved(url: str) -> None:
    """And the sweep ends all the same."""
    async with opened(url) as store:
        await commit(store, *(Put(key(f"gone-{n}"), b"", expires_at=Instant(1)) for n in range(50)))
        await store.transfer().freeze(1)
        assert await server_of(store).sweep(10) == 0
        assert keys_below(url, "r") == 50


async def test_messages_to_topics_that_no_handle_listens_to_are_removed(url: str) -> None:
    """They would stay for ever otherwise."""
    async with opened(url) as store:
        async with opened(url) as other, other.watch(key()) as watch:
            await commit(store, Put(key("a"), b""))
            await commit(store, Put(key("b"), b""))
            assert await watch.wait(5) is not None
        assert keys_below(url, "m") == 1
        await server_of(store).sweep(1)
        assert keys_below(url, "m") == 0


async def test_a_watch_goes_on_where_it_broke_off(url: str) -> None:
    """What was written while the stream was down is told when it is up again; and if history is gone, a loss is."""
    async with opened(url) as store, opened(url) as other, other.watch(key()) as watch:
        await commit(store, Put(key("first"), b""))
        await commit(store, Put(key("second"), b""))
        assert await watch.wait(5) is not None
        subscriber = server_of(other)._subscriber
        subscriber._backoff.failed()
        for _ in range(3):
            subscriber._backoff.failed()
        cast("Any", subscriber._stream).close()
        await commit(store, Put(key("while it was down"), b""))
        async with asyncio.timeout(10):
            about = set[Any]()
            while key("while it was down") not in about:
                notification = await watch.wait(5)
                about |= notification.about if notification is not None else set()


async def test_a_commit_with_more_operations_than_the_cluster_takes_is_told(url: str) -> None:
    """The URL claims more than the cluster was started with: nothing is written, and it is told in words."""
    async with opened(f"{url}?max_txn_ops=256") as store:
        assert store.capabilities.max_changes == 100
        with pytest.raises(ValueError, match="too many operations"):
            await store.commit(*(Put(key(str(n)), b"", expires_at=Instant(1)) for n in range(100)))
        assert (await store.scan(*key().within(), limit=10)).records == {}


async def test_many_messages_do_not_keep_a_commit_from_fitting(url: str) -> None:
    """Those for which there is no room are sent right after it."""
    async with opened(url) as store, opened(url) as other:
        await commit(store, Put(key("known"), b""))
        watches = [other.watch(key("t", str(n), "a", "b")) for n in range(30)]
        for watch in watches:
            await watch.__aenter__()
        await commit(store, *(Put(key("t", str(n), "a", "b"), b"") for n in range(60)))
        for watch in watches:
            assert await watch.wait(5) is not None
            await watch.__aexit__(None, None, None)


async def test_a_commit_is_one_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked beside that is paid for by every commit."""
    sent: list[str] = []
    post = EtcdConnection._post

    async def counted(self: EtcdConnection, path: str, body: bytes, seconds: float) -> tuple[int, bytes]:
        sent.append(path)
        return await post(self, path, body, seconds)

    async with opened(url) as store:
        version = (await commit(store, Put(key("a"), b"")))[key("a")]
        monkeypatch.setattr(EtcdConnection, "_post", counted)
        for _ in range(5):
            version = (await commit(store, Put(key("a"), b"", version)))[key("a")]

    assert sent[:5] == ["/v3/kv/txn"] * 5
    assert len(sent) <= 6  # and one when it is closed
