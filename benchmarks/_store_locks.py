"""Locks on a server, held by processes: Standfast's, the limit's and the peers' on the same server."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import asyncpg
import hiredis

import standfast as sf
from benchmarks._lock_limit import DIGITS, records_of_a_hold
from benchmarks._sqlite_limit import HANDLE
from benchmarks._store_limit import TABLES, beside
from benchmarks._store_limit_sql import NOW, SETTINGS
from benchmarks._workflow_windows import Taking
from benchmarks.harness import Row, at_least, plainly_at_least, plainly_at_most
from standfast.keys import RecordKey
from standfast.stores.protocol import STAMP_BYTES
from standfast.stores.redis.scripts import CREATE_OR_APPEND, MOVE_OR_DELETE, RedisKeys, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks._lock_crowd import Crowd, Storm
    from benchmarks.harness import Bar, Measure
    from standfast.stores.redis.scripts import Argument

ADVISORY, TOOZ = "pg_advisory_lock", "tooz on PostgreSQL"
REDIS_PY, REDIS_PY_FAST, REDIS_LOCK = "redis-py Lock", "redis-py Lock, 1 ms", "python-redis-lock"
PEERS: Final = {"postgresql": (ADVISORY, TOOZ), "redis": (REDIS_PY, REDIS_PY_FAST, REDIS_LOCK)}

NOBODY: Final[Mapping[str, Measure]] = {}
OURS: Final = "URL"
QUEUE: Final = RecordKey(TABLES, "queue")
CONTENDERS: Final = 20
KEYS: Final = 32
PAIR_SECONDS, PING_PONG_SECONDS, STORM_SECONDS = 0.25, 0.5, 0.8
PATIENCE: Final = 1.0  # seconds of a ping-pong where nothing is pushed: there are few hand-overs in it
ROUNDS: Final = 5
KILLS: Final = 5


class Locks:
    """The rows about the locks of one server."""

    def __init__(self, server: str, url: str, folder: Path, ours: Crowd, others: Crowd | None) -> None:
        self._server, self._url, self._folder = server, url, folder
        self._ours, self._others = ours, others
        scheme = url.partition(":")[0]
        self._names = [name for name in PEERS.get(scheme, ()) if others is not None and name in others.names]
        self.absent: Mapping[str, str] = {} if self._names else dict.fromkeys(PEERS.get(scheme, ()), "not to be had")
        self._storms = {name: self._taking(name) for name in (OURS, *self._names)}

    def _crowd(self, name: str) -> tuple[Crowd, str]:
        if name == OURS:
            return self._ours, self._url
        assert self._others is not None
        return self._others, "contest"

    def _taking(self, name: str) -> Taking[Storm]:
        def storm() -> Storm:
            crowd, where = self._crowd(name)
            return crowd.storm(name, where, CONTENDERS, STORM_SECONDS)

        return Taking(storm)

    def _row(self, what: str, unit: str, measure: Callable[[str], float], bar: Bar | None = None) -> Row:
        return self._row_of({name: _bound(measure, name) for name in (OURS, *self._names)}, what, unit, bar)

    def _row_of(self, measures: Mapping[str, Measure], what: str, unit: str, bar: Bar | None) -> Row:
        peers = {name: measures[name] for name in self._names}
        return Row(f"{self._server}: {what}", unit, measures[OURS], None, peers, bar, ROUNDS, self.absent)

    # --- one process, two processes --------------------------------------------------------------------------------

    def alone(self, bar: Bar | None = None, limit: Measure | None = None, more: Mapping[str, Measure] = NOBODY) -> Row:
        """Return the row about one process; ``more`` are others that it is compared with."""
        row = self._row("a mutex alone", "pairs/s", self._alone, bar)
        return dataclasses.replace(row, limit=limit, peers={**more, **row.peers})

    def _alone(self, name: str) -> float:
        crowd, where = self._crowd(name)
        return crowd.pairs(name, where, PAIR_SECONDS)

    def alone_and(self, peer: str, times: float) -> Row:
        """Return the row about one process and one peer."""
        row = self._row(f"a mutex alone, and {peer}", "pairs/s", self._alone, at_least(times, of=peer))
        return only(row, peer)

    def side_by_side(self, peer: str, times: float) -> Row:
        """Return the row about the tasks of one process, each with a key of its own."""

        def measure(name: str) -> float:
            crowd, where = self._crowd(name)
            return crowd.side_by_side(name, where, PAIR_SECONDS, KEYS)

        row = self._row(f"{KEYS} tasks on {KEYS} keys", "pairs/s", measure, at_least(times, of=peer))
        return only(row, peer)

    def hand_over(self, bar: Bar | None = None, seconds: float = PING_PONG_SECONDS) -> Row:
        """Return the row about two processes."""

        def measure(name: str) -> float:
            crowd, where = self._crowd(name)
            return crowd.ping_pong(name, where, seconds, self._folder / "board")

        return self._row("2 processes, hand-over, p50", "ms", measure, bar)

    def hand_over_at_once(self, bar: Bar) -> Row:
        """Return the row about two processes that ask again at once."""
        pair = Taking(lambda: self._ours.storm(OURS, self._url, 2, STORM_SECONDS))
        measure = pair.figure(lambda storm: storm.hand_over)
        what = f"{self._server}: 2 processes, asking again at once: hand-over, p50"
        return Row(what, "ms", measure, bar=bar, rounds=ROUNDS)

    def takeover(self) -> Row:
        """Return the row about the death of a holder."""
        kills = functools.cache(lambda: [self._ours.takeover(OURS, self._url) for _ in range(KILLS)])
        what = f"{self._server}: takeover after `kill -9`, the longest of {KILLS}"
        return Row(what, "ms", lambda: max(kills()), bar=plainly_at_most(2_000), rounds=ROUNDS)

    # --- twenty processes ------------------------------------------------------------------------------------------

    def crowd_rows(self, bar: Bar) -> Iterable[Row]:
        """Return the rows about twenty processes; all of them are figures of the same storms."""
        yield self._storm("together", "acquisitions/s", lambda storm: storm.rate, bar)
        yield self._storm("Jain's index", "1 is fair", lambda storm: storm.jain, plainly_at_least(0.99))
        yield self._storm("again", "%", lambda storm: storm.again)
        yield self._storm("passed over", "%", lambda storm: storm.out_of_order)
        row = self._storm("passed over, by ticket", "%", _out_of_line, plainly_at_most(0))
        yield Row(row.what, row.unit, row.standfast, bar=row.bar, rounds=ROUNDS)

    def _storm(self, what: str, unit: str, figure: Callable[[Storm], float], bar: Bar | None = None) -> Row:
        measures = {name: taking.figure(figure) for name, taking in self._storms.items()}
        return self._row_of(measures, f"{CONTENDERS} processes, {what}", unit, bar)


def _bound(measure: Callable[[str], float], name: str) -> Measure:
    return lambda: measure(name)


def _out_of_line(storm: Storm) -> float:
    assert storm.out_of_line is not None
    return storm.out_of_line


def only(row: Row, peer: str) -> Row:
    """Return a row with one peer alone."""
    peers = {name: measure for name, measure in row.peers.items() if name == peer}
    return dataclasses.replace(row, peers=peers)


# --- the limit of a pair on PostgreSQL ------------------------------------------------------------------------------

MAKE: Final = f"INSERT INTO {TABLES}.records VALUES ('\\x00', '', 0)"  # noqa: S608 -- of constants
CAS: Final = (
    f"UPDATE {TABLES}.records SET value = $1, version = nextval('{TABLES}.versions')"  # noqa: S608 -- of constants
    " WHERE key = '\\x00' AND version = $2 RETURNING version"
)
COUNT: Final = (
    f"UPDATE {TABLES}.attempts SET number = number + 1, at = {NOW}, versions = ARRAY[1], touched_at = now()"  # noqa: S608 -- of constants
    f" WHERE handle = '{HANDLE}-lock'"
)
TAKE: Final = (
    f"WITH counted AS ({COUNT}) INSERT INTO {TABLES}.records"  # noqa: S608 -- of constants
    f" SELECT g.key, g.value, nextval('{TABLES}.versions') FROM unnest($1::bytea[], $2::bytea[]) AS g (key, value)"
)
GIVE_BACK: Final = f"WITH counted AS ({COUNT}) DELETE FROM {TABLES}.records WHERE key = ANY ($1::bytea[])"  # noqa: S608 -- of constants


class PostgresPairs:
    """Two durable transactions without Standfast, each one statement: the least, and what a hold writes."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection: Any = None
        self._number = self._version = 0
        self._records: dict[bytes, bytes] = {}
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        async with sf.open(beside(url)) as space:
            found = await records_of_a_hold(space)
        self._records = {bytes(key): value for key, value in found.items()}
        self._connection = connection = await asyncpg.connect(url)
        await connection.execute(SETTINGS)
        await connection.execute(f"DELETE FROM {TABLES}.records WHERE key = ANY ($1)", list(self._records))  # noqa: S608 -- see above
        await connection.execute(MAKE)
        await connection.execute(f"INSERT INTO {TABLES}.attempts VALUES ('{HANDLE}-lock', 0, 0, '{{}}')")  # noqa: S608 -- of constants
        self._cas, self._take, self._give_back = [await connection.prepare(text) for text in (CAS, TAKE, GIVE_BACK)]

    def _rate(self, pair: Callable[[], Any]) -> float:
        async def pairs() -> float:
            times, started = 0, time.perf_counter()
            while time.perf_counter() - started < PAIR_SECONDS:
                await pair()
                times += 1
            return times / (time.perf_counter() - started)

        return self._runner.run(pairs())

    def updates(self) -> float:
        """Return how many pairs of compare-and-set updates of one row there are a second."""

        async def pair() -> None:
            for _ in range(2):
                self._number += 1
                self._version = await self._cas.fetchval(b"%064d" % self._number, self._version)

        return self._rate(pair)

    def same_rows(self) -> float:
        """Return how many pairs a second write and remove the records of a hold, as Standfast does."""

        async def pair() -> None:
            self._number += 1
            values = [value[:-DIGITS] + b"%012d" % self._number for value in self._records.values()]
            await self._take.fetch(list(self._records), values)
            await self._give_back.fetch(list(self._records))

        return self._rate(pair)

    def close(self) -> None:
        """Close the connection and the loop."""
        self._runner.run(self._connection.close())
        self._runner.close()


