"""The store in memory: the reference for every other one, and the only fake.

Its data lives in one process and dies with it. ``memory://`` is private to the handle; ``memory://name`` is shared
by all handles of that name in this process, whichever event loop or thread they live in.
"""

from __future__ import annotations

import bisect
import threading
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK, Clock, Instant
from standfast.errors import AttemptClosedError
from standfast.events import NO_HOOKS
from standfast.stores.backend import OPEN, Applied, RiderBatch, moved_error, pages
from standfast.stores.fold import fold, keys_of
from standfast.stores.group_commit import GroupedStore
from standfast.stores.protocol import Capabilities, Record, Snapshot, Wake
from standfast.stores.watch import LocalSubscriptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Container, Iterable, Mapping, Sequence

    from standfast.events import Hooks
    from standfast.keys import RecordKey
    from standfast.stores.backend import Subscriber

CAPABILITIES: Final = Capabilities(
    backend="memory", atomic=True, durable=False, reach="process", wakes="push", alternatives=True
)

REMEMBERED_VERDICTS: Final = 10_000
"""Older attempts than these cannot be settled any more; nothing here ever loses an answer by itself."""


@final
class MemoryRecords:
    """Records in memory, shared by the handles that are given it; with ``capabilities``, it plays a lesser store."""

    def __init__(self, name: str = "", clock: Clock = SYSTEM_CLOCK, capabilities: Capabilities = CAPABILITIES) -> None:
        self.name: Final = f"memory://{name}"
        self.capabilities: Final = capabilities
        self.lock: Final = threading.Lock()
        self.subscriptions: Final = LocalSubscriptions()
        self._clock: Final = clock
        self._offset = clock.wall() - clock.elapsed()
        self._last_at = Instant(0)
        self.last_version = 0
        self._records: Final[dict[RecordKey, Record]] = {}
        self._order: Final[list[RecordKey]] = []
        self._attempts: Final[OrderedDict[str, Applied | None]] = OrderedDict()
        self._verdicts = 0
        self.frozen = OPEN

    def __len__(self) -> int:
        return len(self._records)

    def now(self) -> Instant:
        """Return the store's time, which never goes backwards and does not follow a stepped wall clock."""
        self._last_at = max(self._last_at, Instant(self._offset + self._clock.elapsed()))
        return self._last_at

    def apply(self, batch: RiderBatch) -> Applied:
        """Apply a batch, all of it at one instant."""
        if batch.attempt in self._attempts:
            raise AttemptClosedError(self.name, f"attempt {batch.attempt} was settled as never written")
        records = {key: record for key in keys_of(batch.riders) if (record := self._records.get(key)) is not None}
        folded = fold(
            batch.riders,
            at=self.now(),
            last_version=self.last_version,
            records=records,
            limits=self.capabilities,
            ranges=self._below,
        )
        if self.frozen and folded.writes:
            raise moved_error(self.name, self.frozen)
        self.lift(folded.last_version)
        self.write(folded.writes)
        wakes = [shown for wake in folded.wakes for shown in (_shown(wake, folded.writes) if wake.shows else (wake,))]
        applied = Applied(folded.outcomes, tuple(folded.writes), tuple(wakes))
        self._remember(batch.attempt, applied)
        return applied

    def settle(self, attempt: str) -> Applied | None:
        """Close an attempt: what it applied, or None for good."""
        if attempt not in self._attempts:
            self._remember(attempt, None)
        return self._attempts[attempt]

    def read(self, keys: Iterable[RecordKey]) -> Snapshot:
        """Read the records at ``keys`` that are there."""
        at = self.now()
        return Snapshot(at, {key: record for key in keys if (record := self._present(key, at)) is not None})

    def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range."""
        at = self.now()
        places = range(bisect.bisect_left(self._order, start), bisect.bisect_left(self._order, end))
        keys = (self._order[place] for place in (reversed(places) if reverse else places))
        present = (record for key in keys if (record := self._present(key, at)) is not None)
        return Snapshot.page(at, list(islice(present, limit + 1)), limit, reverse=reverse)

    def _below(self, prefix: RecordKey, most: int, without: Container[RecordKey] = ()) -> list[Record]:
        """Return the first records that continue a key, and whose own keys are not left out."""
        found: list[Record] = []
        start, end = prefix.within()
        for place in range(bisect.bisect_right(self._order, start), bisect.bisect_left(self._order, end)):
            key = self._order[place]
            if len(found) == most:
                break
            if key not in without and (record := self._present(key, self._last_at)) is not None:
                found.append(record)
        return found

    def _present(self, key: RecordKey, at: Instant) -> Record | None:
        record = self._records.get(key)
        return None if record is None or record.is_expired(at) else record

    def lift(self, version: int) -> None:
        """Go on above a version."""
        self.last_version = max(self.last_version, version)

    def write(self, writes: Mapping[RecordKey, Record | None]) -> None:
        """Write records as they are, and remove those that are None."""
        for key, record in writes.items():
            if record is not None:
                if key not in self._records:
                    bisect.insort(self._order, key)
                self._records[key] = record
            elif self._records.pop(key, None) is not None:
                del self._order[bisect.bisect_left(self._order, key)]

    def _remember(self, attempt: str, applied: Applied | None) -> None:
        self._attempts[attempt] = applied
        self._verdicts += _weight(applied)
        while self._verdicts > REMEMBERED_VERDICTS:
            self._verdicts -= _weight(self._attempts.popitem(last=False)[1])


def _shown(wake: Wake, writes: Mapping[RecordKey, Record | None]) -> tuple[Wake, ...]:
    """Return a notification of each record that a wake shows; only of what it is about if not all were written."""
    named = (wake.about, *wake.shows)
    if not all(key in writes for key in named):
        return (wake,)
    records = [record for key in named if key is not None and (record := writes[key]) is not None]
    return tuple([Wake(wake.to, records[-1].key, record) for record in records])


def _weight(applied: Applied | None) -> int:
    return 1 if applied is None else len(applied.outcomes)


@final
class MemoryBackend:
    """One handle on a :class:`MemoryRecords`."""

    __slots__ = ("_memory",)

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory: Final = memory

    @property
    def capabilities(self) -> Capabilities:
        """Atomic, for one process, and gone with it."""
        return self._memory.capabilities

    @property
    def name(self) -> str:
        """The memory's URL."""
        return self._memory.name

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Apply the batch at once: nothing here ever waits."""
        with self._memory.lock:
            return self._memory.apply(batch)

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch at once."""
        with self._memory.lock:
            return self._memory.apply(batch)

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        with self._memory.lock:
            return self._memory.settle(attempt)

    def count(self, most: int) -> int:
        """Return how many records there are, up to a number."""
        return min(most, len(self._memory))

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot."""
        with self._memory.lock:
            return self._memory.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range."""
        with self._memory.lock:
            return self._memory.scan(start, end, limit=limit, reverse=reverse)

    def transfer(self) -> MemoryTransfer:
        """Return what moves it."""
        return MemoryTransfer(self._memory)

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Subscribe to what every handle on the same memory commits."""
        return self._memory.subscriptions.subscribe(prefixes, subscriber)

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Notify the subscribers of every handle on the same memory."""
        self._memory.subscriptions.notify(changed, wakes)

    async def another(self) -> MemoryBackend:
        """Return another handle on the same memory."""
        return MemoryBackend(self._memory)

    def liveness_token(self) -> str:
        """Return nothing: the memory dies with its process."""
        return ""

    def is_dead(self, token: str) -> bool:  # noqa: ARG002 -- all handles live in the same process
        """Return False: no handle outlives the process."""
        return False

    async def aclose(self) -> None:
        """Nothing to let go of: the memory lives as long as there is a handle on it."""


