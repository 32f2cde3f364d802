"""Run locks: of all who could drive a run of a workflow, one does.

A run lock is a line like every other, one for each workflow and run, in which none waits. It is taken with a lease
that its holder renews (:meth:`RunLocks.try_acquire`), or held for the length of a block and renewed by itself
(:meth:`RunLocks.hold`); the two exclude each other.

The runs of an engine are included: while a worker drives a run its lock is refused, and while the lock is held no
worker drives the run (:mod:`standfast.locks.run_locks`).
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol, Unpack, final

from msgspec import Raw, Struct

from standfast.clock import MICROSECONDS, Instant, later, seconds_between
from standfast.codec import Codec
from standfast.errors import (
    InvalidArgumentError,
    LeaseLostError,
    LeaseTooShortError,
    ReentryError,
    RunHeldError,
    StoreClosedError,
    StoreError,
    WouldWaitError,
)
from standfast.events import LeaseLost, LockAcquired, LockReleased, SlowRoundTrip
from standfast.ids import new_id
from standfast.keys import MAX_KEY_BYTES, KeyFamily, RecordKey, encode_parts, record_key
from standfast.locks.acquire import FIRST_PAUSE, LONGEST_PAUSE, owner_of_task
from standfast.locks.heartbeat import MARGIN, PRESENCES, SLOW_IN_A_ROW
from standfast.locks.line import Entry, Granted, OfPresence, Rules, Until
from standfast.locks.line_records import (
    HEADS,
    READY,
    Enter,
    ExtraChanges,
    Leave,
    Left,
    LockSpec,
    MissingKeysError,
    Renew,
    given_in,
    ready_key,
)
from standfast.locks.lock_record import Renewal
from standfast.locks.locks import LAPSED, LONGEST_OWNER, DurableLock, check_lease, check_text, lock_end
from standfast.stores.protocol import Check, Delete, Put

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from standfast.durations import Duration
    from standfast.locks.line import Holder
    from standfast.locks.line_driver import LocalLine
    from standfast.locks.line_records import Answer
    from standfast.locks.line_step import Answered
    from standfast.locks.locks import Hold, Holding, HoldOptions
    from standfast.locks.registry import Lines
    from standfast.scope import Scope
    from standfast.stores.protocol import Change, Record, Snapshot


# --- A lease on a run: what one activation has in its hands while it drives the run --------------------------------

RUN_LOCK: Final = LockSpec("run lock", Rules(1))

SLOT: Final = 0
"""A run has one permit, so its grant is always the first."""

RELEASED: Final = "it was released"


class LeasedRun(Protocol):
    """What a lease asks of the line that it is a place in."""

    @property
    def key(self) -> object:
        """What is shown to people."""
        ...

    @property
    def names(self) -> tuple[str, str]:
        """The workflow's name and the run's id."""
        ...

    async def renew(self, token: str, lease: Duration | None) -> Renewal:
        """Prolong the lease with that token."""
        ...

    async def lapsed(self, token: str) -> Renewal:
        """Return what is to be said to a process that has lost the lease with that token."""
        ...

    async def release(self, token: str) -> bool:
        """Give up the lease with that token."""
        ...


@final
class RunLease:
    """A run, leased to one activation until :attr:`expires_at`. Get one from ``space.run_locks.try_acquire``.

    Nothing renews it but :meth:`renew`. Of two activations in one process each has a lease of its own.

    Attributes:
        workflow: The workflow's name.
        run_id: The run.
        token: Names this activation; a process that has it may renew and release.
        holder: Who holds it, for people.
        fence: A number that is larger than that of every earlier lease of this run.
        since: Since when, by the store's time.
        length: For how many seconds it was last asked.
        expires_at: When it ends by the store's time, unless it is renewed before.
        deadline: Until when this process relies on it, by its own clock: a tenth of the lease earlier, and reckoned
            from before the request was sent, so that it is never later than the store's.
        lost: Set when the run is no longer held, in any way. Wait for it, or ask :attr:`is_lost`.
        reason: Why it is no longer held; empty while it is.
    """

    __slots__ = (
        "_line",
        "_lines",
        "_run",
        "_timer",
        "changing",
        "deadline",
        "expires_at",
        "fence",
        "grant",
        "holder",
        "known_at",
        "length",
        "lost",
        "reason",
        "run_id",
        "since",
        "token",
        "workflow",
    )

    def __init__(self, lines: Lines, line: LocalLine, run: LeasedRun, holder: Holder, fence: int) -> None:
        self._lines, self._line, self._run = lines, line, run
        self.workflow, self.run_id = run.names
        self.token: Final = holder.entry.id
        self.holder: Final = holder.entry.owner
        self.fence: Final = fence
        self.since: Final = holder.granted_at
        self.known_at: Final = lines.clock.elapsed()
        self.grant: Final = line.driver.keys.grant(SLOT)
        self.lost: Final = asyncio.Event()
        self.changing: Final = asyncio.Lock()  # one renewal at a time: answers come in order
        self.reason = ""
        self.length = 0.0
        self.expires_at = self.deadline = Instant(0)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def guard(self) -> Check:
        """A change that lets a commit of the same space happen only while this is held: fencing in one step."""
        return Check(self.grant, self.fence)

    @property
    def is_lost(self) -> bool:
        """Whether the run is no longer held, as far as this process can tell; also when the lease is over by now."""
        if not self.reason and self._lines.clock.elapsed() >= self.deadline:
            self.lose(LAPSED)
        return bool(self.reason)

    def check(self) -> None:
        """Raise if the run is no longer held. Call it before what must not be done without it.

        Raises:
            LeaseLostError: The run is no longer held, or the lease may have lapsed meanwhile.
            StoreClosedError: This is a forked child: the parent holds the run.
        """
        self._lines.guard.check()
        if self.is_lost:
            raise LeaseLostError(str(self._run.key), self.fence, self.reason)

    async def renew(self, lease: Duration | None = None) -> Renewal:
        """Hold it for ``lease`` from now on, by default for as long as it was last asked; may also shorten it.

        The answer is true if that worked. Once lost, a lease never comes back, also if none has taken the run.

        Raises:
            StoreError: The store does not answer. The lease lasts until its deadline, or is shorter by now.
        """
        if self.is_lost:
            return await self._run.lapsed(self.token)
        return await self._run.renew(self.token, self.length if lease is None else lease)

    async def release(self) -> bool:
        """Give it up; return True if it was still held. Releasing again, or after another took over, does nothing.

        Raises:
            StoreError: The store does not answer. The lease is not to be used any more, and ends by itself.
        """
        return await self._run.release(self.token)

    # --- what the line says of it --------------------------------------------------------------------------------

    @property
    def presence(self) -> None:
        """It is anchored to no presence: it has an end of its own."""
        return

    @property
    def granted_at(self) -> Instant:
        """Since when it is held, by the store's time."""
        return self.since

    @property
    def called_from(self) -> str:
        """Who has taken it."""
        return self.holder

    def expect(self, asked_at: Instant, length: float) -> None:
        """Rely on no more than a lease of that length: it may have been granted, or not."""
        self.deadline = min(self.deadline, deadline_of(asked_at, length))
        self._set_timer()

    def extend(self, asked_at: Instant, length: float, expires_at: Instant) -> None:
        """Rely on a lease of that length: it has been granted."""
        self.length, self.expires_at, self.deadline = length, expires_at, deadline_of(asked_at, length)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left = (self.deadline - self._lines.clock.elapsed()) / MICROSECONDS
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._look)

    def _look(self) -> None:
        if not self.is_lost:  # the timer's clock is not the one that counts
            self._set_timer()

    def lose(self, reason: str) -> None:
        """Hear that it is no longer held."""
        if self.reason:
            return
        self.end(LAPSED if self._lines.clock.elapsed() >= self.deadline else reason)
        self._lines.hooks.emit(LeaseLost(fence=self.fence, reason=self.reason, **self._facts()))

    def _facts(self) -> dict[str, Any]:
        names = {"key": str(self._run.key), "family": RUNS.name, "kind": RUN_LOCK.kind}
        return {"at": self._lines.clock.wall(), **names}

    def tell_acquired(self, asked_at: Instant) -> None:
        """Tell the hooks that it is held from now on."""
        hooks = self._lines.hooks
        if hooks.want(LockAcquired):
            waited = seconds_between(asked_at, self.known_at)
            hooks.emit(LockAcquired(mode="", fence=self.fence, waited=waited, presence="", **self._facts()))

    def end(self, reason: str) -> None:
        """Be over, for that reason."""
        hooks = self._lines.hooks
        if not self.reason and hooks.want(LockReleased):
            held, outcome = seconds_between(self.known_at, self._lines.clock.elapsed()), lock_end(reason)
            hooks.emit(
                LockReleased(
                    mode="",
                    fence=self.fence,
                    held=held,
                    outcome="released" if reason == RELEASED else outcome,
                    **self._facts(),
                )
            )
        self.reason = self.reason or reason
        self.lost.set()
        if self._line.holds.get(self.token) is self:
            del self._line.holds[self.token]
        if self._timer is not None:
            self._timer.cancel()

    def __repr__(self) -> str:
        return f"<RunLease {self._run.key} fence={self.fence} {'lost' if self.reason else 'held'}>"


