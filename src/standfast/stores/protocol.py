"""The store seam: versioned records, guarded atomic commits, store time and notifications.

A store keeps **records**: bytes at a key, each with a version that grows strictly for as long as the key is
used, across deletes, restarts and purges, so that a version can serve as a fencing token. A **commit** is a set
of changes that happen all or not at all; each change guards its key at a version. Losing a race is an answer,
:class:`Conflict`; a store that cannot do its work raises :class:`~standfast.errors.StoreError`.

Time belongs to the store: every answer carries it in ``at``, and a commit may demand a window of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct

from standfast.clock import Instant
from standfast.keys import RecordKey

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.durations import Duration

T = TypeVar("T")

ABSENT: Final = 0
"""The version to expect of a key that has no record. Real versions start at 1."""

MAX_VERSION: Final = 2**53 - 1
"""Versions stay exact in JSON, Lua and JavaScript."""


class Record(Struct, frozen=True, gc=False):
    """What a store keeps at a key. Its ``repr`` leaves the value out, so that none ends up in a log."""

    key: RecordKey
    value: bytes
    version: int
    expires_at: Instant | None = None

    def __repr__(self) -> str:
        return f"Record({self.key}, {len(self.value)} bytes, version={self.version}, expires_at={self.expires_at})"

    def is_expired(self, at: Instant) -> bool:
        """Return True if the record is absent at ``at``: an expiry is inclusive, ``expires_at <= at``."""
        return self.expires_at is not None and self.expires_at <= at


class Snapshot(Struct, frozen=True):
    """Records read together, and the store's time at which they were so.

    ``records`` holds the ones that exist, in key order for a scan. ``more`` is where the next page of a scan
    starts (for a reverse scan: ends), or None.
    """

    at: Instant
    records: dict[RecordKey, Record]
    more: RecordKey | None = None

    @classmethod
    def page(cls, at: Instant, found: Sequence[Record], limit: int, *, reverse: bool) -> Self:
        """Return a page of a scan of which one record more than ``limit`` was asked for, in the order of the scan."""
        page, more = found[:limit], None
        if len(found) > limit:
            more = page[-1].key if reverse else page[-1].key.successor()
        return cls(at, {record.key: record for record in page}, more)

    def get(self, key: RecordKey) -> Record | None:
        """Return the record at ``key``, or None."""
        return self.records.get(key)

    def version(self, key: RecordKey) -> int:
        """Return the version to expect of ``key``: the record's, or :data:`ABSENT`."""
        record = self.records.get(key)
        return ABSENT if record is None else record.version


class Put(Struct, frozen=True, gc=False):
    """Write ``value`` at ``key`` if the key is at version ``expected``; by default, create it.

    With ``expires_at`` the record is absent from that instant on, to reads, guards and scans alike.
    """

    key: RecordKey
    value: bytes
    expected: int = ABSENT
    expires_at: Instant | None = None

    def __repr__(self) -> str:
        return f"Put({self.key}, {len(self.value)} bytes, expected={self.expected}, expires_at={self.expires_at})"


class Delete(Struct, frozen=True, gc=False):
    """Remove the record at ``key`` if it is at version ``expected``."""

    key: RecordKey
    expected: int


class Check(Struct, frozen=True, gc=False):
    """Write nothing, but let the commit happen only if ``key`` is at version ``expected``.

    Absence cannot be checked without creating something: two such commits could pass each other. Put a marker.
    """

    key: RecordKey
    expected: int


Change: TypeAlias = Put | Delete | Check
"""What a commit does to one key."""


class Wake(Struct, frozen=True, gc=False):
    """A notification to send, once the commit is durable, to the watchers of ``to``. ``about`` names what to read.

    ``shows`` names what else the same commit writes or deletes. A store that can sends the records along, that of
    ``about`` first, so that they need not be read (:attr:`Notification.moved`), and the notification is about the last
    of them; others notify of ``about`` alone.
    ``moved`` is set by the store alone: the record that a :class:`MoveFirst` has written, or one that is shown.
    """

    to: RecordKey
    about: RecordKey | None = None
    moved: Record | None = None
    shows: tuple[RecordKey, ...] = ()


# --- alternatives: what Store.choose() decides inside the store, so that nothing has to be read before -------------

STAMP_BYTES: Final = 16
"""How long the time is that a store writes before a value: 16 digits, in microseconds."""

NUMBER_BYTES: Final = 18
"""How long the number of an appended record is in its key: 16 digits, as one part of the key."""


