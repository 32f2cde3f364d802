"""Opening a store on etcd: users, old members, a gateway that is off, and what is told of each."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from standfast.errors import (
    InvalidUrlError,
    StoreFullError,
    StoreReadOnlyError,
    StoreRewoundError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.events import StoreNeedsCare
from standfast.stores import Commit, Put
from standfast.stores.etcd import health
from standfast.stores.url import open_store
from tests import services
from tests.integration.etcd.clusters import ask, place
from tests.integration.etcd.conftest import key, opened
from tests.services.relay import Relay, port_of, with_port
from tests.services.server_process import free_port

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

pytestmark = pytest.mark.services

SECRET = "hunter2-hunter2"  # noqa: S105 -- the one to look for


async def test_twenty_who_start_at_once_open_the_same_store(url: str) -> None:
    """Each gets a store that works, and of all that create a record one does."""
    stores = await asyncio.gather(*(open_store(url) for _ in range(20)))
    verdicts = await asyncio.gather(*(store.commit(Put(key("a"), b"")) for store in stores))
    await asyncio.gather(*(store.aclose() for store in stores))

    assert sum(isinstance(verdict, Commit) for verdict in verdicts) == 1


async def test_a_cluster_that_is_not_there_is_told_with_its_address() -> None:
    """At once: no member takes a connection."""
    port, other = free_port(), free_port()
    with pytest.raises(StoreUnavailableError, match=rf"127.0.0.1:{port}.*is it up\?|127.0.0.1:{other}.*is it up\?"):
        await open_store(f"etcd://127.0.0.1:{port},127.0.0.1:{other}/x")


async def test_a_member_that_is_down_is_passed_over(url: str) -> None:
    """Whichever comes first in the URL."""
    address = url.replace("etcd://", f"etcd://127.0.0.1:{free_port()},")
    async with opened(address) as store:
        assert isinstance(await store.commit(Put(key("a"), b"")), Commit)


@pytest.mark.parametrize("text", ["etcd://host/a b", "etcd://host//", "etcd://host/x?max_txn_ops=8", "etcd://u@host/x"])
async def test_a_url_that_makes_no_sense_is_refused(text: str) -> None:
    """With what to type instead."""
    with pytest.raises(InvalidUrlError):
        await open_store(text)


async def test_a_gateway_that_is_switched_off_is_told() -> None:
    """Its operator can switch it on."""
    with (
        services.private("etcd", arguments=["--enable-grpc-gateway=false"]) as server,
        pytest.raises(UnsuitableStoreError, match="enable-grpc-gateway"),
    ):
        await open_store(server.url)


@contextlib.asynccontextmanager
async def old_member(version: str) -> AsyncGenerator[int]:
    """Answer as a member of another version does."""
    body = json.dumps({"etcdserver": version}).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("version", ["3.4.23", "3.5.2", "new"])
async def test_a_member_that_is_too_old_is_refused(version: str) -> None:
    """3.5.0 to 3.5.2 are known to lose consistency."""
    async with old_member(version) as port:
        with pytest.raises(UnsuitableStoreError, match=rf"{version}, and 3.5.3 or newer"):
            await open_store(f"etcd://127.0.0.1:{port}/x")


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A cluster with users: ``app`` may write below ``app/``, ``guest`` may read there."""
    with services.private("etcd", arguments=["--bcrypt-cost", "4", "--auth-token-ttl", "2"]) as server:
        for user, kind in (("root", None), ("app", "READWRITE"), ("guest", "READ")):
            ask(server.url, "/v3/auth/user/add", name=user, password=SECRET)
            ask(server.url, "/v3/auth/role/add", name=user)
            if kind:
                permission = {"permType": kind, "key": "YXBwLw==", "range_end": "YXBwMA=="}
                ask(server.url, "/v3/auth/role/grant", name=user, perm=permission)
            ask(server.url, "/v3/auth/user/grant", user=user, role=user)
        ask(server.url, "/v3/auth/enable")
        yield place(server.url)


async def test_a_user_reaches_its_own_prefix(guarded: str) -> None:
    """Commits, notifications and liveness; also when its token has run out."""
    url = f"etcd://app:{SECRET}@{guarded}/app"
    async with opened(url) as store, opened(url) as other, other.watch(key()) as watch:
        assert isinstance(await store.commit(Put(key("a"), b"")), Commit)
        assert await watch.wait(5) is not None
        assert store.liveness_token()
        await asyncio.sleep(3)  # rule: the token of this cluster lives for two seconds
        assert isinstance(await store.commit(Put(key("b"), b"")), Commit)
        assert SECRET not in repr(store)


