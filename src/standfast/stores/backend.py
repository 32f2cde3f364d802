"""What a backend must be able to do, so that common code can make a :class:`~standfast.stores.protocol.Store` of it.

A backend applies a *batch* in one transaction: each rider of the batch is one commit or one update, and gets a
verdict of its own. Group commit, folding, limits, cancellation, unknown outcomes and watches are written once, above
the backends, in :mod:`standfast.stores.group_commit`. A backend that has :class:`Transfer` can be moved as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final, runtime_checkable

from msgspec import Struct

from standfast.clock import Instant
from standfast.errors import StoreMovedError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.stores.protocol import (
    Alternative,
    Append,
    Capabilities,
    Change,
    Count,
    Decision,
    Empty,
    MoveFirst,
    Put,
    Record,
    Snapshot,
    Stamped,
    StoreMeasure,
    StoreSize,
    Verdict,
    Wake,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Generator, Iterable
    from contextvars import Context

    from standfast.stores.protocol import Present


class CommitRider(Struct, frozen=True, gc=False):
    """One commit, as it was asked for and checked."""

    changes: tuple[Change, ...]
    after: Instant | None = None
    before: Instant | None = None
    wake: tuple[Wake, ...] = ()


class UpdateRider(Struct, frozen=True):
    """One update: the keys to read and the pure function to run on them."""

    keys: tuple[RecordKey, ...]
    decide: Callable[[Snapshot], Decision[Any]]


class WorkRider(Struct, frozen=True):
    """A commit together with work on the user's own tables in the same transaction. It always travels alone.

    ``extra_changes`` makes further changes of what the work answered, in the same transaction.
    """

    commit: CommitRider
    work: Callable[[Any], Any]
    seconds: float
    extra_changes: Callable[[Any], Sequence[Change]] | None = None


class ChoiceRider(Struct, frozen=True):
    """Alternatives, of which the first that holds is done."""

    alternatives: tuple[Alternative, ...]

    @property
    def namespace(self) -> bytes:
        """The first part of all keys, encoded."""
        change = self.alternatives[0].changes[0]
        if type(change) is Empty or type(change) is Append or type(change) is MoveFirst or type(change) is Count:
            return change.prefix.namespace
        keyed: Change | Stamped | Present = change  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] -- none else is left, and a cast is a call
        return keyed.key.namespace

    @property
    def size(self) -> int:
        """How many bytes of values all alternatives have."""
        size = 0
        for alternative in self.alternatives:
            for change in alternative.changes:
                if type(change) is Put or type(change) is Stamped or type(change) is Append:
                    size += len(change.value)
        return size


Rider: TypeAlias = CommitRider | UpdateRider | WorkRider | ChoiceRider


def weight_of(rider: Rider) -> int:
    """Return how many changes, or keys, a rider brings."""
    if type(rider) is CommitRider:
        return len(rider.changes)
    if type(rider) is ChoiceRider:
        return sum([len(alternative.changes) for alternative in rider.alternatives])
    return len(rider.keys) if type(rider) is UpdateRider else 0


def namespace_of(rider: Rider) -> bytes:
    """Return the first part of the keys that a rider names, encoded."""
    if type(rider) is UpdateRider:
        return rider.keys[0].namespace
    if type(rider) is ChoiceRider:
        return rider.namespace
    commit = rider.commit if isinstance(rider, WorkRider) else rider
    return commit.changes[0].key.namespace if isinstance(commit, CommitRider) else b""


class RiderBatch(Struct, frozen=True):
    """Riders that share one transaction, in the order they arrived. ``attempt`` names it, once, for ever."""

    attempt: str
    riders: tuple[Rider, ...]


class Deferred(Struct, frozen=True, gc=False):
    """Nothing was decided: the rider rides again, in the next transaction, before all that came later."""


Outcome: TypeAlias = Verdict | Exception | Deferred
"""A rider's verdict, or what its ``decide`` raised, or that it must ride again."""


