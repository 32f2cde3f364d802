"""A scope: one namespace and one tenant of a store, and the only way to name a key in it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from standfast.errors import ArgumentTypeError, InvalidArgumentError, InvalidChangeError, UnsuitableStoreError
from standfast.events import NO_HOOKS, Hooks
from standfast.ids import new_id
from standfast.keys import Key, RecordKey
from standfast.stores.alternatives import names_in
from standfast.stores.protocol import Alternative, Check, Delete, Put, SharesTransactions, Wake

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.stores.protocol import (
        Change,
        Choice,
        Commit,
        Conflict,
        Decided,
        Decision,
        Record,
        Snapshot,
        Store,
        Watch,
        Worked,
    )

    Choose = Callable[..., Coroutine[Any, Any, Choice | Conflict]]
    CommitChanges = Callable[..., Coroutine[Any, Any, Commit | Conflict]]

T = TypeVar("T")

LONGEST_NAME: Final = 100

PAGE: Final = 100
"""How many records are read together of many."""

_CHANGES: Final = frozenset({Put, Delete, Check})


class Scope:
    """A store as seen by one namespace and tenant.

    Every key that a scope makes begins with its namespace and tenant, and it refuses keys that do not, so nothing
    above it can reach another tenant's records. :class:`~standfast.Space` is a scope with locks built on it.

    Attributes:
        namespace: Bounds every commit and scan; on distributed stores, what one shard holds.
        tenant: Whose records these are.
        presence: The address of this opening of the space, unlike any other: where wakes for it are sent.
        presence_name: The last part of it.
        hooks: Told what happens in it.
        choose_unchecked: Does as :meth:`choose`, with alternatives of our own making: all of their keys were checked
            once, and their values are small.
        commit_unchecked: Does as :meth:`commit`, with changes of our own making: keys that this scope made, each once.
    """

    hooks: Hooks = NO_HOOKS

    def __init__(self, store: Store, *, namespace: str = "default", tenant: str = "default") -> None:
        if not store.capabilities.atomic:
            raise UnsuitableStoreError(
                store.capabilities.backend,
                "it has no atomic conditional commits, so two racers could both win; use sqlite:// or a server",
            )
        self.namespace: Final = checked_name("namespace", namespace)
        self.tenant: Final = checked_name("tenant", tenant)
        self._root: Final = RecordKey(namespace, tenant)
        self._store: Final = store
        self.choose_unchecked: Final[Choose] = getattr(store, "choose_unchecked", store.choose)
        self.commit_unchecked: Final[CommitChanges] = getattr(store, "commit_unchecked", store.commit)
        self.presence_name: Final = new_id()
        self.presence: Final = self.key("presence", self.presence_name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.namespace}/{self.tenant} on {self._store!r}>"

    @property
    def store(self) -> Store:
        """The store underneath, which knows nothing of namespaces and tenants."""
        return self._store

    def at_most(self, many: int) -> int:
        """Return how many records one read or commit takes in this store, but no more than ``many``."""
        return min(many, self._store.capabilities.max_changes)

    def key(self, kind: str, *parts: str) -> RecordKey:
        """Return the record key of ``parts`` among the records of one ``kind``, in this space."""
        return self._root.child(kind, *parts)

    def key_for(self, kind: str, key: Key | str) -> RecordKey:
        """Return the record key for a user's key: a :class:`~standfast.keys.Key`, or text in a family of its own.

        The number of parts comes first, so that no user's key is a prefix of another's and what is kept below one
        can be scanned without meeting a neighbour.
        """
        return self._root.child(kind, *address_of(key))

    # What is called often returns the store's own awaitable: a coroutine around it would cost more than the check.

    def read(self, *keys: RecordKey) -> Coroutine[Any, Any, Snapshot]:
        """Read records of this space in one snapshot."""
        self._check(keys)
        return self._store.read(*keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range of this space, see :meth:`~standfast.stores.Store.scan`."""
        self._check((start, end))
        return await self._store.scan(start, end, limit=limit, reverse=reverse)

    def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Coroutine[Any, Any, Commit | Conflict]:
        """Do all of ``changes`` or none in this space, see :meth:`~standfast.stores.Store.commit`."""
        for each in changes:  # as _check_changes does; this is called for every commit
            if type(each) in _CHANGES and not (type(each.key) is RecordKey and each.key.startswith(self._root)):
                self._check([each.key])
        if after is None and before is None and not wake:
            return self._store.commit(*changes)
        self._check([each.to for each in wake if type(each) is Wake])
        return self._store.commit(*changes, after=after, before=before, wake=wake)

    def update(
        self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]
    ) -> Coroutine[Any, Any, Decided[T]]:
        """Decide and commit on records of this space, see :meth:`~standfast.stores.Store.update`."""
        self._check(keys)
        return self._store.update(keys, decide)

    def choose(self, *alternatives: Alternative) -> Coroutine[Any, Any, Choice | Conflict]:
        """Do the first of ``alternatives`` that holds in this space, see :meth:`~standfast.stores.Store.choose`."""
        for alternative in alternatives:
            if type(alternative) is Alternative:
                self._check(names_in(alternative))
                if alternative.wake:
                    self._check([each.to for each in alternative.wake if type(each) is Wake])
        return self._store.choose(*alternatives)

    def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        extra_changes: Callable[[T], Sequence[Change]] | None = None,
    ) -> Coroutine[Any, Any, Worked[T] | Conflict]:
        """Do ``changes`` in this space and the caller's own SQL in one transaction: both happen, or neither.

        See :meth:`standfast.stores.GroupedStore.commit_with`. What ``extra_changes`` returns is kept to this space too.

        Raises:
            UnsuitableStoreError: The store has no SQL to share a transaction with.
        """
        store = self._store
        if not isinstance(store, SharesTransactions):
            raise UnsuitableStoreError(store.capabilities.backend, "it cannot share a transaction with your SQL")
        self._check_changes(changes, wake)

        def checked(answer: T) -> Sequence[Change]:
            more = () if extra_changes is None else tuple(extra_changes(answer))
            self._check_changes(more, ())
            return more

        return store.commit_with(
            work, *changes, after=after, before=before, wake=wake, timeout=timeout, extra_changes=checked
        )

    def _check_changes(self, changes: Sequence[Change], wake: Sequence[Wake]) -> None:
        # Anything else than a change is refused by the store, with a better message than a missing attribute.
        self._check([each.key for each in changes if type(each) in _CHANGES])
        self._check([each.to for each in wake if type(each) is Wake])

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Subscribe to keys of this space, see :meth:`~standfast.stores.Store.watch`."""
        self._check(prefixes)
        return self._store.watch(*prefixes)

    def _check(self, keys: Sequence[RecordKey]) -> None:
        root = self._root
        for key in keys:
            if type(key) is not RecordKey:
                raise ArgumentTypeError("a RecordKey (made by space.key(...))", type(key).__name__)
            if not key.startswith(root):
                raise InvalidChangeError(
                    f"{key} does not lie in {self.namespace}/{self.tenant}; make it with space.key(...)"
                )

    async def aclose(self) -> None:
        """Close the store."""
        await self._store.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


async def read_present(
    scope: Scope,
    wanted: Collection[T],
    within: tuple[RecordKey, RecordKey],
    key_of: Callable[[T], RecordKey],
    name_of: Callable[[RecordKey], T],
) -> dict[T, Record]:
    """Read the records of those that have one, where many are wanted and few lie in a range.

    A few are read by their keys. For many the range is scanned, unless it has more records than are wanted.
    """
    most, left, (start, end) = scope.at_most(PAGE), len(wanted), within
    found: dict[T, Record] = {}
    while left > most:
        page = await scope.scan(start, end, limit=most)
        found |= {name: record for key, record in page.records.items() if (name := name_of(key)) in wanted}
        if page.more is None:
            return found
        start, left = page.more, left - most
        await asyncio.sleep(0)  # a store in this process answers at once: others go on meanwhile
    names = list(wanted)
    for first in range(0, len(names), most):
        if first:
            await asyncio.sleep(0)
        seen = await scope.read(*map(key_of, names[first : first + most]))
        found |= {name_of(key): record for key, record in seen.records.items()}
    return found


def address_of(key: Key | str) -> tuple[str, ...]:
    """Return a user's key as parts of a record key. Text has a family of its own, with an empty name."""
    if isinstance(key, Key):
        return str(len(key.parts)), key.family.name, *key.parts
    if isinstance(key, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return "1", "", key
    raise ArgumentTypeError("a Key or str", type(key).__name__)


def checked_name(what: str, name: str) -> str:
    """Return the name of a namespace or a tenant; refuse what cannot be one."""
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError("part of a key", "it must be text", f"{what} {name!r}")
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidArgumentError(
            "part of a key", f"it must be 1 to {LONGEST_NAME} printable characters", f"{what} {name!a}"
        )
    return name
