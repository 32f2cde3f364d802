"""The line of one run: how it is leased, kept, given up and looked at."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from msgspec import Struct

from standfast.clock import Instant, later, seconds_between
from standfast.errors import (
    LeaseTooShortError,
    ReentryError,
    RunHeldError,
    StoreClosedError,
    StoreError,
    WouldWaitError,
)
from standfast.events import SlowRoundTrip
from standfast.ids import new_id
from standfast.keys import KeyFamily
from standfast.locks.algebra.entries import Attended, Entry, Until
from standfast.locks.algebra.line import Granted
from standfast.locks.algebra.record import Renewal
from standfast.locks.driving.acquiring import FIRST_PAUSE, LONGEST_PAUSE
from standfast.locks.driving.keeper import SLOW_IN_A_ROW
from standfast.locks.driving.presence import PRESENCES
from standfast.locks.driving.records import HEADS
from standfast.locks.driving.requests import Enter, Leave, Left, Renew
from standfast.locks.locking import DurableLock
from standfast.locks.options import check_lease
from standfast.locks.runs.claim import ClaimGuard, DrivenError
from standfast.locks.runs.run_lease import RELEASED, RUN_LOCK, SLOT, RunLease, deadline_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from standfast.durations import Duration
    from standfast.locks.algebra.entries import Holder
    from standfast.locks.driving.driver import Answered
    from standfast.locks.driving.hold import Holding
    from standfast.locks.driving.lines import Lines
    from standfast.locks.driving.local_line import LocalLine
    from standfast.locks.options import HoldOptions
    from standfast.locks.runs.claim import RunClaim
    from standfast.stores.protocol import Snapshot

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
        super().__init__(lines, RUNS(workflow, run_id), RUN_LOCK, lease)
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
        enter = Enter(entry, waits=False, lease=length, along=self._claim.on_enter)
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
        is_attended = any(isinstance(holder.entry.anchor, Attended) for holder in holders)
        if is_attended and not isinstance(answered.answer, Granted) and await self._lines.look_after(line):
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
        lease.extend(sight.asked_at, length, _end_of(answer.holder))
        return lease

    def _tell_slow(self, asked_at: Instant, length: float) -> None:
        hooks, clock = self._lines.hooks, self._lines.clock
        if hooks:
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
        """Return what is to be said to whoever has lost the lease with that token."""
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
        return Leave(token, SLOT, along=self._claim.on_leave)

    # --- for the length of a block -------------------------------------------------------------------------------

    def holding(self, options: HoldOptions) -> Holding:
        """Return what holds it for the length of a block."""
        claim = self._claim
        return self._holding(options, waits=False, depth=3, along=claim.on_enter, on_leave=claim.on_leave)

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
        """Return who holds it, or which worker drives the run; None: nobody."""
        keys = self._line().driver.keys
        seen = await self._lines.scope.read(keys.head, keys.grant(SLOT), self._claim.life)
        claim = self._claim.claim_in(seen.get(self._claim.life))
        if claim is not None and claim.owner:
            return await self._driver(claim)
        return await self._lease_in(seen)

    async def leased(self) -> RunLockInfo | None:
        """Return who holds the lock; None: nobody, or a lease that is over."""
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
        if record is None or described is None or scope.store.is_severed(described.lifeline):
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
        attended = await self._presence_end(anchor.presence) if isinstance(anchor, Attended) else None
        ends = [_end_of(holder) if attended is None else attended]
        if holder.ends_at is not None:
            ends.append(holder.ends_at)
        end = min(ends)
        return end if end > at else None

    async def _presence_end(self, name: str) -> Instant:
        scope = self._lines.scope
        key = self._lines.line(self._address).driver.keys.presence(name)
        record = (await scope.read(key)).get(key)
        if record is None or scope.store.is_severed(PRESENCES.decode(record.value).lifeline):
            return Instant(0)
        return record.expires_at or Instant(0)


def _end_of(holder: Holder) -> Instant:
    anchor = holder.entry.anchor
    return anchor.at if isinstance(anchor, Until) else Instant(0)
