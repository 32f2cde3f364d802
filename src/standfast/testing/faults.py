"""Faults between a program and its store, by a seed: a backend that fails, a store that fails, and an unfit store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK, Clock, Instant
from standfast.durations import optional_seconds
from standfast.errors import (
    InvalidArgumentError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    UnsuitableStoreError,
)
from standfast.stores.protocol import Capabilities, Commit, Conflict, Decided, Delete, Put, Record, Snapshot
from standfast.stores.watch import TakesAtOnce

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.stores.backend import Applied, Backend, RiderBatch, Subscriber
    from standfast.stores.protocol import (
        Alternative,
        Change,
        Choice,
        Decision,
        Notification,
        Store,
        Verdict,
        Wake,
        Watch,
    )


# --- what may go wrong between a program and its store, how often, and in an order that a seed decides -------------


class Faults(Struct, frozen=True, kw_only=True):
    """How often what goes wrong: each a chance between 0 and 1, all 0 unless given.

    A commit or update meets at most one of ``refuse``, ``lose_request``, ``lose_reply`` and ``land_late``.
    """

    refuse: float = 0.0
    """The store says at once that it cannot work: ``StoreUnavailableError``, and nothing is written."""
    lose_request: float = 0.0
    """Nothing is written, but the caller cannot know that: ``OutcomeUnknownError``."""
    lose_reply: float = 0.0
    """It is written, but the caller cannot know that: ``OutcomeUnknownError``."""
    land_late: float = 0.0
    """``OutcomeUnknownError``, and it is written some time later, unless the attempt is settled first."""
    fail_read: float = 0.0
    """A read or scan fails: ``StoreUnavailableError``."""
    fail_settle: float = 0.0
    """Settling fails and has to be tried again: it is refused, or its own reply is lost."""
    delay: float = 0.0
    """A call takes a while, up to ``longest_delay``, before anything else happens."""
    drop_hint: float = 0.0
    """A hint is lost."""
    double_hint: float = 0.0
    """A hint is heard twice."""
    delay_hint: float = 0.0
    """A hint is heard later, up to ``longest_delay``."""
    longest_delay: float = 0.05
    """The longest delay, in seconds."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: float = getattr(self, name)
            if not value >= 0 or (name != "longest_delay" and value > 1):
                raise InvalidArgumentError(name, "a chance lies between 0 and 1, a delay is not negative", repr(value))
        if self.refuse + self.lose_request + self.lose_reply + self.land_late > 1:
            raise InvalidArgumentError("refuse, lose_request, lose_reply and land_late", "together they are at most 1")


ROUGH: Final = Faults(
    refuse=0.03,
    lose_request=0.05,
    lose_reply=0.05,
    land_late=0.05,
    fail_read=0.05,
    fail_settle=0.2,
    delay=0.3,
    drop_hint=0.2,
    double_hint=0.2,
    delay_hint=0.3,
)
"""A bad day: every kind of fault, often enough to be met within a few dozen calls."""


class Fate(Enum):
    """What becomes of one commit."""

    FINE = auto()
    REFUSED = auto()
    REQUEST_LOST = auto()
    REPLY_LOST = auto()
    LATE = auto()


@final
class Dice:
    """Draws faults from a seed. The same draws in the same order give the same faults."""

    __slots__ = ("_faults", "_random")

    def __init__(self, faults: Faults, seed: int) -> None:
        self._faults: Final = faults
        self._random: Final = random.Random(seed)

    def happens(self, chance: float) -> bool:
        """Draw whether something of this chance happens now."""
        return self._random.random() < chance

    def fate(self) -> Fate:
        """Draw what becomes of a commit."""
        faults, lot = self._faults, self._random.random()
        for chance, fate in (
            (faults.refuse, Fate.REFUSED),
            (faults.lose_request, Fate.REQUEST_LOST),
            (faults.lose_reply, Fate.REPLY_LOST),
            (faults.land_late, Fate.LATE),
        ):
            if lot < chance:
                return fate
            lot -= chance
        return Fate.FINE

    def moment(self) -> float:
        """Draw a delay in seconds."""
        return self._random.uniform(0, self._faults.longest_delay)

    async def linger(self) -> None:
        """Take a while, now and then."""
        if self.happens(self._faults.delay):
            await asyncio.sleep(self.moment())

    async def before_reading(self, store: str) -> None:
        """Take a while and fail, now and then."""
        await self.linger()
        if self.happens(self._faults.fail_read):
            raise refusal(store, "read")

    async def before_settling(self, store: str, attempt: str) -> None:
        """Take a while and fail, now and then."""
        await self.linger()
        if self.happens(self._faults.fail_settle):
            raise lost(store, attempt) if self.happens(0.5) else refusal(store, "settle")


def refusal(store: str, what: str) -> StoreUnavailableError:
    """Return the error of a call that was refused."""
    return StoreUnavailableError(store, f"it refused to {what}: an injected fault; nothing was written")


