"""Redis and Valkey: one script a commit, by the server's time; a server or a cluster."""

from __future__ import annotations

import contextlib
import re
import ssl
import warnings
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreReadOnlyError, StoreUnavailableError, UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.stores.protocol import Capabilities
from standfast.stores.redis.cluster import OneServer, ScriptCaller
from standfast.stores.redis.connection import Dialer, code_of
from standfast.stores.redis.scripts import PROBE, RedisKeys
from standfast.stores.redis.server import RedisServer, RewindDetector
from standfast.stores.remote.backend import open_remote

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.group_commit import GroupedStore
    from standfast.stores.redis.connection import RedisPool
    from standfast.stores.url import Address

__all__ = ["NotDurableWarning", "RedisOptions", "RedisServer", "open_address"]


# --- looking at a server when it is opened: whether it would drop records, and what it keeps through a power cut ---


class NotDurableWarning(UserWarning):
    """The server may lose commits that it has acknowledged, when it or its machine fails.

    Locks stay safe as long as it runs. For workflows, turn on what the message names, or write ``?durable=false`` to
    say that you know, or ``?durable=true`` if the service keeps its promise in another way.
    """


class RedisFacts(Struct, frozen=True):
    """What a server has told of itself."""

    is_cluster: bool
    durable: bool

    def capabilities(self) -> Capabilities:
        """Return what the store can do on it."""
        return Capabilities(backend="redis", atomic=True, durable=self.durable, reach="network", wakes="push")


_SINCE_SNAPSHOT: Final = "it keeps no append-only file, so a restart loses what came after the last snapshot, or all"
_SOMETIMES: Final = "it syncs its append-only file now and then, so a power cut loses the last second or more"
_UNTOLD: Final = "it does not tell whether it syncs its append-only file before it answers"


async def look(calls: ScriptCaller, pool: RedisPool, name: str, options: RedisOptions, hooks: Hooks) -> RedisFacts:
    """Look at a server, refuse it where it would drop records, and warn where it would lose them."""
    info = await _info(calls, pool, name, options)
    if info.get("role", "master") != "master":
        raise StoreReadOnlyError(name, "this server is a replica; the URL must name the primary")
    _check_eviction(info, name, options)
    problem = "" if options.durable == "true" else await _persistence(calls, pool, info)
    if problem and options.durable == "check":
        _warn(problem, name, hooks)
    return RedisFacts(is_cluster=info.get("cluster_enabled") == "1", durable=not problem)


async def _info(calls: ScriptCaller, pool: RedisPool, name: str, options: RedisOptions) -> dict[str, str]:
    answer = await calls.ask(pool, "INFO")
    if isinstance(answer, bytes):
        pairs = (line.partition(":") for line in answer.decode(errors="replace").splitlines())
        return {pair[0]: pair[2] for pair in pairs if pair[1]}
    if code_of(answer) != "NOPERM":
        raise calls.refused(answer)
    if options.unchecked:
        return {}
    raise UnsuitableStoreError(
        name, "this user may not see INFO, which tells the eviction policy: ACL SETUSER ... +info, or ?unchecked=true"
    )


def _check_eviction(info: dict[str, str], name: str, options: RedisOptions) -> None:
    """Refuse a policy that drops any key. One that drops keys with a time to live has none of ours to drop."""
    policy = info.get("maxmemory_policy", "")
    if policy.startswith("allkeys"):
        raise UnsuitableStoreError(
            name,
            f"with {policy} the server drops records when memory runs short: CONFIG SET maxmemory-policy noeviction",
        )
    if not policy and not options.unchecked:
        raise UnsuitableStoreError(
            name, "the server does not tell its eviction policy; if it drops no keys, say so by ?unchecked=true"
        )


async def _persistence(calls: ScriptCaller, pool: RedisPool, info: dict[str, str]) -> str:
    """Return what may get lost; empty if nothing that was answered does."""
    if info.get("aof_enabled", "0") == "0":
        return f"{_SINCE_SNAPSHOT}: CONFIG SET appendonly yes, and CONFIG SET appendfsync always"
    answer: Any = await calls.ask(pool, "CONFIG", "GET", "appendfsync")
    if not isinstance(answer, list) or not answer:
        return f"{_UNTOLD}: ?durable=true if you know that it does"
    return "" if answer[1] == b"always" else f"{_SOMETIMES}: CONFIG SET appendfsync always"


def _warn(problem: str, name: str, hooks: Hooks) -> None:
    if hooks:
        hooks.emit(StoreNotDurable(at=SYSTEM_CLOCK.wall(), store=name, problem=problem))
    warnings.warn(NotDurableWarning(f"{name} may lose acknowledged commits: {problem}"), stacklevel=2)


