"""A lease on a run: what one activation has in its hands while it drives the run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, final

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import LeaseLostError
from standfast.events import LeaseLost
from standfast.locks.algebra.line import Rules
from standfast.locks.driving.presence import MARGIN
from standfast.locks.driving.records import Site
from standfast.stores.protocol import Check

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.locks.algebra.entries import Holder
    from standfast.locks.algebra.record import Renewal
    from standfast.locks.driving.lines import Lines
    from standfast.locks.driving.local_line import LocalLine

RUN_LOCK: Final = Site("run lock", Rules(1))

SLOT: Final = 0
"""A run has one permit, so its grant is always the first."""

LAPSED: Final = "its lease lapsed: it was not renewed in time"
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
        """Return what is to be said to whoever has lost the lease with that token."""
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
        token: Names this activation; whoever has it may renew and release.
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
            ForkedError: This is a forked child: the parent holds the run.
        """
        self._lines.guard.check()
        if self.is_lost:
            raise LeaseLostError(str(self._run.key), self.fence, self.reason)

    async def renew(self, lease: Duration | None = None) -> Renewal:
        """Hold it for ``lease`` from now on, by default for as long as it was last asked; may also shorten it.

        The answer is true if that worked. Once lost, a lease never comes back, also if nobody has taken the run.

        Raises:
            StoreError: The store does not answer. The lease lasts until its deadline, or is shorter by now.
        """
        if self.is_lost:
            return await self._run.lapsed(self.token)
        return await self._run.renew(self.token, self.length if lease is None else lease)

    async def release(self) -> bool:
        """Give it up; tell whether it was still held. Releasing again, or after another took over, does nothing.

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
        if self._lines.hooks:
            at = self._lines.clock.wall()
            self._lines.hooks.emit(LeaseLost(at=at, key=str(self._run.key), fence=self.fence, reason=self.reason))

    def end(self, reason: str) -> None:
        """Be over, for that reason."""
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
