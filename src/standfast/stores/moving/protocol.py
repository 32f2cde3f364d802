"""What a backend must be able to do, so that everything in it can be moved to another store.

A store that is being moved is *frozen*: from the moment that :meth:`Movable.freeze` returns, no write of anybody lands,
and each is refused with :class:`~standfast.errors.StoreMovedError`. Reads go on. What freezes a store is kept in the
store, so it holds for processes that start later, and after a restart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from standfast.errors import StoreMovedError, UnsuitableStoreError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from standfast.stores.protocol import Record

OPEN: Final = 0
"""A store that is not frozen."""

EXPORTED: Final = 1
"""Why a store is frozen: what it kept is in a file. Every higher number stands for the file that is imported."""

PAGE: Final = 200
"""How many records are read or written at a time."""


class Movable(Protocol):
    """A store underneath its namespaces: all records, as they are."""

    async def frozen(self) -> int:
        """Return why the store is frozen, or :data:`OPEN`."""
        ...

    async def freeze(self, reason: int) -> None:
        """Refuse every write from now on, by any handle of any process, until :meth:`thaw`.

        A write that was answered before this returns is there for :meth:`dump`; one that was not never lands. A store
        that is frozen already stays so, for the reason that it has.
        """
        ...

    async def thaw(self) -> None:
        """Take writes again."""
        ...

    async def last(self) -> int:
        """Return a number that no version is above which was ever given out, to records that are gone included."""
        ...

    async def lift(self, version: int) -> None:
        """Let every key that is written from now on get a version above ``version``."""
        ...

    def dump(self) -> AsyncIterator[Sequence[Record]]:
        """Return all live records of all namespaces, each once, a page at a time. The order is the backend's."""
        ...

    async def put(self, records: Sequence[Record]) -> None:
        """Write records with the versions that they have, also into a frozen store, over what is there.

        Whether it is all or nothing is left open, and so is what becomes of hints: it is written again if it failed.
        """
        ...


@runtime_checkable
class Moves(Protocol):
    """A store, or what one is made of, that can be moved."""

    def moving(self) -> Movable:
        """Return what moves it."""
        ...


def moving_of(holder: object, name: str) -> Movable:
    """Return what moves a store; refuse one that cannot be moved."""
    if isinstance(holder, Moves):
        return holder.moving()
    raise UnsuitableStoreError(name, "its backend cannot be exported, imported or fenced")


def moved(name: str, reason: int = EXPORTED) -> StoreMovedError:
    """Return the error for a write to a frozen store."""
    if reason == EXPORTED:
        problem = "it was exported, and takes no more writes; open the store that it was moved to"
    else:
        problem = "an import into it is not finished; repeat the import"
    return StoreMovedError(name, problem)
