"""Recording what clients ask of a store and what they are answered, and checking it."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar, final

from msgspec import Struct

from standfast.errors import OutcomeUnknownError, StandfastError
from standfast.keys import RecordKey
from standfast.stores import verdict_of
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.stores.protocol import Snapshot, Verdict
from standfast.testing.linearizability import Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from standfast.clock import Instant
    from standfast.stores.protocol import Capabilities, Change, Commit, Conflict, Decided, Decision, Store, Wake, Watch

T = TypeVar("T")


class Read(Struct, frozen=True):
    """A read of these keys."""

    keys: tuple[RecordKey, ...]


Call: TypeAlias = Read | CommitRider | UpdateRider
"""What a client asked of a store."""

Answer: TypeAlias = Snapshot | Verdict | Exception
"""What it was answered, or what its ``decide`` raised."""

StoreOperation: TypeAlias = Operation[Call, Answer]


@final
class _Open:
    """A call that has not been answered, or never will be."""

    __slots__ = ("call", "called_at", "client")

    def __init__(self, client: str, call: Call, called_at: int) -> None:
        self.client, self.call, self.called_at = client, call, called_at

    def closed(self, returned_at: int | None, answer: Answer | None) -> StoreOperation:
        return Operation(self.client, self.call, self.called_at, returned_at, answer)


@final
class History:
    """What happened, in the order it happened: the calls of several clients and their answers."""

    def __init__(self) -> None:
        self._ticks: Final = itertools.count(1)
        self._open: Final[dict[int, _Open]] = {}
        self._done: Final[list[StoreOperation]] = []

    def begin(self, client: str, call: Call) -> int:
        """Note a call; the number that is returned stands for it."""
        called_at = next(self._ticks)
        self._open[called_at] = _Open(client, call, called_at)
        return called_at

    def answer(self, number: int, answer: Answer) -> None:
        """Note the answer to a call."""
        self._done.append(self._open.pop(number).closed(next(self._ticks), answer))

    def forget(self, number: int) -> None:
        """Note that a call certainly had no effect and told its caller nothing."""
        del self._open[number]

    @property
    def operations(self) -> list[StoreOperation]:
        """All operations; those without an answer so far have an unknown outcome."""
        return [*self._done, *(each.closed(None, None) for each in self._open.values())]


@final
class RecordingStore:
    """A store that writes down what it is asked and what it answers, for one client.

    Give each client its own, over one store or over several handles on the same data, all with one history:

        history = History()
        clients = [RecordingStore(store, history, f"client {n}") for n in range(5)]
        ...
        check_store_history(history.operations)

    Errors that say "nothing was written" leave no trace; an :class:`~standfast.errors.OutcomeUnknownError` leaves an
    operation with an unknown outcome, until :meth:`settle` finds it out. Scans are passed on but not recorded.
    """

    def __init__(self, store: Store, history: History, client: str) -> None:
        self._store, self._history, self._client = store, history, client
        self._unsettled: Final[dict[str, int]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the store underneath can do."""
        return self._store.capabilities

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read, and write it down."""
        return await self._recorded(Read(keys), self._store.read(*keys))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Scan; pages are not snapshots, so there is nothing to check them against."""
        return await self._store.scan(start, end, limit=limit, reverse=reverse)

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Commit, and write it down."""
        call = CommitRider(changes, after, before, tuple(wake))
        return await self._recorded(call, self._store.commit(*changes, after=after, before=before, wake=wake))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Update, and write it down."""
        return await self._recorded(UpdateRider(tuple(keys), decide), self._store.update(keys, decide))

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Watch; hints prove nothing, so there is nothing to check."""
        return self._store.watch(*prefixes)

    async def settle(self, attempt: str) -> Verdict | None:
        """Settle an attempt, and write down what became of it."""
        verdict = await self._store.settle(attempt)
        number = self._unsettled.pop(attempt, None)
        if number is not None:
            self._close(number, verdict)
        return verdict

    async def another(self) -> RecordingStore:
        """Open another handle, which writes into the same history for the same client."""
        return RecordingStore(await self._store.another(), self._history, self._client)

    def lifeline(self) -> str:
        """Return the lifeline of the store underneath."""
        return self._store.lifeline()

    def is_severed(self, lifeline: str) -> bool:
        """Tell what the store underneath tells."""
        return self._store.is_severed(lifeline)

    async def aclose(self) -> None:
        """Close the store underneath."""
        await self._store.aclose()

    async def _recorded(self, call: Call, answering: Awaitable[T]) -> T:
        number = self._history.begin(self._client, call)
        try:
            answer = await answering
        except OutcomeUnknownError as unknown:
            self._unsettled[unknown.attempt] = number
            raise
        except asyncio.CancelledError as cancelled:
            self._close(number, verdict_of(cancelled))
            raise
        except Exception as problem:
            self._close(number, None if isinstance(problem, StandfastError) else problem)
            raise
        self._history.answer(number, answer)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] -- T is one of them
        return answer

    def _close(self, number: int, answer: Answer | None) -> None:
        if isinstance(answer, OutcomeUnknownError):
            self._unsettled[answer.attempt] = number
        elif answer is None or isinstance(answer, StandfastError):
            self._history.forget(number)
        else:
            self._history.answer(number, answer)
