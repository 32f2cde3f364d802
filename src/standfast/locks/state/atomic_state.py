"""A shared value in one record, changed as a whole or not at all.

    visits = AtomicState(space, space.key("state", "visits"), type=int, initial=0)
    await visits.increment()

Every change is one commit, made where the store is: with a plain function as the updater nobody ever loses a race,
and changes of one process to one state are folded into one write.
"""

from __future__ import annotations

import asyncio
import inspect
import random as randomness
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final, overload

from standfast.errors import AtomicStateConflictError, WrongStateTypeError
from standfast.locks.state.events import LONGEST_BACKLOG, StateConflict, StateEvents, StateExhausted
from standfast.locks.state.record import StateRecord, version_of
from standfast.locks.state.values import GONE, checked_count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.clock import Instant
    from standfast.codec import JsonValue
    from standfast.keys import RecordKey
    from standfast.locks.state.values import Guard, Keep, StateValue
    from standfast.scope import Scope
    from standfast.stores.protocol import Check, Record

T = TypeVar("T")
A = TypeVar("A")
E = TypeVar("E")
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
        """Let the state read as None, also for those who would get ``initial``. Returns the new version.

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
        function runs inside the store's transaction, where nobody can get in between; keep it quick. An ``async``
        one runs outside, and runs again if somebody else changed the state meanwhile.

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
                raise WrongStateTypeError(str(self.key), "update", "a coroutine; declare the updater with async def")
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

    def _unfit(self, operation: str, value: object) -> WrongStateTypeError:
        return WrongStateTypeError(str(self.key), operation, f"a {type(value).__name__}")


def _is_async(updater: object) -> bool:
    called = getattr(type(updater), "__call__", None)  # noqa: B004 -- asks what kind it is, not whether there is one
    return inspect.iscoroutinefunction(updater) or inspect.iscoroutinefunction(called)
