"""Replicated servers on loopback: a primary, those that follow it, and an address that follows the primary.

    with replicated.postgresql() as servers:
        store = await open_store(servers.url)
        servers.primary.kill()
        servers.promote(servers.members[1])

Each member is a `Server` of the test's own, so it can be frozen, killed and started again. ``servers.url`` goes through
a relay that stands for the address that people give to the primary (a virtual address, a proxy); the lines between
primary and followers go through relays too where the server allows it, so that ``lag`` holds what they carry.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import secrets
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from standfast.keys import RecordKey
from standfast.stores.redis.scripts import RedisKeys
from tests import services
from tests.services.postgresql import can_log_in
from tests.services.relay import Relay, port_of, with_port
from tests.services.server_process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.services.server import Server

SECONDS = 30.0


class Group:
    """Servers that replicate one another."""

    def __init__(
        self, members: Sequence[Server], lines: Sequence[Relay], entry: Relay | None, promote: Callable[[Server], None]
    ) -> None:
        self.members, self.lines, self.entry, self._promote = list(members), list(lines), entry, promote
        self.primary = self.members[0]
        self.sentinels: list[Server] = []

    @property
    def url(self) -> str:
        """The address that follows the primary."""
        assert self.entry is not None, "the clients of these servers find the primary by themselves"
        return with_port(self.primary.url, self.entry.port)

    @property
    def followers(self) -> list[Server]:
        """Those that are not the primary."""
        return [each for each in self.members if each is not self.primary]

    def lag(self) -> None:
        """Let nothing arrive at the followers."""
        for line in self.lines:
            line.hold()

    def catch_up(self) -> None:
        """Let everything arrive."""
        for line in self.lines:
            line.carry_on()

    def part(self) -> None:
        """Cut the followers off for good: what was held never arrives."""
        for line in self.lines:
            line.hold()
            line.cut()

    def rejoin(self) -> None:
        """Let a primary that was cut off be reached again, where the others go on only with it."""

    def promote(self, follower: Server, *, cut: bool = True) -> None:
        """Make a follower the primary, and let the address stand for it.

        Args:
            follower: Which one.
            cut: Whether the connections to the old primary are cut, as a proxy or a virtual address does; if not, those
                that are open stay with it.
        """
        self._promote(follower)
        self.follow(follower, cut=cut)

    def take_over(self) -> None:
        """Let the first follower take over; those that elect wait until they have elected another one."""
        self.promote(self.followers[0])

    def step_down(self) -> None:
        """Shut the primary down in good order, or let it step down, and let a follower take over."""
        self.primary.quit()
        self.take_over()

    def restart_all(self) -> None:
        """Restart one after the other in good order, the primary last, each when those before it are up."""
        for each in [*self.followers, self.primary]:
            each.quit()
            each.restart()

    def mute(self) -> None:
        """Let none of the primary's answers arrive, where all of them come by one line."""
        raise NotImplementedError

    def aim(self, namespace: str) -> None:
        """Let the primary be the one that has a namespace, where there are several."""

    def port_for(self, member: Server) -> int:
        """Return the port that others reach a member by: that of its relay, if each has one."""
        if len(self.lines) == len(self.members):
            return self.lines[self.members.index(member)].port
        return port_of(member.url)

    def member_at(self, port: int) -> Server:
        """Return the member that others reach by a port."""
        return next(each for each in self.members if self.port_for(each) == port)

    def follow(self, primary: Server, *, cut: bool = True) -> None:
        """Let the address stand for a server that is the primary."""
        self.primary = primary
        if self.entry is not None:
            self.entry.point_at(port_of(primary.url), cut=cut)


def started(stack: ExitStack, *wanted: Callable[[], Any]) -> list[Any]:
    """Start servers at the same time; all of them end with the stack, also if one does not start."""
    with ThreadPoolExecutor(len(wanted)) as threads:
        futures = [threads.submit(each) for each in wanted]
        for future in futures:
            if not future.exception():
                stack.push(future.result()[1])
        return [future.result()[0] for future in futures]


def server(kind: str, **options: Any) -> Callable[[], Any]:
    """Return what starts a server, for `started`."""

    def start() -> tuple[Server, Any]:
        context = services.private(kind, **options)
        return context.__enter__(), context.__exit__

    return start


