"""What a database server must be able to do, so that common code can make a backend of it.

Riders, folding, verdicts, retries, unknown outcomes, notifications and upkeep are written once, in this package. A
server has to do one thing well: an :class:`Intent`, the net effect of a whole batch, all of it or nothing, in one step.
"""

from __future__ import annotations

import asyncio
import inspect
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from msgspec import Struct

from standfast.clock import Instant, monotonic
from standfast.errors import UnsuitableStoreError, WorkTimeoutError
from standfast.keys import RecordKey
from standfast.stores.protocol import Alternative, Change, Delete, Put, Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from standfast.stores.backend import Batching, CommitRider, Outcome, WorkRider
    from standfast.stores.protocol import Capabilities, Snapshot
    from standfast.stores.remote.liveness import SessionLiveness


class Row(Struct, frozen=True, gc=False):
    """A record to write. Its version is ``versions[draw]`` of the versions that the intent takes."""

    key: RecordKey
    value: bytes
    draw: int
    expires_at: Instant | None = None


class Message(Struct, frozen=True, gc=False):
    """A notification for all handles that listen to ``topic``, to be sent once the intent is durable.

    ``data`` is at most :data:`~standfast.stores.remote.subscriptions.LONGEST_MESSAGE` bytes, and opaque: hand it to
    :meth:`Listener.take`. ``shown`` are rows of the same intent, and the keys that are notified of them; ``gone`` are
    keys that it deletes. A server whose messages tell the versions of the rows, too, hands them over as well, as
    records. All others leave that aside.
    """

    topic: bytes
    data: bytes
    shown: tuple[tuple[RecordKey, Row], ...] = ()
    gone: tuple[RecordKey, ...] = ()


class Intent(Struct, frozen=True):
    """What a batch comes to, guarded: everything in it happens at one instant, or nothing.

    ``guards`` has the version that each key must be at, :data:`~standfast.stores.protocol.ABSENT` for a key without a
    live record (none, or an expired one, judged by the server's time). It is in the order of the keys, and so are
    ``puts`` and ``deletes``. Every key that is put or deleted is guarded. An absent key that is guarded and not written
    is to be looked at in the same transaction; no lock need keep others from creating it.
    """

    handle: str
    number: int
    """The attempt: of one handle they grow, and one is under way at a time."""
    guards: dict[RecordKey, int]
    puts: tuple[Row, ...]
    deletes: tuple[RecordKey, ...]
    draws: int
    """How many versions to take: growing ones, above every version that any of the keys has ever had."""
    exact: tuple[int, ...] = ()
    """All versions of one :meth:`DatabaseServer.reserve`, to be taken as they are; if others took some, it is stale."""
    after: Instant | None = None
    before: Instant | None = None
    messages: tuple[Message, ...] = ()

    @classmethod
    def of_commit(cls, commit: CommitRider, handle: str, number: int) -> Intent:
        """Return a commit as an intent, all of it at one version."""
        changes = sorted(commit.changes, key=attrgetter("key"))
        return cls(
            handle,
            number,
            {change.key: change.expected for change in changes},
            tuple([Row(change.key, change.value, 0, change.expires_at) for change in changes if type(change) is Put]),
            tuple([change.key for change in changes if type(change) is Delete]),
            1,
            after=commit.after,
            before=commit.before,
        )

    @property
    def namespace(self) -> bytes:
        """The first part of all keys, encoded, where a server keeps namespaces apart."""
        return next(iter(self.guards)).namespace

    def lost(self, seen: Snapshot) -> dict[RecordKey, Record | None]:
        """Return what is there instead, where guards do not hold in a snapshot of all guarded keys."""
        return {key: seen.get(key) for key, version in self.guards.items() if seen.version(key) != version}


class Written(Struct, frozen=True):
    """The intent is durable."""

    at: Instant
    versions: tuple[int, ...]
    generation: int = 0
    """Which list of topics the server has; see :meth:`DatabaseServer.audience`. 0 if it does not say."""


class WriteRefused(Struct, frozen=True):
    """Nothing was written: ``current`` has the live record of every key whose guard did not hold.

    It is empty if the window was missed, or if the exact versions had become stale.
    """

    at: Instant
    current: dict[RecordKey, Record | None]
    stale: bool = False


class Landed(Struct, frozen=True):
    """An attempt that was written: when, and with which versions."""

    at: Instant
    versions: tuple[int, ...]


