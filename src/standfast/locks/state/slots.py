"""Where the states of a space lie, so that nobody builds their keys by hand.

Each kind of owner has slots of its own: a workflow type, an execution (a run and the runs that it started), a single
run, and the space as a whole. The same key of two owners is two states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final, overload

from standfast.errors import InvalidKeyError
from standfast.locks.state.atomic_state import MAX_RETRIES, AtomicState
from standfast.stores.protocol import Commit, Delete

if TYPE_CHECKING:
    from standfast.keys import RecordKey
    from standfast.scope import Scope

T = TypeVar("T")

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
        InvalidKeyError: A key or a name is empty, longer than 256 characters, or reserved.
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
        # A page that somebody wrote to meanwhile is read again, so what is removed was there and nothing is missed.
        while records := (await self._scope.scan(start, end, limit=page)).records.values():
            answer = await self._scope.commit(*(Delete(record.key, record.version) for record in records))
            removed += len(records) if isinstance(answer, Commit) else 0
        return removed


def _checked(what: str, text: str) -> str:
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidKeyError(f"{what} of type {type(text).__name__}", "it must be text")
    if not 1 <= len(text) <= LONGEST_KEY:
        raise InvalidKeyError(f"{what} of {len(text):,} characters", f"it must have 1 to {LONGEST_KEY}")
    if text in RESERVED:
        raise InvalidKeyError(f"{what} {text!r}", "it is reserved")
    return text