def relay(stack: ExitStack, url: str) -> Relay:
    """Open a relay to the server at a URL, which ends with the stack."""
    opened = Relay(port_of(url))
    stack.callback(opened.close)
    return opened


def until(reached: Callable[[], bool], what: str) -> None:
    """Wait until a server says what is expected of it."""
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline, f"after {SECONDS:g} s it is not true that {what}"
        threading.Event().wait(0.05)


# --- PostgreSQL ----------------------------------------------------------------------------------------------------


@contextmanager
def postgresql(
    *,
    synchronous: bool = True,
    arguments: Sequence[str] = (),
    clock_of_standbys: str = "",
    front: Literal["", "haproxy", "pgbouncer"] = "",
) -> Iterator[Group]:
    """Start a primary and two standbys; the first of them is synchronous, or neither is.

    Args:
        synchronous: Whether a commit waits for the first standby (``synchronous_standby_names``).
        arguments: More arguments for all three.
        clock_of_standbys: By how much the clocks of the standbys are off: ``"-10s"``.
        front: What clients connect to: a HAProxy that asks which server is the primary, or a pgbouncer whose server is
            the address that follows it.
    """
    import psycopg  # noqa: PLC0415 - a driver, needed here only

    def ask(url: str, statement: str) -> Any:
        with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchone() if cursor.description else None

    with ExitStack() as stack:
        [primary] = started(stack, server("postgresql", arguments=["-c", "wal_keep_size=256MB", *arguments]))
        lines = [relay(stack, primary.url) for _ in range(2)]
        clock = services.faketime(clock_of_standbys) if clock_of_standbys else {}
        places = [
            f"{with_port(primary.url, line.port)}?application_name={name}"
            for name, line in zip(("one", "two"), lines, strict=True)
        ]
        standbys = started(
            stack, *(server("standby", behind=place, arguments=arguments, environment=clock) for place in places)
        )
        until(lambda: ask(primary.url, "select count(*) from pg_stat_replication") == (2,), "two standbys follow")
        if synchronous:
            ask(primary.url, "alter system set synchronous_standby_names = 'one'")
            ask(primary.url, "select pg_reload_conf()")
            state = "select count(*) from pg_stat_replication where sync_state = 'sync'"
            until(lambda: ask(primary.url, state) == (1,), "a standby is synchronous")

        def promote(follower: Server) -> None:
            assert ask(follower.url, "select pg_promote(true, 30)") == (True,)

        group = FrontedGroup([primary, *standbys], lines, relay(stack, primary.url), promote)
        if front == "haproxy":
            checked = [stack.enter_context(says_primary(group, each)) for each in group.members]
            places = [f"{port_of(each.url)}:{port}" for each, port in zip(group.members, checked, strict=True)]
            [proxy] = started(stack, server("haproxy-primary", behind=f"tcp://{','.join(places)}"))
            group.front = port_of(proxy.url)

            def leads_to_the_primary() -> bool:  # at first it takes all of them for up
                try:
                    return all(ask(group.url, "select pg_is_in_recovery()") == (False,) for _ in range(6))
                except psycopg.OperationalError:
                    return False

            until(leads_to_the_primary, "the proxy leads to the primary")
        elif front == "pgbouncer":
            [pooler] = started(stack, server("pgbouncer", behind=group.url))
            group.front, group.options = port_of(pooler.url), f"?listen=127.0.0.1:{port_of(group.url)}"
        yield group


class FrontedGroup(Group):
    """Servers behind a proxy or a pooler, perhaps."""

    front = 0
    options = ""

    @property
    def url(self) -> str:
        """The address of what stands in front, or the one that follows the primary."""
        return f"{with_port(self.primary.url, self.front)}{self.options}" if self.front else super().url