class ChoiceIntent(Struct, frozen=True):
    """Choices, to be made one after the other: of the alternatives of each, the first whose guards hold is done.

    A choice of which none holds does nothing, and the others go on. ``messages`` has those of all alternatives, in
    order. What a :class:`~standfast.stores.protocol.MoveFirst` notifies of is sent by the server itself, in the same
    step: to the topic of the inbox, and to that of all inboxes, as
    :func:`~standfast.stores.remote.subscriptions.decode_message` reads it.
    """

    handle: str
    number: int
    choices: tuple[tuple[Alternative, ...], ...]
    messages: tuple[tuple[Message, ...], ...]
    origin: str
    namespace: bytes


class ChoiceWritten(Struct, frozen=True):
    """An alternative is durable. ``version`` is that of all that it wrote, 0 if it wrote nothing.

    ``present`` has the records of its ``Present`` guards, ``moved`` the record that was moved, as it was before.
    """

    at: Instant
    index: int
    version: int
    present: dict[RecordKey, Record] = {}
    moved: Record | None = None


class ChoiceRefused(Struct, frozen=True):
    """No alternative held. What is there was read at one moment after that; if one holds by now, it is tried again.

    ``records`` has the live records at all keys that were named, and as many below the prefix of each ``Count`` as tell
    if it holds; ``firsts`` the first live record below each other prefix.
    """

    at: Instant
    records: dict[RecordKey, Record]
    firsts: dict[RecordKey, Record]

    def below(self, prefix: RecordKey, most: int) -> list[Record]:
        """Return the first records that continue a key, as far as they are known."""
        known = {each.key: each for each in (*self.records.values(), *self.firsts.values())}
        return [known[key] for key in sorted(known) if key.startswith(prefix) and key != prefix][:most]


class ChoicesMade(Struct, frozen=True):
    """What became of each choice. They are durable together."""

    answers: tuple[ChoiceWritten | ChoiceRefused, ...]
    generation: int = 0


class Audience(Struct, frozen=True):
    """The topics that any handle listens to, and the generation of that list."""

    generation: int
    topics: frozenset[bytes]


class Listener(Protocol):
    """Takes what a server pushes. Called on the loop of the handle."""

    def take(self, data: bytes, shown: Sequence[tuple[RecordKey, Record]] = (), gone: Sequence[RecordKey] = ()) -> None:
        """Take the data of a message that was sent to one of the topics, and what it shows."""
        ...

    def take_loss(self) -> None:
        """Take notice that messages may have been lost: a connection broke and is there again, say."""
        ...