class Stamped(Struct, frozen=True, gc=False):
    """Write the store's time of the commit and then ``value``, as :class:`Put` does; only in an alternative."""

    key: RecordKey
    value: bytes
    expected: int = ABSENT
    expires_at: Instant | None = None

    def __repr__(self) -> str:
        return f"Stamped({self.key}, {len(self.value)} bytes, expected={self.expected}, expires_at={self.expires_at})"


class Present(Struct, frozen=True, gc=False):
    """Guard: there is a record at ``key``, at whatever version. The answer carries it, as it was a moment before.

    No commit that deletes the record passes this one. One that replaces it may.
    """

    key: RecordKey


class Empty(Struct, frozen=True, gc=False):
    """Guard: no record continues ``prefix``.

    It holds against commits that append there under a guard on a record that this same alternative deletes or replaces:
    ``Present`` of a record that this one deletes, or ``Check`` of one that it writes. Another commit that writes below
    the prefix may pass it, as two commits can pass each other over what is absent.
    """

    prefix: RecordKey


class Count(Struct, frozen=True, gc=False):
    """Guard: at least ``least`` and at most ``most`` records continue ``prefix``, before the alternative changes any.

    No commit that deletes one of the ``least`` passes this one. ``most`` holds against others as :class:`Empty` does:
    if they create under a guard on a record that this same alternative deletes or replaces. Keys of the alternative may
    lie below the prefix.
    """

    prefix: RecordKey
    least: int = 0
    most: int | None = None

    @property
    def enough(self) -> int:
        """How many records have to be seen to know if it holds."""
        return max(self.least, 0 if self.most is None else self.most + 1)

    def holds(self, found: int) -> bool:
        """Return True if it holds when that many were found, of as many as are :attr:`enough`."""
        return found >= self.least and (self.most is None or found <= self.most)


class Append(Struct, frozen=True, gc=False):
    """Write a new record at ``prefix``, a number that the store draws, and ``suffix``; it conflicts with no commit.

    The number is the version of the new record, in 16 digits: larger than that of every append below the prefix that
    was answered before this one was asked for. The key is in the answer.

    Attributes:
        prefix: What the key begins with.
        value: What to write.
        suffix: What the key ends with: encoded parts, as ``RecordKey("a", "b")`` has them. Only a record with a suffix
            can be moved by :class:`MoveFirst`, to whom the suffix is the rest of the key to notify.
        stamped: Whether the store's time is written before the value.
    """

    prefix: RecordKey
    value: bytes
    suffix: bytes = b""
    stamped: bool = False

    def __repr__(self) -> str:
        return f"Append({self.prefix}, {len(self.value)} bytes, suffix={self.suffix!r})"

    def key_of(self, number: int) -> RecordKey:
        """Return the key of the record with that number."""
        return RecordKey.from_encoded(b"%b%016d\x00\x01%b" % (self.prefix, number, self.suffix))


class MoveFirst(Struct, frozen=True, gc=False):
    """Move the first record below ``prefix`` to the key ``to``, which is at version ``expected``.

    What is written at ``to`` is the store's time and then the value of that record. The watchers of ``inboxes`` plus
    the record's suffix are notified with it (:attr:`Notification.moved`), in the same transaction. If there is no
    record below the prefix, or the first one has no suffix, the guard does not hold.

    Attributes:
        prefix: That of the records, as :class:`Append` made them.
        to: Where the first of them goes.
        expected: The version that ``to`` is at.
        inboxes: What the key to notify begins with. A watch of just that key is notified at once.
    """

    prefix: RecordKey
    to: RecordKey
    expected: int
    inboxes: RecordKey


AlternativeChange: TypeAlias = Put | Delete | Check | Stamped | Present | Empty | Count | Append | MoveFirst
"""What an alternative guards or does."""


class Alternative(Struct, frozen=True):
    """Changes that are done, all of them, if every guard holds and ``after <= store time < before``.

    Each key is named once, and no key lies below a prefix that is named, but for that of a :class:`Count`. There is at
    most one :class:`Append` and one :class:`MoveFirst`.
    """

    changes: tuple[AlternativeChange, ...]
    wake: tuple[Wake, ...] = ()
    after: Instant | None = None
    before: Instant | None = None