def deadline_of(asked_at: Instant, length: float) -> Instant:
    """Return until when a lease can be relied on that was asked for then."""
    return Instant(asked_at + round(length * (1 - MARGIN) * MICROSECONDS))


# --- the claim of a run: one record that run locks and the engine's workers both write when they take the run ------
#
# The engine keeps how a run is in one record, its *life*, and every claim of a worker rewrites that record at the
# version that it saw. Taking a run lock rewrites it as well, in the commit that grants the lock. So of a worker and a
# lock that want the run at the same moment one is refused, and a claim costs nothing more than before. A run that no
# engine knows has no such record, and its lock is a line like any other.
#
# The life belongs to :mod:`standfast.workflows`; here only those fields are known that say who has the run.

_TRUE: Final = Raw(b"true")


# --- where a run is listed that no worker drives: a run lock that takes a run from a dead worker has to list it ------

LISTINGS: Final[Codec[Any]] = Codec(bool | int, what="a time of a run that is listed")
LISTING: Final = LISTINGS.encode(value=True)
"""What a record of the index of runs holds if it does not say when the run was started: older versions never say it."""

ENDS: Final[frozenset[str]] = frozenset({"completed", "failed", "cancelled", "timed_out"})
"""How a run ends."""

NEAR: Final = 1_000_000
"""Microseconds: a run that came to be as it is so soon after its start has no record by that, it is near enough."""

