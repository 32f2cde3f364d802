"""Shared state for blocking code: values in one record, changed as a whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, final, overload

from standfast.blocking._background import call
from standfast.blocking._link import Bound, Link
from standfast.locks.state import LONGEST_BACKLOG, MAX_RETRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from standfast.blocking._background import Background
    from standfast.clock import Instant
    from standfast.codec import JsonValue
    from standfast.keys import RecordKey
    from standfast.locks import AtomicState as AsyncAtomicState
    from standfast.locks import Guard, Keep, StateEvent, StateValue
    from standfast.locks import Slots as AsyncSlots
    from standfast.locks import StateEvents as AsyncStateEvents
    from standfast.stores.protocol import Check

T = TypeVar("T")
A = TypeVar("A")
E = TypeVar("E")
Item = TypeVar("Item")
Number = TypeVar("Number", bound=float)


@final
class AtomicState(Generic[T]):
    """A value that everyone who uses the store shares. Get one from ``space.state``.

    >>> with sf.blocking.open("memory://") as space:
    ...     visits = space.state.shared("visits", type=int, initial=0)
    ...     print(visits.increment())
    1

    Updaters and listeners run on Standfast's own thread: they compute, and call nothing that blocks.
    """

    __slots__ = ("bound", "key")

    def __init__(self, state: Bound[AsyncAtomicState[T]]) -> None:
        self.bound: Final = state
        self.key: Final[RecordKey] = state.now()[1].key

    def __repr__(self) -> str:
        return f"<blocking AtomicState {self.key}>"

    def get(self) -> T | None:
        """Return the value: a copy that is yours."""
        return self.bound.call(lambda state: state.get())

    def read(self) -> StateValue[T]:
        """Return the value and its version, for a later ``expected_version=``."""
        return self.bound.call(lambda state: state.read())

    def set(self, value: T, *, expected_version: int | None = None, guard: Guard | Check | None = None) -> int:
        """Write ``value``, whatever was there. Returns the new version.

        Args:
            value: What to write.
            expected_version: The version that the state must still have; 0 for one that was never written.
            guard: What must hold at the instant of the write, such as ``hold.guard``.

        Raises:
            StaleWriteError: The state has another version, or the guard does not hold. Nothing was written.
            EncodeError: The value cannot be stored. Nothing was written.
        """
        return self.bound.call(lambda state: state.set(value, expected_version=expected_version, guard=guard))

    def delete(self, *, expected_version: int | None = None, guard: Guard | Check | None = None) -> int:
        """Let the state read as None, also for those who would get ``initial``. Returns the new version."""
        return self.bound.call(lambda state: state.delete(expected_version=expected_version, guard=guard))

    def update(
        self,
        updater: Callable[[T | None], T],
        *,
        expected_version: int | None = None,
        guard: Guard | Check | None = None,
    ) -> T:
        """Write what ``updater`` makes of the value, and return it.

        It runs inside the store's transaction, where nobody can get in between; keep it quick. It may run several
        times, and only its last run counts: it must do nothing but compute.

        Raises:
            StaleWriteError: The state has another version than expected, or the guard does not hold.
            EncodeError: What the updater returned cannot be stored.
        """
        return self.bound.call(lambda state: state.update(updater, expected_version=expected_version, guard=guard))

    def increment(self: AtomicState[Number], by: Number | int = 1) -> Number:
        """Add ``by`` and return the sum. Nothing counts as 0."""
        return self.bound.call(lambda state: state.increment(by))

    def decrement(self: AtomicState[Number], by: Number | int = 1) -> Number:
        """Subtract ``by`` and return the difference. Nothing counts as 0."""
        return self.bound.call(lambda state: state.decrement(by))

    def merge(self: AtomicState[dict[str, Item]], changes: Mapping[str, Item]) -> dict[str, Item]:
        """Set the entries of a dict that ``changes`` names, and return all. Nothing counts as an empty dict."""
        return self.bound.call(lambda state: state.merge(changes))

    def append(self: AtomicState[list[Item]], *items: Item) -> list[Item]:
        """Add items at the end of a list, and return it all. Nothing counts as an empty list."""
        return self.bound.call(lambda state: state.append(*items))

    def remove_first(self: AtomicState[list[Item]]) -> Item | None:
        """Take the first item out of a list and return it; None, and no write, if there is none."""
        return self.bound.call(lambda state: state.remove_first())

    def remove_last(self: AtomicState[list[Item]]) -> Item | None:
        """Take the last item out of a list and return it; None, and no write, if there is none."""
        return self.bound.call(lambda state: state.remove_last())

    def transact(self, decide: Callable[[JsonValue, int, Instant], tuple[JsonValue | Keep, A]]) -> A:
        """Decide on the value as JSON-shaped data, its version and the store's time; return the answer.

        ``decide`` returns the new value, or ``KEEP`` to write nothing, and an answer. Like an updater it may run
        several times.
        """
        return self.bound.call(lambda state: state.transact(decide))

    def on(self, kind: type[E], listener: Callable[[E], object]) -> Callable[[], None]:
        """Call ``listener`` with what happens through this handle; returns a function that ends that.

        It is called on Standfast's own thread. A forked child begins without listeners.

        Args:
            kind: :class:`~standfast.locks.StateChanged`, :class:`~standfast.locks.StateConflict` or
                :class:`~standfast.locks.StateExhausted`.
            listener: Called at once. What it raises is logged and changes nothing else.
        """
        background, state = self.bound.now()

        async def begin() -> Callable[[], None]:
            return state.on(kind, listener)

        end = call(background, begin)
        return lambda: None if background.guard.crossed else background.post(end)

    def events(self, *, limit: int = LONGEST_BACKLOG) -> StateEvents:
        """Return a reader of what happens through this handle: enter it, then iterate over it.

        A reader that falls more than ``limit`` events behind is told how many it missed.
        """
        background, state = self.bound.now()
        return StateEvents(background, state.events(limit=limit))


@final
class StateEvents:
    """A reader of a state's events: enter it to begin, iterate over it, leave it to end."""

    __slots__ = ("_background", "_events")

    def __init__(self, background: Background, events: AsyncStateEvents) -> None:
        self._background: Final = background
        self._events: Final = events

    def __enter__(self) -> Self:
        self._background.guard.check()
        call(self._background, self._events.__aenter__)
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._background.guard.crossed:
            call(self._background, self._events.__aexit__, shielded=True)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StateEvent:
        self._background.guard.check()
        try:
            return call(self._background, self._events.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None


@final
class Slots:
    """The states of a space. Get it from ``space.state``.

    >>> with sf.blocking.open("memory://") as space:
    ...     print(space.state.run("run-1", "progress", type=int, initial=0).increment())
    1

    Every accessor takes the key of the state, its ``type`` (by default JSON-shaped data), its ``initial`` value and
    ``max_retries``. Nothing is read or written until the state is used.

    Raises:
        InvalidArgumentError: A key or a name is empty, longer than 256 characters, or reserved.
    """

    __slots__ = ("_link", "_slots")

    def __init__(self, link: Link) -> None:
        self._link: Final = link
        self._slots: Final[Bound[AsyncSlots]] = Bound(link, lambda space: space.state)

    def __repr__(self) -> str:
        return f"<blocking {self._slots.now()[1]!r}>"

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
        return self._state(lambda slots: slots.workflow(workflow_type, key, **options))

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
        return self._state(lambda slots: slots.execution(execution_id, key, **options))

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
        return self._state(lambda slots: slots.run(run_id, key, **options))

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
        return self._state(lambda slots: slots.shared(key, **options))

    def clear_execution(self, execution_id: str) -> int:
        """Remove every state of an execution, markers of deleted ones included; returns how many there were."""
        return self._slots.call(lambda slots: slots.clear_execution(execution_id))

    def clear_run(self, run_id: str) -> int:
        """Remove every state of a run, markers of deleted ones included; returns how many there were."""
        return self._slots.call(lambda slots: slots.clear_run(run_id))

    def _state(self, make: Callable[[AsyncSlots], AsyncAtomicState[Any]]) -> AtomicState[Any]:
        return AtomicState(Bound(self._link, lambda space: make(space.state)))