class Choice(Struct, frozen=True):
    """One of the alternatives is durable.

    Attributes:
        at: The store's time of the commit.
        index: Which alternative it is, from 0.
        versions: The new version of each key that was written. They are all the same.
        appended: The key of the appended record.
        moved: The record that :class:`MoveFirst` has written.
        moved_from: Where it was before.
        present: The records of the :class:`Present` guards.
        is_settled: The answer got lost, and this is what could be found out: ``moved``, ``moved_from`` and ``present``
            may be missing. Read what you need of them.
    """

    at: Instant
    index: int
    versions: dict[RecordKey, int]
    appended: RecordKey | None = None
    moved: Record | None = None
    moved_from: RecordKey | None = None
    present: dict[RecordKey, Record] = {}
    is_settled: bool = False

    @property
    def version(self) -> int:
        """The version of everything that was written; 0 if nothing was."""
        return next(iter(self.versions.values()), 0)


def stamped(at: Instant, value: bytes) -> bytes:
    """Return a value as a store writes it with its time."""
    return b"%016d%b" % (at, value)


def unstamped(value: bytes) -> tuple[Instant, bytes]:
    """Return the time that a store has written before a value, and the value."""
    return Instant(int(value[:STAMP_BYTES])), value[STAMP_BYTES:]


class Commit(Struct, frozen=True, gc=False):
    """The changes are durable. ``versions`` holds the new version of each key that was put."""

    at: Instant
    versions: dict[RecordKey, int]


class Conflict(Struct, frozen=True):
    """Nothing was written: a guard did not hold, or the time window did not.

    ``current`` has the present record (None: absent) of each key whose guard failed, so a retry needs no read.
    It is empty when every guard held and only the window missed: compare ``at`` with what was asked.
    """

    at: Instant
    current: dict[RecordKey, Record | None]

    @property
    def key(self) -> RecordKey | None:
        """The first key whose guard failed; None if the time window missed."""
        return next(iter(self.current), None)


class Decision(Struct, Generic[T], frozen=True):
    """What a ``decide`` function wants done: its changes, its answer, and when it holds."""

    answer: T
    changes: tuple[Change, ...] = ()
    after: Instant | None = None
    before: Instant | None = None
    wake: tuple[Wake, ...] = ()


class Decided(Struct, Generic[T], frozen=True):
    """A decision that was committed (or that changed nothing), with the versions that it wrote."""

    answer: T
    at: Instant
    versions: dict[RecordKey, int]


class Worked(Struct, Generic[T], frozen=True):
    """The work on the user's tables and the changes are durable, in one transaction."""

    answer: T
    at: Instant
    versions: dict[RecordKey, int]


Verdict: TypeAlias = Commit | Conflict | Decided[Any] | Worked[Any] | Choice
"""What became of a commit or an update."""


class Capabilities(Struct, frozen=True):
    """What a store can do. Declared by the store, never guessed."""

    backend: str
    atomic: bool
    """Commits are all or nothing and their guards hold. Without it nothing that excludes is offered."""
    durable: bool
    """A commit that was answered survives the death of every process that uses the store."""
    reach: Literal["process", "machine", "network"]
    """How far apart two users of the same store may be."""
    wakes: Literal["push", "poll"]
    """Whether notifications are pushed, or only polling finds changes."""
    max_changes: int = 100
    max_value_bytes: int = 350_000
    max_commit_bytes: int = 35_000_000
    """The most bytes that the values of one commit may have together; three of the largest always fit."""
    clock_resolution: float = 1e-6
    shortest_lease: float = 0.1
    """The shortest lease, in seconds, that makes sense on this store: several round trips."""
    sees_process_death: bool = False
    """Whether :meth:`Store.liveness_token` and :meth:`Store.is_dead` show processes that died."""
    commit_with: bool = False
    alternatives: bool = False
    """Whether :meth:`Store.choose` works."""
    failover_loss: str = ""
    """What a failover may lose of what was acknowledged, and the setting that prevents it; empty: nothing is known."""


class StoreMeasure(Struct, frozen=True, gc=False):
    """About how much a server keeps for a store, as far as it tells at little cost; None: it does not tell.

    Attributes:
        size: Bytes, with what the server needs to find records.
        records: How many records, as the server estimates it.
    """

    size: int | None = None
    records: int | None = None


class StoreSize(Struct, frozen=True, gc=False):
    """How large a store is.

    Attributes:
        size: Its bytes, without its log.
        free: How many of them are unused: they take what is written next, or are given back.
    """

    size: int
    free: int

    @property
    def live(self) -> int:
        """How many bytes are in use."""
        return self.size - self.free