MOST_TAGS: Final = 10
"""Under how many of its tags a run is listed: each is a record more in the commits that move it."""


@lru_cache(maxsize=10_000)
def _lane(namespace: str, tenant: str, kind: str, first: str, second: str) -> bytes:
    return encode_parts((namespace, tenant, kind, first, second))


def listings(
    scope: Scope,
    status: str,
    workflow: str,
    since: Instant,
    run: bytes,
    tags: Sequence[str] = (),
    started_at: Instant | None = None,
) -> dict[RecordKey, bytes]:
    """Return where a run is listed, and what is written there.

    It is listed among the runs of its workflow that are so, and among those of each of its tags, by the time since when
    it is so; the value says when it was started. One that came to be so long after its start is listed by its start as
    well, and the value says since when it is so; by its tags only once it has ended.

    A key that no store would take is left out: a run must be able to end, whatever it is called.

    Args:
        scope: Where the run lies.
        status: How it is.
        workflow: Its workflow.
        since: Since when it is so; the order of the lists.
        run: Its id, encoded as a part of a key.
        tags: Its tags.
        started_at: When it was started; None: not known.
    """
    namespace, tenant, rest = scope.namespace, scope.tenant, b"%016d\x00\x01%b" % (since, run)
    value = LISTING if started_at is None else LISTINGS.encode_own(started_at)
    key = _lane(namespace, tenant, "runs", status, workflow) + rest
    is_near = started_at is not None and 0 <= since - started_at < NEAR
    if is_near and not tags and len(key) <= MAX_KEY_BYTES:
        return {record_key(key): value}  # most of them
    listed = {key: value}
    if tags:
        tags = tuple(dict.fromkeys(tags[:MOST_TAGS]))
        listed |= {_lane(namespace, tenant, "tagged", tag, status) + rest: value for tag in tags}
    if started_at is not None and not is_near:
        rest, value = b"%016d\x00\x01%b" % (started_at, run), LISTINGS.encode_own(since)
        listed[_lane(namespace, tenant, "begun", status, workflow) + rest] = value
        if tags and status in ENDS:
            listed |= {_lane(namespace, tenant, "begun-tagged", tag, status) + rest: value for tag in tags}
    return {record_key(key): value for key, value in listed.items() if len(key) <= MAX_KEY_BYTES}


