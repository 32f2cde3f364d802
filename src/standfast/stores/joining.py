"""Taking part in a transaction that is not the store's: records that are written over a user's own connection.

Nothing here does I/O. A store says what to ask as a *talk*, a generator of questions; whoever has the connection asks
them, with or without an event loop, and the talk ends with what came of it. What was written is there if and only if
the user's transaction is committed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, runtime_checkable

from msgspec import Struct

from standfast.errors import UnsuitableStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.clock import Instant
    from standfast.keys import RecordKey
    from standfast.stores.guests import Guest
    from standfast.stores.protocol import Change, Commit, Conflict, Snapshot

T = TypeVar("T")


class Question(Struct, frozen=True, gc=False):
    """A statement that answers with one text. ``:asked`` in it stands for its only parameter, a text too.

    Its ``repr`` leaves that out, so that no value ends up in a log.
    """

    statement: str
    asked: str | None = None

    def __repr__(self) -> str:
        return f"Question({self.statement!r}, {len(self.asked or ''):,} characters)"


Talk: TypeAlias = Generator[Question, str, T]
"""Asks questions one after the other, and returns what came of them."""


class Joining(Protocol):
    """What a store can do over the connection of a user. Any thread may use it."""

    def write(
        self, changes: Sequence[Change], *, before: Instant | None = None, idle: float | None = None
    ) -> Talk[Commit | Conflict]:
        """Do all of ``changes`` or none, as part of the transaction under way; a ``Commit`` is not durable yet.

        Args:
            changes: As in a commit.
            before: When it must be written, by the store's time.
            idle: For how many seconds the transaction may then sit idle. Others wait for what it has locked.

        Raises:
            UnsuitableConnectionError: No transaction is open, or the connection sees another store.
        """
        ...

    def read(self, keys: Sequence[RecordKey]) -> Talk[Snapshot]:
        """Read records as the transaction under way sees them."""
        ...


@runtime_checkable
class Joins(Protocol):
    """A store, or what one is made of, that may be able to take part in a user's transaction."""

    async def joining(self) -> Joining:
        """Return what it can do there.

        Raises:
            UnsuitableStoreError: Nothing.
        """
        ...


async def joining_of(holder: object, name: str) -> Joining:
    """Return what a store can do in a user's transaction; refuse one that cannot."""
    if isinstance(holder, Joins):
        return await holder.joining()
    raise UnsuitableStoreError(
        name,
        "it cannot take part in a transaction of yours; use postgresql://, or do your SQL in ctx.transaction, or call "
        "engine.start with an id after your commit",
    )


async def converse(guest: Guest, talk: Talk[T]) -> T:
    """Ask the questions of a talk over a connection that is used with ``await``."""
    try:
        question = next(talk)
        while True:
            try:
                told = await guest.ask(question)
            except Exception as problem:  # noqa: BLE001 -- the talk knows better what it means
                question = talk.throw(problem)
            else:
                question = talk.send(told)
    except StopIteration as over:
        result: T = over.value
        return result


def converse_blocking(guest: Guest, talk: Talk[T]) -> T:
    """Ask the questions of a talk over a connection that blocks."""
    try:
        question = next(talk)
        while True:
            try:
                told = guest.ask(question)
            except Exception as problem:  # noqa: BLE001 -- the talk knows better what it means
                question = talk.throw(problem)
            else:
                question = talk.send(told)
    except StopIteration as over:
        result: T = over.value
        return result
