"""The engine: starts runs, talks to them, and drives them."""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import Mapping
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, cast, final

from standfast.clock import MICROSECONDS, Instant, later
from standfast.durations import seconds
from standfast.errors import (
    EngineCreateNameMismatchError,
    EngineNotOpenError,
    ForkedError,
    InvalidWorkflowError,
    UnknownWorkflowError,
    WrongLoopError,
)
from standfast.events import Hooks
from standfast.locks.locks import DEFAULT_LEASE
from standfast.redaction import mask_url
from standfast.space import Space, lines_of
from standfast.space import open as open_space
from standfast.workflows import admin as administration
from standfast.workflows import claims as recovering
from standfast.workflows import limits as setting
from standfast.workflows import retention
from standfast.workflows.catalog import declare
from standfast.workflows.claims import recover
from standfast.workflows.client import Client, Run
from standfast.workflows.debounce import Batched, Debounced
from standfast.workflows.definition import Step, Workflow, as_step, unbound
from standfast.workflows.runtime import MOST, MOST_DEATHS, Runtime, Threads
from standfast.workflows.schedules.schedules import Schedules
from standfast.workflows.schedules.ticker import Ticker
from standfast.workflows.worker import GRACE, Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.stores.address import Credentials
    from standfast.stores.encryption import Keyring
    from standfast.workflows.claims import Looked, Recovered
    from standfast.workflows.queries import RunInfo
    from standfast.workflows.schedules.spec import Schedule


# --- what an operator does: make runs go on, start them again, delete them -----------------------------------------


