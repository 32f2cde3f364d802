"""Looking at a server when it is opened: whether it would drop records, and what it keeps through a power cut."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import StoreReadOnlyError, UnsuitableStoreError
from standfast.events import StoreNotDurable
from standfast.stores.protocol import Capabilities
from standfast.stores.redis.names import Names
from standfast.stores.redis.scripts import PROBE
from standfast.stores.redis.trouble import code_of

if TYPE_CHECKING:
    from standfast.events import Hooks
    from standfast.stores.redis.calling import Calls
    from standfast.stores.redis.connecting import Pool
    from standfast.stores.redis.options import Options


class NotDurableWarning(UserWarning):
    """The server may lose commits that it has acknowledged, when it or its machine fails.

    Locks stay safe as long as it runs. For workflows, turn on what the message names, or write ``?durable=false`` to
    say that you know, or ``?durable=true`` if the service keeps its promise in another way.
    """


class Facts(Struct, frozen=True):
    """What a server has told of itself."""

    is_cluster: bool
    durable: bool

    def capabilities(self) -> Capabilities:
        """Return what the store can do on it."""
        return Capabilities(backend="redis", atomic=True, durable=self.durable, reach="network", wakes="push")


_SINCE_SNAPSHOT: Final = "it keeps no append-only file, so a restart loses what came after the last snapshot, or all"
_SOMETIMES: Final = "it syncs its append-only file now and then, so a power cut loses the last second or more"
_UNTOLD: Final = "it does not tell whether it syncs its append-only file before it answers"


async def look(calls: Calls, pool: Pool, name: str, options: Options, hooks: Hooks) -> Facts:
    """Look at a server, refuse it where it would drop records, and warn where it would lose them."""
    info = await _info(calls, pool, name, options)
    if info.get("role", "master") != "master":
        raise StoreReadOnlyError(name, "this server is a replica; the URL must name the primary")
    _check_eviction(info, name, options)
    problem = "" if options.durable == "true" else await _persistence(calls, pool, info)
    if problem and options.durable == "check":
        _warn(problem, name, hooks)
    return Facts(is_cluster=info.get("cluster_enabled") == "1", durable=not problem)


async def _info(calls: Calls, pool: Pool, name: str, options: Options) -> dict[str, str]:
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


def _check_eviction(info: dict[str, str], name: str, options: Options) -> None:
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


async def _persistence(calls: Calls, pool: Pool, info: dict[str, str]) -> str:
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


async def probe(calls: Calls, options: Options) -> None:
    """Find out before anything is written whether this user may do all that is needed: no script stops half-way."""
    names = Names(b"", options.prefix, options.database, one_slot=True)
    keys = (names.head, names.records, names.order)
    try:
        await calls.run(PROBE, names, keys, (names.channel,))
    except UnsuitableStoreError as problem:
        raise UnsuitableStoreError(problem.store, problem.problem) from None
