"""States of a workflow: shared ones in the store, changed once by each operation, and one that is private to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final, overload

from standfast.errors import SessionStateValidationError, WrongStateTypeError
from standfast.locks.state.atomic_state import MAX_RETRIES
from standfast.locks.state.slots import LONGEST_KEY, Slots
from standfast.workflows.storing.values import Typed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from standfast.locks.state.atomic_state import AtomicState
    from standfast.workflows.context.recorded_scope import RecordedScope
    from standfast.workflows.running.host import Host

T = TypeVar("T")
Item = TypeVar("Item")
Number = TypeVar("Number", bound=float)

MOST_KEYS: Final = 256
MOST_BYTES: Final = 32 * 1024
"""How many session states a run has at most, and how many bytes of JSON they take together."""


@final
class ContextState:
    """The states of a run, as ``ctx.state``.

    >>> @sf.workflow
    ... async def visit(ctx: sf.Context) -> int:
    ...     return await ctx.state.workflow("visits", type=int, initial=0).increment()

    Each is an :class:`~standfast.locks.AtomicState`, and each call of one of its methods is an operation of the run:
    the change and the record of it are one commit, so that it happens once. When the run is replayed, the methods
    return what they returned. An updater runs again then, on what it saw: it must do nothing but compute.

    Locks by hand work on them, with ``ctx.sleep`` to wait:
    ``await DurableMutex().acquire(slot, ctx.run_id, sleep=ctx.sleep)``.
    """

    __slots__ = ("_execution", "_run", "_session", "_slots", "_workflow")

    def __init__(self, scope: RecordedScope, workflow: str, execution: str, run: str) -> None:
        self._slots: Final = Slots(scope)
        self._workflow, self._execution, self._run = workflow, execution, run
        self._session: Final[dict[str, bytes]] = {}

    @overload
    def workflow(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def workflow(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def workflow(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that all runs of this workflow share. It stays until it is deleted.

        From outside it is ``engine.state.workflow(name, key)``.
        """
        return self._slots.workflow(self._workflow, key, **options)

    @overload
    def execution(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def execution(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def execution(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that this run shares with its parents and children. It goes when the first run is purged."""
        return self._slots.execution(self._execution, key, **options)

    @overload
    def run(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def run(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def run(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state of this run alone, which others can look at. It goes when the run is purged."""
        return self._slots.run(self._run, key, **options)

    @overload
    def shared(
        self, key: str, *, type: type[T], initial: T | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def shared(
        self, key: str, *, type: object = Any, initial: object = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]: ...

    def shared(self, key: str, **options: Any) -> AtomicState[Any]:
        """Return a state that everyone in the space shares: what several workflows agree on."""
        return self._slots.shared(key, **options)

    @overload
    def session(self, key: str, *, type: type[T], initial: T | None = None) -> SessionState[T]: ...
    @overload
    def session(self, key: str, *, type: object = Any, initial: object = None) -> SessionState[Any]: ...

    def session(self, key: str, *, type: Any = Any, initial: Any = None) -> SessionState[Any]:  # noqa: A002 -- as the others
        """Return a state in the memory of this run: plain calls, nothing stored, the same again when it is replayed."""
        return SessionState(self._session, key, type, initial)


@final
class SessionState(Generic[T]):
    """A value that a run keeps for itself. Its code sets it, so replaying the code sets it again: nothing is stored.

    Get it from ``ctx.state.session(key)``. Values are copied on the way in and out. All of a run's together are at most
    256 keys and 32 kB of JSON.

    Raises:
        SessionStateValidationError: The key, or the value, is not allowed. Nothing has changed.
    """

    __slots__ = ("_initial", "_key", "_typed", "_values")

    def __init__(self, values: dict[str, bytes], key: str, of: Any, initial: T | None) -> None:  # noqa: ANN401 -- any type that can be stored
        if not isinstance(key, str) or not 1 <= len(key) <= LONGEST_KEY:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise SessionStateValidationError(repr(key)[:80], f"a key is text of 1 to {LONGEST_KEY} characters")
        self._values, self._key = values, key
        self._typed: Final[Typed[Any]] = Typed(of, f"the session state {key!r}")
        self._initial: Final = None if initial is None else self._typed.pack(initial)

    def __repr__(self) -> str:
        return f"<SessionState {self._key}>"

    def get(self) -> T | None:
        """Return the value: a copy that is yours. One that was never set, or was deleted, reads as ``initial``."""
        packed = self._values.get(self._key, self._initial)
        return None if packed is None else cast("T", self._typed.unpack(packed))

    def set(self, value: T) -> None:
        """Set the value."""
        packed = self._typed.pack(value)
        others = {key: each for key, each in self._values.items() if key != self._key}
        if len(others) >= MOST_KEYS:
            raise SessionStateValidationError(self._key, f"a run has at most {MOST_KEYS} of them")
        size = sum(len(key.encode("utf-8", "surrogatepass")) + len(each) for key, each in others.items())
        if size + len(self._key.encode("utf-8", "surrogatepass")) + len(packed) > MOST_BYTES:
            raise SessionStateValidationError(self._key, f"all of a run's take at most {MOST_BYTES:,} bytes together")
        self._values[self._key] = packed

    def delete(self) -> None:
        """Let it read as ``initial`` again."""
        self._values.pop(self._key, None)

    def update(self, updater: Callable[[T | None], T]) -> T:
        """Set what ``updater`` makes of the value, and return it."""
        self.set(updater(self.get()))
        return cast("T", self.get())

    def increment(self: SessionState[Number], by: Number | int = 1) -> Number:
        """Add ``by`` and return the sum. Nothing counts as 0."""
        value: Any = self.get() or 0
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._unfit("increment", value)
        return self.update(lambda _: cast("Number", value + by))

    def append(self: SessionState[list[Item]], *items: Item) -> list[Item]:
        """Add items at the end of a list, and return it all. Nothing counts as an empty list."""
        value: Any = self.get() or []
        if not isinstance(value, list):
            raise self._unfit("append", value)
        return self.update(lambda _: [*cast("list[Item]", value), *items])

    def merge(self: SessionState[dict[str, Item]], changes: Mapping[str, Item]) -> dict[str, Item]:
        """Set the entries of a dict that ``changes`` names, and return all. Nothing counts as an empty dict."""
        value: Any = self.get() or {}
        if not isinstance(value, dict):
            raise self._unfit("merge", value)
        return self.update(lambda _: {**cast("dict[str, Item]", value), **changes})

    def _unfit(self, operation: str, value: object) -> WrongStateTypeError:
        return WrongStateTypeError(self._key, operation, f"a {type(value).__name__}")


async def clear_execution(host: Host, root: str) -> int:
    """Remove every state of an execution, when its whole tree of runs is purged; return how many there were."""
    return await host.space.state.clear_execution(root)


async def clear_run(host: Host, run_id: str) -> int:
    """Remove every state of a run, when it is purged; return how many there were."""
    return await host.space.state.clear_run(run_id)
