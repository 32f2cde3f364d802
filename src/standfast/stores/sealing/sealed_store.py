"""A store whose values are sealed: whoever can read the store learns keys, times and sizes, and no values."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast, final

from msgspec import structs

from standfast.errors import UnsuitableStoreError
from standfast.stores.group import verdict_of
from standfast.stores.joining import joining_of
from standfast.stores.protocol import MAX_VERSION, Conflict, Decision, Put, SharesTransactions, Snapshot
from standfast.stores.rules import check_commit
from standfast.stores.sealing.keyring import OVERHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.joining import Joining, Talk
    from standfast.stores.protocol import (
        Capabilities,
        Change,
        Commit,
        Decided,
        Record,
        Store,
        Verdict,
        Wake,
        Watch,
        Worked,
    )
    from standfast.stores.sealing.keyring import Keyring

T = TypeVar("T")

_REAL: Final = MAX_VERSION // 2
"""The highest version that a store has drawn. Above are those that stand for one which is still to be drawn."""


@final
class SealedStore:
    """A :class:`~standfast.stores.Store` over another one. Keys, versions and expiries are as they are; values are not.

    Args:
        store: Where everything is kept. It is closed with this one.
        keyring: The keys.
    """

    def __init__(self, store: Store, keyring: Keyring) -> None:
        self._store: Final = store
        self._keyring: Final = keyring
        limits = store.capabilities
        self._limits: Final = structs.replace(limits, max_value_bytes=limits.max_value_bytes - OVERHEAD)

    def __repr__(self) -> str:
        return f"<SealedStore {self._store!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """What the store underneath can do; values are a little shorter."""
        return self._limits

    # --- sealing -------------------------------------------------------------------------------------------------

    def sealed(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        """Return changes with their values sealed, once they are such as the store would take."""
        check_commit(changes, (), self._limits)
        return tuple(self._sealed(change) if type(change) is Put else change for change in changes)

    def _sealed(self, put: Put) -> Put:
        after = put.expected if put.expected <= _REAL else 0  # others of its batch are written first, at any version
        value = self._keyring.seal(put.value, put.key, after=after, expires_at=put.expires_at)
        return structs.replace(put, value=value)

    def _opened(self, record: Record) -> Record:
        value = self._keyring.open(record.value, record.key, version=record.version, expires_at=record.expires_at)
        return structs.replace(record, value=value)

    def opened(self, seen: Snapshot) -> Snapshot:
        """Return a snapshot with its values opened."""
        return Snapshot(seen.at, {key: self._opened(record) for key, record in seen.records.items()}, seen.more)

    def answered(self, answer: Any) -> Any:  # noqa: ANN401 -- any verdict, or an exception
        """Return a verdict with the values in it opened."""
        if not isinstance(answer, Conflict):
            return answer
        current = {key: None if record is None else self._opened(record) for key, record in answer.current.items()}
        return Conflict(answer.at, current)

    async def _told(self, work: Coroutine[Any, Any, Any]) -> Any:  # noqa: ANN401 -- any verdict
        try:
            return self.answered(await work)
        except asyncio.CancelledError as cancelled:
            cancelled.verdict = self.answered(verdict_of(cancelled))  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] -- read by verdict_of
            raise

    # --- the store -----------------------------------------------------------------------------------------------

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records in one snapshot."""
        return self.opened(await self._store.read(*keys))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range."""
        return self.opened(await self._store.scan(start, end, limit=limit, reverse=reverse))

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Do all of ``changes`` or none."""
        work = self._store.commit(*self.sealed(changes), after=after, before=before, wake=wake)
        return cast("Commit | Conflict", await self._told(work))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide and commit."""

        def sealed(seen: Snapshot) -> Decision[T]:
            decision = decide(self.opened(seen))
            if not isinstance(decision, Decision) or not decision.changes:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
                return decision
            return structs.replace(decision, changes=self.sealed(decision.changes))

        return cast("Decided[T]", await self._told(self._store.update(keys, sealed)))

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        and_then: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Do ``changes`` and the caller's own SQL in one transaction. What the SQL writes is not sealed."""
        store = self._store
        if not isinstance(store, SharesTransactions):
            raise UnsuitableStoreError(self._limits.backend, "it cannot share a transaction with your SQL")

        def sealed(answer: T) -> Sequence[Change]:
            more = () if and_then is None else tuple(and_then(answer))
            return self.sealed(more) if more else ()

        done = store.commit_with(
            work, *self.sealed(changes), after=after, before=before, wake=wake, timeout=timeout, and_then=sealed
        )
        return cast("Worked[T] | Conflict", await self._told(done))

    async def joining(self) -> Joining:
        """Return what this store can do over connections of the user's; what it writes there is sealed as well."""
        return _SealedJoining(await joining_of(self._store, self._limits.backend), self)

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Subscribe to hints."""
        return self._store.watch(*prefixes)

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out for good what became of an attempt."""
        return cast("Verdict | None", self.answered(await self._store.settle(attempt)))

    async def another(self) -> SealedStore:
        """Open another handle on the same store, with the same keys."""
        return SealedStore(await self._store.another(), self._keyring)

    def lifeline(self) -> str:
        """Return the text by which others can tell that this process has died."""
        return self._store.lifeline()

    def is_severed(self, lifeline: str) -> bool:
        """Tell whether the process that gave ``lifeline`` has died."""
        return self._store.is_severed(lifeline)

    async def aclose(self) -> None:
        """Close the store underneath."""
        await self._store.aclose()


@final
class _SealedJoining:
    """What a sealed store does over connections of the user's."""

    def __init__(self, joining: Joining, store: SealedStore) -> None:
        self._joining, self._store = joining, store

    def write(
        self, changes: Sequence[Change], *, before: Instant | None = None, idle: float | None = None
    ) -> Talk[Commit | Conflict]:
        answer = yield from self._joining.write(self._store.sealed(changes), before=before, idle=idle)
        return cast("Commit | Conflict", self._store.answered(answer))

    def read(self, keys: Sequence[RecordKey]) -> Talk[Snapshot]:
        seen = yield from self._joining.read(keys)
        return self._store.opened(seen)