class Overseer(Client):
    """A client that can also look after runs which do not go on by themselves."""

    @property
    @abstractmethod
    def worker(self) -> Worker | None:
        """What drives runs here; None if this engine does not, or is not open."""

    # --- limits --------------------------------------------------------------------------------------------------

    async def set_limit(self, workflow: Workflow[..., Any], max: int, *, key: str | None = None) -> None:  # noqa: A002 -- as in Limit
        """Allow so many unfinished runs at a time from now on, in all processes, whatever their code says.

        It stays so until :meth:`clear_limit`, also while nothing runs. A larger number lets waiting runs begin at once;
        a smaller one ends none.

        Args:
            workflow: Which; it has to have such a limit.
            max: How many.
            key: The key of a limit for each key; None: the limit of all runs together.
        """
        await setting.set_limit(self.runtime, workflow, max, key)

    async def clear_limit(self, workflow: Workflow[..., Any], *, key: str | None = None) -> None:
        """Allow as many unfinished runs as the workflow's code says, from now on."""
        await setting.clear_limit(self.runtime, workflow, key)

    # --- making runs go on ---------------------------------------------------------------------------------------

    async def resume(self, run_id: str) -> RunInfo:
        """Look at a run now, and return how it is then.

        If something of it is due and nobody drives it, this engine takes it up; one that drives none tells the others.
        A run that is driven elsewhere, or has nothing due, is left as it is. Workers do this by themselves: it is for
        those who do not want to wait for that.
        """
        await self.get(run_id)
        await recovering.poll_run(self.runtime, self.worker, run_id)
        return await self.get(run_id)

    async def sweep(self, limit: int = 100) -> tuple[Looked, ...]:
        """Look at every run that is due, the longest due first, and at those for which there is news.

        One that cannot be taken up does not keep the others from it.

        Args:
            limit: How many at most.

        Returns:
            What became of each; see :class:`~standfast.workflows.claims.Looked`.
        """
        return await recovering.sweep(self.runtime, self.worker, limit)

    async def recover_all(self, *, unknown: Literal["leave", "raise"] = "leave") -> Recovered:
        """Look at every unfinished run, and take up those that can go on.

        Workers do this by themselves; this is for whoever wants to know that nothing was forgotten.

        Args:
            unknown: What to do about runs of workflows, or versions, that this engine does not have: ``"leave"`` them
                to other engines, each with a :class:`~standfast.events.RunLeftAlone`; or ``"raise"``.

        Raises:
            WorkflowTypeNotRegisteredForRecoveryError: There are such runs. Nothing was resumed.
        """
        if unknown not in ("leave", "raise"):
            raise InvalidWorkflowError("recover_all", f"unknown is {unknown!r:.100}, neither 'leave' nor 'raise'")
        recovered = await recovering.recover(self.runtime, insist=unknown == "raise")
        if self.worker is not None:
            await self.worker.reclaim_dead()
        left = set(recovered.left)
        for run_id in recovered.found:
            if run_id not in left:
                await recovering.poll_run_safely(self.runtime, self.worker, run_id)
        return recovered

    # --- starting again ------------------------------------------------------------------------------------------

    async def restart(self, run_id: str, *, id: str | None = None) -> Run[Any]:  # noqa: A002 -- the word that users know
        """Start a new run with the input of another one, from its beginning. That one is left as it is.

        Args:
            run_id: The run to take the input from.
            id: The new run's id; by default a new one.
        """
        started = await administration.restart(self.runtime, run_id, id, drive=self.has_room)
        return Run(self, started.run_id, None, is_new=started.is_new)

    async def fork(self, run_id: str, step: str, *, id: str | None = None) -> Run[Any]:  # noqa: A002 -- the word that users know
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
        started = await administration.fork(self.runtime, run_id, step, id)
        return Run(self, started.run_id, None, is_new=True)

    async def retry(self, run_id: str, *, step: str | None = None) -> RunInfo:
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
        await administration.retry(self.runtime, run_id, step)
        return await self.get(run_id)

    # --- deleting ------------------------------------------------------------------------------------------------

    async def purge(
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

            await engine.purge(older_than="30 days")

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
        chosen = retention.Chosen(
            before=self._instant(before, older_than),
            status={status} if isinstance(status, str) else status,
            workflow=workflow,
            force=force,
        )
        everything = retention.Chosen(force=force)
        if (run_id is None) == (chosen == everything):
            raise InvalidWorkflowError(
                "purge", "give the id of a run, or say which runs: before, older_than, status, workflow"
            )
        if run_id is not None:
            return await retention.purge(self.runtime, run_id, force=force)
        return await retention.purge_all(self.runtime, chosen)

    def _instant(self, before: datetime | None, older_than: Duration | None) -> Instant | None:
        if before is not None and older_than is not None:
            raise InvalidWorkflowError("purge", "give before or older_than, not both")
        if older_than is not None:
            return later(self.runtime.now(), -seconds(older_than, what="older_than"))
        if before is None:
            return None
        if not isinstance(before, datetime) or before.tzinfo is None:  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise InvalidWorkflowError("purge", f"before is {before!r:.100}; it must be a datetime with a time zone")
        return Instant(int(before.timestamp() * MICROSECONDS))

    async def erase(self, *, tenant: str) -> int:
        """Delete everything that this engine's tenant has in the store: runs, states, locks, idempotency keys.

        Runs that have not ended are cancelled by force first. Versions keep growing, so a fence that was given out
        before is never given out again. What others do in this tenant meanwhile may remain: stop them first.

        Args:
            tenant: The name of the tenant, so that nobody is erased by mistake: it must be the engine's own.

        Returns:
            How many records there were besides those of runs.
        """
        return await retention.erase(self.runtime, tenant)


# --- the engine: starts runs, talks to them, and drives them -------------------------------------------------------

Runnable: TypeAlias = Workflow[..., Any] | Debounced[..., Any] | Batched[Any, Any]
"""What an engine can be given to run."""

LINGER: Final = 0.25
"""Seconds that a run in which everything waits stays in memory."""


@final
class Engine(Overseer):
    """Runs durable workflows on a store.

    Args:
        url: Which store, as in :func:`standfast.open`; or an open space, which stays open when the engine closes.
        workflows: What it can run: a list, or a mapping of their names. A :class:`Debounced` or :class:`Batched` brings
            along what it needs.
        steps: Steps that workflows may call by name.
        errors: Exceptions that come back as themselves from steps and runs.
        schedules: Made when the engine opens, or changed if they are declared in another way than the last time. Those
            that are paused stay so.
        drive: Whether this engine drives runs. If not it only starts them and talks to them.
        recover: Refuse to open if there are unfinished runs of workflows, or versions, that it does not have; see
            :meth:`recover_all`. In any case it takes up what it can.
        namespace: As in :func:`standfast.open`.
        tenant: As in :func:`standfast.open`.
        lease: How long others wait for this process, if it is not heard of any more, before they take its runs over.
        linger: How long a run in which everything waits stays in memory.
        max_loaded: How many runs are in memory at most.
        threads: How many steps that are plain functions run at a time.
        quarantine_after: How many workers may die with a run before it is left alone.
        hooks: Told what happens.
        encryption: As in :func:`standfast.open`.
        credentials: As in :func:`standfast.open`.

    Attributes:
        address: Which store, without secrets; empty if a space was given.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        url: str | Space,
        *,
        workflows: Iterable[Runnable] | Mapping[str, Runnable] = (),
        steps: Iterable[Step[..., Any] | Any] = (),
        errors: Iterable[type[Exception]] = (),
        schedules: Iterable[Schedule] = (),
        drive: bool = True,
        recover: bool = False,
        namespace: str = "default",
        tenant: str = "default",
        lease: Duration = DEFAULT_LEASE,
        linger: Duration = LINGER,
        max_loaded: int = 10_000,
        threads: int = MOST,
        quarantine_after: int = MOST_DEATHS,
        hooks: Iterable[Hook] = (),
        encryption: Keyring | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        hooks = tuple(hooks)
        self._opening = (
            None
            if isinstance(url, Space)
            else open_space(
                url,
                namespace=namespace,
                tenant=tenant,
                lease=lease,
                hooks=hooks,
                encryption=encryption,
                credentials=credentials,
            )
        )
        self._space: Space | None = url if isinstance(url, Space) else None
        self.address: Final = "" if isinstance(url, Space) else mask_url(url)
        self._workflows: Final = _by_version(workflows)
        self._steps: Final = {each.name: each for each in map(as_step, steps)}
        self._errors: Final = tuple(errors)
        self._declared: Final = _known_of(schedules, self._workflows)
        self._hooks: Final = hooks
        self._drives, self._recovers = drive, recover
        self._linger: Final = seconds(linger, what="linger")
        self._options: Final = (max_loaded, threads, quarantine_after)
        self._runtime: Runtime | None = None
        self._worker: Worker | None = None
        self._ticker: Ticker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: Callable[[Engine], Awaitable[None]] | None = None
        self._process = 0

    # --- life ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def open(self, *, drive: bool | None = None, hooks: Iterable[Hook] = ()) -> None:
        """Open the store, and begin to drive runs.

        Args:
            drive: Whether to drive runs, whatever the engine was made with.
            hooks: Told what happens to runs, besides the engine's own.
        """
        if self._runtime is not None:
            raise InvalidWorkflowError("the engine", "it is open already")
        self._drives = self._drives if drive is None else drive
        self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        if self._space is None and self._opening is not None:
            self._space = await self._opening
        try:
            await self._begin(Hooks((*self._hooks, *hooks)))
        except BaseException:
            await self.aclose()
            raise

    async def _begin(self, hooks: Hooks) -> None:
        assert self._space is not None  # noqa: S101 -- it was given, or opened
        max_loaded, threads, deaths = self._options
        runtime = Runtime(self._space, lines_of(self._space), hooks, Threads(threads), self._errors, most_deaths=deaths)
        self._runtime = runtime
        runtime.workflows.update(self._workflows)
        runtime.steps.update(self._steps)
        runtime.saw((await self._space.read(self._space.key("worker"))).at)
        if self._recovers:
            await recover(runtime, insist=True)
        await self.schedules.declare(self._declared)
        if self._before is not None:
            await self._before(self)
        if self._drives:
            worker = self._worker = Worker(runtime, linger=self._linger, most_loaded=max_loaded)
            ticker = self._ticker = Ticker(runtime, lambda: worker.is_stopping)
            worker.on_schedule = ticker.on_timer
            await ticker.come_back()
            await declare(self._space, self._workflows.values())
            await runtime.ensure_presence()
            await worker.start()

    async def aclose(self, *, grace: Duration = GRACE) -> None:
        """Stop: hand every run back, so that others can take it up at once, and close the store.

        It can be opened again.
        """
        (runtime, self._runtime), (worker, self._worker) = (self._runtime, None), (self._worker, None)
        if worker is not None and runtime is not None:
            await worker.stop(seconds(grace, what="grace"))
            await runtime.retire()
        if runtime is not None:
            runtime.threads.close()
        if self._opening is not None and self._space is not None:
            space, self._space = self._space, None
            await space.aclose()

    @property
    def runtime(self) -> Runtime:
        """What runs need of the engine; refused while it is not open, in another event loop, and after a fork."""
        runtime = self._runtime
        if runtime is None:
            raise EngineNotOpenError
        if self._process != os.getpid():
            raise ForkedError(
                "the engine", "it was opened before this process was forked; open another one in the child"
            )
        if self._loop is not asyncio.get_running_loop():
            raise WrongLoopError("the engine", "belongs to another event loop")
        return runtime

    @property
    def drives(self) -> bool:
        """Whether this engine drives runs."""
        return self._worker is not None

    @property
    def has_room(self) -> bool:
        """Whether this engine drives runs, and should drive one more that is started here."""
        return self._worker is not None and self._worker.has_room()

    @property
    def worker(self) -> Worker | None:
        """What drives runs here; None if this engine does not, or is not open."""
        return self._worker

    @property
    def schedules(self) -> Schedules:
        """The schedules that lie in the store: make, pause, change, trigger and delete them."""
        return Schedules(self)

    def register(self, *workflows: Runnable) -> None:
        """Add workflows. Runs and schedules that were left alone because their code was not here go on soon."""
        self._workflows.update(_by_version([*self._workflows.values(), *workflows]))
        if self._runtime is not None:
            self._runtime.workflows.update(self._workflows)
            self._runtime.forget_left()
        if self._worker is not None and self._ticker is not None:
            self._worker.begin(self._ticker.come_back())
            self._worker.begin(declare(self.space, self._workflows.values()))


def is_open(engine: Engine) -> bool:
    """Tell whether an engine was opened, and not closed since."""
    return engine._runtime is not None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module


async def open_with(engine: Engine, before: Callable[[Engine], Awaitable[None]]) -> None:
    """Open an engine; ``before`` is called with it when its store is open, and before it drives any run."""
    engine._before = before  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module
    try:
        await engine.open()
    finally:
        engine._before = None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module


def withdraw(engine: Engine, *workflows: Workflow[..., Any]) -> None:
    """Let an engine take up no more runs of some workflows. Others may do so; what it drives now goes on."""
    known = [engine._workflows] if engine._runtime is None else [engine._workflows, engine._runtime.workflows]  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module
    for each in workflows:
        for some in known:
            some.pop((each.name, each.version), None)


def _by_version(given: Iterable[Runnable] | Mapping[str, Runnable]) -> dict[tuple[str, str], Workflow[..., Any]]:
    named: Mapping[str, Runnable] = cast("Mapping[str, Runnable]", given) if isinstance(given, Mapping) else {}
    for name, each in named.items():
        if name != each.name:
            raise EngineCreateNameMismatchError(name, each.name)
    found: dict[tuple[str, str], Workflow[..., Any]] = {}
    for workflow in chain.from_iterable(map(_workflows_of, named.values() or cast("Iterable[Runnable]", given))):
        if found.setdefault((workflow.name, workflow.version), workflow) is not workflow:
            raise InvalidWorkflowError(
                workflow.name, "two workflows have this name and version; give one another version"
            )
    return found


def _workflows_of(each: Runnable) -> tuple[Workflow[..., Any], ...]:
    if isinstance(each, Workflow):
        return (each,)
    if isinstance(each, Debounced | Batched):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
        return each.workflows
    raise InvalidWorkflowError(repr(each)[:100], "this is no workflow; declare it with @sf.workflow")


def _known_of(schedules: Iterable[Schedule], workflows: Mapping[tuple[str, str], object]) -> tuple[Schedule, ...]:
    """Return schedules whose workflows this engine has; refuse others."""
    declared, names = tuple(schedules), {name for name, _ in workflows}
    for each in declared:
        workflow = unbound(each.workflow)
        name = str(getattr(workflow, "name", workflow))
        if name not in names:
            raise UnknownWorkflowError(name, tuple(sorted(names)))
    return declared