def lost(store: str, attempt: str) -> OutcomeUnknownError:
    """Return the error of a commit whose outcome the caller cannot know."""
    return OutcomeUnknownError(store, "the connection broke: an injected fault", attempt)


# --- A backend with faults: for testing what common code makes of them ---------------------------------------------


@final
class FaultyBackend:
    """A backend that does what another one does, except when its seed says that something goes wrong.

    ``GroupedStore(FaultyBackend(backend, seed=7))`` shows how the common code settles unknown outcomes: its callers
    see hardly any. To see them, wrap the store instead: :class:`FaultyStore`.
    """

    def __init__(self, backend: Backend, *, seed: int, faults: Faults = ROUGH) -> None:
        self._backend: Final = backend
        self._faults: Final = faults
        self._next_seed: Final = itertools.count(seed + 1)
        self._dice: Final = Dice(faults, seed)
        self._turn: Final = asyncio.Lock()  # a late landing does not meet another call inside the backend
        self._fates: Final[dict[str, Fate]] = {}
        self._late: Final[set[asyncio.Task[None]]] = set()

    @property
    def capabilities(self) -> Capabilities:
        """What the backend underneath can do."""
        return self._backend.capabilities

    @property
    def inner(self) -> Backend:
        """The backend underneath, which has no faults."""
        return self._backend

    @property
    def name(self) -> str:
        """The name of the backend underneath."""
        return self._backend.name

    # --- writing -----------------------------------------------------------------------------------------------

    def apply_now(self, batch: RiderBatch) -> Applied | None:
        """Apply the batch on the loop, unless something is to go wrong with it."""
        fate = self._fates[batch.attempt] = self._dice.fate()
        if fate is not Fate.FINE or self._turn.locked() or self._dice.happens(self._faults.delay):
            return None
        applied = self._backend.apply_now(batch)
        if applied is not None:
            del self._fates[batch.attempt]
        return applied

    async def apply(self, batch: RiderBatch) -> Applied:
        """Apply the batch, or not, or tell a lie about it."""
        fate = self._fates.pop(batch.attempt, None) or self._dice.fate()
        await self._dice.linger()
        if fate is Fate.REFUSED:
            raise refusal(self.name, "commit")
        if fate is Fate.LATE:
            task = asyncio.get_running_loop().create_task(self._land_late(batch))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
        if fate in (Fate.LATE, Fate.REQUEST_LOST):
            raise lost(self.name, batch.attempt)
        async with self._turn:
            applied = await self._backend.apply(batch)
        if fate is Fate.REPLY_LOST:
            raise lost(self.name, batch.attempt)
        return applied

    async def _land_late(self, batch: RiderBatch) -> None:
        await asyncio.sleep(self._dice.moment())
        async with self._turn:
            with contextlib.suppress(StoreError):  # it came too late: its attempt has been closed
                await self._backend.apply(batch)

    async def settle(self, attempt: str) -> Applied | None:
        """Close an attempt."""
        await self._dice.before_settling(self.name, attempt)
        async with self._turn:
            return await self._backend.settle(attempt)

    # --- reading -----------------------------------------------------------------------------------------------

    async def read(self, keys: Sequence[RecordKey]) -> Snapshot:
        """Read records, perhaps later or not at all."""
        await self._dice.before_reading(self.name)
        return await self._backend.read(keys)

    async def scan(self, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool) -> Snapshot:
        """Read a page of a range, perhaps later or not at all."""
        await self._dice.before_reading(self.name)
        return await self._backend.scan(start, end, limit=limit, reverse=reverse)

    # --- hints -------------------------------------------------------------------------------------------------

    def subscribe(self, prefixes: tuple[RecordKey, ...], subscriber: Subscriber) -> Callable[[], None]:
        """Listen, with some hints lost, doubled or late."""
        return self._backend.subscribe(prefixes, _FaultySubscriber(subscriber, self._dice, self._faults))

    def notify(self, changed: Iterable[RecordKey], wakes: Iterable[Wake]) -> None:
        """Send hints; what becomes of them is decided where they arrive."""
        self._backend.notify(changed, wakes)

    # --- life --------------------------------------------------------------------------------------------------

    async def another(self) -> FaultyBackend:
        """Open another handle, with the same faults in another order."""
        return FaultyBackend(await self._backend.another(), seed=next(self._next_seed), faults=self._faults)

    def liveness_token(self) -> str:
        """Return the liveness token of the backend underneath."""
        return self._backend.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Tell what the backend underneath tells."""
        return self._backend.is_dead(token)

    async def aclose(self) -> None:
        """Wait for what lands late, then close the backend underneath."""
        await asyncio.gather(*self._late)
        await self._backend.aclose()


@final
class _FaultySubscriber:
    """An subscriber that mishears."""

    __slots__ = ("_dice", "_faults", "_subscriber")

    def __init__(self, subscriber: Subscriber, dice: Dice, faults: Faults) -> None:
        self._subscriber, self._dice, self._faults = subscriber, dice, faults

    def notify(self, about: RecordKey | None, moved: Record | None = None) -> None:
        """Pass a hint on: not at all, once or twice, now or later."""
        if self._dice.happens(self._faults.drop_hint):
            return
        if self._dice.happens(self._faults.double_hint):
            self._subscriber.notify(about, moved)
        if self._dice.happens(self._faults.delay_hint):
            asyncio.get_running_loop().call_later(self._dice.moment(), self._subscriber.notify, about, moved)
        else:
            self._subscriber.notify(about, moved)


# --- A store with faults: for testing what your own code makes of them ---------------------------------------------

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

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Choose, or not, or leave the caller in the dark."""
        return await self._risk(lambda: self._store.choose(*alternatives))

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

    def liveness_token(self) -> str:
        """Return the liveness token of the store underneath."""
        return self._store.liveness_token()

    def is_dead(self, token: str) -> bool:
        """Tell what the store underneath tells."""
        return self._store.is_dead(token)

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
        # What its own function raised has no caller any more: only :meth:`settle` looks at what became of it.
        self._sending.add_done_callback(_take_note)

    async def settle(self) -> Verdict | None:
        if self._sending is not None and not self._sent:
            self._sending.cancel()  # closed before it was sent: now it never will be
        await self.finish()
        return self._verdict

    async def finish(self) -> None:
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)


