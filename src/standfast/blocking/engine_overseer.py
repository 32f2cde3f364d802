"""What an operator does from blocking code: make runs go on, start them again, delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from standfast.blocking.engine_client import Client
from standfast.blocking.run import Run, as_blocking

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from standfast.durations import Duration
    from standfast.workflows.admin import Looked, Recovered
    from standfast.workflows.definition import Workflow
    from standfast.workflows.queries import RunInfo


class Overseer(Client):
    """A client that can also look after runs which do not go on by themselves."""

    # --- limits --------------------------------------------------------------------------------------------------

    def set_limit(self, workflow: Workflow[..., Any], max: int, *, key: str | None = None) -> None:  # noqa: A002 -- as in Limit
        """Allow so many unfinished runs at a time from now on, in all processes, whatever their code says.

        It stays so until :meth:`clear_limit`, also while nothing runs. A larger number lets waiting runs begin at once;
        a smaller one ends none.

        Args:
            workflow: Which; it has to have such a limit.
            max: How many.
            key: The key of a limit for each key; None: the limit of all runs together.
        """
        self._link.call(lambda engine: engine.set_limit(workflow, max, key=key))

    def clear_limit(self, workflow: Workflow[..., Any], *, key: str | None = None) -> None:
        """Allow as many unfinished runs as the workflow's code says, from now on."""
        self._link.call(lambda engine: engine.clear_limit(workflow, key=key))

    # --- making runs go on ---------------------------------------------------------------------------------------

    def resume(self, run_id: str) -> RunInfo:
        """Look at a run now, and return how it is then.

        If something of it is due and nobody drives it, this engine takes it up; one that drives none tells the others.
        A run that is driven elsewhere, or has nothing due, is left as it is. Workers do this by themselves: it is for
        those who do not want to wait for that.
        """
        return self._link.call(lambda engine: engine.resume(run_id))

    def sweep(self, limit: int = 100) -> tuple[Looked, ...]:
        """Look at every run that is due, the longest due first, and at those for which there is news.

        One that cannot be taken up does not keep the others from it.

        Args:
            limit: How many at most.

        Returns:
            What became of each; see :class:`~standfast.workflows.admin.Looked`.
        """
        return self._link.call(lambda engine: engine.sweep(limit))

    def recover_all(self, *, unknown: Literal["leave", "raise"] = "leave") -> Recovered:
        """Look at every unfinished run, and take up those that can go on.

        Workers do this by themselves; this is for whoever wants to know that nothing was forgotten.

        Args:
            unknown: What to do about runs of workflows, or versions, that this engine does not have: ``"leave"`` them
                to other engines, each with a :class:`~standfast.events.RunLeftAlone`; or ``"raise"``.

        Raises:
            WorkflowTypeNotRegisteredForRecoveryError: There are such runs. Nothing was resumed.
        """
        return self._link.call(lambda engine: engine.recover_all(unknown=unknown))

    # --- starting again ------------------------------------------------------------------------------------------

    def restart(self, run_id: str, *, id: str | None = None) -> Run[Any]:  # noqa: A002 -- the word that users know
        """Start a new run with the input of another one, from its beginning. That one is left as it is.

        Args:
            run_id: The run to take the input from.
            id: The new run's id; by default a new one.
        """
        return as_blocking(self._link, self._link.call(lambda engine: engine.restart(run_id, id=id)))

    def fork(self, run_id: str, step: str, *, id: str | None = None) -> Run[Any]:  # noqa: A002 -- the word that users know
        """Start a new run that goes on from a step of another one, which is left as it is.

        The new run has recorded what the other one had when it came to the step: earlier steps are not run again, the
        step itself and everything after it are. What came later in other branches is not taken over, and neither are
        signals that were not taken by then, nor the states of the run. A step inside of ``async with ctx.mutex(...)``
        is refused: the new run does not hold the lock.

        Args:
            run_id: The run to fork.
            step: The id of the step in its history: ``charge``, ``charge#2``, ``g1.0/charge``.
            id: The new run's id; by default a new one.
        """
        return as_blocking(self._link, self._link.call(lambda engine: engine.fork(run_id, step, id=id)))

    def retry(self, run_id: str, *, step: str | None = None) -> RunInfo:
        """Let a run go on that failed, was cancelled, has timed out, or is quarantined; return how it is then.

        It goes on from its history. What made it fail is forgotten, with everything that was recorded after it: the
        step that failed runs again, with all its attempts, and so do those that cleaned up. If its code itself raised,
        nothing is forgotten, and it goes on with the code as it is now. A cancelled or timed-out run goes on where it
        was when it was told, with as much time as it had at first. Children that it still waits for go on too. A run
        that has not ended is left as it is; one that has completed is refused.

        Args:
            run_id: The run.
            step: Go on from this step, in place of the one that failed.
        """
        return self._link.call(lambda engine: engine.retry(run_id, step=step))

    # --- deleting ------------------------------------------------------------------------------------------------

    def purge(
        self,
        run_id: str | None = None,
        *,
        before: datetime | None = None,
        older_than: Duration | None = None,
        status: str | Collection[str] | None = None,
        workflow: str | None = None,
        force: bool = False,
    ) -> int:
        """Delete runs that have ended, with everything that they have started; return how many runs that were.

        Nothing of them remains but their idempotency keys, so that what was done once is not done again, and how often
        each chosen id was used, so that a new run of that id has idempotency keys of its own.

        Args:
            run_id: This run. Without it, all that everything else says; something must be said.
            before: Those that ended before this moment.
            older_than: Those that ended at least so long ago.
            status: Those that ended so.
            workflow: Those of this workflow.
            force: Also those that have not ended: they are cancelled by force, and what they hold is released.

        Raises:
            RunUnfinishedError: The run, or one that belongs to it, has not ended. Several at once skip such runs.
        """
        return self._link.call(
            lambda engine: engine.purge(
                run_id, before=before, older_than=older_than, status=status, workflow=workflow, force=force
            )
        )

    def erase(self, *, tenant: str) -> int:
        """Delete everything that this engine's tenant has in the store: runs, states, locks, idempotency keys.

        Runs that have not ended are cancelled by force first. Versions keep growing, so a fence that was given out
        before is never given out again. What others do in this tenant meanwhile may remain: stop them first.

        Args:
            tenant: The name of the tenant, so that nobody is erased by mistake: it must be the engine's own.

        Returns:
            How many records there were besides those of runs.
        """
        return self._link.call(lambda engine: engine.erase(tenant=tenant))
