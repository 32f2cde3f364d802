"""Leases on runs, for blocking code."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Unpack, final

from standfast.blocking._background import call
from standfast.blocking._owner import owner_of_thread
from standfast.blocking.hold import Holding, Lost
from standfast.blocking.options import as_async

if TYPE_CHECKING:
    from standfast.blocking._background import Background
    from standfast.blocking._link import Bound
    from standfast.blocking.hold import AsyncHolding
    from standfast.blocking.options import HoldOptions
    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.locks import Renewal, RunLockInfo
    from standfast.locks import RunLease as AsyncRunLease
    from standfast.locks import RunLocks as AsyncRunLocks
    from standfast.stores.protocol import Check


@final
class RunLocks:
    """Leases on runs: only one activation at a time drives a run, in all processes. Get it from ``space.run_locks``.

    >>> with sf.blocking.open("memory://") as space:
    ...     lease = space.run_locks.try_acquire("checkout", "run-1", lease="30s")
    ...     print(space.run_locks.try_acquire("checkout", "run-1"))
    ...     print(lease.release())
    None
    True
    """

    __slots__ = ("_runs",)

    def __init__(self, runs: Bound[AsyncRunLocks]) -> None:
        self._runs: Final = runs

    def __repr__(self) -> str:
        return f"<blocking {self._runs.now()[1]!r}>"

    def try_acquire(
        self,
        workflow: str,
        run_id: str,
        *,
        lease: Duration | None = None,
        token: str | None = None,
        holder: str | None = None,
    ) -> RunLease | None:
        """Lease a run if it is free, or its lease is over; answer at once. None: another activation holds it.

        Args:
            workflow: The workflow's name.
            run_id: The run.
            lease: For how long; by default the space's. It is not renewed by itself.
            token: Names the activation. By default a new one; with the token of the present lease, it is prolonged.
            holder: Who, for people; by default the host, process and thread.

        Raises:
            StoreError: The store does not answer. Then the run is not leased.
            LeaseTooShortError: The lease is shorter than one answer of the store takes.
        """
        background, runs = self._runs.now()
        name = owner_of_thread() if holder is None else holder
        found = call(
            background,
            lambda: runs.try_acquire(workflow, run_id, lease=lease, token=token, holder=name),
            _give_up,
        )
        return None if found is None else RunLease(background, found)

    def renew(self, workflow: str, run_id: str, *, token: str, lease: Duration | None = None) -> Renewal:
        """Hold a run for ``lease`` from now on, by default the space's, if the lease with that token still lasts."""
        return self._runs.call(lambda runs: runs.renew(workflow, run_id, token=token, lease=lease))

    def release(self, workflow: str, run_id: str, *, token: str) -> bool:
        """Give up the lease with that token; tell whether it was held. With any other token nothing happens."""
        return self._runs.call(lambda runs: runs.release(workflow, run_id, token=token))

    def get(self, workflow: str, run_id: str) -> RunLockInfo | None:
        """Return who holds a run; None: nobody."""
        return self._runs.call(lambda runs: runs.get(workflow, run_id))

    def hold(self, workflow: str, run_id: str, **options: Unpack[HoldOptions]) -> Holding:
        """Hold a run for the length of a ``with`` block, renewing the lease by itself; options as for a mutex.

        Raises:
            RunHeldError: On entering: another activation holds the run.
            LeaseLostError: On leaving: it was lost while the block ran.
            StoreError: On entering: the store does not answer. Nothing is held.
        """

        def made() -> tuple[Background, AsyncHolding]:
            background, runs = self._runs.now()
            return background, runs.hold(workflow, run_id, **as_async(options))

        return Holding(made)


@final
class RunLease:
    """A run, leased to one activation until :attr:`expires_at`. Get one from ``space.run_locks.try_acquire``.

    Nothing renews it but :meth:`renew`. A forked child has no part in the leases of its parent.

    Attributes:
        workflow: The workflow's name.
        run_id: The run.
        token: Names this activation; whoever has it may renew and release.
        holder: Who holds it, for people.
        fence: A number that is larger than that of every earlier lease of this run.
        since: Since when, by the store's time.
        lost: Wait for it in another thread to hear that the run is no longer held, or ask :attr:`is_lost`.
    """

    __slots__ = ("_background", "_lease", "fence", "holder", "lost", "run_id", "since", "token", "workflow")

    def __init__(self, background: Background, lease: AsyncRunLease) -> None:
        self._background, self._lease = background, lease
        self.workflow: Final[str] = lease.workflow
        self.run_id: Final[str] = lease.run_id
        self.token: Final[str] = lease.token
        self.holder: Final[str] = lease.holder
        self.fence: Final[int] = lease.fence
        self.since: Final[Instant] = lease.since
        self.lost: Final = Lost(background, self._is_lost, lease.lost, asyncio.Event())

    def __repr__(self) -> str:
        return f"<blocking {self._lease!r}>"

    @property
    def length(self) -> float:
        """For how many seconds it was last asked."""
        return self._lease.length

    @property
    def expires_at(self) -> Instant:
        """When it ends by the store's time, unless it is renewed before."""
        return self._lease.expires_at

    @property
    def deadline(self) -> Instant:
        """Until when this process relies on it, by its own clock."""
        return self._lease.deadline

    @property
    def reason(self) -> str:
        """Why it is no longer held; empty while it is."""
        return self._lease.reason

    @property
    def guard(self) -> Check:
        """A change that lets a commit of the same space happen only while this is held: fencing in one step."""
        return self._lease.guard

    @property
    def is_lost(self) -> bool:
        """Whether the run is no longer held, as far as this process can tell; also when the lease is over by now."""
        return self._is_lost()

    def _is_lost(self) -> bool:
        self._background.guard.check()
        return bool(self._lease.reason) or call(self._background, self._ask)

    async def _ask(self) -> bool:
        return self._lease.is_lost

    def check(self) -> None:
        """Raise if the run is no longer held. Call it before what must not be done without it.

        Raises:
            LeaseLostError: The run is no longer held, or the lease may have lapsed meanwhile.
            ForkedError: This is a forked child: the parent holds the run.
        """
        if self._is_lost():
            self._lease.check()

    def renew(self, lease: Duration | None = None) -> Renewal:
        """Hold it for ``lease`` from now on, by default for as long as it was last asked; may also shorten it."""
        self._background.guard.check()
        return call(self._background, lambda: self._lease.renew(lease))

    def release(self) -> bool:
        """Give it up; tell whether it was still held. Releasing again, or after another took over, does nothing."""
        self._background.guard.check()
        return call(self._background, self._lease.release)


async def _give_up(lease: AsyncRunLease | None) -> None:
    if lease is not None:
        await lease.release()