class DatabaseServer(Protocol):
    """One handle on a database server; used from one event loop.

    A call raises ``OutcomeUnknownError`` if it may or may not have been done, ``StoreUnavailableError`` if it was
    certainly not, each within the time limits of its options. Reconnecting is the server's own affair, with growing
    pauses. ``write`` is never called twice at a time; everything else may be.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def batching(self) -> Batching:
        """How much fits into one intent."""
        ...

    @property
    def name(self) -> str:
        """The server as shown to people: a URL without secrets."""
        ...

    async def write(self, intent: Intent) -> Written | WriteRefused:
        """Do all of ``intent`` or nothing, durably.

        Guards and window are judged by the server's own time, in the same step as the writing. The attempt is
        counted in that step too (``handle`` is at ``number`` now, with the time and the versions), and if it is there
        already, ``AttemptClosedError`` is raised and nothing is written.
        """
        ...

    async def reserve(self, count: int, namespace: bytes) -> tuple[int, ...]:
        """Take ``count`` versions, growing and above all that were taken before.

        They may be used in ``intent.exact`` later on. If the intent creates keys, and others have taken versions
        meanwhile, it must be refused as stale: one of those keys may have come and gone with a higher one.
        """
        ...

    async def close_attempt(self, handle: str, number: int, namespace: bytes) -> Landed | None:
        """Make sure that an attempt can never be written any more; if it was, say with which versions.

        Waits for a write of that attempt that is still under way on the server. ``namespace`` is the one that the
        attempt was sent to; it is empty if this handle never sent it. Raises ``StoreError`` if a later attempt of
        the same handle has been counted.
        """
        ...

    async def forget(self, handle: str) -> None:
        """Remove what was counted for a handle that is being closed."""
        ...

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read the live records at ``keys`` in one snapshot that has everything committed before the call."""
        ...

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of live records in the order of the bytes of their keys."""
        ...

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Do the caller's own work and a commit in one transaction (``capabilities.commit_with``).

        Returns ``Worked`` or ``Conflict``, or what the work raised when everything was undone. ``note`` is called
        with what will be returned right before that is made durable, in case the answer to that gets lost.
        """
        ...

    async def sweep(self, limit: int) -> int:
        """Delete up to ``limit`` expired records and old attempts; return how many records those were."""
        ...

    # --- notifications ---------------------------------------------------------------------------------------

    def listen(self, listener: Listener) -> None:
        """Hand what is pushed to ``listener``, from now on, reconnecting for as long as the handle is open."""
        ...

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Listen to more topics and to fewer, and let committers know; ``all_topics`` is what it comes to.

        Called again now and then with nothing added, so that what is known of a living handle does not run out.
        """
        ...

    async def audience(self) -> Audience:
        """Return the topics that any handle listens to. Its generation grows with every change."""
        ...

    async def send(self, messages: Sequence[Message]) -> None:
        """Send messages outside of a transaction, where a topic was not known in time."""
        ...

    async def mark(self) -> int:
        """Return a number that changes whenever anything may have been written: for polling. Cheap."""
        ...

    # --- life ------------------------------------------------------------------------------------------------

    async def another(self) -> DatabaseServer:
        """Open another handle on the same server, on the running loop."""
        ...

    def liveness_token(self) -> str:
        """Return a text by which other processes see that this one has died; empty if they cannot."""
        ...

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` has certainly died."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


@runtime_checkable
class ChoosingServer(Protocol):
    """A server with alternatives: ``capabilities.alternatives``."""

    async def choose(self, intent: ChoiceIntent) -> ChoicesMade:
        """Do all choices in one transaction; count the attempt as :meth:`DatabaseServer.write` does.

        What is counted are two numbers for each choice: the version that it drew, or 0, and the number of the
        alternative, or -1. If none of them writes anything, nothing is counted.
        """
        ...


@runtime_checkable
class SendingServer(Protocol):
    """A server that sends a call at once, and calls back when it is answered: a task for each call is not needed."""

    def write_soon(
        self, intent: Intent, arrive: Callable[[Written | WriteRefused | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        """Do as :meth:`DatabaseServer.write` does; return None if nothing was sent.

        Otherwise ``arrive`` is called once, from the loop, with what that would have returned or raised. None: nothing
        was written, and it should be asked for as ever. It is called by the first callback of the future that is
        returned, if the first answer is the last. The caller adds callbacks to that future and does no more to it.
        """
        ...

    def choose_soon(
        self, intent: ChoiceIntent, arrive: Callable[[ChoicesMade | Exception | None], None]
    ) -> asyncio.Future[Any] | None:
        """Do as :meth:`ChoosingServer.choose` does, in the same way."""
        ...


async def run_user_work(rider: WorkRider, sql: object, name: str) -> tuple[Any, tuple[Change, ...]]:
    """Run the user's work on ``sql`` within its time limit; return its answer and all changes to commit with it.

    Exceptions of the work pass through.

    Raises:
        WorkTimeoutError: It took longer; undo everything.
    """
    limit, started = asyncio.timeout(rider.seconds), monotonic()
    late = WorkTimeoutError(name, f"the work took longer than {rider.seconds:g} s; everything was undone")
    try:
        async with limit:
            answer = rider.work(sql)
            if inspect.isawaitable(answer):
                answer = await answer
            more = () if rider.extra_changes is None else tuple(rider.extra_changes(answer))
    except TimeoutError as error:
        if limit.expired():
            raise late from error
        raise
    if monotonic() - started > rider.seconds:  # it did not let the loop run
        raise late
    return answer, (*rider.commit.changes, *more)


class ServerDefaults:
    """What a server answers for what it cannot do: it pushes nothing, shares no transaction, and sees no process die.

    The capabilities say so: ``wakes="poll"``, ``commit_with=False``, and ``sees_process_death=False`` unless a server
    sets ``_liveness``, which shows the deaths.
    """

    name: str
    _liveness: SessionLiveness | None = None

    async def work(self, rider: WorkRider, handle: str, number: int, note: Callable[[Outcome], object]) -> Outcome:
        """Refuse: see ``capabilities.commit_with``."""
        del rider, handle, number, note
        raise UnsuitableStoreError(self.name, "it cannot share a transaction with your SQL")

    def listen(self, listener: Listener) -> None:
        """Do nothing: nothing is pushed."""

    async def subscribe(self, added: Iterable[bytes], removed: Iterable[bytes], all_topics: frozenset[bytes]) -> None:
        """Do nothing: nothing is pushed."""

    async def audience(self) -> Audience:
        """Return no topics."""
        return Audience(0, frozenset())

    async def send(self, messages: Sequence[Message]) -> None:
        """Do nothing: nothing is pushed."""

    def liveness_token(self) -> str:
        """Return this process's token; empty if deaths are not seen here."""
        return "" if self._liveness is None else self._liveness.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Return True if the process that gave ``token`` is known to have died."""
        return self._liveness is not None and self._liveness.is_dead(token)
