"""What a server must be able to do, so that common code can make a :class:`~standfast.stores.protocol.Store` of it.

A backend applies a *batch* in one transaction: each rider of the batch is one commit or one update, and gets a
verdict of its own. Group commit, folding, limits, cancellation, unknown outcomes and hints are written once, above
the backends, in :mod:`standfast.stores.group_commit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from msgspec import Struct

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import Capabilities, Change, Decision, Snapshot, Verdict, Wake

if TYPE_CHECKING:
    from collections.abc import Iterable


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


Rider: TypeAlias = CommitRider | UpdateRider | WorkRider


class Batch(Struct, frozen=True):
    """Riders that share one transaction, in the order they arrived. ``attempt`` names it, once, for ever."""

    attempt: str
    riders: tuple[Rider, ...]


class Deferred(Struct, frozen=True, gc=False):
    """Nothing was decided: the rider is to ride again, in the next transaction, before those who came later."""


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
    """A transaction with this many bytes of values takes no more: everyone waits for all of them to be written.

    Commits are counted when they get on. What an update writes is known only when it has been decided: over a network
    a batch that comes to more than twice as many bytes is written in parts, and so is one that its server finds too
    large. Who does not fit rides in the next transaction.
    """
    spans_namespaces: bool = True
    in_halves: bool = False
    """Whether a crowd travels in two halves that take turns: the server works for one, this process for the other."""
    max_reads: int = 1_000
    """The most keys that are read in one round trip, whoever asks for them; at least as many as one call may name."""


class Applied(Struct, frozen=True):
    """A batch that is durable: an outcome for each rider, and what to hint at."""

    outcomes: tuple[Outcome, ...]
    changed: tuple[RecordKey, ...] = ()
    wakes: tuple[Wake, ...] = ()


class Subscriber(Protocol):
    """The receiving end of hints: called on the loop of its store, never from another thread."""

    def notify(self, about: RecordKey | None) -> None:
        """Take a hint about a key; None says that hints were lost."""
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

    def apply_now(self, batch: Batch) -> Applied | None:
        """Apply the batch at once, on the loop, if that takes about as long as it must; None to be asked to wait."""
        ...

    async def apply(self, batch: Batch) -> Applied:
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
        """Call ``subscriber`` with hints for keys at or below the prefixes, until the returned function is called."""
        ...

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send hints to whoever listens, in this process and in others. Never fails and never waits."""
        ...

    async def another(self) -> Backend:
        """Open another handle on the same thing, on the running loop: perhaps another one, in another thread."""
        ...

    def liveness_token(self) -> str:
        """Return a text by which others can tell that this process has died; empty if they cannot."""
        ...

    def is_dead(self, token: str) -> bool:
        """Tell whether the process that gave ``token`` has certainly died; False for nonsense."""
        ...

    async def aclose(self) -> None:
        """Let go of everything."""
        ...


@runtime_checkable
class SubscribesElsewhere(Protocol):
    """A backend whose hints come from a server that must be told first what to send."""

    async def until_subscribed(self) -> None:
        """Return when it has been told; soon in any case."""
        ...