class RunClaim(Struct, frozen=True):
    """What a run's life says about who has the run.

    Attributes:
        workflow: The workflow's name.
        changed_at: Since when it is so.
        status: How it is.
        owner: The presence of the worker that drives it; empty: none does.
        leased: A run lock has been taken since a worker last drove it; whether it is held still, its line says.
        lease_awaited: A worker has found it leased, and is to be told of the release.
    """

    workflow: str
    changed_at: Instant
    status: str
    owner: str = ""
    leased: bool = False
    lease_awaited: bool = False


class RunListing(Struct, frozen=True):
    """What a run's header says about where the run is listed."""

    tags: tuple[str, ...] = ()
    started_at: Instant | None = None


LISTED_AS: Final[Codec[RunListing]] = Codec(RunListing, what="the header of a run")
CLAIMS: Final[Codec[RunClaim]] = Codec(RunClaim, what="the life of a run")
_LIVES: Final[Codec[dict[str, Raw]]] = Codec(dict[str, Raw], what="the life of a run")


class DrivenError(Exception):
    """A worker drives the run. Only raised and caught among run locks."""

    def __init__(self, owner: str) -> None:
        super().__init__(owner)
        self.owner = owner


@final
class ClaimGuard:
    """What taking and giving up the lock of one run does to the run's own records.

    Attributes:
        void: The presences that are gone: what they claimed can be taken from them.
    """

    __slots__ = ("_header", "_ready", "_scope", "_workflow", "life", "run_id", "void")

    def __init__(self, scope: Scope, workflow: str, run_id: str) -> None:
        self._scope, self._workflow, self.run_id = scope, workflow, run_id
        self.life: Final = scope.key("life", run_id)
        self._header: Final = scope.key("run", run_id)
        self._ready: Final = ready_key(scope, run_id)
        self.void: Final[set[str]] = set()

    def claim_in(self, record: Record | None) -> RunClaim | None:
        """Return what the life says; None: no engine knows such a run of this workflow."""
        claim = None if record is None else CLAIMS.decode(record.value)
        return claim if claim is not None and claim.workflow == self._workflow else None

    def own(self, presence: str) -> RecordKey:
        """Return where the grant of a worker's claim lies. Its version is the claim's fence."""
        return self._scope.key("own", presence, self.run_id)

    @property
    def on_enter(self) -> ExtraChanges[Answer]:
        """Go with the request for the lock: refuse it while a worker drives the run, else keep workers off."""
        return ExtraChanges((self.life, self._ready), self._enter)

    @property
    def on_leave(self) -> ExtraChanges[Answer]:
        """Go with the release of the lock: say so, and tell the workers if one of them has found it held."""
        return ExtraChanges((self.life, self._ready), self._leave)

    def _enter(self, answer: Answer, seen: Snapshot) -> Sequence[Change]:
        record = seen.get(self.life)
        claim = self.claim_in(record)
        if record is None or claim is None or not isinstance(answer, Granted):
            return ()
        if not claim.owner:  # also if it says so already: a worker may be about to claim what has just lapsed
            return (self._rewritten(record, leased=_TRUE),)
        if claim.owner not in self.void:
            raise DrivenError(claim.owner)
        own, given = self.own(claim.owner), given_in(seen)
        if missing := {own, self._header} - given:
            raise MissingKeysError(frozenset(missing))
        header = seen.get(self._header)
        known = RunListing() if header is None else LISTED_AS.decode(header.value)
        run, since = encode_parts((self.run_id,)), claim.changed_at
        listed = listings(self._scope, claim.status, claim.workflow, since, run, known.tags, known.started_at)
        if missing := set(listed) - given:
            raise MissingKeysError(frozenset(missing))
        freed = self._rewritten(record, leased=_TRUE, owner=None, waits_for=Raw(b'"a worker"'))
        gone = (Delete(own, seen.version(own)),) if seen.version(own) else ()
        puts = [Put(key, value, seen.version(key)) for key, value in listed.items()]
        return freed, *gone, Put(self._ready, READY, seen.version(self._ready)), *puts

    def _leave(self, answer: Answer, seen: Snapshot) -> Sequence[Change]:
        record = seen.get(self.life)
        claim = self.claim_in(record)
        if record is None or claim is None or not claim.leased or not (isinstance(answer, Left) and answer.was_holding):
            return ()
        free = self._rewritten(record, leased=None, lease_awaited=None)
        told = (Put(self._ready, READY, seen.version(self._ready)),) if claim.lease_awaited else ()
        return free, *told

    def _rewritten(self, record: Record, **fields: Raw | None) -> Put:
        life = {name: value for name, value in _LIVES.decode(record.value).items() if name not in fields}
        life.update({name: value for name, value in fields.items() if value is not None})
        return Put(self.life, _LIVES.encode_own(life), record.version)