def _take_note(sent: asyncio.Task[None]) -> None:
    if not sent.cancelled():
        sent.exception()


@final
class _FaultyWatch:
    """A watch that mishears."""

    __slots__ = ("_again", "_dice", "_faults", "_watch")

    def __init__(self, watch: Watch, dice: Dice, faults: Faults) -> None:
        self._watch, self._dice, self._faults = watch, dice, faults
        self._again: Notification | None = None

    async def __aenter__(self) -> Self:
        await self._watch.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._watch.__aexit__(*exc)

    @property
    def take_at_once(self) -> Callable[[Record], bool] | None:
        """What is handed a record where it is shown, if its notification is neither lost nor late."""
        return self._watch.take_at_once if isinstance(self._watch, TakesAtOnce) else None

    @take_at_once.setter
    def take_at_once(self, take: Callable[[Record], bool]) -> None:
        def take_some(record: Record) -> bool:
            if self._dice.happens(self._faults.drop_hint):
                return True
            return not self._dice.happens(self._faults.delay_hint) and take(record)

        if isinstance(self._watch, TakesAtOnce):
            self._watch.take_at_once = take_some

    async def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Return the hints since the last call, except those that are lost; some once more."""
        if self._again is not None:
            again, self._again = self._again, None
            return again
        try:
            async with asyncio.timeout(optional_seconds(timeout, what="timeout")):
                hint = await self._watch.wait()
                while self._dice.happens(self._faults.drop_hint):
                    hint = await self._watch.wait()
                if self._dice.happens(self._faults.delay_hint):
                    await asyncio.sleep(self._dice.moment())
        except TimeoutError:
            return None
        if self._dice.happens(self._faults.double_hint):
            self._again = hint
        return hint


# --- A store that cannot keep the contract, and says so ------------------------------------------------------------

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
        versions: dict[RecordKey, int] = {}
        for change in changes:
            if isinstance(change, Put):
                versions[change.key] = next(self._versions)
                self._records[change.key] = Record(change.key, change.value, versions[change.key], change.expires_at)
            elif isinstance(change, Delete):
                self._records.pop(change.key, None)
        return Commit(seen.at, versions)

    async def update(self, keys: Sequence[RecordKey], decide: Callable[[Snapshot], Decision[T]]) -> Decided[T]:
        """Decide, and commit that until no conflict is seen, which proves nothing."""
        while True:
            decision = decide(await self.read(*keys))
            verdict = await self.commit(*decision.changes, after=decision.after, before=decision.before)
            if isinstance(verdict, Commit):
                return Decided(decision.answer, verdict.at, verdict.versions)

    async def choose(self, *alternatives: Alternative) -> Choice | Conflict:
        """Refuse: nothing here is decided in one step."""
        del alternatives
        raise UnsuitableStoreError(CAPABILITIES.backend, "it cannot choose between alternatives")

    def watch(self, *prefixes: RecordKey) -> Watch:  # noqa: ARG002 -- it sends no hints
        """Return a watch that never hears anything, as hints may be lost."""
        return _Deaf()

    async def settle(self, attempt: str) -> Verdict | None:  # noqa: ARG002 -- no outcome is ever unknown here
        """Return None: it leaves no outcome unknown."""
        return None

    async def another(self) -> NonAtomicStore:
        """Return this very store: it belongs to no loop and has nothing to close."""
        return self

    def liveness_token(self) -> str:
        """Return nothing: it sees no deaths."""
        return ""

    def is_dead(self, token: str) -> bool:  # noqa: ARG002 -- it sees no deaths
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

    async def wait(self, timeout: Duration | None = None) -> Notification | None:
        """Wait in vain."""
        try:
            async with asyncio.timeout(optional_seconds(timeout, what="timeout")):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            pass
        return None
