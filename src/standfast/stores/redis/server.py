"""One handle on a Redis or Valkey server, or on a cluster of them: records, topics, attempts, transfer and upkeep."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import AttemptClosedError, StoreError, StoreReadOnlyError, UnsuitableStoreError
from standfast.ids import new_id
from standfast.keys import RecordKey
from standfast.stores.backend import EXPORTED, OPEN, Batching, moved_error, pages
from standfast.stores.protocol import (
    ABSENT,
    Capabilities,
    Record,
    Snapshot,
    StoreMeasure,
)
from standfast.stores.redis.cluster import Cluster, OneServer, RedisSubscriber, RewindDetector, ScriptCaller
from standfast.stores.redis.connection import NotSentError, RedisPool, ReplyLostError, code_of
from standfast.stores.redis.liveness import find_store_id, liveness_server
from standfast.stores.redis.records import (
    FIELD,
    choice_answers,
    choice_fields,
    digits,
    drawn,
    expiry,
    quick_answer,
    quick_fields,
    unpack,
)
from standfast.stores.redis.scripts import (
    AUDIENCE,
    CHOOSE,
    CLOSE,
    CREATE_OR_APPEND,
    FORGET,
    LOAD,
    MARK,
    MOVE_OR_DELETE,
    PROBE,
    READ,
    RESERVE,
    SCAN,
    SUBSCRIBE,
    SWEEP,
    WRITE,
    RedisKeys,
    pack,
    slot_of,
)
from standfast.stores.redis.sentinel import SentinelRoutes
from standfast.stores.remote.choices import CreateOrAppend, quick_choice
from standfast.stores.remote.connection import tell_failover_loss, warn_not_durable
from standfast.stores.remote.liveness import join_liveness
from standfast.stores.remote.server import (
    Audience,
    ChoicesMade,
    ChoiceWritten,
    Landed,
    ServerDefaults,
    WriteRefused,
    Written,
)
from standfast.stores.remote.subscriptions import LONGEST_MOVED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from standfast.errors import StoreMovedError
    from standfast.events import Hooks
    from standfast.stores.backend import Scan
    from standfast.stores.redis.cluster import Routes
    from standfast.stores.redis.connection import Dialer, RedisOptions, Reply
    from standfast.stores.redis.scripts import Argument, Script
    from standfast.stores.redis.sentinel import SentinelFinder
    from standfast.stores.remote.server import ChoiceIntent, Intent, Listener, Message


# --- the server ----------------------------------------------------------------------------------------------------

BATCHING: Final = Batching(
    max_riders=500, max_weight=1_000, max_bytes=2_000_000, spans_namespaces=False, in_halves=True, max_choices=100
)
"""A script keeps all other clients waiting: these take about ten milliseconds."""

KEPT_ATTEMPTS: Final = 7 * 86_400 * 1_000_000
"""For how many microseconds the last attempt of a handle that is gone can still be asked about."""

T = TypeVar("T")

_LEAVES_WITHIN: Final = 1.0
_WRITTEN, _LOST, _CLOSED, _STALE, _FROZEN, _UNMARKED, _OTHERWISE = range(7)
_FLOOR: Final = 12
_CHOICE_FLOOR: Final = 3
"""Where the floor stands among the arguments."""


@final
class RedisServer(ServerDefaults):
    """One handle, used from one event loop."""

    def __init__(
        self,
        dialer: Dialer,
        options: RedisOptions,
        facts: RedisFacts,
        seen: RewindDetector,
        finder: SentinelFinder | None = None,
    ) -> None:
        self._dialer, self._options, self._facts, self._seen, self._finder = dialer, options, facts, seen, finder
        self.name = dialer.name
        self.capabilities: Final = facts.capabilities()
        self.batching: Final = BATCHING
        self._one_slot: Final = facts.is_cluster or options.cluster
        routes: Routes
        if finder is not None:
            routes = SentinelRoutes(finder, options.pool)
        elif facts.is_cluster:
            routes = Cluster(dialer, options.hosts, options.pool)
        else:
            routes = OneServer(dialer, options.hosts[0], options.pool)
        self.calls: Final = ScriptCaller(routes, seen, dialer.name, options)
        self._listening: Final = RedisSubscriber(dialer, routes)
        self._topics: Final = Topics(self.calls, self._listening, self.names)
        self._known: Final[dict[bytes, RedisKeys]] = {}
        self._cursors: Final[dict[bytes, bytes]] = {}
        self._met: Final[set[bytes]] = set()
        self._otherwise: tuple[str, int] | None = None  # the last attempt that the script for its choice did not make
        self._liveness = (
            join_liveness(liveness_server(dialer, options, facts.store_id, finder)) if facts.store_id else None
        )

    def names(self, namespace: bytes) -> RedisKeys:
        """Return the keys of a namespace."""
        names = self._known.get(namespace)
        if names is None:
            names = RedisKeys(namespace, self._options.prefix, self._options.database, one_slot=self._one_slot)
            self._known[namespace] = names
        return names

    # --- writing ---------------------------------------------------------------------------------------------

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, in one script."""
        names = self.names(intent.namespace)
        keys = (names.head, names.records, names.order, names.expiries, names.attempts)
        arguments = self._arguments(intent, names)
        if self._options.replicas and intent.namespace not in self._met:
            arguments[_FLOOR] = await self._meet(names)
        answer = await self.calls.run(WRITE, names, keys, arguments, once=True, replicated=True)
        if answer[0] == _UNMARKED:
            arguments[_FLOOR] = await self._floor()
            answer = await self.calls.run(WRITE, names, keys, arguments, once=True, replicated=True)
        if answer[0] == _FROZEN:
            raise await self.transfer().refusal(self.name)
        return self._written(intent, names, answer)

    def write_soon(
        self, intent: Intent, arrive: Callable[[Written | WriteRefused | Exception | None], None]
    ) -> asyncio.Future[None] | None:
        """Do as :meth:`write` does, without a task that waits for the answer."""
        names = self.names(intent.namespace)
        keys = (names.head, names.records, names.order, names.expiries, names.attempts)

        def take(answer: list[Any] | Exception | None) -> None:
            arrive(self._told(answer, lambda found: self._written(intent, names, found)))

        return self.calls.run_soon(WRITE, names, keys, self._arguments(intent, names), take)

    def _written(self, intent: Intent, names: RedisKeys, answer: list[Any]) -> Written | WriteRefused:
        self._check_attempt(intent, answer)
        status, at = answer[0], Instant(answer[1])
        if status != _WRITTEN:
            return WriteRefused(at, _current(intent, answer[3], at) if status == _LOST else {}, stale=status == _STALE)
        self._seen.acknowledge(names, intent.handle, intent.number)
        first = int(answer[4])
        versions = intent.exact or tuple(range(first, first + intent.draws))
        return Written(at, versions, self._topics.meet(intent.namespace, answer[3]))

    def _arguments(self, intent: Intent, names: RedisKeys) -> list[Argument]:
        guards, exact = intent.guards, intent.exact
        position = {key: index for index, key in enumerate(guards)}
        creates = bool(exact) and any(guards[row.key] == ABSENT for row in intent.puts)
        arguments: list[Argument] = [
            intent.handle,
            intent.number,
            self._seen.acknowledged(names, intent.handle),
            intent.draws,
            exact[0] if exact else 0,
            exact[-1] if creates else 0,
            intent.after or 0,
            -1 if intent.before is None else intent.before,
            len(guards),
            len(intent.puts),
            len(intent.deletes),
            len(intent.messages),
            -1,
            *guards,
            *map(digits, guards.values()),
        ]
        for row in intent.puts:
            arguments += (position[row.key], row.draw, expiry(row.expires_at), row.value)
        arguments += [position[key] for key in intent.deletes]
        for message in intent.messages:
            arguments += (self._topics.channel(message.topic), message.data)
        return arguments

    async def choose(self, intent: ChoiceIntent) -> ChoicesMade:
        """Do all choices in one script."""
        names = self.names(intent.namespace)
        keys = (names.head, names.records, names.order, names.expiries, names.attempts)
        if (quick := self._quick_call(intent, names)) is not None and (intent.handle, intent.number) != self._otherwise:
            answer = await self.calls.run(*quick, once=True, replicated=True)
            if answer[0] != _OTHERWISE:
                return self._made_quickly(intent, names, answer)
        arguments = self._choices(intent, names)
        if self._options.replicas and intent.namespace not in self._met:
            arguments[_CHOICE_FLOOR] = await self._meet(names)
        answer = await self.calls.run(CHOOSE, names, keys, arguments, once=True, replicated=True)
        if answer[0] == _UNMARKED:
            arguments[_CHOICE_FLOOR] = await self._floor()
            answer = await self.calls.run(CHOOSE, names, keys, arguments, once=True, replicated=True)
        if answer[0] == _FROZEN:
            raise await self.transfer().refusal(self.name)
        return self._made(intent, names, answer)

    def choose_soon(
        self, intent: ChoiceIntent, arrive: Callable[[ChoicesMade | Exception | None], None]
    ) -> asyncio.Future[None] | None:
        """Do as :meth:`choose` does, without a task that waits for the answer."""
        names = self.names(intent.namespace)
        if (quick := self._quick_call(intent, names)) is not None:

            def take_quickly(answer: list[Any] | Exception | None) -> None:
                if type(answer) is list and answer[0] == _OTHERWISE:
                    self._otherwise = (intent.handle, intent.number)
                arrive(self._told(answer, lambda found: self._made_quickly(intent, names, found)))

            return self.calls.run_soon(*quick, take_quickly)
        keys = (names.head, names.records, names.order, names.expiries, names.attempts)

        def take(answer: list[Any] | Exception | None) -> None:
            arrive(self._told(answer, lambda found: self._made(intent, names, found)))

        return self.calls.run_soon(CHOOSE, names, keys, self._choices(intent, names), take)

    def _quick_call(
        self, intent: ChoiceIntent, names: RedisKeys
    ) -> tuple[Script, RedisKeys, Sequence[bytes], Sequence[Argument]] | None:
        """Return the call of the script that is made for a choice; None: there is none for it."""
        choice = quick_choice(intent)
        if choice is None:
            return None
        script = CREATE_OR_APPEND if isinstance(choice, CreateOrAppend) else MOVE_OR_DELETE
        attempt = (intent.handle, intent.number, self._seen.acknowledged(names, intent.handle))
        keys = (names.head, names.records, names.order, names.attempts)
        return script, names, keys, (*attempt, *quick_fields(choice, intent.origin, names.channel))

    def _made_quickly(self, intent: ChoiceIntent, names: RedisKeys, answer: list[Any]) -> ChoicesMade:
        self._check_attempt(intent, answer)
        self._seen.acknowledge(names, intent.handle, intent.number)
        made = quick_answer(intent.choices[0], answer)
        return ChoicesMade((made,), self._topics.meet(intent.namespace, answer[3]))

    def _check_attempt(self, intent: Intent | ChoiceIntent, answer: list[Any]) -> None:
        if answer[0] == _CLOSED:
            raise AttemptClosedError(self.name, f"attempt {intent.number} of {intent.handle} was counted before")

    def _made(self, intent: ChoiceIntent, names: RedisKeys, answer: list[Any]) -> ChoicesMade:
        self._check_attempt(intent, answer)
        at = Instant(answer[1])
        answers = choice_answers(answer[4:], at)
        if any(type(each) is ChoiceWritten and each.version for each in answers):
            self._seen.acknowledge(names, intent.handle, intent.number)
        return ChoicesMade(answers, self._topics.meet(intent.namespace, answer[3]))

    @staticmethod
    def _told(answer: list[Any] | Exception | None, read: Callable[[list[Any]], T]) -> T | Exception | None:
        """Return what a script that no task waits for has answered; None if it is to be asked again, as ever."""
        if not isinstance(answer, list):
            return answer
        if answer[0] >= _FROZEN:
            return None
        try:
            return read(answer)
        except AttemptClosedError as error:
            return error

    def _choices(self, intent: ChoiceIntent, names: RedisKeys) -> list[Argument]:
        arguments: list[Argument] = [
            intent.handle,
            intent.number,
            self._seen.acknowledged(names, intent.handle),
            -1,
            intent.origin,
            names.channel,
            LONGEST_MOVED,
        ]
        messages = iter(intent.messages)
        for choice in intent.choices:
            arguments.append(len(choice))
            for alternative in choice:
                sent = next(messages)
                before = -1 if alternative.before is None else alternative.before
                arguments += (len(alternative.changes), len(sent), alternative.after or 0, before)
                for change in alternative.changes:
                    arguments += choice_fields(change)
                for message in sent:
                    arguments += (self._topics.channel(message.topic), message.data)
        return arguments

    async def _meet(self, names: RedisKeys) -> int:
        """Make sure that a namespace is there, apart from the write: that one's answer waits for replicas."""
        await self.calls.run(MARK, names, (names.head,), ("", 0))
        floor = await self._floor()
        self._met.add(names.namespace)
        return floor

    async def _floor(self) -> int:
        """Return the version that a namespace begins above, if the store is not frozen."""
        notice = await self.transfer().notice()
        if notice.reason:
            raise moved_error(self.name, notice.reason)
        return notice.floor

    def transfer(self) -> RedisTransfer:
        """Return what moves everything under the prefix."""
        return RedisTransfer(self.calls, self._options.prefix, self.names, self.scan)

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions of a namespace."""
        names = self.names(namespace)
        answer = await self.calls.run(RESERVE, names, (names.head,), (count,))
        return tuple(range(answer[3], answer[3] + count))

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Make sure that an attempt can never be written any more; if it was, say with which versions."""
        if not namespace and self._one_slot:
            raise StoreError(self.name, f"attempt {number} of {handle} was made elsewhere; settle it there")
        names = self.names(namespace)
        arguments = (handle, number, int(self._options.replicas > 0), self._seen.acknowledged(names, handle))
        answer = await self.calls.run(CLOSE, names, (names.head, names.attempts), arguments, replicated=True)
        if answer[0] != _WRITTEN:
            raise StoreError(self.name, f"a later attempt than {number} of {handle} was counted")
        self._seen.acknowledge(names, handle, number)
        at, first, count, chosen = answer[3:7]
        if chosen:
            return Landed(Instant(at), drawn(chosen))
        return Landed(Instant(at), tuple(range(first, first + count))) if first else None

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle."""
        for names in self._distinct():
            self._seen.forget(names, handle)
            pool = await self.calls.routes.pool(names.slot)
            await self.calls.ask(pool, "HDEL", names.attempts, handle)

    def _distinct(self) -> list[RedisKeys]:
        """Return one of the known namespaces for each place where attempts are counted."""
        return list({names.attempts: names for names in self._known.values()}.values())

    # --- reading ---------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one script."""
        names = self.names(keys[0].namespace)
        answer = await self.calls.run(READ, names, (names.head, names.records), keys)
        at = Instant(answer[1])
        raws = zip(keys, answer[3], strict=True)
        return Snapshot(at, {key: record for key, raw in raws if (record := unpack(key, raw, at)) is not None})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of the bytes of their keys."""
        return await scan(self.calls, self.names(start.namespace), start, end, limit=limit, reverse=reverse)

    # --- upkeep ----------------------------------------------------------------------------------------------

    async def sweep(self, limit: int) -> int:
        """Delete expired records of the namespaces that this handle uses, and attempts of handles long gone."""
        removed: int = 0
        for names in tuple(self._known.values()):
            keys = (names.head, names.records, names.order, names.expiries)
            removed += (await self.calls.run(SWEEP, names, keys, (limit - removed,)))[3]
            if removed >= limit:
                return removed
        for names in self._distinct():
            arguments = (self._cursors.get(names.attempts, b"0"), KEPT_ATTEMPTS)
            answer = await self.calls.run(FORGET, names, (names.head, names.attempts), arguments)
            self._cursors[names.attempts] = answer[3]
        return removed

    async def measure(self) -> StoreMeasure:
        """Return the bytes and the records of the namespaces that this handle uses; MEMORY looks at a few of them."""
        size: int | None = 0
        records = 0
        for names in tuple(self._known.values()):
            pool = await self.calls.routes.pool(names.slot)
            number = await self.calls.ask(pool, "HLEN", names.records)
            taken = [await self.calls.ask(pool, "MEMORY", "USAGE", key) for key in (names.records, names.order)]
            records += number if isinstance(number, int) else 0
            if size is not None:  # a user that may not ask for it is refused
                known = [each or 0 for each in taken if each is None or isinstance(each, int)]
                size = size + sum(known) if len(known) == len(taken) else None
        return StoreMeasure(size, records)

    async def mark(self) -> int:
        """Return the sum of the last versions of the namespaces that are listened to."""
        total = 0
        for namespace in self._topics.namespaces():
            names = self.names(namespace)
            head = await self.calls.ask(await self.calls.routes.pool(names.slot), "GET", names.head)
            if isinstance(head, Exception):
                raise self.calls.refused(head)
            total += int(head[:16]) if head else 0
        return total

    # --- notifications ---------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is published to ``listener``."""
        self._listening.listen(listener)

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen to more topics and to fewer, and let committers know."""
        await self._topics.subscribe(tuple(added), tuple(removed), all_topics)

    async def audience(self) -> Audience:
        """Return the topics that any handle listens to."""
        return await self._topics.audience()

    async def send(self, messages: Sequence[Message]) -> None:
        """Publish messages outside of a script."""
        await self._topics.send(messages)

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> RedisServer:
        """Open another handle on the same server, on the running loop."""
        server = RedisServer(self._dialer, self._options, self._facts, self._seen, self._finder)
        try:
            await server.calls.ask(await server.calls.routes.pool(0), "PING")
        except BaseException:
            await server.aclose()
            raise
        return server

    async def aclose(self) -> None:
        """Close every connection."""
        try:
            async with asyncio.timeout(_LEAVES_WITHIN):
                with contextlib.suppress(StoreError):
                    await self._topics.leave()
        except TimeoutError:  # closing does not depend on a server that is not there
            pass
        finally:
            if self._liveness is not None:
                await self._liveness.leave()
            await self._listening.aclose()
            await self.calls.routes.aclose()


def _current(intent: Intent, lost: list[Any], at: Instant) -> dict[RecordKey, Record | None]:
    keys = tuple(intent.guards)
    found: dict[RecordKey, Record | None] = {}
    for index, raw in zip(lost[::2], lost[1::2], strict=True):
        key = keys[int(index)]
        found[key] = unpack(key, raw, at)
    return found


# --- checks of a server when it is opened: eviction, persistence, permissions --------------------------------------


class RedisFacts(Struct, frozen=True):
    """What a server has told of itself."""

    is_cluster: bool
    durable: bool
    store_id: str = ""
    """What tells the store from others; empty if it cannot be seen that a process has died."""
    failover_loss: str = ""

    def capabilities(self) -> Capabilities:
        """Return what the store can do on it."""
        return Capabilities(
            backend="redis",
            atomic=True,
            durable=self.durable,
            reach="network",
            wakes="push",
            sees_process_death=bool(self.store_id),
            alternatives=True,
            failover_loss=self.failover_loss,
        )


_SINCE_SNAPSHOT: Final = "it keeps no append-only file, so a restart loses what came after the last snapshot, or all"
_SOMETIMES: Final = "it syncs its append-only file now and then, so a power cut loses the last second or more"
_UNREPLICATED: Final = (
    "its replicas get a commit after it was answered, so one that takes over may lack the last ones, and a primary that"
    " was cut off goes on beside it, with holders of its own, until it is stopped: add ?replicas={there}"
)
_TOO_FEW: Final = (
    "{there} replicas are connected and a commit waits for {asked}: while another one takes over, a primary that is not"
    " dead but frozen or cut off may go on with those that still follow it, and what they acknowledge is lost:"
    " ?replicas={there}, or fewer replicas"
)
_UNTOLD: Final = "it does not say if it syncs its append-only file before it answers"


async def look(calls: ScriptCaller, pool: RedisPool, name: str, options: RedisOptions, hooks: Hooks) -> RedisFacts:
    """Look at a server, refuse it where it would drop records, and warn where it would lose them."""
    info = await _info(calls, pool, name, options)
    is_cluster = info.get("cluster_enabled") == "1"
    if info.get("role", "master") != "master" and not is_cluster:  # a node knows where the primaries are
        raise StoreReadOnlyError(name, "this server is a replica; the URL must name the primary")
    _check_eviction(info, name, options)
    problem = "" if options.durable == "true" else await _persistence(calls, pool, info)
    if problem and options.durable == "check":
        warn_not_durable(name, problem, hooks)
    replicas = await _replicas_in_cluster(calls, pool) if is_cluster else int(info.get("connected_slaves", "0"))
    loss = _failover_loss(replicas, options.replicas)
    tell_failover_loss(name, loss, hooks)
    sees_deaths = options.liveness and not is_cluster and not options.cluster
    store_id = await find_store_id(calls, options) if sees_deaths else ""
    return RedisFacts(is_cluster, not problem, store_id, loss)


async def _replicas_in_cluster(calls: ScriptCaller, pool: RedisPool) -> int:
    """Return the most replicas that a primary of the cluster has: an entry has two slots, the primary and those."""
    answer = await calls.ask(pool, "CLUSTER", "SLOTS")
    slots = cast("list[list[object]]", answer) if isinstance(answer, list) else []
    return max((len(each) - 3 for each in slots), default=0)


def _failover_loss(there: int, asked: int) -> str:
    """Return what a failover may lose: a commit must be with every replica that could take over."""
    if there <= asked:
        return ""
    return (_TOO_FEW if asked else _UNREPLICATED).format(there=there, asked=asked)


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


async def probe(calls: ScriptCaller, options: RedisOptions) -> None:
    """Find out before anything is written whether this user may do all that is needed: no script stops half-way."""
    names = RedisKeys(b"", options.prefix, options.database, one_slot=True)
    keys = (names.head, names.records, names.order)
    try:
        await calls.run(PROBE, names, keys, (names.channel,))
    except UnsuitableStoreError as error:
        raise UnsuitableStoreError(error.store, error.problem) from None


# --- transfer: everything under a prefix ---------------------------------------------------------------------------
#
# There is no one place that all writes come by: each namespace has a head of its own, in a cluster on a server of its
# own. So one key says of the whole store why it is frozen and above which version it goes on, and each head is marked.
# A write looks at the head alone, and is refused if that is frozen. If the head was never marked it is created, then
# the key is read, and then the head is marked in the write itself, unless it is frozen by then.
#
# Freezing sets the key first, and then marks every head there is. A head that was there before the key was read
# to be open is there for all of that search; and one that comes later finds the key set.

_END: Final = b"\x00\x01"
_SEARCHED: Final = 1_000
_MARKED_FROZEN, _OPENED, _AS_IT_IS = "!", "+", ""


class Notice(Struct, frozen=True):
    """What is said of the whole store."""

    reason: int = OPEN
    floor: int = 0


@final
class RedisTransfer:
    """Everything under one prefix."""

    def __init__(self, calls: ScriptCaller, prefix: str, names: Callable[[bytes], RedisKeys], scan: Scan) -> None:
        self._calls, self._names, self._scan = calls, names, scan
        self._key: Final = f"{prefix}:store".encode()
        self._head: Final = (f"{{{prefix}:".encode(), b"}:head")

    # --- the store -------------------------------------------------------------------------------------------

    async def notice(self) -> Notice:
        """Read what is said of the whole store."""
        found = await self._ask("GET", self._key)
        if found is None:
            return Notice()
        text = cast("bytes", found)
        return Notice(int(text[:FIELD]), int(text[FIELD:]))

    async def _tell(self, notice: Notice) -> None:
        await self._ask("SET", self._key, digits(notice.reason) + digits(notice.floor))

    async def _ask(self, *command: Argument) -> Reply:
        pool = await self._calls.routes.pool(slot_of(self._key))
        answer = await self._calls.ask(pool, *command)
        if isinstance(answer, Exception):
            raise self._calls.refused(answer)
        return answer

    async def refusal(self, name: str) -> StoreMovedError:
        """Return the error for a write to a frozen namespace."""
        return moved_error(name, (await self.notice()).reason or EXPORTED)

    # --- all namespaces --------------------------------------------------------------------------------------

    async def _namespaces(self) -> list[RedisKeys]:
        """Find every namespace that has a head, on every server; keys of others are passed over."""
        first, last = self._head
        found: set[bytes] = set()
        for pool in await self._calls.routes.pools():
            cursor: Argument = b"0"
            while True:
                answer = await self._calls.ask(pool, "SCAN", cursor, "MATCH", first + b"*" + last, "COUNT", _SEARCHED)
                if isinstance(answer, Exception):
                    raise self._calls.refused(answer)
                cursor, keys = cast("tuple[bytes, list[bytes]]", answer)
                found.update(key[len(first) : -len(last)] + _END for key in keys)
                if cursor == b"0":
                    break
        return [self._names(namespace) for namespace in sorted(found) if namespace != _END]

    async def _mark(self, mark: str, least: int = 0) -> None:
        for names in await self._namespaces():
            await self._calls.run(MARK, names, (names.head,), (mark, least), replicated=True)

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return (await self.notice()).reason

    async def freeze(self, reason: int) -> None:
        """Refuse writes, in every namespace."""
        notice = await self.notice()
        await self._tell(Notice(notice.reason or reason, notice.floor))
        await self._mark(_MARKED_FROZEN)

    async def thaw(self) -> None:
        """Take writes again."""
        await self._tell(Notice(OPEN, (await self.notice()).floor))
        await self._mark(_OPENED)

    async def last(self) -> int:
        """Return the highest of the last versions of all namespaces."""
        last = (await self.notice()).floor
        for names in await self._namespaces():
            last = max(last, (await self._calls.run(MARK, names, (names.head,), (_AS_IT_IS, 0)))[2])
        return last

    async def lift(self, version: int) -> None:
        """Go on above a version, also in namespaces to come."""
        notice = await self.notice()
        await self._tell(Notice(notice.reason, max(notice.floor, version)))
        await self._mark(_AS_IT_IS, version)

    async def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records, one namespace after the other."""
        for names in await self._namespaces():
            start = RecordKey.from_encoded(names.namespace)
            async for page in pages(self._scan, *start.within()):
                yield page

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        by_namespace: dict[bytes, list[Argument]] = {}
        for record in records:
            fields = (record.key, digits(record.version), expiry(record.expires_at), record.value)
            by_namespace.setdefault(record.key.namespace, []).extend(fields)
        for namespace, arguments in by_namespace.items():
            names = self._names(namespace)
            keys = (names.head, names.records, names.order, names.expiries)
            await self._calls.run(LOAD, names, keys, arguments, replicated=True)