class Batching(Struct, frozen=True):
    """How much may ride in one transaction.

    A commit weighs as many as it has changes, an update as many as it has keys.
    """

    max_riders: int = 1_000
    """The most commits and updates that share one transaction."""
    max_weight: int = 100_000
    max_bytes: int = 4_000_000
    """A transaction with this many bytes of values takes no more: every rider waits for all of them to be written.

    Commits are counted when they get on. What an update writes is known only when it has been decided: over a network
    a batch that comes to more than twice as many bytes is written in parts, and so is one that its server finds too
    large. What does not fit rides in the next transaction.
    """
    spans_namespaces: bool = True
    in_halves: bool = False
    """Whether a crowd travels in two halves that take turns: the server works for one, this process for the other."""
    max_choices: int = 0
    """The most riders of a transaction with alternatives among them; 0: as many as of others.

    Where it is set the server decides between alternatives. So commits can travel with them, and updates cannot.
    """
    max_reads: int = 1_000
    """The most keys that are read in one round trip, of one caller or several; at least what one call may name."""


class Applied(Struct, frozen=True):
    """A batch that is durable: an outcome for each rider, and what to notify of."""

    outcomes: tuple[Outcome, ...]
    changed: tuple[RecordKey, ...] = ()
    wakes: tuple[Wake, ...] = ()


class Subscriber(Protocol):
    """Takes notifications: called on the loop of its store, never from another thread."""

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:
        """Take the news that a key may have changed; None: notifications were lost, anything may have.

        ``moved`` is the record that was moved there, where that is what happened.
        """
        ...


class Backend(Protocol):
    """One handle on a server, a file or a piece of memory; used from one event loop."""

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do."""
        ...

    @property
    def name(self) -> str:
        """The store as shown to people: a URL without secrets."""
        ...

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Apply the batch at once, on the loop, if that takes about as long as it must; None to be asked to wait."""
        ...

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch in one durable transaction.

        Raises ``OutcomeUnknownError`` if it may or may not have been written, and another ``StoreError`` if it
        was certainly not.
        """
        ...

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt: return what it applied, or None, and then it can never be applied any more."""
        ...

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records in one snapshot, leaving out the absent and the expired."""
        ...

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range, leaving out the expired."""
        ...

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Notify ``subscriber`` of keys at or below the prefixes, until the returned function is called."""
        ...

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Notify the subscribers, in this process and in others. Never fails and never waits."""
        ...

    async def another(self) -> Backend:
        """Open another handle on the same thing, on the running loop: perhaps another one, in another thread."""
        ...

    def liveness_token(self) -> str:
        """Return a text by which other processes see that this one has died; empty if they cannot."""
        ...

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has certainly died; False for nonsense."""
        ...

    async def aclose(self) -> None:
        """Release everything."""
        ...


@runtime_checkable
class SendsAtOnce(Protocol):
    """A backend that sends a batch at once and is called when the answer is there, without a task that waits for it.

    It applies nothing in the call itself: its :meth:`Backend.apply_now` is not asked.
    """

    def apply_soon(
        self, batch: RiderBatch, arrive: Callable[[Applied | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        """Send the batch; return None if it was not sent.

        Otherwise ``arrive`` is called from the loop with what :meth:`Backend.apply` returns or raises. None: nothing
        was written, and it is to be applied. It is called by the first callback of the future that is returned, if one
        answer is enough. What it is called with after that counts for nothing.
        The caller adds callbacks to the future, and does no more to it.
        """
        ...


@final
class Arrival:
    """What a rider waits for that was sent alone: a future of the driver's, which it must not cancel.

    A task waits for it as for a future, and is resumed in the very turn of the loop in which the answer is there; a
    future of the rider's own would take one more. A cancellation of the task is delivered then. That is no later
    than before: what is under way is waited for in any case.
    """

    __slots__ = ("_asyncio_future_blocking", "_done", "get_loop", "sent")

    def __init__(self, sent: asyncio.Future[Any], done: asyncio.Future[None]) -> None:
        self.sent: Final = sent
        self.get_loop: Final = sent.get_loop
        self._done: Final = done
        self._asyncio_future_blocking = False

    def __await__(self) -> Generator[Arrival]:
        self._asyncio_future_blocking = True
        yield self

    def add_done_callback(
        self, resume: Callable[[asyncio.Future[None]], object], *, context: Context | None = None
    ) -> None:
        """Resume the task, whatever has become of the driver's future: the rider has its own outcome."""
        self.sent.add_done_callback(lambda _: resume(self._done), context=context)

    def cancel(self, msg: object = None) -> bool:
        """Return False: it is not cancelled. The task is told of its cancellation when it is resumed."""
        del msg
        return False

    def done(self) -> bool:
        """Return True: no one need resume the task."""
        return True

    def cancelled(self) -> bool:
        """Return False."""
        return False


