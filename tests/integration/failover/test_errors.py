"""What an error of a replicated server says: which of its members was asked, and what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError, UnsuitableStoreError
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores import Commit, Put
from standfast.stores.url import open_store
from standfast.testing.conformance.workflows.ground import eventually
from tests.integration.etcd.clusters import cluster as etcd_cluster
from tests.services import replicated
from tests.services.relay import port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from standfast.stores import GroupedStore
    from tests.services.server import Server

pytestmark = [pytest.mark.services, pytest.mark.heavy, pytest.mark.timeout(120)]


class Members:
    """The members of a replicated server, and a URL that names all of them."""

    def __init__(self, url: str, primary: Server, others: list[Server]) -> None:
        self.url, self.primary, self.others = url, primary, others


def all_hosts(group: replicated.Group) -> str:
    """Return a URL with every member in it."""
    before, at, after = group.primary.url.rpartition("@")
    path = after.partition("/")[2]
    return f"{before}{at}{','.join(place(each) for each in group.members)}/{path}"


def place(server: Server) -> str:
    """Return where a member is."""
    return f"127.0.0.1:{port_of(server.url)}"


def hosts(url: str) -> list[str]:
    """Return the hosts that a URL names."""
    return re.findall(r"127\.0\.0\.1:\d+", url)


@contextmanager
def members(kind: str) -> Iterator[Members]:
    """Start a replicated server."""
    if kind == "etcd":
        with etcd_cluster() as three:
            leader = three.leader()
            yield Members(
                f"{three.url}?timeout=1s&connect_timeout=1s",
                leader,
                [each for each in three.members if each is not leader],
            )
        return
    make: dict[str, Callable[[], Any]] = {
        "postgresql": replicated.postgresql,
        "mysql": replicated.mariadb,
        "mongodb": replicated.mongodb,
        "redis+sentinel": replicated.sentinels,
        "redis cluster": replicated.cluster,
    }
    with make[kind]() as group:
        group.aim("space")
        url = all_hosts(group) if kind in {"postgresql", "mysql"} else group.url
        yield Members(f"{url}{'&' if '?' in url else '?'}timeout=1s&connect_timeout=1s", group.primary, group.followers)


KINDS = ["postgresql", "mysql", "mongodb", "redis+sentinel", "redis cluster", "etcd"]


async def told(store: GroupedStore) -> list[StoreError]:
    """Write until the store says that it cannot, or until it went on for a while; return what it said."""
    found: list[StoreError] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(25):
            for _ in range(10):
                try:
                    await store.commit(Put(RecordKey("space", new_id()), b""))
                except StoreError as error:
                    found.append(error)
                    if len(found) == 2:
                        break
    return found


async def refuse_a_wrong_password(set_up: Members, kind: str) -> None:
    """Open a store with one, and see that the error names a member and does not show the password."""
    url = re.sub(r"(://[^:]*):[^@]*@", r"\1:mistaken@", set_up.url)
    if kind == "mongodb":
        url = url.replace("://", "://somebody:mistaken@")
    with pytest.raises((UnsuitableStoreError, StoreUnavailableError)) as refused:
        await open_store(url)
    everyone = {*hosts(set_up.url), place(set_up.primary)}
    assert any(each in refused.value.problem for each in everyone), refused.value
    assert "mistaken" not in str(refused.value)


@pytest.mark.parametrize("fault", ["killed", "frozen"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_member_that_does_not_answer_or_refuses_a_password_is_named(kind: str, fault: str) -> None:
    """With host and port, and never as a mistake of the caller's or a lease that was too short."""
    with members(kind) as set_up:
        if fault == "killed" and kind != "etcd":
            await refuse_a_wrong_password(set_up, kind)
        store = await open_store(set_up.url)
        try:
            assert isinstance(await store.commit(Put(RecordKey("space", "a"), b"")), Commit)
            if fault == "killed":
                await asyncio.to_thread(set_up.primary.kill)
            else:
                set_up.primary.stop()
            found = await told(store)
            set_up.primary.cont()
            for error in found:
                assert isinstance(error, (StoreUnavailableError, OutcomeUnknownError)), error
                everyone = {*hosts(set_up.url), *map(place, [set_up.primary, *set_up.others])}
                assert any(each in error.problem for each in everyone), error
                assert "replicas=***" not in str(error)
            if kind in {"postgresql", "mysql"}:  # elsewhere another one takes over by itself, perhaps before that
                assert any(place(set_up.primary) in error.problem for error in found)
        finally:
            await store.aclose()


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
async def test_a_former_primary_that_takes_no_writes_any_more_is_named(kind: str) -> None:
    """It is read-only now, and no other one takes over."""
    with members(kind) as set_up:
        url = set_up.url
        if kind == "mysql":  # root may write all the same
            for statement in (
                "CREATE USER app IDENTIFIED BY 'it'",
                "GRANT ALL ON *.* TO app",
                "REVOKE SUPER, READ_ONLY ADMIN ON *.* FROM app",
            ):
                await asyncio.to_thread(replicated.sql, set_up.primary.url, statement)
            url = re.sub(r"://[^@]*@", "://app:it@", url)
        store = await open_store(url)
        try:
            await store.commit(Put(RecordKey("space", "a"), b""))
            if kind == "mysql":
                await asyncio.to_thread(replicated.sql, set_up.primary.url, "SET GLOBAL read_only = 1")
            else:
                statements = "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()"
                await asyncio.to_thread(run_psql, set_up.primary.url, statements)
            refused = (await told(store))[0]
            assert place(set_up.primary) in refused.problem
            assert "read" in refused.problem
        finally:
            await store.aclose()


def run_psql(url: str, statements: str) -> None:
    """Run statements one after the other."""
    import psycopg  # noqa: PLC0415 - a driver, needed here only

    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements.split(";"):
            connection.execute(statement.encode())


async def test_a_lock_and_a_wait_that_a_failover_ends_say_so() -> None:
    """The holder is told which server it could not reach; who waits neither of its lease nor of a lock that it has."""
    with replicated.postgresql() as servers:
        url = f"{all_hosts(servers)}?timeout=1s&connect_timeout=1s"
        async with await sf.open(url, lease=3) as space, await sf.open(url, lease=3) as other:
            holding = asyncio.create_task(hold_on(space))
            await eventually(lambda: has(space, "holders"))
            waiting = asyncio.create_task(other.mutex("a").hold(timeout=6).__aenter__())
            await eventually(lambda: has(space, "waiters"))
            await asyncio.to_thread(servers.primary.kill)
            lost, refused = await asyncio.gather(holding, waiting, return_exceptions=True)
            assert isinstance(lost, sf.errors.LeaseLostError)
            assert place(servers.members[0]) in lost.reason
            assert isinstance(refused, (StoreError, sf.errors.HoldTimeoutError))
            assert isinstance(refused, sf.errors.HoldTimeoutError) or place(servers.members[0]) in refused.problem


async def hold_on(space: sf.Space) -> None:
    """Hold a lock until it is lost."""
    async with space.mutex("a").hold():
        await asyncio.Event().wait()


async def has(space: sf.Space, what: str) -> bool:
    """Tell whether anyone holds the lock, or waits for it."""
    return bool(getattr(await space.explain("a"), what))