# --- scans: a page in one call, unless much of it has expired ------------------------------------------------------

PAGE_BYTES: Final = 4_000_000
"""A page with about this many bytes ends there, and tells where to go on."""

LOOKED_AT: Final = 2_000
"""How many keys one call looks at, so that others do not wait for long."""


async def scan(
    calls: ScriptCaller, names: RedisKeys, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool
) -> Snapshot:
    """Read a page of live records."""
    lower, upper = b"[" + start, b"(" + end
    found: dict[RecordKey, Record] = {}
    size = 0
    while True:
        arguments = (lower, upper, int(reverse), limit + 1 - len(found), PAGE_BYTES - size, LOOKED_AT)
        answer = await calls.run(SCAN, names, (names.head, names.records, names.order), arguments)
        at, raws, stopped = Instant(answer[1]), answer[3], answer[4]
        for raw_key, raw in zip(raws[::2], raws[1::2], strict=True):
            key = RecordKey.from_encoded(raw_key)
            record = unpack(key, raw, at)
            if record is not None:
                found[key] = record
                size += len(raw)
        if stopped is None or len(found) > limit or size >= PAGE_BYTES:
            return _page(at, found, limit, stopped, reverse=reverse)
        lower, upper = (lower, b"(" + stopped) if reverse else (b"(" + stopped, upper)