class Notification(Struct, frozen=True):
    """What a watch was notified of: keys that may have changed. Never proof of anything; read again.

    ``complete`` is False when notifications may have been lost or folded: then anything may have changed.

    ``moved`` has records that a :class:`MoveFirst` has written, or that a :class:`Wake` shows, in the order in which
    they were heard of; each may come twice, late, or not at all. That such a commit took place is certain as far as the
    server keeps others from sending notifications: compare something in the record that only its reader and the store
    know.
    """

    about: frozenset[RecordKey]
    complete: bool = True
    moved: tuple[Record, ...] = ()


class Watch(Protocol):
    """A subscription. Use it as an async context manager; outside of it, it is not notified."""

    async def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Return what was notified since the last call, waiting if there is nothing; None after ``timeout``."""
        ...

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class SharesTransactions(Protocol):
    """A store that takes the caller's own SQL along in its transactions: ``capabilities.commit_with``."""

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        extra_changes: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` and the caller's own SQL in one transaction, see :class:`~standfast.stores.GroupedStore`."""
        ...


class Store(Protocol):
    """Versioned records with guarded atomic commits. Everything durable in Standfast stands on these calls.

    One store object belongs to one event loop. Several objects, loops, threads and processes may use the same
    data at once, each with its own.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records in one snapshot. Expired ones are absent."""
        ...

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read up to ``limit`` records with ``start <= key < end``, in key order, within one namespace.

        ``snapshot.more`` continues the scan: pass it as the next ``start`` (reverse: as the next ``end``). Pages
        are not one snapshot: what is written meanwhile may or may not be seen.
        """
        ...

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Do all of ``changes`` or none, durably, if every guard holds and ``after <= store time < before``.

        Each key appears once; all keys lie in one namespace. Returns only when the commit is durable. If the
        caller is cancelled before the commit was taken, it is withdrawn; later, the cancellation arrives together
        with the verdict (see :func:`standfast.stores.verdict_of`).
        """
        ...

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Run the pure function ``decide`` on the records at ``keys`` and commit what it decides.

        It may change only keys that it was given, expecting the versions that it saw. It may run several times,
        on another thread, and only its last run counts; an exception from it is raised here with nothing
        written. Updates of one process are folded in the order of the calls and committed together.

        A decision may rest on the absence of a key only if it creates that key, or changes another one that every
        creator of it changes as well: otherwise two of them can pass each other, as with commits.
        """
        ...

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Do the first of ``alternatives`` whose guards hold, durably, in one round trip.

        An alternative that was passed over did not hold at some moment during the call; the one that is done holds
        when it is done. If none holds, the answer is a ``Conflict`` as of one moment, with the present record of each
        key whose guard failed in any of them: for :class:`Empty`, and a :class:`MoveFirst` whose first record has no
        suffix, that first record; for a :class:`MoveFirst` without any, None at its prefix; for :class:`Count`, as many
        as show that it fails, or None at its prefix.

        Cancellation and unknown outcomes are as for :meth:`commit`; see :attr:`Choice.is_settled`.

        Raises:
            UnsuitableStoreError: The store cannot do it: ``capabilities.alternatives`` is False.
        """
        ...

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Subscribe to keys that equal or continue one of ``prefixes``.

        A commit notifies of the keys it changed and of its wakes. Notifications may be late, doubled or lost: read
        again, and poll now and then.
        """
        ...

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out for good what became of an attempt whose outcome was unknown.

        Returns its verdict if it was written. Returns None if it was not, and then it never will be.
        """
        ...

    async def another(self) -> Store:
        """Open another handle on the same store, on the running event loop: perhaps another loop, in another thread.

        It has the same options, and it is closed by itself: neither handle needs the other one open. Hooks are
        shared, so they are called on the thread of either.
        """
        ...

    def liveness_token(self) -> str:
        """Return a text by which other processes see that this one has died; empty if this store cannot see deaths.

        It stays the same for as long as this process has a handle on the store open. It is dead when the process has
        died, in any way, or has closed its last handle. Over a network it is dead, too, if the process is cut off for
        too long; then the process gets another one. See :mod:`standfast.stores.liveness`.
        """
        ...

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has died, or has closed its last handle on this store.

        True only if that is certain. False for anything that is not a token of this store.
        """
        ...

    async def aclose(self) -> None:
        """Finish what is under way and release everything. Closing twice is fine."""
        ...