# --- the limit of a pair on Redis ------------------------------------------------------------------------------------


class _Replies(asyncio.Protocol):
    """A bare connection, on which one command is answered at a time."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader()
        self._transport: Any = None
        self._answer: asyncio.Future[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        reply = self._reader.gets()
        if reply is not False and self._answer is not None:
            self._answer.set_result(reply)

    async def ask(self, command: bytes) -> Any:  # noqa: ANN401 -- whatever a server answers
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(command)
        reply = await self._answer
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        self._transport.close()


class RedisPairs:
    """The two scripts of a mutex over one bare connection: what is written is the same, and no more is done for it."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection: _Replies
        self._number = self._seen = 0
        self._names = RedisKeys(RecordKey(TABLES).namespace, TABLES, 0, one_slot=False)
        self._runner.run(self._open(url))

    async def _open(self, url: str) -> None:
        async with sf.open(beside(url)) as space:
            records = await records_of_a_hold(space)
        (self._grant, self._grant_value), (self._head, self._head_value) = sorted(records.items())
        self._grant_value = self._grant_value[STAMP_BYTES:]
        server, loop = urlsplit(url), asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(_Replies, server.hostname or "", server.port or 6379)
        await self._connection.ask(pack("AUTH", server.password or ""))
        await self._connection.ask(pack("SET", self._names.head, b"%016d%016d%016d+" % (1, 1, 1)))
        await self._do(CREATE_OR_APPEND.call_in_full, self._taking())
        await self._do(MOVE_OR_DELETE.call_in_full, self._giving_back())

    async def _do(
        self, call: Callable[[Sequence[bytes], Sequence[Argument]], bytes], arguments: tuple[Argument, ...]
    ) -> None:
        reply = await self._connection.ask(call(self._keys(), arguments))
        assert isinstance(reply, bytes), reply
        self._number, self._seen = self._number + 1, int(reply[16:32])

    def _keys(self) -> tuple[bytes, ...]:
        return self._names.head, self._names.records, self._names.order, self._names.attempts

    def _attempt(self) -> tuple[Argument, ...]:
        return self._seen, HANDLE, self._number + 1, self._number

    def _taking(self) -> tuple[Argument, ...]:
        return *self._attempt(), self._grant, self._grant_value, self._head, self._head_value, QUEUE, b""

    def _giving_back(self) -> tuple[Argument, ...]:
        version = b"%016d" % self._seen
        return *self._attempt(), self._grant, version, self._head, version, QUEUE, b"", b"", b"", 0

    def rate(self) -> float:
        """Return how many pairs there are a second."""

        async def pairs() -> float:
            times, started = 0, time.perf_counter()
            while time.perf_counter() - started < PAIR_SECONDS:
                await self._do(CREATE_OR_APPEND.call, self._taking())
                await self._do(MOVE_OR_DELETE.call, self._giving_back())
                times += 1
            return times / (time.perf_counter() - started)

        return self._runner.run(pairs())

    def close(self) -> None:
        """Close the connection and the loop."""
        self._connection.close()
        self._runner.close()
