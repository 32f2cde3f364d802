"""A store with faults: for testing what your own code makes of them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

from standfast.durations import optional_seconds
from standfast.testing.faults import ROUGH, Dice, Fate, Faults, lost, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.protocol import (
        Capabilities,
        Change,
        Commit,
        Conflict,
        Decided,
        Decision,
        Hint,
        Snapshot,
        Store,
        Verdict,
        Wake,
        Watch,
    )

T = TypeVar("T")


@final
class FaultyStore:
    """A store that does what another one does, except when its seed says that something goes wrong.

    It shows callers everything that :class:`Faults` describes: refusals, unknown outcomes that have to be settled,
    commits that land after their caller was told that nothing is known, late answers, and hints that are lost,
    doubled or late. It keeps the store contract, so code that relies on the contract alone works over it.

    One thing is worse here than with any store of Standfast: what lands late may land after what its caller has sent
    since. A handle of theirs sends nothing before it has closed an earlier attempt whose outcome is unknown, so no
    entry gets into a line after it has left. Locks and dispatchers count on that: for them, wrap the backend, with
    :class:`FaultyBackend`, or leave ``land_late`` out.

        store = FaultyStore(open_memory(), seed=7, faults=Faults(lose_reply=0.1))

    Args:
        store: The store that does the work.
        seed: The same calls in the same order meet the same faults.
        faults: How often what goes wrong.
    """

    def __init__(self, store: Store, *, seed: int, faults: Faults = ROUGH) -> None:
        self._store: Final = store
        self._faults: Final = faults
        self._next_seed: Final = itertools.count(seed + 1)
        self._dice: Final = Dice(faults, seed)
        self._name: Final = f"{store.capabilities.backend} with faults"
        self._attempts: Final[dict[str, _Attempt]] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the store underneath can do."""
        return self._store.capabilities

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, *keys: RecordKey) -> Snapshot:
        """Read records, perhaps later or not at all."""
        await self._dice.before_reading(self._name)
        return await self._store.read(*keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False) -> Snapshot:
        """Read a page of a range, perhaps later or not at all."""
        await self._dice.before_reading(self._name)
        return await self._store.scan(start, end, limit=limit, reverse=reverse)

    def watch(self, *prefixes: RecordKey) -> Watch:
        """Watch, with some hints lost, doubled or late."""
        return _FaultyWatch(self._store.watch(*prefixes), self._dice, self._faults)

    # --- writing -----------------------------------------------------------------------------------------------

    async def commit(
        self,
        *changes: Change,
        after: Instant | None = None,
        before: Instant | None = None,
        wake: Sequence[Wake] = (),
    ) -> Commit | Conflict:
        """Commit, or not, or leave the caller in the dark."""
        return await self._risk(lambda: self._store.commit(*changes, after=after, before=before, wake=wake))

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Update, or not, or leave the caller in the dark."""
        return await self._risk(lambda: self._store.update(keys, decide))

    async def _risk(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        fate = self._dice.fate()
        await self._dice.linger()
        if fate is Fate.FINE:
            return await call()
        if fate is Fate.REFUSED:
            raise refusal(self._name, "commit")
        name = f"fault-{len(self._attempts) + 1}"
        attempt = self._attempts[name] = _Attempt()
        if fate is Fate.REPLY_LOST:
            await attempt.land(call)
        elif fate is Fate.LATE:
            attempt.land_later(call, self._dice.moment())
        raise lost(self._name, name)

    async def settle(self, attempt: str) -> Verdict | None:
        """Find out what became of an attempt: one of its own, or one of the store underneath."""
        await self._dice.before_settling(self._name, attempt)
        known = self._attempts.get(attempt)
        return await self._store.settle(attempt) if known is None else await known.settle()

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> FaultyStore:
        """Open another handle, with the same faults in another order.

        What is unknown to the caller of one handle is settled through that handle.
        """
        return FaultyStore(await self._store.another(), seed=next(self._next_seed), faults=self._faults)

    def lifeline(self) -> str:
        """Return the lifeline of the store underneath."""
        return self._store.lifeline()

    def is_severed(self, lifeline: str) -> bool:
        """Tell what the store underneath tells."""
        return self._store.is_severed(lifeline)

    async def aclose(self) -> None:
        """Wait for what lands late, then close the store underneath."""
        for attempt in self._attempts.values():
            await attempt.finish()
        await self._store.aclose()


@final
class _Attempt:
    """A commit whose caller was left in the dark: not sent, sent, or still to be sent."""

    __slots__ = ("_sending", "_sent", "_verdict")

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._sent = False
        self._sending: asyncio.Task[None] | None = None

    async def land(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._sent = True
        self._verdict = await call()

    def land_later(self, call: Callable[[], Coroutine[Any, Any, Any]], seconds: float) -> None:
        async def wait_and_land() -> None:
            await asyncio.sleep(seconds)
            await self.land(call)

        self._sending = asyncio.get_running_loop().create_task(wait_and_land())

    async def settle(self) -> Verdict | None:
        if self._sending is not None and not self._sent:
            self._sending.cancel()  # closed before it was sent: now it never will be
        await self.finish()
        return self._verdict

    async def finish(self) -> None:
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)


@final
class _FaultyWatch:
    """A watch that mishears."""

    __slots__ = ("_again", "_dice", "_faults", "_watch")

    def __init__(self, watch: Watch, dice: Dice, faults: Faults) -> None:
        self._watch, self._dice, self._faults = watch, dice, faults
        self._again: Hint | None = None

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._watch.__aexit__(*exc)

    async def wait(self, timeout: Duration | None = None) -> Hint | None:
        """Return the hints since the last call, except those that are lost; some once more."""
        if self._again is not None:
            hint, self._again = self._again, None
            return hint
        try:
            async with asyncio.timeout(optional_seconds(timeout, what="timeout")):
                return await self._misheard()
        except TimeoutError:
            return None

    async def _misheard(self) -> Hint | None:
        hint = await self._watch.wait()
        while self._dice.happens(self._faults.drop_hint):
            hint = await self._watch.wait()
        if self._dice.happens(self._faults.delay_hint):
            await asyncio.sleep(self._dice.moment())
        if self._dice.happens(self._faults.double_hint):
            self._again = hint
        return hint