# --- the line of one run: how it is leased, kept, given up and looked at -------------------------------------------

RUNS: Final = KeyFamily("standfast.run")


class RunLockInfo(Struct, frozen=True):
    """Who drives a run: the holder of its run lock, or a worker of an engine.

    Attributes:
        workflow: The workflow's name.
        run_id: The run.
        holder: Who holds it, for people.
        since: Since when, by the store's time.
        expires_at: When its lease ends by the store's time, unless it is renewed before. A worker has one lease for
            all its runs.
        fence: The fence of its lease. Those of workers and those of run locks are counted apart.
        backend: The kind of store that says so.
        worker: The presence of the worker that drives it, as in ``RunInfo.owner``; empty: a run lock holds it.
    """

    workflow: str
    run_id: str
    holder: str
    since: Instant
    expires_at: Instant
    fence: int
    backend: str
    worker: str = ""


@final
class RunLine(DurableLock):
    """The line of one run."""

    __slots__ = ("_claim", "names")

    def __init__(self, lines: Lines, workflow: str, run_id: str, lease: float) -> None:
        super().__init__(lines, RUNS(workflow, run_id), lease, spec=RUN_LOCK)
        self.names: Final = (workflow, run_id)
        self._claim: Final = ClaimGuard(lines.scope, workflow, run_id)

    def _line(self) -> LocalLine:
        self._lines.guard.check()
        if self._lines.is_closing:
            raise StoreClosedError(repr(self._lines.scope), "it was closed")
        return self._lines.line(self._address)

    def _length(self, lease: Duration | None) -> float:
        return self._lease if lease is None else check_lease(lease, self._lines.scope.store.capabilities)

    # --- taking it -----------------------------------------------------------------------------------------------

    async def acquire(self, token: str | None, holder: str, lease: Duration | None) -> RunLease | None:
        """Take it for a while, if it is free or has that token, and no worker drives the run."""
        line, length = self._line(), self._length(lease)
        entry = Entry(token or new_id(), holder, Until(Instant(0)), Instant(0))
        enter = Enter(entry, waits=False, lease=length, extra_changes=self._claim.on_enter)
        try:
            while True:
                try:
                    return await self._take(line, enter, length)
                except DrivenError as driven:
                    if not await self.is_void(driven):
                        return None
        except BaseException:
            if token is None:
                self._lines.own(self._withdraw(line, entry.id, length))
            raise

    async def is_void(self, driven: DrivenError) -> bool:
        """Return True if the worker that drives the run is gone; then the next request takes the run from it."""
        if await self._presence_end(driven.owner):
            return False
        self._claim.void.add(driven.owner)
        return True

    async def _take(self, line: LocalLine, enter: Enter, length: float) -> RunLease | None:
        """Ask, and ask again if the lease was over before the answer arrived: once is no mistake in its length."""
        for _ in range(SLOW_IN_A_ROW):
            answered = await self._enter(line, enter, length)
            asked_at = answered.sight.asked_at
            if self._lines.clock.elapsed() < deadline_of(asked_at, length):
                return self._granted(line, answered, length)
            if not isinstance(answered.answer, Granted):
                return None
            self._tell_slow(asked_at, length)
        problem = f"{SLOW_IN_A_ROW} times in a row it was over before the store's answer arrived"
        raise LeaseTooShortError(length, problem)

    async def _enter(self, line: LocalLine, enter: Enter, length: float) -> Answered:
        answered = await self._ask(line, enter, enter.entry.id, length)
        holders = answered.sight.line.holders
        is_attended = any(isinstance(holder.entry.anchor, OfPresence) for holder in holders)
        if is_attended and not isinstance(answered.answer, Granted) and await self._lines.reap(line):
            return await self._ask(line, enter, enter.entry.id, length)
        return answered

    async def _ask(self, line: LocalLine, request: Enter | Renew, token: str, length: float) -> Answered:
        """Ask for a lease of that length, and rely on no longer one meanwhile: it may be granted and not answered."""
        known = line.holds.get(token)
        if not isinstance(known, RunLease):
            return await line.driver.do(request, RUN_LOCK)
        async with known.changing:
            known.expect(self._lines.clock.elapsed(), length)
            return await line.driver.do(request, RUN_LOCK)

    def _granted(self, line: LocalLine, answered: Answered, length: float) -> RunLease | None:
        answer, sight = answered.answer, answered.sight
        if not isinstance(answer, Granted) or answer.holder.entry.id not in sight.fences:
            return None
        token = answer.holder.entry.id
        lease = line.holds.get(token)
        if not isinstance(lease, RunLease):  # an earlier one that is over was told so by the line
            lease = RunLease(self._lines, line, self, answer.holder, sight.fences[token])
            line.holds[token] = lease
            if self._lines.hooks:
                lease.tell_acquired(sight.asked_at)
        lease.extend(sight.asked_at, length, _end_of(answer.holder))
        return lease

    def _tell_slow(self, asked_at: Instant, length: float) -> None:
        hooks, clock = self._lines.hooks, self._lines.clock
        took, store = seconds_between(asked_at, clock.elapsed()), repr(self._lines.scope.store)
        hooks.emit(SlowRoundTrip(at=clock.wall(), store=store, seconds=took, lease=length))

    async def _withdraw(self, line: LocalLine, token: str, length: float) -> None:
        """Take back what may have been written, as long as it may last."""
        pause, end = 0.0, later(self._lines.clock.elapsed(), length)
        while not self._lines.is_closing and self._lines.clock.elapsed() < end:
            try:
                await line.driver.ask(self._leave(token), RUN_LOCK)
            except StoreError:
                pause = min(2 * pause or FIRST_PAUSE, LONGEST_PAUSE)
                await asyncio.sleep(pause)
            else:
                return

    # --- keeping it and giving it up -----------------------------------------------------------------------------

    async def renew(self, token: str, lease: Duration | None) -> Renewal:
        """Prolong the lease with that token."""
        line, length = self._line(), self._length(lease)
        known = line.holds.get(token)
        ours = known if isinstance(known, RunLease) else None
        answered = await self._ask(line, Renew(token, length, SLOT), token, length)
        answer, sight = answered.answer, answered.sight
        if not isinstance(answer, Granted):
            return await self._not_renewed(sight.line.holders, token)
        expires_at = _end_of(answer.holder)
        if ours is not None:
            ours.extend(sight.asked_at, length, expires_at)
        if ours is not None and ours.is_lost:  # the answer came too late to be relied on
            self._lines.own(self._withdraw(line, token, length))
            return Renewal(renewed=False)
        return Renewal(renewed=True, fence=sight.fences.get(token, 0), lease_expires_at=expires_at)

    async def lapsed(self, token: str) -> Renewal:
        """Return what is to be said to a process that has lost the lease with that token."""
        sight = await self._line().look()
        alive = [holder for holder in sight.line.holders if await self._expiry(holder, sight.at) is not None]
        return await self._not_renewed(alive, token)

    async def _not_renewed(self, holders: Sequence[Holder], token: str) -> Renewal:
        taken_by = tuple(holder.entry.owner for holder in holders if holder.entry.id != token)
        if not holders and (driven := await self.get()) is not None:
            return Renewal(renewed=False, free=False, taken_by=(driven.holder,))
        return Renewal(renewed=False, free=not holders, taken_by=taken_by)

    async def release(self, token: str) -> bool:
        """Give up the lease with that token."""
        line = self._line()
        known = line.holds.get(token)
        if isinstance(known, RunLease):
            known.end(RELEASED)
        left = (await line.driver.ask(self._leave(token), RUN_LOCK)).answer
        return isinstance(left, Left) and left.was_holding

    def _leave(self, token: str) -> Leave:
        return Leave(token, SLOT, extra_changes=self._claim.on_leave)

    # --- for the length of a block -------------------------------------------------------------------------------

    def holding(self, options: HoldOptions) -> Holding:
        """Return what holds it for the length of a block."""
        claim = self._claim
        return self._holding(options, waits=False, depth=3, extra_changes=claim.on_enter, on_leave=claim.on_leave)

    async def held(self, refusal: WouldWaitError | ReentryError | DrivenError) -> RunHeldError:
        """Return the error that says who holds it."""
        info = await self.get()
        if info is not None:
            return RunHeldError(*self.names, info.holder, info.expires_at)
        if isinstance(refusal, DrivenError):
            return RunHeldError(*self.names, refusal.owner, None)
        holders = refusal.holders if isinstance(refusal, WouldWaitError) else ("this task",)
        return RunHeldError(*self.names, ", ".join(holders), None)

    # --- looking at it -------------------------------------------------------------------------------------------

    async def get(self) -> RunLockInfo | None:
        """Return who holds it, or which worker drives the run; None: none does."""
        keys = self._line().driver.keys
        seen = await self._lines.scope.read(keys.head, keys.grant(SLOT), self._claim.life)
        claim = self._claim.claim_in(seen.get(self._claim.life))
        if claim is not None and claim.owner:
            return await self._driver(claim)
        return await self._lease_in(seen)

    async def leased(self) -> RunLockInfo | None:
        """Return who holds the lock; None: none does, or a lease that is over."""
        keys = self._line().driver.keys
        return await self._lease_in(await self._lines.scope.read(keys.head, keys.grant(SLOT)))

    async def _lease_in(self, seen: Snapshot) -> RunLockInfo | None:
        keys = self._line().driver.keys
        head, grant = seen.get(keys.head), seen.get(keys.grant(SLOT))
        if head is None or grant is None:
            return None
        [holder] = HEADS.decode(head.value).holders
        expires_at = await self._expiry(holder, seen.at)
        if expires_at is None:
            return None
        return RunLockInfo(*self.names, holder.entry.owner, holder.granted_at, expires_at, grant.version, self._backend)

    async def _driver(self, claim: RunClaim) -> RunLockInfo | None:
        """Return the worker that drives the run; None: it is gone."""
        scope, own = self._lines.scope, self._claim.own(claim.owner)
        presence = self._line().driver.keys.presence(claim.owner)
        seen = await scope.read(own, presence)
        record = seen.get(presence)
        described = None if record is None else PRESENCES.decode(record.value)
        if record is None or described is None or scope.store.is_dead(described.liveness_token):
            return None
        holder = f"{described.host}/{described.process}/worker {claim.owner}"
        expires_at = record.expires_at or Instant(0)
        fence = seen.version(own)
        return RunLockInfo(*self.names, holder, claim.changed_at, expires_at, fence, self._backend, claim.owner)

    @property
    def _backend(self) -> str:
        return self._lines.scope.store.capabilities.backend

    async def _expiry(self, holder: Holder, at: Instant) -> Instant | None:
        """Return when a holder's lease ends; None: it is over."""
        anchor = holder.entry.anchor
        attended = await self._presence_end(anchor.presence) if isinstance(anchor, OfPresence) else None
        ends = [_end_of(holder) if attended is None else attended]
        if holder.ends_at is not None:
            ends.append(holder.ends_at)
        end = min(ends)
        return end if end > at else None

    async def _presence_end(self, name: str) -> Instant:
        scope = self._lines.scope
        key = self._lines.line(self._address).driver.keys.presence(name)
        record = (await scope.read(key)).get(key)
        if record is None or scope.store.is_dead(PRESENCES.decode(record.value).liveness_token):
            return Instant(0)
        return record.expires_at or Instant(0)