@contextmanager
def says_primary(group: Group, member: Server) -> Iterator[int]:
    """Answer ``GET /primary`` with 200 while a member is the primary and lets people in, as Patroni does."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if member is group.primary and can_log_in(member.url, 1) else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as answering:
        thread = threading.Thread(target=answering.serve_forever, daemon=True)
        thread.start()
        try:
            yield answering.server_port
        finally:
            answering.shutdown()
            thread.join()


# --- Valkey --------------------------------------------------------------------------------------------------------


SOURCES = [f"127.0.0.{number}" for number in range(11, 17)]
"""Addresses that the connections of relayed members come from, so that a relay can tell them from clients."""


def valkey_ask(url: str, *command: object) -> Any:
    """Return what a Valkey answers."""
    import redis  # noqa: PLC0415 - a driver, needed here only

    with redis.Redis.from_url(url, socket_timeout=5, decode_responses=True) as client:
        return client.execute_command(*map(str, command))


class ValkeyGroup(Group):
    """A primary and replicas: the one that has most takes over, and the others follow it."""

    def take_over(self) -> None:
        """Let the replica take over that has most."""
        chosen = max(self.followers, key=valkey_offset)
        others = [each for each in self.members[1:] if each is not chosen]
        self.promote(chosen)
        for each in others:
            valkey_follow(each, chosen)


class SentinelGroup(ValkeyGroup):
    """With sentinels, which choose by themselves, and which clients ask."""

    @property
    def url(self) -> str:
        """The address that names the sentinels."""
        user = urlsplit(self.primary.url).netloc.rpartition("@")[0]
        hosts = ",".join(f"127.0.0.1:{port_of(each.url)}" for each in self.sentinels)
        return f"redis+sentinel://{user}@{hosts}/main/0"

    def take_over(self) -> None:
        """Wait until the sentinels have chosen another one."""
        old = self.primary
        until(lambda: master_of(self) is not old, "the sentinels chose another primary")
        self.follow(master_of(self))

    def step_down(self) -> None:
        """Let the sentinels choose another one although the primary is well."""
        valkey_ask(self.sentinels[0].url, "SENTINEL", "FAILOVER", "main")
        self.take_over()

    def part(self, *, clients: bool = True) -> None:
        """Let nothing pass between the primary and all others, and close nothing. Each member needs its relay.

        Without ``clients``, between it and replicas and sentinels: clients reach it and all others.
        """
        line = self.lines[self.members.index(self.primary)]
        if clients:
            line.hold()
        for source in SOURCES:
            line.hold(source)

    def rejoin(self) -> None:
        """Let everything pass again, what was held first."""
        self.catch_up()


@contextmanager
def valkey(*, sentinels: bool = False, relayed: bool = False, secret: str = "") -> Iterator[Group]:
    """Start a primary and two replicas; with ``sentinels``, three of them choose another primary after a second.

    Sentinels must see the servers where they are, so with them the replicas follow directly, and there is no ``lag``;
    or ``relayed``, all reach a member by a relay of its own, whose port it announces. The sentinels' password is
    ``secret``, if there is one.
    """
    with ExitStack() as stack:
        fronts = [Relay(0) for _ in range(3)] if relayed else []
        for front in fronts:
            stack.callback(front.close)
        announced = [
            ["--replica-announce-port", str(front.port), "--bind-source-addr", source]
            for front, source in zip(fronts, SOURCES, strict=False)
        ] or [[]] * 3
        [primary] = started(stack, server("redis", arguments=announced[0]))
        lines = [] if sentinels else [relay(stack, primary.url) for _ in range(2)]
        place = with_port(primary.url, fronts[0].port) if relayed else primary.url
        if relayed:
            fronts[0].point_at(port_of(primary.url))
        places = [with_port(primary.url, line.port) for line in lines] or [place] * 2
        replicas = started(
            stack,
            *(server("redis", behind=each, arguments=more) for each, more in zip(places, announced[1:], strict=True)),
        )
        for front, replica in zip(fronts[1:], replicas, strict=relayed):
            front.point_at(port_of(replica.url))
        until(lambda: valkey_ask(primary.url, "WAIT", 2, 100) == 2, "two replicas follow")
        group = (SentinelGroup if sentinels else ValkeyGroup)(
            [primary, *replicas],
            fronts or lines,
            relay(stack, primary.url),
            lambda each: valkey_ask(each.url, "REPLICAOF", "NO", "ONE"),
        )
        if sentinels:
            watched = f"{place}#{secret}" if secret else place
            more = [["--bind-source-addr", source] if relayed else [] for source in SOURCES[3:]]
            group.sentinels = started(stack, *(server("sentinel", behind=watched, arguments=each) for each in more))
            seen = ("num-slaves", "num-other-sentinels")

            def all_see_all() -> bool:
                told = [valkey_ask(each.url, "SENTINEL", "MASTER", "main") for each in group.sentinels]
                return all([each.get(name) for name in seen] == ["2", "2"] for each in told)

            until(all_see_all, "all sentinels know each other and the replicas")
        yield group


@contextmanager
def sentinels(secret: str = "", *, relayed: bool = False) -> Iterator[SentinelGroup]:
    """Start a primary, two replicas and three sentinels, with a password of theirs or none; clients ask them."""
    with valkey(sentinels=True, relayed=relayed, secret=secret) as group:
        assert isinstance(group, SentinelGroup)
        yield group


class ClusterGroup(Group):
    """The nodes of a cluster: the primary is the one that has a slot, and its replica takes over by itself."""

    slot = 0
    buses: Sequence[Relay] = ()
    """How the other nodes reach each of them."""

    @property
    def url(self) -> str:
        """The address that names all nodes."""
        parts = urlsplit(self.members[0].url)
        hosts = ",".join(f"127.0.0.1:{self.port_for(each)}" for each in self.members)
        return parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{hosts}", path="").geturl()

    def aim(self, namespace: str) -> None:
        """Let the primary be the node that has a namespace."""
        self.slot = RedisKeys(RecordKey(namespace), "standfast", 0, one_slot=True).slot
        self.primary = self._holder(self.members[0])

    def _holder(self, asked: Server) -> Server:
        for first, last, (_, port, *_rest), *_ in valkey_ask(asked.url, "CLUSTER", "SLOTS"):
            if first <= self.slot <= last:
                return self.member_at(port)
        raise AssertionError("the slot is not served")

    def take_over(self) -> None:
        """Wait until the replica of the primary has taken over, and all nodes that answer know it."""
        import redis  # noqa: PLC0415 - a driver, needed here only

        old, others = self.primary, self.followers

        def is_known() -> bool:
            try:
                holders = [self._holder(each) for each in others]
            except redis.RedisError:
                return False
            self.primary = holders[0]
            return all(each is self.primary and each is not old for each in holders)

        until(is_known, "a replica took over")

    def step_down(self) -> None:
        """Let a replica take over although the primary is well."""
        own = valkey_ask(self.primary.url, "CLUSTER", "MYID")
        [replica] = valkey_ask(self.primary.url, "CLUSTER", "REPLICAS", own)
        name = next(iter(replica)) if isinstance(replica, dict) else str(replica).split()[0]
        chosen = next(each for each in self.followers if valkey_ask(each.url, "CLUSTER", "MYID") == name)
        valkey_ask(chosen.url, "CLUSTER", "FAILOVER")
        self.take_over()

    def part(self, *, clients: bool = True) -> None:
        """Let nothing pass between the primary and all others, and close nothing. Each node needs its relays.

        Without ``clients``, between it and the other nodes: clients reach all of them.
        """
        own = self.members.index(self.primary)
        if clients:
            self.lines[own].hold()
        self.buses[own].hold()
        for source in SOURCES:
            self.lines[own].hold(source)
        for line in (*self.lines, *self.buses):
            line.hold(SOURCES[own])

    def rejoin(self) -> None:
        """Let everything pass again, what was held first."""
        for line in (*self.lines, *self.buses):
            line.carry_on()


@contextmanager
def cluster(*, relayed: bool = False) -> Iterator[ClusterGroup]:
    """Start a cluster of three primaries with one replica each.

    ``relayed``, others reach a node by two relays of its own, whose ports it announces, and it has an address of its
    own that its connections come from.
    """
    with ExitStack() as stack:
        like = f"redis://:{secrets.token_hex(8)}@127.0.0.1:1"
        lines = [Relay(0) for _ in range(12 if relayed else 0)]
        for line in lines:
            stack.callback(line.close)
        fronts, gossip = lines[::2], lines[1::2]
        announced = [
            f"--cluster-announce-ip 127.0.0.1 --cluster-announce-port {front.port}"
            f" --cluster-announce-bus-port {bus.port} --bind-source-addr {source}".split()
            for front, bus, source in zip(fronts, gossip, SOURCES, strict=False)
        ] or [[]] * 6
        nodes: list[Server] = started(
            stack, *(server("redis-node", behind=like, arguments=arguments) for arguments in announced)
        )
        buses = [valkey_ask(each.url, "CONFIG", "GET", "cluster-port")["cluster-port"] for each in nodes]
        for node, bus, front, line in zip(nodes, buses, fronts, gossip, strict=False):
            front.point_at(port_of(node.url))
            line.point_at(int(bus))
        group = ClusterGroup(nodes, fronts, None, lambda _: None)
        group.buses = gossip
        for number, each in enumerate(nodes[:3]):
            first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
            valkey_ask(each.url, "CLUSTER", "ADDSLOTSRANGE", first, last)
        for number, each in enumerate(nodes):
            valkey_ask(each.url, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        met = [line.port for line in gossip] or buses
        for each, bus in zip(nodes[1:], met[1:], strict=True):
            valkey_ask(nodes[0].url, "CLUSTER", "MEET", "127.0.0.1", group.port_for(each), bus)
        names = [valkey_ask(each.url, "CLUSTER", "MYID") for each in nodes]

        def is_known(each: Server) -> bool:
            told = str(valkey_ask(each.url, "CLUSTER", "NODES"))
            return all(name in told for name in names) and "handshake" not in told

        until(lambda: all(map(is_known, nodes)), "all nodes know each other")
        for replica, name in zip(nodes[3:], names[:3], strict=True):
            valkey_ask(replica.url, "CLUSTER", "REPLICATE", name)
        until(lambda: all(valkey_ask(each.url, "WAIT", 1, 100) == 1 for each in nodes[:3]), "three replicas follow")
        until(lambda: all(is_whole(each) for each in nodes), "the cluster is whole")
        yield group


SLOTS = 16_384


def is_whole(node: Server) -> bool:
    """Return True if a node knows of three primaries with a replica each."""
    told = valkey_ask(node.url, "CLUSTER", "SLOTS")
    state = valkey_ask(node.url, "CLUSTER", "INFO")
    return len(told) == 3 and all(len(each) == 4 for each in told) and "cluster_state:ok" in str(state)


def valkey_offset(replica: Server) -> int:
    """Return how far a replica has come; sentinels and clusters choose the one that has most."""
    return int(valkey_ask(replica.url, "INFO")["slave_repl_offset"])


def valkey_follow(replica: Server, primary: Server) -> None:
    """Let a replica follow another primary, and wait until it does."""
    valkey_ask(replica.url, "REPLICAOF", "127.0.0.1", port_of(primary.url))
    until(lambda: valkey_ask(primary.url, "WAIT", 1, 100) == 1, "a replica follows")


def master_of(group: Group) -> Server:
    """Return the server that the sentinels call the primary now."""
    import redis  # noqa: PLC0415 - a driver, needed here only

    for sentinel in group.sentinels:
        try:
            with redis.Redis.from_url(sentinel.url, socket_timeout=1) as client:
                _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")
        except redis.RedisError:
            continue
        return group.member_at(int(port))
    raise AssertionError("no sentinel answers")


# --- MariaDB -------------------------------------------------------------------------------------------------------

_WAITS = (
    "--rpl-semi-sync-master-enabled=1",
    "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
    "--rpl-semi-sync-master-timeout=600000",
)
_ANSWERS = ("--rpl-semi-sync-slave-enabled=1",)  # and does not wait itself: nothing follows it


@contextmanager
def mariadb(*, semi_sync: bool = True) -> Iterator[Group]:
    """Start a primary and one replica, by GTID; a commit waits for the replica with ``semi_sync``."""

    def options(number: int, *more: str) -> list[str]:
        return [f"--server-id={number}", "--log-slave-updates=1", "--relay-log=relay", *(more if semi_sync else ())]

    with ExitStack() as stack:
        primary, replica = started(
            stack,
            server("mysql", arguments=options(1, *_WAITS)),
            server("mysql", arguments=[*options(2, *_ANSWERS), "--read-only=1"]),
        )
        line = relay(stack, primary.url)
        source = urlsplit(primary.url)
        follow = (
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={line.port}, MASTER_USER='{source.username}',"
            f" MASTER_PASSWORD='{source.password}', MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1"
        )
        sql(replica.url, follow, "START SLAVE")
        status = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND IN ('Binlog Dump', 'Slave_IO')"
        until(lambda: sql(primary.url, status)[0] == (1,), "the replica follows")

        def promote(follower: Server) -> None:
            sql(follower.url, "STOP SLAVE IO_THREAD")
            received = replica_status(follower.url)[
                "Gtid_IO_Pos"
            ]  # acknowledged when it was received: apply it, or it is lost
            assert sql(follower.url, f"SELECT MASTER_GTID_WAIT('{received}', 20)") == [(0,)]
            sql(follower.url, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

        yield Group([primary, replica], [line], relay(stack, primary.url), promote)


def sql(url: str, *statements: str) -> list[Any]:
    """Run statements on a MariaDB and return the first row of the last one."""
    return [_run_sql(url, *statements)[1]]


def replica_status(url: str) -> dict[str, Any]:
    """Return what a replica says of itself."""
    names, row = _run_sql(url, "SHOW SLAVE STATUS")
    return dict(zip(names, row, strict=True))


def _run_sql(url: str, *statements: str) -> tuple[list[str], Any]:
    import asyncmy  # noqa: PLC0415 - a driver, needed here only

    async def run() -> tuple[list[str], Any]:
        parts = urlsplit(url)
        connection = await asyncmy.connect(
            host=parts.hostname,
            port=parts.port or 0,
            user=parts.username,
            password=parts.password or "",
            connect_timeout=5,
        )
        try:
            async with connection.cursor() as cursor:
                for statement in statements:
                    await cursor.execute(statement)
                return [each[0] for each in cursor.description or ()], await cursor.fetchone()
        finally:
            await connection.ensure_closed()

    with ThreadPoolExecutor(1) as thread:  # a test may have a loop of its own in this one
        return thread.submit(lambda: asyncio.run(run())).result()


# --- MongoDB -------------------------------------------------------------------------------------------------------


@contextmanager
def mongodb() -> Iterator[MongoGroup]:
    """Start a replica set of three that elects another primary after two seconds. Its URL names all of them."""
    from pymongo import MongoClient  # noqa: PLC0415 - a driver, needed here only
    from pymongo.errors import PyMongoError  # noqa: PLC0415 - see above

    with ExitStack() as stack:
        members = started(stack, *(server("mongodb-member") for _ in range(3)))
        lines = [relay(stack, each.url) for each in members]
        hosts = [f"127.0.0.1:{line.port}" for line in lines]
        config = {
            "_id": "rs0",
            "members": [{"_id": number, "host": host} for number, host in enumerate(hosts)],
            "settings": {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500},
        }
        with MongoClient[dict[str, Any]](members[0].url) as client:
            client.admin.command("replSetInitiate", config)

        def state_of(each: Server) -> str:
            try:
                with MongoClient[dict[str, Any]](each.url, serverSelectionTimeoutMS=1000) as client:
                    told = client.admin.command("hello")
            except PyMongoError:
                return ""
            return "primary" if told.get("isWritablePrimary") else "secondary" if told.get("secondary") else ""

        until(lambda: sorted(map(state_of, members)) == ["primary", "secondary", "secondary"], "the set is complete")
        group = MongoGroup(members, lines, state_of)
        group.find_primary()
        yield group


class MongoGroup(Group):
    """A replica set: clients find its primary by themselves, and it elects another one by itself.

    Each member has a line that all others reach it by, clients and members.
    """

    def __init__(self, members: Sequence[Server], lines: Sequence[Relay], state_of: Callable[[Server], str]) -> None:
        super().__init__(members, lines, None, lambda _: None)
        self._state_of = state_of

    @property
    def url(self) -> str:
        """The address that names all members."""
        hosts = ",".join(f"127.0.0.1:{line.port}" for line in self.lines)
        return f"mongodb://{hosts}/standfast?replicaSet=rs0"

    def part(self) -> None:
        """Let nothing reach the primary any more; its own questions to the others still arrive."""
        line = self.lines[self.members.index(self.primary)]
        line.hold()
        line.cut()

    def mute(self) -> None:
        """Let everything reach the primary, and none of its answers reach anyone: commits land, and no one hears."""
        self.lines[self.members.index(self.primary)].mute()

    def take_over(self) -> None:
        """Wait until another primary was elected."""
        self.find_primary(unlike=self.primary)

    def step_down(self) -> None:
        """Let the primary step down."""
        from pymongo import MongoClient  # noqa: PLC0415 - a driver, needed here only
        from pymongo.errors import PyMongoError  # noqa: PLC0415 - see above

        with MongoClient[dict[str, Any]](self.primary.url) as client, contextlib.suppress(PyMongoError):
            client.admin.command("replSetStepDown", 30, secondaryCatchUpPeriodSecs=10)
        self.take_over()

    def find_primary(self, *, unlike: Server | None = None) -> Server:
        """Wait until there is a primary, another one than ``unlike``."""

        def found() -> bool:
            up = [each for each in self.members if each is not unlike and self._state_of(each) == "primary"]
            self.primary = up[0] if up else self.primary
            return bool(up)

        until(found, "a primary was elected")
        return self.primary


# --- etcd ------------------------------------------------------------------------------------------------------------


def etcd_ask(url: str, path: str, **request: Any) -> Any:
    """Ask one member over its gateway."""
    wanted = urllib.request.Request(f"http://{urlsplit(url).netloc}{path}", json.dumps(request).encode())
    with urllib.request.urlopen(wanted, timeout=2) as answer:  # noqa: S310 -- a member of the test's own
        return json.loads(answer.read())


class EtcdGroup(Group):
    """Three members, of which one leads: clients ask any of them, and they elect another one by themselves.

    Each member has a line that clients reach it by, and one, in ``peers``, for the other members.
    """

    peers: Sequence[Relay] = ()

    @property
    def url(self) -> str:
        """The address that names all members."""
        return self.url_of(*self.members)

    def url_of(self, *members: Server) -> str:
        """Return an address that names some members."""
        lines = [self.lines[self.members.index(each)] for each in members]
        return f"etcd://{','.join(f'127.0.0.1:{line.port}' for line in lines)}/standfast"

    def part(self) -> None:
        """Cut the leader off from the other members, and from clients."""
        self.part_members()
        line = self.lines[self.members.index(self.primary)]
        line.hold()
        line.cut()

    def part_members(self) -> None:
        """Let nothing pass between the leader and the other members; clients reach all of them."""
        name = int(etcd_ask(self.primary.url, "/v3/maintenance/status")["header"]["member_id"])
        for member, line in zip(self.members, self.peers, strict=True):
            if member is self.primary:
                line.hold()
                line.cut()
            else:
                line.shun(f"X-Server-From: {name:x}\r\n".encode())

    def join_members(self) -> None:
        """Let everything pass between all members again."""
        for line in self.peers:
            line.carry_on()
            line.shun(b"")

    def find_leader(self, unlike: Server | None = None) -> None:
        """Wait until one leads, another one than ``unlike``, by the word of a member that follows it."""

        def is_found() -> bool:
            for each in self.members:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    if each is unlike:
                        continue
                    status = etcd_ask(each.url, "/v3/maintenance/status")
                    if status.get("leader") == status["header"]["member_id"]:
                        self.primary = each
                        return True
            return False

        until(is_found, "a member leads")

    def take_over(self) -> None:
        """Wait until another member leads."""
        self.find_leader(unlike=self.primary)

    def step_down(self) -> None:
        """Let the leader hand its part to another member."""
        status = etcd_ask(self.primary.url, "/v3/maintenance/status")
        members = etcd_ask(self.primary.url, "/v3/cluster/member/list")["members"]
        target = next(each["ID"] for each in members if each["ID"] != status["leader"])
        etcd_ask(self.primary.url, "/v3/maintenance/transfer-leadership", targetID=target)
        self.take_over()


@contextmanager
def etcd() -> Iterator[EtcdGroup]:
    """Start a cluster of three."""
    with ExitStack() as stack:
        ports = [free_port() for _ in range(3)]
        peers = [Relay(port) for port in ports]
        for line in peers:
            stack.callback(line.close)
        names = [f"{port}/{line.port}" for port, line in zip(ports, peers, strict=True)]
        orders = [",".join([own, *(name for name in names if name != own)]) for own in names]
        members = started(stack, *(server("etcd", behind=order) for order in orders))
        group = EtcdGroup(members, [relay(stack, each.url) for each in members], None, lambda _: None)
        group.peers = peers
        group.find_leader()
        yield group