@pytest.mark.parametrize(
    ("user", "error", "words"),
    [
        ("app:wrong@", StoreUnavailableError, "refuses the user or the password"),
        ("", StoreUnavailableError, "has users; name one"),
        (f"guest:{SECRET}@", StoreReadOnlyError, "grant its role readwrite"),
    ],
)
async def test_a_user_who_may_not_is_told_why(guarded: str, user: str, error: type[Exception], words: str) -> None:
    """And the secret is in no word of it."""
    with pytest.raises(error, match=words) as refused:
        async with opened(f"etcd://{user}{guarded}/app") as store:
            await store.commit(Put(key("c"), b""))
    assert SECRET not in str(refused.value)


async def test_a_user_on_a_cluster_without_users_is_told(url: str) -> None:
    """Nothing is sent as somebody who does not count."""
    with pytest.raises(UnsuitableStoreError, match="leave the user out"):
        await open_store(url.replace("//", f"//app:{SECRET}@"))


async def test_a_quota_that_is_used_up_is_told_and_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is written, reads go on; when there is room again and the alarm is off, the same handle goes on."""
    monkeypatch.setattr(health, "LOOK_EVERY", 0.0)
    events: list[object] = []
    with services.private("etcd", arguments=["--quota-backend-bytes", "3000000"]) as server:
        async with opened(server.url, hooks=[events.append]) as store:
            with pytest.raises(StoreFullError, match="alarm disarm"):
                await asyncio.gather(*(store.commit(Put(key(str(number)), bytes(300_000))) for number in range(40)))
            assert (await store.scan(*key().within(), limit=1)).records

            await cast("Any", store.backend).server.sweep(1)
            assert [event for event in events if isinstance(event, StoreNeedsCare) and "quota" in event.problem]

            await asyncio.to_thread(ask, server.url, "/v3/kv/deleterange", key="AA==", range_end="AA==")
            revision = (await asyncio.to_thread(ask, server.url, "/v3/kv/range", key="eA=="))["header"]["revision"]
            await asyncio.to_thread(ask, server.url, "/v3/kv/compaction", revision=revision, physical=True)
            await asyncio.to_thread(ask, server.url, "/v3/maintenance/defragment")
            for alarm in (await asyncio.to_thread(ask, server.url, "/v3/maintenance/alarm"))["alarms"]:
                await asyncio.to_thread(ask, server.url, "/v3/maintenance/alarm", action="DEACTIVATE", **alarm)
            async with opened(server.url) as anew:
                assert isinstance(await anew.commit(Put(key("again"), b"")), Commit)


async def test_a_cluster_that_has_lost_what_it_acknowledged_is_noticed() -> None:
    """Another one answers at its address, restored from a backup say: nothing is decided on what that one has."""
    with services.private("etcd") as server, services.private("etcd") as restored:
        relay = Relay(port_of(server.url))
        try:
            async with opened(with_port(server.url, relay.port)) as store:
                await store.commit(Put(key("a"), b""))
                relay.point_at(port_of(restored.url), cut=True)
                with pytest.raises(StoreRewoundError, match="another cluster"):
                    await store.read(key("a"))
        finally:
            relay.close()


async def test_versions_go_on_above_all_that_a_restored_cluster_may_have_lost(url: str) -> None:
    """What was fenced stays fenced: whoever opens it there goes on far above."""
    async with opened(url) as store:
        before = await store.commit(Put(key("a"), b""))
        assert isinstance(before, Commit)
    stored = base64.b64encode(f"{url.rpartition('/')[2]}/s".encode()).decode()
    facts = json.loads(base64.b64decode(ask(url, "/v3/kv/range", key=stored)["kvs"][0]["value"]))
    moved = base64.b64encode(json.dumps(facts | {"cluster": "another"}).encode()).decode()
    ask(url, "/v3/kv/put", key=stored, value=moved)

    async with opened(url) as store:
        again = await store.commit(Put(key("a"), b"", before.versions[key("a")]))
        assert isinstance(again, Commit)
        assert again.versions[key("a")] > before.versions[key("a")] + (1 << 40)