@final
class MemoryTransfer:
    """Everything in a memory."""

    __slots__ = ("_memory",)

    def __init__(self, memory: MemoryRecords) -> None:
        self._memory: Final = memory

    async def frozen(self) -> int:
        """Return why it is frozen."""
        return self._memory.frozen

    async def freeze(self, reason: int) -> None:
        """Refuse writes."""
        with self._memory.lock:
            self._memory.frozen = self._memory.frozen or reason

    async def thaw(self) -> None:
        """Take writes again."""
        with self._memory.lock:
            self._memory.frozen = OPEN

    async def last(self) -> int:
        """Return the last version."""
        return self._memory.last_version

    async def lift(self, version: int) -> None:
        """Go on above a version."""
        with self._memory.lock:
            self._memory.lift(version)

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all records."""
        return pages(MemoryBackend(self._memory).scan)

    async def put(self, records: Sequence[Record]) -> None:
        """Write records as they are."""
        with self._memory.lock:
            self._memory.write({record.key: record for record in records})


_shared: dict[str, MemoryRecords] = {}
_shared_lock = threading.Lock()


def open_memory(name: str = "", *, clock: Clock = SYSTEM_CLOCK, hooks: Hooks = NO_HOOKS) -> GroupedStore:
    """Open a store in memory on the running loop: a private one, or the one that is shared under ``name``."""
    if not name:
        return GroupedStore(MemoryBackend(MemoryRecords(clock=clock)), hooks)
    with _shared_lock:
        memory = _shared.setdefault(name, MemoryRecords(name, clock))
    return GroupedStore(MemoryBackend(memory), hooks)