@runtime_checkable
class SubscribesElsewhere(Protocol):
    """A backend whose notifications come from a server that must first be asked for them."""

    async def until_subscribed(self) -> None:
        """Return when the server knows; soon in any case."""
        ...


# --- transfer: what lets everything in a backend be moved to another store -----------------------------------------
#
# A store that is being moved is *frozen*: from the moment that :meth:`Transfer.freeze` returns, no write
# lands, and each is refused with :class:`~standfast.errors.StoreMovedError`. Reads go on. What freezes a store is kept
# in the store, so it holds for processes that start later, and after a restart.

OPEN: Final = 0
"""A store that is not frozen."""

EXPORTED: Final = 1
"""Why a store is frozen: what it kept is in a file. Every higher number stands for the file that is imported."""

PAGE: Final = 200
"""How many records are read or written at a time."""


class Transfer(Protocol):
    """A store underneath its namespaces: all records, as they are."""

    async def frozen(self) -> int:
        """Return why the store is frozen, or :data:`OPEN`."""
        ...

    async def freeze(self, reason: int) -> None:
        """Refuse every write from now on, by any handle of any process, until :meth:`thaw`.

        A write that was answered before this returns is there for :meth:`dump`; one that was not never lands. A store
        that is frozen already stays so, for the reason that it has.
        """
        ...

    async def thaw(self) -> None:
        """Take writes again."""
        ...

    async def last(self) -> int:
        """Return a number that no version is above which was ever given out, to records that are gone included."""
        ...

    async def lift(self, version: int) -> None:
        """Let every key that is written from now on get a version above ``version``."""
        ...

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all live records of all namespaces, each once, a page at a time. The order is the backend's."""
        ...

    async def put(self, records: Sequence[Record]) -> None:
        """Write records with the versions that they have, also into a frozen store, over what is there.

        Whether it is all or nothing is left open, and so are notifications: it is written again if it failed.
        """
        ...


@runtime_checkable
class Transferable(Protocol):
    """A store, or what one is made of, that can be moved."""

    def transfer(self) -> Transfer:
        """Return what moves it."""
        ...


@runtime_checkable
class Sized(Protocol):
    """A backend that knows how large it is."""

    def size(self) -> StoreSize:
        """Return how large it is."""
        ...


@runtime_checkable
class Measured(Protocol):
    """A server that tells at little cost how much it keeps."""

    async def measure(self) -> StoreMeasure:
        """Return about how much it keeps for this store."""
        ...


@runtime_checkable
class Counted(Protocol):
    """A backend that can count its records at little cost, up to a number."""

    def count(self, most: int) -> int:
        """Return how many records there are, up to a number."""
        ...


def transfer_of(holder: object, name: str) -> Transfer:
    """Return what moves a store; refuse one that cannot be moved."""
    if isinstance(holder, Transferable):
        return holder.transfer()
    raise UnsuitableStoreError(name, "its backend cannot be exported, imported or fenced")


def moved_error(name: str, reason: int = EXPORTED) -> StoreMovedError:
    """Return the error for a write to a frozen store."""
    if reason == EXPORTED:
        problem = "it was exported, and takes no more writes; open the store that it was moved to"
    else:
        problem = "an import into it is not finished; repeat the import"
    return StoreMovedError(name, problem)


# --- reading everything where a backend keeps all namespaces in one order ------------------------------------------

FIRST: Final = RecordKey.from_encoded(b"")
LAST: Final = RecordKey.from_encoded(b"\xff")
"""After every key: a namespace is text in UTF-8, which has no such byte."""


class Scan(Protocol):
    """A scan as backends have it, which is not bounded by a namespace."""

    def __call__(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Awaitable[Snapshot]:
        """Read a page."""
        ...


async def pages(scan: Scan, start: RecordKey = FIRST, end: RecordKey = LAST) -> AsyncIterator[Sequence[Record]]:
    """Return all live records of a range, a page at a time."""
    while True:
        seen = await scan(start, end, limit=PAGE, reverse=False)
        if seen.records:
            yield list(seen.records.values())
        if seen.more is None:
            return
        start = seen.more
