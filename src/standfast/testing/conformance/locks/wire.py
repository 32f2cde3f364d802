"""A wire between a space and its store, that a test can cut and listen to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar, final

from standfast.errors import StoreUnavailableError
from standfast.stores import Choice, MoveFirst
from standfast.stores.alternatives import moved_wake

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores import (
        Alternative,
        Capabilities,
        Change,
        Commit,
        Conflict,
        Decided,
        Decision,
        Snapshot,
        Store,
        Verdict,
        Wake,
        Watch,
    )

T = TypeVar("T")


@final
class Wire:
    """What lies between one process and the store: all its handles at once can be cut off and connected again.

    Attributes:
        is_cut: While it is, everything that is asked of the store fails.
        wakes: Every wake that was sent.
    """

    def __init__(self) -> None:
        self.is_cut = False
        self.wakes: Final[list[Wake]] = []

    def around(self, store: Store) -> Store:
        """Return the store as it is seen through the wire."""
        return _Wired(store, self)

    def cut(self) -> None:
        """Cut the process off from the store."""
        self.is_cut = True

    def mend(self) -> None:
        """Connect it again."""
        self.is_cut = False

    def check(self, store: Store) -> None:
        """Fail while it is cut."""
        if self.is_cut:
            raise StoreUnavailableError(store.capabilities.backend, "the wire is cut")


@final
class _Wired:
    """A store behind a wire."""

    def __init__(self, store: Store, wire: Wire) -> None:
        self._store, self._wire = store, wire

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def read(self, *keys: RecordKey) -> Snapshot:
        self._wire.check(self._store)
        return await self._store.read(*keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        self._wire.check(self._store)
        return await self._store.scan(start, end, limit=limit, reverse=reverse)

    async def commit(
        self, *changes: Change, after: Instant | None = None, before: Instant | None = None, wake: Sequence[Wake] = ()
    ) -> Commit | Conflict:
        self._wire.check(self._store)
        self._wire.wakes.extend(wake)
        return await self._store.commit(*changes, after=after, before=before, wake=wake)

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        self._wire.check(self._store)
        sent: Sequence[Wake] = ()

        def listen(seen: Snapshot) -> Decision[T]:
            nonlocal sent
            decision = decide(seen)
            sent = decision.wake
            return decision

        decided = await self._store.update(keys, listen)
        self._wire.wakes.extend(sent)
        return decided

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        self._wire.check(self._store)
        chosen = await self._store.choose(*alternatives)
        if isinstance(chosen, Choice):
            alternative = alternatives[chosen.index]
            self._wire.wakes.extend(alternative.wake)
            for change in alternative.changes:
                if type(change) is MoveFirst and chosen.moved is not None and chosen.moved_from is not None:
                    self._wire.wakes.append(moved_wake(change, chosen.moved_from, chosen.moved))
        return chosen

    def watch(self, *prefixes: RecordKey) -> Watch:
        return self._store.watch(*prefixes)

    async def settle(self, attempt: str) -> Verdict | None:
        self._wire.check(self._store)
        return await self._store.settle(attempt)

    async def another(self) -> Store:
        return _Wired(await self._store.another(), self._wire)

    def liveness_token(self) -> str:
        return self._store.liveness_token()

    def is_dead(self, token: str) -> bool:
        return self._store.is_dead(token)

    async def aclose(self) -> None:
        await self._store.aclose()
