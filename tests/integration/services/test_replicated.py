"""Servers that replicate one another: a follower has what the primary has, lags when it is told to, and takes over."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis
from pymongo import MongoClient

from tests.integration.services.test_lifetimes import await_end, run_folder
from tests.services import replicated
from tests.services.relay import with_port
from tests.services.server_process import family

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.services, pytest.mark.heavy]

UP_WITHIN = 15.0


def sql(url: str, statement: str) -> Any:
    """Return the first row that a PostgreSQL answers."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchone() if cursor.description else None


def get(url: str) -> Any:
    """Return what a Valkey has at the key ``a``."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        return client.get("a")


def put(url: str, value: str) -> None:
    """Write at the key ``a`` of a Valkey."""
    with redis.Redis.from_url(url) as client:
        client.set("a", value)


@pytest.mark.parametrize(
    "make",
    [
        replicated.postgresql,
        replicated.valkey,
        replicated.sentinels,
        replicated.cluster,
        replicated.mariadb,
        lambda: replicated.mariadb(semi_sync=False),
        replicated.mongodb,
        replicated.etcd,
    ],
    ids=["postgresql", "valkey", "sentinels", "cluster", "mariadb", "asynchronous mariadb", "mongodb", "etcd"],
)
def test_replicated_servers_come_up_soon_and_go_down_for_certain(make: Callable[[], Any]) -> None:
    """Within fifteen seconds all of them work together; afterwards no process and no data is left."""
    began = time.monotonic()
    with make() as servers:
        took = time.monotonic() - began
        all_of_them = [*servers.members, *servers.sentinels]
        pids = [pid for each in all_of_them for pid in family(each.pid)]
        folders = [run_folder(each.pid) for each in all_of_them]
        assert servers.url

    await_end(pids)
    assert not [folder for folder in folders if folder.exists()]
    assert took < UP_WITHIN


def test_a_synchronous_standby_has_what_was_committed_and_takes_over() -> None:
    """The address stands for the new primary, and the old one is another server."""
    with replicated.postgresql() as servers:
        sql(servers.url, "create table kept (value int)")
        servers.primary.kill()
        servers.promote(servers.members[1])

        assert sql(servers.url, "select count(*) from kept") == (0,)
        assert sql(servers.url, "select pg_is_in_recovery()") == (False,)


def test_a_standby_that_lags_has_less_when_it_takes_over() -> None:
    """Acknowledged by an asynchronous primary, held on the way to the standby, and gone after the failover."""
    with replicated.postgresql(synchronous=False) as servers:
        sql(servers.url, "create table early ()")
        two = servers.members[2].url
        replicated.until(lambda: sql(two, "select to_regclass('early')") != (None,), "the standby has the table")
        servers.lag()
        sql(servers.url, "create table late ()")
        servers.primary.kill()
        servers.part()
        servers.promote(servers.members[2])

        assert sql(servers.url, "select to_regclass('early')::text, to_regclass('late')::text") == ("early", None)


def test_sentinels_choose_another_primary() -> None:
    """When the first one is gone for a second."""
    with replicated.sentinels() as servers:
        put(servers.primary.url, "kept")
        servers.primary.kill()
        servers.take_over()

        assert get(servers.primary.url) == "kept"


def test_a_replica_takes_over_in_a_cluster() -> None:
    """When its primary is gone for a second; a primary that comes back follows it."""
    with replicated.cluster() as servers:
        servers.aim("some namespace")
        first = servers.primary
        first.kill()
        servers.take_over()
        assert servers.primary is not first
        first.restart()

        replicated.until(lambda: replicated.is_whole(first), "the old primary is a replica")


@pytest.mark.parametrize("clients", [True, False])
def test_a_node_of_a_cluster_that_is_cut_off_hears_none_and_is_heard_by_none(*, clients: bool) -> None:
    """Another takes over its slots, and it does not know, with its connections open; clients reach it or do not."""
    with replicated.cluster(relayed=True) as servers:
        servers.aim("some namespace")
        cut = servers.primary
        place = with_port(cut.url, servers.port_for(cut))
        servers.part(clients=clients)
        servers.take_over()

        replicated.until(lambda: "cluster_state:fail" in info_of(cut.url), "it misses the others")
        assert replicated.valkey_ask(cut.url, "ROLE")[0] == "master"
        with nullcontext() if not clients else pytest.raises(redis.TimeoutError):
            assert "cluster_state:fail" in info_of(place)

        servers.rejoin()
        replicated.until(lambda: replicated.is_whole(cut), "the old primary is a replica")


def info_of(url: str) -> str:
    """Return what a node says of its cluster."""
    return str(replicated.valkey_ask(url, "CLUSTER", "INFO"))


def test_a_replica_that_lags_lacks_what_was_written() -> None:
    """Until it may catch up."""
    with replicated.valkey() as servers:
        servers.lag()
        put(servers.url, "late")
        assert get(servers.members[1].url) is None

        servers.catch_up()
        replicated.until(lambda: get(servers.members[1].url) == "late", "the replica caught up")


def test_a_promoted_mariadb_takes_writes() -> None:
    """It has what was committed before."""
    with replicated.mariadb() as servers:
        replicated.sql(servers.url, "CREATE TABLE standfast.kept (value INT)")
        servers.primary.kill()
        servers.promote(servers.members[1])

        assert replicated.sql(servers.url, "INSERT INTO standfast.kept VALUES (1)", "SELECT * FROM standfast.kept") == [
            (1,)
        ]


def test_a_set_of_three_elects_another_primary() -> None:
    """Two are enough to go on."""
    with replicated.mongodb() as servers:
        first = servers.primary
        with MongoClient[dict[str, Any]](servers.url) as client:
            client.standfast.kept.insert_one({"_id": 1})
            first.kill()
            servers.find_primary(unlike=first)

            assert client.standfast.kept.find_one() == {"_id": 1}
