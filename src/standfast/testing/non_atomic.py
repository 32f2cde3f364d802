"""A store that cannot keep the contract, and says so."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, Self, TypeVar, final

from standfast.clock import SYSTEM_CLOCK, Clock, Instant
from standfast.durations import optional_seconds
from standfast.stores.protocol import Capabilities, Commit, Conflict, Decided, Delete, Put, Record, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.protocol import Change, Decision, Hint, Verdict, Wake, Watch

T = TypeVar("T")

CAPABILITIES: Final = Capabilities(backend="non-atomic", atomic=False, durable=False, reach="process", wakes="poll")


@final
class NonAtomicStore:
    """A store that reads, checks and then writes, with a gap in between: two racers can both win.

    Many key-value services are like this. It declares ``atomic=False``, so everything that excludes refuses it with
    :class:`~standfast.errors.UnsuitableStoreError`. Use it to see that your code refuses such a store, too, and that
    your checks would notice.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock: Final = clock
        self._versions: Final = itertools.count(1)
        self._records: Final[dict[RecordKey, Record]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """Not atomic: nothing may rely on its guards."""
        return CAPABILITIES

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records."""
        at = self._clock.wall()
        return Snapshot(at, {key: record for key in keys if (record := self._present(key, at)) is not None})

    def _present(self, key: RecordKey, at: Instant) -> Record | None:
        record = self._records.get(key)
        return None if record is None or record.is_expired(at) else record

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range."""
        keys = sorted((key for key in self._records if start <= key < end), reverse=reverse)
        snapshot = await self.read(*keys)
        page = list(snapshot.records)[:limit]
        more = None if len(page) == len(snapshot.records) else page[-1] if reverse else page[-1].successor()
        return Snapshot(snapshot.at, {key: snapshot.records[key] for key in page}, more)

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),  # noqa: ARG002 -- it sends no hints
    ) -> Commit | Conflict:
        """Check the guards, and then write: by then they may no longer hold."""
        seen = await self.read(*(change.key for change in changes))
        lost = {change.key: seen.get(change.key) for change in changes if seen.version(change.key) != change.expected}
        if lost or (after is not None and seen.at < after) or (before is not None and seen.at >= before):
            return Conflict(seen.at, lost)
        await asyncio.sleep(0)  # the gap
        return Commit(seen.at, self._write(changes))

    def _write(self, changes: Sequence[Change]) -> dict[RecordKey, int]:
        versions: dict[RecordKey, int] = {}
        for change in changes:
            if isinstance(change, Put):
                versions[change.key] = next(self._versions)
                self._records[change.key] = Record(change.key, change.value, versions[change.key], change.expires_at)
            elif isinstance(change, Delete):
                self._records.pop(change.key, None)
        return versions

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide, and commit that until no conflict is seen, which proves nothing."""
        while True:
            decision = decide(await self.read(*keys))
            verdict = await self.commit(*decision.changes, after=decision.after, before=decision.before)
            if isinstance(verdict, Commit):
                return Decided(decision.answer, verdict.at, verdict.versions)

    def watch(self, *prefixes: RecordKey) -> Watch:  # noqa: ARG002 -- it sends no hints
        """Return a watch that never hears anything, as hints may be lost."""
        return _Deaf()

    async def settle(self, attempt: str) -> Verdict | None:  # noqa: ARG002 -- no outcome is ever unknown here
        """Return None: it leaves no outcome unknown."""
        return None

    async def another(self) -> NonAtomicStore:
        """Return this very store: it belongs to no loop and has nothing to close."""
        return self

    def lifeline(self) -> str:
        """Return nothing: it sees no deaths."""
        return ""

    def is_severed(self, lifeline: str) -> bool:  # noqa: ARG002 -- it sees no deaths
        """Return False: it sees no deaths."""
        return False

    async def aclose(self) -> None:
        """Nothing to let go of."""


@final
class _Deaf:
    """A watch that hears nothing."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None: ...

    async def wait(self, timeout: Duration | None = None) -> Hint | None:
        """Wait in vain."""
        try:
            async with asyncio.timeout(optional_seconds(timeout, what="timeout")):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            pass
        return None
