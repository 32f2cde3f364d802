"""A shared value in one record, changed as a whole or not at all.

    visits = AtomicState(space, space.key("state", "visits"), type=int, initial=0)
    await visits.increment()

Every change is one commit, made where the store is: with a plain function as the updater no caller ever loses a race,
and changes of one process to one state are folded into one write.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random as randomness
from collections import deque
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeAlias, TypeVar, cast, final, overload

import msgspec
from msgspec import Struct

from standfast.codec import Codec
from standfast.errors import (
    ArgumentTypeError,
    AtomicStateConflictError,
    DecodeError,
    EncodeError,
    InvalidArgumentError,
    StaleWriteError,
)
from standfast.keys import RecordKey
from standfast.locks.lock_record import LockRecord, read_lock_record
from standfast.stores.group_commit import verdict_of
from standfast.stores.protocol import ABSENT, Change, Check, Commit, Decided, Decision, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.clock import Instant
    from standfast.codec import JsonValue
    from standfast.scope import Scope
    from standfast.stores.protocol import Record, Snapshot, Verdict


# --- what happens to a state, told to all that use the same handle -------------------------------------------------
#
# These events stay in the process and carry values, so they are none of :mod:`standfast.events`, which go to logs.

T = TypeVar("T")
E = TypeVar("E")

LONGEST_BACKLOG: Final = 1_000
"""How many events wait for a reader, by default."""

_logger: Final = logging.getLogger("standfast")


class StateChanged(Struct, Generic[T], frozen=True):
    """A write through this handle is durable. Values are copies; None is what a deleted state reads as."""

    value: T | None
    previous: T | None
    version: int


class StateConflict(Struct, frozen=True):
    """Another caller changed the state while an async updater ran, so it runs again."""

    key: str
    attempt: int


class StateExhausted(Struct, frozen=True):
    """An async updater lost its last try."""

    key: str
    attempts: int


class StateEventsDropped(Struct, frozen=True):
    """The reader was too slow: ``count`` events that came before the next one were dropped."""

    count: int


StateEvent: TypeAlias = StateChanged[Any] | StateConflict | StateExhausted | StateEventsDropped
"""What a reader of events meets."""


@final
class StateEvents:
    """A reader of a state's events: enter it to begin, iterate over it, leave it to end.

    It keeps up to ``limit`` events that were not read yet, then drops the oldest and says how many. Once it was left,
    also by another task, the iteration ends after what was kept.
    """

    __slots__ = ("_backlog", "_changed", "_dropped", "_has_left", "_limit", "_listeners")

    def __init__(self, listeners: Listeners, limit: int) -> None:
        self._listeners: Final = listeners
        self._limit: Final = limit
        self._backlog: Final[deque[StateEvent]] = deque()
        self._changed: Final = asyncio.Event()
        self._dropped = 0
        self._has_left = False

    async def __aenter__(self) -> Self:
        self._listeners.add(self._take)
        self._has_left = False
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._listeners.discard(self._take)
        self._has_left = True
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StateEvent:
        while not self._backlog:
            if self._has_left:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return StateEventsDropped(dropped)
        return self._backlog.popleft()

    def _take(self, event: StateEvent) -> None:
        if len(self._backlog) >= self._limit:
            self._backlog.popleft()
            self._dropped += 1
        self._backlog.append(event)
        self._changed.set()


@final
class Listeners:
    """Who is told. False when none is: then an event need not even be made."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: Final[list[Callable[[StateEvent], object]]] = []

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: Callable[[StateEvent], object]) -> None:
        """Tell ``listener`` from now on."""
        self._listeners.append(listener)

    def discard(self, listener: Callable[[StateEvent], object]) -> None:
        """Tell it no more. Doing it twice is harmless."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def on(self, kind: type[E], listener: Callable[[E], object]) -> Callable[[], None]:
        """Call ``listener`` with each event of one kind; returns what ends that."""

        def take(event: StateEvent) -> None:
            if isinstance(event, kind):
                listener(event)

        self.add(take)
        return lambda: self.discard(take)

    def tell(self, event: StateEvent) -> None:
        """Tell everyone, in the order in which they came. What they raise is logged, and changes nothing else."""
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception as error:  # noqa: BLE001 -- the write is done, whatever a listener makes of it
                kind = type(error).__name__  # its message may hold the value
                _logger.error("a listener to %s raised %s", type(event).__name__, kind)  # noqa: TRY400 -- likewise


# --- how a state lies in its record, and what a write to it may depend on ------------------------------------------
#
# A record holds ``{"type":"value","value":...}``, or ``{"type":"gone"}`` once the state was deleted: the record stays,
# so its version goes on, and a writer that has seen the state before cannot bring it back.


class Kept(Struct, Generic[T], frozen=True, tag="value"):
    """A state that has a value."""

    value: T


class Gone(Struct, frozen=True, tag="gone"):
    """A state that was deleted."""


PLAIN_STATE: Final[Codec[Kept[Any] | Gone]] = Codec(Kept[Any] | Gone, what="the state")
"""Reads any state as JSON-shaped data, whatever type it is declared with."""

GONE: Final = PLAIN_STATE.encode(Gone())


def state_codec(of: Any) -> Codec[Kept[Any] | Gone]:  # noqa: ANN401 -- msgspec takes any type, also those that are no class
    """Return the codec of states with values of one type."""
    return PLAIN_STATE if of is Any else Codec(Kept[of] | Gone, what="the state")


class Keep(Enum):
    """The answer of a decision that leaves a slot as it is."""

    KEEP = "keep"


KEEP: Final = Keep.KEEP
"""Returned in place of a value: write nothing."""


class StateValue(Struct, Generic[T], frozen=True):
    """What a state holds, and its version: 0 while it was never written."""

    value: T | None
    version: int


class Guard(Protocol):
    """What a write depends on: a record that must be as it should, at the very instant of the write.

    A :class:`~standfast.stores.Check` says which version the record must have. ``DurableMutex.guard`` makes one that
    asks whether a hold still lasts.
    """

    @property
    def key(self) -> RecordKey:
        """Where the record lies, in the space of the state."""
        ...

    def holds(self, record: Record, at: Instant) -> bool:
        """Return True if the write may happen. Pure; it may be asked several times."""
        ...


class AtVersion(Struct, frozen=True):
    """The guard that a ``Check`` stands for."""

    key: RecordKey
    expected: int

    def holds(self, record: Record, at: Instant) -> bool:  # noqa: ARG002 -- a version does not depend on time
        """Return True if the record has that version."""
        return record.version == self.expected


def as_guard(guard: Guard | Check | None, state: RecordKey) -> Guard | None:
    """Return what was given as a guard; refuse what guards nothing."""
    if isinstance(guard, Check):
        if guard.expected == ABSENT:
            raise InvalidArgumentError(
                "the guard of a state", "put a marker and check that", f"the absence of {guard.key}"
            )
        guard = AtVersion(guard.key, guard.expected)
    if guard is not None and not hasattr(guard, "holds"):
        raise InvalidArgumentError(
            "the guard of a state", "give a Check, or mutex.guard(...)", f"a {type(guard).__name__}"
        )
    if guard is not None and guard.key == state:
        raise InvalidArgumentError("the guard of a state", "use expected_version", "the state itself")
    return guard


def checked_count(value: int, what: str) -> int:
    """Return a number of things; refuse what cannot be one."""
    if type(value) is not int or value < 1:
        raise InvalidArgumentError(f"the {what} of a state", "it must be a whole number, at least 1", ascii(value)[:40])
    return value


# --- one state in one record: how it is read, decided on and committed, and who is told ----------------------------

A = TypeVar("A")


@final
class StateRecord(Generic[T]):
    """The record of a state, typed. What was never written reads as ``initial``, what was deleted as None."""

    __slots__ = ("_codec", "_initial", "_scope", "key", "listeners")

    def __init__(self, scope: Scope, key: RecordKey, of: Any, initial: T | None) -> None:  # noqa: ANN401 -- any type that msgspec reads
        self.key: Final = key
        self.listeners: Final = Listeners()
        self._scope: Final = scope
        self._codec: Final[Codec[Kept[T] | Gone]] = state_codec(
            type(initial) if of is Any and isinstance(initial, Struct) else of
        )
        # Kept as bytes: each reader gets a copy.
        self._initial: Final = GONE if initial is None else self.encode(initial)

    async def read(self) -> StateValue[T]:
        """Return the value and its version."""
        seen = await self._scope.read(self.key)
        return StateValue(self.value(seen.get(self.key)), seen.version(self.key))

    def value(self, record: Record | None) -> T | None:
        """Return the value in a record."""
        return self._unpacked(self._bytes(record))

    def plain_value(self, record: Record | None) -> JsonValue:
        """Return the value in a record as JSON-shaped data, whether or not it is of the declared type."""
        kept = PLAIN_STATE.decode(self._bytes(record))
        return cast("JsonValue", kept.value) if isinstance(kept, Kept) else None

    def encode(self, value: T) -> bytes:
        """Return the bytes of a record with that value; refuse what cannot be stored."""
        return self._codec.encode(Kept(value))

    def encode_plain(self, value: JsonValue | Keep) -> bytes | None:
        """Return the bytes of a record with JSON-shaped data of the declared type; None for ``KEEP``."""
        if value is KEEP:
            return None
        data = PLAIN_STATE.encode(Kept(value))
        try:
            self._codec.decode(data)
        except DecodeError as error:
            raise EncodeError(error.problem) from None
        return data

    async def commit(
        self,
        make: Callable[[Record | None, Instant], tuple[bytes | None, A]],
        expected_version: int | None = None,
        guard: Guard | Check | None = None,
    ) -> tuple[A, int]:
        """Write the bytes that ``make`` returns, if any; return its answer and the new version."""
        key, wanted = self.key, as_guard(guard, self.key)

        def decide(seen: Snapshot) -> Decision[tuple[A, bytes | None, bytes | None]]:
            record, version = seen.get(key), seen.version(key)
            self.require_version(version, expected_version)
            checks: tuple[Change, ...] = ()
            if wanted is not None:
                found = seen.get(wanted.key)
                if found is None or not wanted.holds(found, seen.at):
                    problem = "is not as the guard wants it" if found else "does not exist"
                    raise StaleWriteError(str(key), str(wanted.key), problem)
                checks = (Check(wanted.key, found.version),)
            data, answer = make(record, seen.at)
            if data is None:
                return Decision((answer, None, None))
            return Decision((answer, self._bytes(record), data), (*checks, Put(key, data, version)))

        try:
            decided = await self._scope.update([key] if wanted is None else [key, wanted.key], decide)
        except asyncio.CancelledError as cancelled:
            self._tell(verdict_of(cancelled))
            raise
        self._tell(decided)
        return decided.answer[0], decided.versions.get(key, ABSENT)

    async def replace(self, version: int, data: bytes, guard: Guard | Check | None) -> bool:
        """Write ``data`` if the state still has that version; return True if it did."""

        def make(record: Record | None, _at: Instant) -> tuple[bytes | None, bool]:
            return (data, True) if version_of(record) == version else (None, False)

        return (await self.commit(make, None, guard))[0]

    def require_version(self, version: int, expected: int | None) -> None:
        """Refuse a write that depends on another version."""
        if expected is not None and version != expected:
            raise StaleWriteError(str(self.key), str(self.key), f"is at version {version}, not {expected}")

    def _tell(self, decided: Decided[Any] | Verdict | Exception | None) -> None:
        if not self.listeners or not isinstance(decided, Decided) or self.key not in decided.versions:
            return
        _, before, after = cast("tuple[object, bytes, bytes]", decided.answer)
        self.listeners.tell(StateChanged(self._told(after), self._told(before), decided.versions[self.key]))

    def _told(self, data: bytes) -> T | None:
        try:
            return self._unpacked(data)
        except DecodeError:  # a write over damaged bytes is how they are repaired
            return None

    def _unpacked(self, data: bytes) -> T | None:
        kept = self._codec.decode(data)
        return kept.value if isinstance(kept, Kept) else None

    def _bytes(self, record: Record | None) -> bytes:
        return self._initial if record is None else record.value


def version_of(record: Record | None) -> int:
    """Return the version of a record, or of none."""
    return ABSENT if record is None else record.version


# --- A shared value in one record, changed as a whole or not at all ------------------------------------------------

Item = TypeVar("Item")
Number = TypeVar("Number", bound=float)

MAX_RETRIES: Final = 10
BACKOFF: Final = 0.005
LONGEST_BACKOFF: Final = 0.1


@final
class AtomicState(Generic[T]):
    """A value that everyone who uses the store shares.

    Read it with ``get``; change it with ``set``, ``update`` and the rest. A state that was never written reads as
    ``initial``; one that was deleted reads as None, and its version goes on growing.

    Args:
        scope: The space that the state lies in.
        key: Its record. ``Slots`` makes these, so that no two uses collide.
        type: The type of the value, anything that msgspec reads. By default that of ``initial`` if it is a ``Struct``,
            else JSON-shaped data.
        initial: The value while the state was never written. It is copied now.
        max_retries: How often an async updater is tried.
        sleep: Waits that many seconds between two tries.
        random: Returns a number from 0 up to 1, for the length of that wait.

    Raises:
        EncodeError: ``initial`` cannot be stored.
    """

    __slots__ = ("_max_retries", "_random", "_record", "_sleep", "key")

    @overload
    def __init__(
        self,
        scope: Scope,
        key: RecordKey,
        *,
        type: type[T],
        initial: T | None = None,
        max_retries: int = MAX_RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None: ...
    @overload
    def __init__(
        self: AtomicState[Any],
        scope: Scope,
        key: RecordKey,
        *,
        type: object = Any,
        initial: object = None,
        max_retries: int = MAX_RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None: ...

    def __init__(
        self,
        scope: Scope,
        key: RecordKey,
        *,
        type: Any = Any,  # noqa: A002 -- it reads as what it is: type=int
        initial: Any = None,
        max_retries: int = MAX_RETRIES,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self.key: Final = key
        self._record: Final[StateRecord[T]] = StateRecord(scope, key, type, initial)
        self._max_retries: Final = checked_count(max_retries, "max_retries")
        self._sleep: Final = sleep
        self._random: Final = random

    def __repr__(self) -> str:
        return f"<AtomicState {self.key}>"

    # --- reading --------------------------------------------------------------------------------------------------

    async def get(self) -> T | None:
        """Return the value: a copy that is yours."""
        return (await self.read()).value

    async def read(self) -> StateValue[T]:
        """Return the value and its version, for a later ``expected_version=``."""
        return await self._record.read()

    # --- writing --------------------------------------------------------------------------------------------------

    async def set(self, value: T, *, expected_version: int | None = None, guard: Guard | Check | None = None) -> int:
        """Write ``value``, whatever was there. Returns the new version.

        Args:
            value: What to write.
            expected_version: The version that the state must still have; 0 for one that was never written.
            guard: What must hold at the instant of the write: ``mutex.guard(...)``, or a ``Check`` of another record.

        Raises:
            StaleWriteError: The state has another version, or the guard does not hold. Nothing was written.
            EncodeError: The value cannot be stored. Nothing was written.
        """
        data = self._record.encode(value)
        return (await self._record.commit(lambda _record, _at: (data, None), expected_version, guard))[1]

    async def delete(self, *, expected_version: int | None = None, guard: Guard | Check | None = None) -> int:
        """Let the state read as None, also for callers that would get ``initial``. Returns the new version.

        A marker stays behind, so that a writer that depends on an older version cannot undo it. See :meth:`set` for
        the arguments.
        """
        return (await self._record.commit(lambda _record, _at: (GONE, None), expected_version, guard))[1]

    @overload
    async def update(
        self,
        updater: Callable[[T | None], Awaitable[T]],
        *,
        expected_version: int | None = None,
        guard: Guard | Check | None = None,
    ) -> T: ...
    @overload
    async def update(
        self,
        updater: Callable[[T | None], T],
        *,
        expected_version: int | None = None,
        guard: Guard | Check | None = None,
    ) -> T: ...

    async def update(
        self,
        updater: Callable[[T | None], Any],
        *,
        expected_version: int | None = None,
        guard: Guard | Check | None = None,
    ) -> T:
        """Write what ``updater`` makes of the value, and return it.

        The updater may run several times, and only its last run counts: it must do nothing but compute. A plain
        function runs inside the store's transaction, where none can get in between; keep it quick. An ``async``
        one runs outside, and runs again if another caller changed the state meanwhile.

        Raises:
            AtomicStateConflictError: An async updater lost all of its tries.
            StaleWriteError: The state has another version than expected, or the guard does not hold.
            EncodeError: What the updater returned cannot be stored.
        """
        if _is_async(updater):
            return await self._update_outside(updater, expected_version, guard)

        def make(record: Record | None, _at: Instant) -> tuple[bytes, T]:
            value: Any = updater(self._record.value(record))
            if inspect.iscoroutine(value):
                value.close()
                raise ArgumentTypeError(
                    f"a value that update of {self.key!s} can work on",
                    "a coroutine; declare the updater with async def",
                )
            return self._record.encode(value), value

        return (await self._record.commit(make, expected_version, guard))[0]

    async def increment(self: AtomicState[Number], by: Number | int = 1) -> Number:
        """Add ``by`` and return the sum. Nothing counts as 0."""
        change = self._number("increment", by)
        return await self.update(lambda value: cast("Number", self._number("increment", value) + change))

    async def decrement(self: AtomicState[Number], by: Number | int = 1) -> Number:
        """Subtract ``by`` and return the difference. Nothing counts as 0."""
        change = self._number("decrement", by)
        return await self.update(lambda value: cast("Number", self._number("decrement", value) - change))

    async def merge(self: AtomicState[dict[str, Item]], changes: Mapping[str, Item]) -> dict[str, Item]:
        """Set the entries of a dict that ``changes`` names, and return all. Nothing counts as an empty dict."""
        if not isinstance(changes, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise self._unfit("merge", changes)
        wanted = dict(changes)
        return await self.update(lambda value: {**self._container("merge", value, {}), **wanted})

    async def append(self: AtomicState[list[Item]], *items: Item) -> list[Item]:
        """Add items at the end of a list, and return it all. Nothing counts as an empty list."""
        return await self.update(lambda value: [*self._container("append", value, []), *items])

    async def remove_first(self: AtomicState[list[Item]]) -> Item | None:
        """Take the first item out of a list and return it; None, and no write, if there is none."""
        return await self._remove("remove_first", 0)

    async def remove_last(self: AtomicState[list[Item]]) -> Item | None:
        """Take the last item out of a list and return it; None, and no write, if there is none."""
        return await self._remove("remove_last", -1)

    async def transact(self, decide: Callable[[JsonValue, int, Instant], tuple[JsonValue | Keep, A]]) -> A:
        """Decide on the value as JSON-shaped data, its version and the store's time; return the answer.

        This is how a lock by hand drives a state (see :class:`~standfast.locks.Slot`). ``decide`` returns the new
        value, or ``KEEP`` to write nothing, and an answer. Like an updater it may run several times.
        """

        def make(record: Record | None, at: Instant) -> tuple[bytes | None, A]:
            value, answer = decide(self._record.plain_value(record), version_of(record), at)
            return self._record.encode_plain(value), answer

        return (await self._record.commit(make))[0]

    # --- events ---------------------------------------------------------------------------------------------------

    def on(self, kind: type[E], listener: Callable[[E], object]) -> Callable[[], None]:
        """Call ``listener`` with what happens through this handle; returns a function that ends that.

        Args:
            kind: :class:`StateChanged`, :class:`StateConflict` or :class:`StateExhausted`.
            listener: Called at once, on the event loop. What it raises is logged and changes nothing else.
        """
        return self._record.listeners.on(kind, listener)

    def events(self, *, limit: int = LONGEST_BACKLOG) -> StateEvents:
        """Return a reader of what happens through this handle: enter it, then iterate over it.

        A reader that falls more than ``limit`` events behind is told how many it missed.
        """
        return StateEvents(self._record.listeners, checked_count(limit, "limit"))

    async def _update_outside(
        self,
        updater: Callable[[T | None], Awaitable[T]],
        expected_version: int | None,
        guard: Guard | Check | None,
    ) -> T:
        record, name = self._record, str(self.key)
        for attempt in range(1, self._max_retries + 1):
            if attempt > 1:
                await self._sleep(self._random() * min(LONGEST_BACKOFF, BACKOFF * 2 ** (attempt - 2)))
            seen = await record.read()
            record.require_version(seen.version, expected_version)
            value = await updater(seen.value)
            if await record.replace(seen.version, record.encode(value), guard):
                return value
            record.listeners.tell(StateConflict(name, attempt))
        record.listeners.tell(StateExhausted(name, self._max_retries))
        raise AtomicStateConflictError(name, self._max_retries)

    async def _remove(self: AtomicState[list[Item]], operation: str, place: int) -> Item | None:
        def make(record: Record | None, _at: Instant) -> tuple[bytes | None, Item | None]:
            items: list[Item] = self._container(operation, self._record.value(record), [])
            if not items:
                return None, None
            item = items.pop(place)
            return self._record.encode(items), item

        return (await self._record.commit(make))[0]

    def _number(self, operation: str, value: object) -> float:
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unfit(operation, value)
        return value

    def _container(self, operation: str, value: A | None, empty: A) -> A:
        if value is None:
            return empty
        if type(value) is not type(empty):
            raise self._unfit(operation, value)
        return value

    def _unfit(self, operation: str, value: object) -> ArgumentTypeError:
        return ArgumentTypeError(f"a value that {operation} of {self.key!s} can work on", f"a {type(value).__name__}")


def _is_async(updater: object) -> bool:
    called = getattr(type(updater), "__call__", None)  # noqa: B004 -- asks what kind it is, not whether there is one
    return inspect.iscoroutinefunction(updater) or inspect.iscoroutinefunction(called)


# --- what a lock by hand needs of the slot that it lies in ---------------------------------------------------------


class Slot(Protocol):
    """Where a lock by hand keeps its record: anything that changes as a whole or not at all.

    :class:`AtomicState` is one; so is a state handle inside a workflow.
    """

    def transact(self, decide: Callable[[JsonValue, int, Instant], tuple[JsonValue | Keep, A]], /) -> Awaitable[A]:
        """Run ``decide`` and write what it returns, in one atomic change; return its answer.

        Args:
            decide: A pure function of the value, its version and the present by the slot's own clock. It returns the
                new value, or ``KEEP`` to write nothing, and an answer. It may run several times; only its last run
                counts. What it raises is raised to the caller, with nothing written.
        """
        ...


class HoldGuard(Struct, frozen=True):
    """The guard of a write that only the holder of a lock by hand may do, see :meth:`LockByHand.guard`."""

    key: RecordKey
    holder_id: str
    fence: int

    def holds(self, record: Record, at: Instant) -> bool:
        """Return True if that very hold lasts at ``at``."""
        kept = PLAIN_STATE.decode(record.value)
        found = read_lock_record(kept.value if isinstance(kept, Kept) else None)
        return found.holds(self.holder_id, at, self.fence)


async def transact(slot: Slot, decide: Callable[[JsonValue, int, Instant], tuple[LockRecord | Keep, A]]) -> A:
    """Let the slot decide on records as the data that they are stored as; what stays the same is not written."""

    def on_data(value: JsonValue, version: int, at: Instant) -> tuple[JsonValue | Keep, A]:
        found, answer = decide(value, version, at)
        if found is KEEP or found == read_lock_record(value):
            return KEEP, answer
        data = msgspec.to_builtins(found)
        if not found.lapsed:  # the rare case alone makes a record longer
            del data["lapsed"]
        return cast("JsonValue", data), answer

    change = getattr(slot, "transact", None)
    if not callable(change):
        raise ArgumentTypeError("a slot with an awaitable transact(decide)", f"a {type(slot).__name__}")
    answer = change(on_data)
    if not inspect.isawaitable(answer):
        raise ArgumentTypeError(
            "a slot with an awaitable transact(decide)", f"a {type(slot).__name__} whose transact cannot be awaited"
        )
    return cast("A", await answer)


# --- where the states of a space lie, so that no caller builds their keys by hand -------------------------------------
#
# Each kind of owner has slots of its own: a workflow type, an execution (a run and the runs that it started), a single
# run, and the space as a whole. The same key of two owners is two states.

LONGEST_KEY: Final = 256
"""The most characters in the key of a state, or in the name of its owner."""

RESERVED: Final = frozenset({"__proto__", "constructor", "prototype"})
"""Keys that are refused, because other languages that read the same store trip over them."""

_PAGE: Final = 100


@final
class Slots:
    """The states of a space.

    >>> async with sf.open("memory://") as space:
    ...     visits = space.state.shared("visits", type=int, initial=0)
    ...     print(await visits.increment())
    1

    Every accessor takes the key of the state, its ``type`` (by default JSON-shaped data), its ``initial`` value and
    ``max_retries`` as :class:`AtomicState` does. Nothing is read or written until the state is used.

    Raises:
        InvalidArgumentError: A key or a name is empty, longer than 256 characters, or reserved.
    """

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope: Final = scope

    def __repr__(self) -> str:
        return f"<Slots of {self._scope!r}>"

    @overload
    def workflow(
        self, workflow_type: str, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def workflow(
        self,
        workflow_type: str,
        key: str,
        *,
        type: object = Any,
        initial: object = None,
        max_retries: int = MAX_RETRIES,
    ) -> AtomicState[Any]: ...

    def workflow(self, workflow_type: str, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that all runs of one workflow type share. It stays until it is deleted."""
        return self._slot("workflow", key, _checked("workflow type", workflow_type), **options)

    @overload
    def execution(
        self, execution_id: str, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def execution(
        self, execution_id: str, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def execution(self, execution_id: str, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that a run shares with all runs that it started, directly or not. Named by the first run."""
        return self._slot("execution", key, _checked("execution id", execution_id), **options)

    @overload
    def run(
        self, run_id: str, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def run(
        self, run_id: str, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def run(self, run_id: str, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state of one run alone."""
        return self._slot("run", key, _checked("run id", run_id), **options)

    @overload
    def shared(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def shared(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def shared(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that everyone in the space shares: what several workflow types agree on."""
        return self._slot("shared", key, **options)

    async def clear_execution(self, execution_id: str) -> int:
        """Remove every state of an execution, markers of deleted ones included; returns how many there were."""
        return await self._clear(self._scope.key("state", "execution", _checked("execution id", execution_id)))

    async def clear_run(self, run_id: str) -> int:
        """Remove every state of a run, markers of deleted ones included; returns how many there were."""
        return await self._clear(self._scope.key("state", "run", _checked("run id", run_id)))

    def _slot(self, kind: str, key: str, *owner: str, **options: Any) -> AtomicState[Any]:  # noqa: ANN401 -- as the overloads say
        return AtomicState(self._scope, self._scope.key("state", kind, *owner, _checked("key", key)), **options)

    async def _clear(self, owner: RecordKey) -> int:
        start, end = owner.within()
        removed, page = 0, self._scope.at_most(_PAGE)
        # A page that was written to meanwhile is read again, so what is removed was there and nothing is missed.
        while records := (await self._scope.scan(start, end, limit=page)).records.values():
            answer = await self._scope.commit(*(Delete(record.key, record.version) for record in records))
            removed += len(records) if isinstance(answer, Commit) else 0
        return removed


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError("part of a key", "it must be text", f"{what} of type {type(text).__name__}")
    if not 1 <= len(text) <= LONGEST_KEY:
        raise InvalidArgumentError(
            "part of a key", f"it must have 1 to {LONGEST_KEY}", f"{what} of {len(text):,} characters"
        )
    if text in RESERVED:
        raise InvalidArgumentError("part of a key", "it is reserved", f"{what} {text!r}")
    return text