def _end_of(holder: Holder) -> Instant:
    anchor = holder.entry.anchor
    return anchor.at if isinstance(anchor, Until) else Instant(0)


# --- run locks: of all who could drive a run of a workflow, one does -----------------------------------------------

LONGEST_TOKEN: Final = 200


@final
class RunLocks:
    """Leases on runs: only one activation at a time drives a run, in all processes on the store.

    Get it from ``space.run_locks``. Runs are told apart by the workflow's name and the run's id together.

    >>> async with sf.open("memory://") as space:
    ...     lease = await space.run_locks.try_acquire("checkout", "run-1", lease="30s")
    ...     print(await space.run_locks.try_acquire("checkout", "run-1"))
    ...     print(await lease.release())
    None
    True
    """

    __slots__ = ("_lease", "_lines")

    def __init__(self, lines: Lines, lease: float) -> None:
        self._lines, self._lease = lines, lease

    async def try_acquire(
        self,
        workflow: str,
        run_id: str,
        *,
        lease: Duration | None = None,
        token: str | None = None,
        holder: str | None = None,
    ) -> RunLease | None:
        """Lease a run if it is free, or its lease is over; answer at once. None: another activation holds it.

        So does a worker of an engine that drives the run, until it has suspended it or has died.

        Args:
            workflow: The workflow's name.
            run_id: The run.
            lease: For how long; by default the space's. It is not renewed by itself.
            token: Names the activation. By default a new one, so that two activations in one process exclude each
                other, too; with the token of the present lease, it is prolonged from now on and keeps its fence.
            holder: Who, for people; by default the host, process and task.

        Raises:
            StoreError: The store does not answer. Then the run is not leased: what may have been written is taken
                back, or ends with the lease.
            LeaseTooShortError: The lease is shorter than one answer of the store takes.
        """
        run = self._run(workflow, run_id)
        named = None if token is None else _token(token)
        return await run.acquire(named, check_text(holder, "holder", LONGEST_OWNER) or owner_of_task(), lease)

    async def renew(self, workflow: str, run_id: str, *, token: str, lease: Duration | None = None) -> Renewal:
        """Hold a run for ``lease`` from now on, by default the space's, if the lease with that token still lasts.

        The answer is true if that worked. If not, nothing has changed, and it says whether the run is free or who has
        taken it: a lease that is over is not renewed, also if none has.
        """
        return await self._run(workflow, run_id).renew(_token(token), lease)

    async def release(self, workflow: str, run_id: str, *, token: str) -> bool:
        """Give up the lease with that token; return True if it was held. With any other token nothing happens."""
        return await self._run(workflow, run_id).release(_token(token))

    async def get(self, workflow: str, run_id: str) -> RunLockInfo | None:
        """Return who holds a run, or which worker drives it; None: none does."""
        return await self._run(workflow, run_id).get()

    def hold(self, workflow: str, run_id: str, **options: Unpack[HoldOptions]) -> RunHolding:
        """Hold a run for the length of an ``async with`` block, renewing the lease by itself.

        Takes the options of :class:`~standfast.locks.HoldOptions`. The heartbeat is that of the space: three times in a
        lease unless it was opened with another. If the store does not answer when the block ends, giving back goes
        on in the background, and the lease ends it at the latest; what the block did stays done.

        Raises:
            RunHeldError: On entering: another activation holds the run, or a worker drives it.
            LeaseLostError: On leaving: it was lost while the block ran; the block has been cancelled.
            StoreError: On entering: the store does not answer. Nothing is held.
        """
        run = self._run(workflow, run_id)
        return RunHolding(run, run.holding(options))

    def _run(self, workflow: str, run_id: str) -> RunLine:
        return RunLine(self._lines, _name("workflow", workflow), _name("run", run_id), self._lease)

    def __repr__(self) -> str:
        return f"<RunLocks in {self._lines.scope!r}>"


@final
class RunHolding:
    """A run to be held for the length of an ``async with`` block."""

    __slots__ = ("_holding", "_run")

    def __init__(self, run: RunLine, holding: Holding) -> None:
        self._run, self._holding = run, holding

    async def __aenter__(self) -> Hold:
        while True:
            try:
                return await self._holding.__aenter__()
            except (WouldWaitError, ReentryError) as refusal:
                raise await self._run.held(refusal) from None
            except DrivenError as driven:
                if not await self._run.is_void(driven):
                    raise await self._run.held(driven) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._holding.__aexit__(kind, error, trace)


def _name(what: str, value: str) -> str:
    if not isinstance(value, str) or not value:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        raise InvalidArgumentError(f"the {what} of a lock", "it must be text, and not empty", ascii(value)[:60])
    return value


def _token(value: str) -> str:
    if not check_text(value, "token", LONGEST_TOKEN):
        raise InvalidArgumentError("the token of a lock", "it must not be empty, or all callers would share it", "''")
    return value
