"""Run locks: of all who could drive a run of a workflow, one does.

A run lock is a line like every other, one for each workflow and run, in which nobody waits. It is taken with a lease
that its holder renews (:meth:`RunLocks.try_acquire`), or held for the length of a block and renewed by itself
(:meth:`RunLocks.hold`); the two exclude each other.

The runs of an engine are included: while a worker drives a run its lock is refused, and while the lock is held no
worker drives the run (:mod:`standfast.locks.runs.claim`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack, final

from standfast.errors import InvalidLockArgumentError, ReentryError, WouldWaitError
from standfast.locks.driving.owners import owner_of_task
from standfast.locks.options import LONGEST_OWNER, check_text
from standfast.locks.runs.claim import DrivenError
from standfast.locks.runs.run_line import RunLine

if TYPE_CHECKING:
    from types import TracebackType

    from standfast.durations import Duration
    from standfast.locks.algebra.record import Renewal
    from standfast.locks.driving.hold import Hold, Holding
    from standfast.locks.driving.lines import Lines
    from standfast.locks.options import HoldOptions
    from standfast.locks.runs.run_lease import RunLease
    from standfast.locks.runs.run_line import RunLockInfo

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
        taken it: a lease that is over is not renewed, also if nobody has.
        """
        return await self._run(workflow, run_id).renew(_token(token), lease)

    async def release(self, workflow: str, run_id: str, *, token: str) -> bool:
        """Give up the lease with that token; tell whether it was held. With any other token nothing happens."""
        return await self._run(workflow, run_id).release(_token(token))

    async def get(self, workflow: str, run_id: str) -> RunLockInfo | None:
        """Return who holds a run, or which worker drives it; None: nobody."""
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
        raise InvalidLockArgumentError(what, ascii(value)[:60], "it must be text, and not empty")
    return value


def _token(value: str) -> str:
    if not check_text(value, "token", LONGEST_TOKEN):
        raise InvalidLockArgumentError("token", "''", "it must not be empty, or everybody would have the same")
    return value
