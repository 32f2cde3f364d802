"""A server that is a table in memory: the smallest one that keeps the contract of a server.

It stands for all real ones where their common code is looked at: what is asked of it can be counted, refused, delayed
and lost.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final

from standfast.clock import SYSTEM_CLOCK, Clock, Instant
from standfast.errors import AttemptClosedError, StoreError
from standfast.stores.backend import Batching
from standfast.stores.protocol import ABSENT, Capabilities, Record, Snapshot
from standfast.stores.remote.server import Audience, Intent, Landed, Listener, Message, WriteRefused, Written
from standfast.stores.validation import in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, WorkRider

CAPABILITIES = Capabilities(backend="table", atomic=True, durable=True, reach="network", wakes="push")


class Table:
    """What the handles on one server share."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock: Final = clock
        self.records: Final[dict[RecordKey, Record]] = {}
        self.attempts: Final[dict[str, tuple[int, Landed | None]]] = {}
        self.listeners: Final[dict[TableServer, tuple[Listener, frozenset[bytes]]]] = {}
        self.version = 0
        self.generation = 1
        self.calls: Final[list[str]] = []

    def live(self, key: RecordKey, at: Instant) -> Record | None:
        """Return the record at a key that has not expired."""
        record = self.records.get(key)
        return None if record is None or record.is_expired(at) else record


class TableServer:
    """One handle on a table."""

    def __init__(self, table: Table, batching: Batching | None = None) -> None:
        self.table: Final = table
        self._batching: Final = batching or Batching()

    capabilities: Any = CAPABILITIES
    name: Any = "table://"

    @property
    def batching(self) -> Batching:
        """As much as there is, unless told otherwise."""
        return self._batching

    async def _trip(self, what: str) -> None:
        self.table.calls.append(what)
        await asyncio.sleep(0)

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do it all, or say why not."""
        await self._trip("write")
        table, at = self.table, self.table.clock.wall()
        if table.attempts.get(intent.handle, (0, None))[0] >= intent.number:
            raise AttemptClosedError(self.name, "closed")
        current = {key: table.live(key, at) for key in intent.guards}
        lost = {
            key: record
            for key, record in current.items()
            if (ABSENT if record is None else record.version) != intent.guards[key]
        }
        if lost or not in_window(at, intent.after, intent.before):
            return WriteRefused(at, lost)
        creates = any(intent.guards[row.key] == ABSENT for row in intent.puts)
        if intent.exact and creates and table.version != intent.exact[-1]:
            return WriteRefused(at, {}, stale=True)
        versions = intent.exact or self._draw(intent.draws)
        for row in intent.puts:
            table.records[row.key] = Record(row.key, row.value, versions[row.draw], row.expires_at)
        for key in intent.deletes:
            table.records.pop(key, None)
        table.attempts[intent.handle] = (intent.number, Landed(at, versions))
        self._tell(intent.messages)
        return Written(at, versions, table.generation)

    def _draw(self, count: int) -> tuple[int, ...]:
        first = self.table.version + 1
        self.table.version += count
        return tuple(range(first, first + count))

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take versions."""
        await self._trip("reserve")
        del namespace
        return self._draw(count)

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Close an attempt."""
        await self._trip("close")
        del namespace
        last, landed = self.table.attempts.get(handle, (0, None))
        if last > number:
            raise StoreError(self.name, "not the last")
        if last < number:
            self.table.attempts[handle] = (number, None)
            return None
        return landed

    async def forget(self, handle: str) -> None:
        """Forget a handle."""
        self.table.attempts.pop(handle, None)

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read live records."""
        await self._trip("read")
        at = self.table.clock.wall()
        return Snapshot(at, {key: record for key in keys if (record := self.table.live(key, at)) is not None})

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page."""
        await self._trip("scan")
        at = self.table.clock.wall()
        keys = sorted((key for key in self.table.records if start <= key < end), reverse=reverse)
        found = [record for key in keys if (record := self.table.live(key, at)) is not None]
        page = list(itertools.islice(found, limit))
        more = None if len(found) <= limit else page[-1].key if reverse else page[-1].key.successor()
        return Snapshot(at, {record.key: record for record in page}, more)

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Refuse: there is no SQL here."""
        raise NotImplementedError

    async def sweep(self, limit: int) -> int:
        """Delete what has expired."""
        at = self.table.clock.wall()
        old = [key for key, record in self.table.records.items() if record.is_expired(at)][:limit]
        for key in old:
            del self.table.records[key]
        return len(old)

    def listen(self, listener: Listener) -> None:
        """Tell ``listener``."""
        self.table.listeners[self] = (listener, frozenset())

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen to topics."""
        await self._trip("subscribe")
        del removed
        listener, _ = self.table.listeners[self]
        self.table.listeners[self] = (listener, all_topics)
        self.table.generation += bool(list(added))

    async def audience(self) -> Audience:
        """Return all topics."""
        await self._trip("audience")
        topics: frozenset[bytes] = frozenset().union(*(topics for _, topics in self.table.listeners.values()))
        return Audience(self.table.generation, topics)

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages."""
        await self._trip("send")
        self._tell(messages)

    def _tell(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for listener, topics in tuple(self.table.listeners.values()):
                if message.topic in topics:
                    listener.take(message.data)

    async def mark(self) -> int:
        """Return the last version."""
        return self.table.version

    async def another(self) -> TableServer:
        """Open another handle."""
        return TableServer(self.table, self._batching)

    def liveness_token(self) -> str:
        """Return nothing."""
        return ""

    def is_dead(self, token: str) -> bool:
        """Return False."""
        del token
        return False

    async def aclose(self) -> None:
        """Stop listening."""
        self.table.listeners.pop(self, None)