async def probe(calls: ScriptCaller, options: RedisOptions) -> None:
    """Find out before anything is written whether this user may do all that is needed: no script stops half-way."""
    names = RedisKeys(b"", options.prefix, options.database, one_slot=True)
    keys = (names.head, names.records, names.order)
    try:
        await calls.run(PROBE, names, keys, (names.channel,))
    except UnsuitableStoreError as problem:
        raise UnsuitableStoreError(problem.store, problem.problem) from None


# --- the options of a Redis URL ------------------------------------------------------------------------------------

DEFAULT_PORT: Final = 6379
_PREFIX: Final = re.compile(r"[a-z_][a-z0-9_]{0,30}", re.ASCII)
_KNOWN: Final = (
    "prefix",
    "timeout",
    "connect_timeout",
    "pool",
    "replicas",
    "cluster",
    "durable",
    "unchecked",
    "tls",
    "tls_ca",
)


class RedisOptions(Struct, frozen=True):
    """What a URL asks for. It holds no secret."""

    hosts: tuple[tuple[str, int], ...]
    database: int = 0
    prefix: str = "standfast"
    timeout: float = 5.0
    connect_timeout: float = 5.0
    pool: int = 8
    replicas: int = 0
    """How many replicas must have a commit before it is answered."""
    cluster: bool = False
    """Whether all keys of a namespace must lie in one slot; found out if the server is a cluster's node."""
    durable: str = "check"
    """Whether to look at the server's persistence, or what to believe of it: ``true``, ``false``."""
    unchecked: bool = False
    """Whether to go on where the server does not tell its eviction policy."""
    tls: ssl.SSLContext | None = None


def read_options(address: Address) -> RedisOptions:
    """Read the options of ``address``; raises ``InvalidUrlError``."""
    options = RedisOptions(
        hosts=tuple(address.hosts(DEFAULT_PORT)),
        database=_database(address),
        prefix=address.take("prefix", _prefix, "standfast", "a-z, 0-9 and _, up to 31 of them, no digit first"),
        timeout=address.take_seconds("timeout", 5.0),
        connect_timeout=address.take_seconds("connect_timeout", 5.0),
        pool=address.take_count("pool", 8, most=1_000),
        replicas=address.take_count("replicas", 0, most=100),
        cluster=address.take_flag("cluster", default=False),
        durable=address.take_choice("durable", ("check", "true", "false"), "check"),
        unchecked=address.take_flag("unchecked", default=False),
        tls=address.tls(default=address.scheme in {"rediss", "valkeys"}),
    )
    address.finish(*_KNOWN)
    if options.database and options.cluster:
        raise address.refuse("a cluster has database 0 only")
    return options


def _prefix(given: str) -> str:
    if not _PREFIX.fullmatch(given):
        raise ValueError(given)
    return given


def _database(address: Address) -> int:
    path = address.path()
    if not path:
        return 0
    if not (path.isascii() and path.isdigit()):
        raise address.refuse("the database is a number, for example redis://localhost:6379/0")
    return int(path)


# --- redis and Valkey: one script a commit, by the server's time; a server or a cluster ----------------------------


async def open_address(address: Address, *, hooks: Hooks) -> GroupedStore:
    """Open the server that an address names, on the running loop."""
    options = read_options(address)
    return open_remote(await _connect(address, options, hooks), hooks)


async def _connect(address: Address, options: RedisOptions, hooks: Hooks) -> RedisServer:
    dialer, seen = Dialer(address, options), RewindDetector(address.name)
    facts = await _facts(dialer, options, seen, hooks)
    if len(options.hosts) > 1 and not facts.is_cluster:
        raise address.refuse("several hosts are for the nodes of a cluster, and this server is not one; name one host")
    server = RedisServer(dialer, options, facts, seen)
    try:
        await probe(server.calls, options)
    except BaseException:
        await server.aclose()
        raise
    return server


async def _facts(dialer: Dialer, options: RedisOptions, seen: RewindDetector, hooks: Hooks) -> RedisFacts:
    """Ask the first host that answers."""
    *others, last = options.hosts
    for place in others:
        with contextlib.suppress(StoreUnavailableError):
            return await _ask(place, dialer, options, seen, hooks)
    return await _ask(last, dialer, options, seen, hooks)


async def _ask(
    place: tuple[str, int], dialer: Dialer, options: RedisOptions, seen: RewindDetector, hooks: Hooks
) -> RedisFacts:
    routes = OneServer(dialer, place, 1)
    try:
        calls = ScriptCaller(routes, seen, dialer.name, options)
        return await look(calls, await routes.pool(0), dialer.name, options, hooks)
    finally:
        await routes.aclose()