def _page(at: Instant, found: dict[RecordKey, Record], limit: int, stopped: bytes | None, *, reverse: bool) -> Snapshot:
    records = [record for record in found.values() if not record.is_expired(at)]
    if len(records) > limit:
        last: RecordKey | None = records[limit - 1].key
    else:
        last = None if stopped is None else RecordKey.from_encoded(stopped)
    more = last if last is None or reverse else last.successor()
    return Snapshot(at, {record.key: record for record in records[:limit]}, more)


# --- topics on Redis: who listens to what lies in each namespace, and each has its own generation ------------------
#
# A handle counts the generations that it meets as one: it grows whenever that of any namespace has changed.

LIVES_FOR: Final = 60_000_000
"""For how many microseconds a topic stays that is not refreshed."""

_HANDLE: Final = 36


@final
class Topics:
    """What one handle listens to, and what it knows of others."""

    def __init__(self, calls: ScriptCaller, listening: RedisSubscriber, names: Callable[[bytes], RedisKeys]) -> None:
        self._calls, self._listening, self._names = calls, listening, names
        self._handle: Final = new_id().encode()
        self._mine: dict[bytes, frozenset[bytes]] = {}
        self._generations: Final[dict[bytes, int]] = {}
        self._fetched: Final[dict[bytes, tuple[int, frozenset[bytes]]]] = {}
        self._epoch = 1

    # --- listening -------------------------------------------------------------------------------------------

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Hear more and fewer channels, and let committers know."""
        mine, before = self._by_namespace(all_topics), self._mine
        self._mine = mine
        await self._listening.change(map(self.channel, added), map(self.channel, removed))
        gone = self._by_namespace(removed)
        for namespace in mine.keys() | before.keys() | gone.keys():
            topics = mine.get(namespace, frozenset())
            await self._tell(self._names(namespace), topics, gone.get(namespace, frozenset()) - topics)

    async def _tell(self, names: RedisKeys, topics: frozenset[bytes], removed: frozenset[bytes]) -> None:
        members = [self._handle + topic for topic in (*removed, *topics)]
        arguments: list[Argument] = [LIVES_FOR, len(removed), *members]
        await self._calls.run(SUBSCRIBE, names, (names.head, names.topics), arguments)

    async def leave(self) -> None:
        """Let committers know that this handle listens no more."""
        mine, self._mine = self._mine, {}
        for namespace, topics in mine.items():
            await self._tell(self._names(namespace), frozenset(), topics)

    def _by_namespace(self, topics: Iterable[bytes]) -> dict[bytes, frozenset[bytes]]:
        found: dict[bytes, set[bytes]] = {}
        for topic in topics:
            found.setdefault(_namespace(topic), set()).add(topic)
        return {namespace: frozenset(each) for namespace, each in found.items()}

    def channel(self, topic: bytes) -> bytes:
        """Return the channel of a topic."""
        return self._names(_namespace(topic)).channel + topic

    # --- sending ---------------------------------------------------------------------------------------------

    def meet(self, namespace: bytes, generation: int) -> int:
        """Take the generation that a write has met; return what it comes to for this handle."""
        if generation != self._generations.get(namespace, 0):
            self._generations[namespace] = generation
            self._epoch += 1
        return self._epoch

    async def audience(self) -> Audience:
        """Return the topics of all namespaces that this handle has written to."""
        epoch = self._epoch
        for namespace, generation in tuple(self._generations.items()):
            if self._fetched.get(namespace, (0, None))[0] != generation:
                names = self._names(namespace)
                answer = await self._calls.run(AUDIENCE, names, (names.head, names.topics), ())
                members: list[bytes] = answer[4]
                self._fetched[namespace] = (answer[3], frozenset([member[_HANDLE:] for member in members]))
        return Audience(epoch, frozenset[bytes]().union(*(topics for _, topics in self._fetched.values())))

    async def send(self, messages: Sequence[Message]) -> None:
        """Publish messages."""
        for message in messages:
            channel = self.channel(message.topic)
            pool = await self._calls.routes.pool(self._names(_namespace(message.topic)).slot)
            try:
                await pool.call(pack(b"PUBLISH", channel, message.data))
            except (NotSentError, ReplyLostError):
                return  # polling finds what it was about

    def namespaces(self) -> Iterable[bytes]:
        """Return the namespaces that this handle listens to something in."""
        return tuple(self._mine)


def _namespace(topic: bytes) -> bytes:
    return RecordKey.from_encoded(topic).namespace
