"""A store as seen by a process that may die: from then on nothing that it asks is done, and nothing is answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, cast, final

from msgspec import Struct, structs

from standfast.errors import StoreUnavailableError
from standfast.stores.protocol import Choice, Commit, Decided, SharesTransactions, Worked

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.protocol import (
        Alternative,
        Capabilities,
        Change,
        Conflict,
        Decision,
        Notification,
        Snapshot,
        Store,
        Verdict,
        Wake,
        Watch,
    )

T = TypeVar("T")


class Death(Struct, frozen=True):
    """When a process is to die: right before or right after its n-th commit, counted from 1."""

    when: Literal["before", "after"]
    commit: int


@final
class Mortality:
    """Whether a process lives. All its handles on the store share it.

    Attributes:
        name: Its liveness token, by which others see that it has died.
        calls: How many calls it has made.
        under_way: How many of them are not answered yet.
        commits: How many commits it has made. Those of the keeper's own handle are not counted.
        dies: When it is to die.
        on_death: Called when it does.
        on_written: Called with the keys that a commit has put.
        beside: What happens elsewhere after the n-th commit, before the process learns that it was made.
    """

    def __init__(self, name: str, dead: set[str]) -> None:
        self.name: Final = name
        self._dead: Final = dead
        self._loop: Final = asyncio.get_running_loop()
        self._ended: Final[asyncio.Future[None]] = self._loop.create_future()
        self.death: Final[asyncio.Future[None]] = self._loop.create_future()
        self.calls = self.under_way = self.commits = 0
        self.dies: Death | None = None
        self.on_death: Callable[[], None] | None = None
        self.on_written: Callable[[Iterable[RecordKey]], None] | None = None
        self.beside: Final[dict[int, Callable[[], Awaitable[None]]]] = {}

    @property
    def is_dead(self) -> bool:
        """Whether it has died."""
        return self.name in self._dead

    def knows_as_dead(self, liveness_token: str) -> bool:
        """Return True if the process with that liveness token has died."""
        return liveness_token in self._dead

    def die(self) -> None:
        """Stop dead."""
        if not self.is_dead:
            self._dead.add(self.name)
            self.death.set_result(None)
            if self.on_death is not None:
                self.on_death()

    def end_calls(self) -> None:
        """Let calls that hang raise, so that the tasks of a dead process can end."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def check(self) -> None:
        """Go on, if it lives; else never, or until it is reclaimed."""
        if not self.is_dead:
            return
        if asyncio.get_running_loop() is self._loop:
            await asyncio.shield(self._ended)
        raise StoreUnavailableError(self.name, "this process has died, in a test")

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the store something."""
        await self.check()
        self.calls += 1
        self.under_way += 1
        try:
            answer = await work()
        finally:
            self.under_way -= 1
        await self.check()
        return answer

    async def write(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Write something; die on the way, if the time has come."""
        await self.check()
        self.commits += 1
        number, dies = self.commits, self.dies
        if dies == Death("before", number):
            self.die()

        async def and_die() -> T:
            answer = await work()
            if self.on_written is not None:
                self.on_written(_written(answer))
            if number in self.beside:
                await self.beside.pop(number)()
            if dies == Death("after", number):
                self.die()
            return answer

        return await self.call(and_die)


def _written(answer: object) -> dict[RecordKey, int]:
    return answer.versions if isinstance(answer, Commit | Decided | Worked | Choice) else {}


@final
class MortalStore:
    """A store that does what another one does, for as long as the process that uses it lives.

    It tells others of the death at once, as SQLite does, so that nothing has to wait for a lease.
    """

    def __init__(self, store: Store, life: Mortality, *, is_main: bool = True) -> None:
        self._store, self._life, self._is_main = store, life, is_main

    def __repr__(self) -> str:
        return f"<MortalStore {self._life.name} on {self._store!r}>"

    @property
    def capabilities(self) -> Capabilities:
        """Those of the store underneath, and that it sees processes die."""
        return structs.replace(self._store.capabilities, sees_process_death=True)

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records."""
        return await self._life.call(lambda: self._store.read(*keys))

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range."""
        return await self._life.call(lambda: self._store.scan(start, end, limit=limit, reverse=reverse))

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Commit."""
        return await self._write(lambda: self._store.commit(*changes, after=after, before=before, wake=wake))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide and commit."""
        return await self._write(lambda: self._store.update(keys, decide))

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Choose and commit."""
        return await self._write(lambda: self._store.choose(*alternatives))

    async def commit_with(
        self,
        work: Callable[[Any], T],
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
        timeout: Duration = 5.0,
        extra_changes: Callable[[T], Sequence[Change]] | None = None,
    ) -> Worked[T] | Conflict:
        """Commit together with the caller's own SQL."""
        store = cast("SharesTransactions", self._store)
        return await self._write(
            lambda: store.commit_with(
                work, *changes, after=after, before=before, wake=wake, timeout=timeout, extra_changes=extra_changes
            )
        )

    async def _write(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await (self._life.write(work) if self._is_main else self._life.call(work))

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Watch. A dead process hears nothing."""
        return _MortalWatch(self._store.watch(*prefixes), self._life)

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out what became of an attempt."""
        return await self._life.call(lambda: self._store.settle(attempt))

    async def another(self) -> MortalStore:
        """Open another handle of the same process. Its commits are not counted."""
        await self._life.check()
        return MortalStore(await self._store.another(), self._life, is_main=False)

    def liveness_token(self) -> str:
        """Return the name of the process."""
        return self._life.name

    def is_dead(self, token: str) -> bool:
        """Return True if the process of that name has died."""
        return self._life.knows_as_dead(token) or self._store.is_dead(token)

    async def aclose(self) -> None:
        """Close the store underneath."""
        await self._store.aclose()


@final
class _MortalWatch:
    """A watch that a dead process does not hear."""

    __slots__ = ("_life", "_watch")

    def __init__(self, watch: Watch, life: Mortality) -> None:
        self._watch, self._life = watch, life

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._watch.__aexit__(*exc)

    async def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Return the hints since the last call."""
        await self._life.check()
        hint = await self._watch.wait(timeout)
        await self._life.check()
        return hint
