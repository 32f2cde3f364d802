"""A tiny backend, written apart from Standfast's own: what keeps the contract, and one flaw at a time that breaks it.

Each rule of the contract is a small method, so that a flaw is a subclass with one method replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from standfast.clock import Instant
from standfast.errors import AttemptClosedError
from standfast.stores.backend import Applied, CommitRider, RiderBatch, UpdateRider
from standfast.stores.fold import as_exception
from standfast.stores.protocol import (
    Capabilities,
    Change,
    Check,
    Commit,
    Conflict,
    Decided,
    Delete,
    Put,
    Record,
    Snapshot,
)
from standfast.stores.validation import check_decision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.backend import Outcome, Rider, Subscriber
    from standfast.stores.protocol import Wake
    from standfast.testing import VirtualClock

CAPABILITIES = Capabilities(backend="tiny", atomic=True, durable=False, reach="process", wakes="push")


class Tiny:
    """A backend over a dictionary. All handles of a test share one object."""

    name = "tiny"
    capabilities = CAPABILITIES

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.started = clock.wall() - clock.elapsed()
        self.rows: dict[bytes, Record] = {}
        self.counter = 0
        self.attempts: dict[str, Applied | None] = {}
        self.subscribers: list[tuple[tuple[RecordKey, ...], Subscriber]] = []
        self.changed: list[RecordKey] = []
        self.wakes: list[Wake] = []

    # --- the rules, one by one ---------------------------------------------------------------------------------

    def now(self) -> Instant:
        """The store's time."""
        return Instant(self.started + self.clock.elapsed())

    def row(self, key: RecordKey) -> bytes:
        """Where a key is kept."""
        return bytes(key)

    def is_gone(self, record: Record, at: Instant) -> bool:
        """Whether a record has expired."""
        return record.expires_at is not None and record.expires_at <= at

    def present(self, key: RecordKey, at: Instant) -> Record | None:
        """The record at a key, if there is one."""
        record = self.rows.get(self.row(key))
        return None if record is None or self.is_gone(record, at) else record

    def holds(self, change: Change, record: Record | None) -> bool:
        """Whether a guard holds."""
        return change.expected == (0 if record is None else record.version)

    def is_open(self, rider: Any, at: Instant) -> bool:
        """Whether a window is open."""
        return (rider.after is None or rider.after <= at) and (rider.before is None or at < rider.before)

    def next_version(self, key: RecordKey, value: bytes) -> int:  # noqa: ARG002 -- for flaws
        """The version of a put."""
        self.counter += 1
        return self.counter

    def kept(self, value: bytes) -> bytes:
        """A value as it is kept."""
        return value

    def order(self, riders: Sequence[Rider]) -> list[int]:
        """In which order riders are served."""
        return list(range(len(riders)))

    def in_range(self, key: RecordKey, start: RecordKey, end: RecordKey) -> bool:
        """Whether a key lies in a range."""
        return start <= key < end

    def go_on(self, page: list[Record], *, reverse: bool) -> RecordKey:
        """Where the next page starts."""
        return page[-1].key if reverse else page[-1].key.successor()

    def hears(self, prefix: RecordKey, key: RecordKey) -> bool:
        """Whether a watch of a prefix hears of a key."""
        return key.startswith(prefix)

    # --- writing -----------------------------------------------------------------------------------------------

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Apply at once."""
        return self.apply_batch(batch)

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply at once."""
        return self.apply_batch(batch)

    def apply_batch(self, batch: RiderBatch) -> Applied:
        """Serve each rider, unless the attempt is closed."""
        if batch.attempt in self.attempts:
            raise AttemptClosedError(self.name, "closed")
        self.changed, self.wakes = [], []
        outcomes: dict[int, Outcome] = {n: self.serve(batch.riders[n]) for n in self.order(batch.riders)}
        applied = Applied(tuple(outcomes[n] for n in range(len(batch.riders))), tuple(self.changed), tuple(self.wakes))
        self.attempts[batch.attempt] = applied
        return applied

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        return self.attempts.setdefault(attempt, None)

    def serve(self, rider: Rider) -> Outcome:
        """Serve one rider."""
        if isinstance(rider, CommitRider):
            return self.commit(rider)
        assert isinstance(rider, UpdateRider)
        return self.update(rider)

    def commit(self, rider: CommitRider) -> Commit | Conflict:
        """Commit, or say what stands against it."""
        at = self.now()
        lost = self.lost(rider.changes, at)
        if lost or not self.is_open(rider, at):
            return Conflict(at, lost)
        self.wakes.extend(rider.wake)
        return Commit(at, self.write(rider.changes))

    def lost(self, changes: Sequence[Change], at: Instant) -> dict[RecordKey, Record | None]:
        """The guards that fail, with what is there."""
        seen = [(change, self.present(change.key, at)) for change in changes]
        return {change.key: record for change, record in seen if not self.holds(change, record)}

    def update(self, rider: UpdateRider) -> Decided[Any] | Exception:
        """Decide and commit."""
        seen = self.snapshot(rider.keys)
        try:
            decision = rider.decide(seen)
            self.check(decision, Snapshot(seen.at, self.snapshot(rider.keys).records), rider)
        except BaseException as problem:  # noqa: BLE001 -- it is the rider's own
            return as_exception(problem)
        self.wakes.extend(decision.wake)
        return Decided(decision.answer, seen.at, self.write(decision.changes))

    def check(self, decision: Any, seen: Snapshot, rider: UpdateRider) -> None:
        """Refuse a decision that breaks the rules."""
        check_decision(decision, seen, rider.keys, self.capabilities)

    def write(self, changes: Iterable[Change]) -> dict[RecordKey, int]:
        """Write, and return the versions of what was put."""
        versions: dict[RecordKey, int] = {}
        for change in changes:
            if isinstance(change, Put):
                version = versions[change.key] = self.next_version(change.key, change.value)
                record = Record(change.key, self.kept(change.value), version, change.expires_at)
                self.rows[self.row(change.key)] = record
            elif isinstance(change, Delete):
                self.rows.pop(self.row(change.key), None)
            if not isinstance(change, Check):
                self.changed.append(change.key)
        return versions

    # --- reading -----------------------------------------------------------------------------------------------

    def snapshot(self, keys: Sequence[RecordKey]) -> Snapshot:
        """What is there now."""
        at = self.now()
        return Snapshot(at, {key: record for key in keys if (record := self.present(key, at)) is not None})

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read in one snapshot."""
        return self.snapshot(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page."""
        at = self.now()
        found = [each for each in self.rows.values() if self.in_range(each.key, start, end)]
        found = sorted(self.scannable(found, at), key=self.sort_key, reverse=reverse)
        page = found[:limit]
        more = None if len(found) <= limit else self.go_on(page, reverse=reverse)
        return Snapshot(at, {record.key: record for record in page}, more)

    def scannable(self, found: list[Record], at: Instant) -> list[Record]:
        """What a scan may show."""
        return [record for record in found if not self.is_gone(record, at)]

    def sort_key(self, record: Record) -> Any:
        """What a scan sorts by."""
        return bytes(record.key)

    # --- hints -------------------------------------------------------------------------------------------------

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Listen."""
        entry = (prefixes, subscriber)
        self.subscribers.append(entry)
        return lambda: self.subscribers.remove(entry)

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Ring."""
        hints = [(key, key) for key in changed] + [(wake.to, wake.about or wake.to) for wake in wakes]
        for to, about in hints:
            for prefixes, subscriber in self.subscribers:
                if any(self.hears(prefix, to) for prefix in prefixes):
                    subscriber.notify(about)

    async def another(self) -> Tiny:
        """Return itself: it has nothing that belongs to a handle."""
        return self

    def liveness_token(self) -> str:
        """See no deaths."""
        return ""

    def is_dead(self, token: str) -> bool:  # noqa: ARG002 -- it sees no deaths
        """See no deaths."""
        return False

    async def aclose(self) -> None:
        """Nothing to close."""
