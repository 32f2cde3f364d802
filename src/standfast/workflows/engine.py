"""The engine: one object that starts runs, talks to them, executes them, and lets an operator act on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from copy import copy
from itertools import chain
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    final,
    overload,
)

from standfast.audit import Audit
from standfast.durations import seconds
from standfast.errors import (
    DeclarationError,
    EngineCreateNameMismatchError,
    EngineNotOpenError,
    StoreClosedError,
    UsageError,
)
from standfast.hooks import EngineHooks
from standfast.locks.inspect import moment
from standfast.locks.locks import DEFAULT_LEASE
from standfast.log_hook import with_log
from standfast.space import Opening, Space, lines_of
from standfast.space import open as open_space
from standfast.stores.liveness import ForkGuard
from standfast.workflows import admin, limits, messages, retention
from standfast.workflows.capacity import WorkerLimits
from standfast.workflows.catalog import declare
from standfast.workflows.debounce import workflows_of
from standfast.workflows.definition import as_step, name_of
from standfast.workflows.execution import query
from standfast.workflows.fleet import list_workers
from standfast.workflows.overview import LATELY, PATIENCE, overview
from standfast.workflows.queries import read_history, read_info, read_timeline
from standfast.workflows.run import Run
from standfast.workflows.run_index import MOST_COUNTED, begin_index, chosen_by, count_runs, list_runs
from standfast.workflows.runtime import Runtime, Threads
from standfast.workflows.schedules.schedules import Schedules, known_schedules
from standfast.workflows.schedules.ticker import Ticker
from standfast.workflows.start import (
    check_request,
    checked_start,
    code_of_start,
    start,
    start_or_signal,
    start_over,
    start_within,
)
from standfast.workflows.sweeper import Sweeper
from standfast.workflows.worker import GRACE, Worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
    from datetime import datetime

    from standfast.audit import Actor, AuditedAction, AuditPage
    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.events import Hook, Hooks
    from standfast.locks.state import Slots
    from standfast.stores.user_transactions import Talk
    from standfast.workflows.admin import Looked, Recovered
    from standfast.workflows.debounce import Runnable
    from standfast.workflows.definition import Bound, Step, Workflow
    from standfast.workflows.fleet import WorkerInfo
    from standfast.workflows.limits import LimitPage
    from standfast.workflows.overview import Overview
    from standfast.workflows.queries import HistoryEntry, Page, RunInfo
    from standfast.workflows.records import Started
    from standfast.workflows.run_index import RunCount, RunFilters
    from standfast.workflows.schedules.spec import Schedule
    from standfast.workflows.start import OnTerminal, Outcome, SignalOptions, StartOptions, Unknown
    from standfast.workflows.sweeper import Retention
    from standfast.workflows.timeline import Timeline


P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@final
class Engine:
    """Runs durable workflows on a store.

    Args:
        store: Which store: a URL; ``sf.open(url, ...)`` for more options, which the engine opens and closes; or an open
            space, which stays open when the engine closes.
        workflows: What it can run: a list, or a mapping of their names. A :class:`Debounced` or :class:`Batched` brings
            along what it needs.
        steps: Steps that workflows may call by name.
        errors: Exceptions that come back as themselves from steps and runs.
        schedules: Made when the engine opens, or changed if they are declared in another way than the last time. Those
            that are paused stay so.
        drive: Whether this engine drives runs. If not it only starts them and talks to them.
        recover: Refuse to open if there are unfinished runs of workflows, or versions, that it does not have; see
            :meth:`recover_all`. In any case it takes up what it can.
        namespace: As in :func:`standfast.open`; only with a URL.
        tenant: As in :func:`standfast.open`; only with a URL.
        lease: How long others wait for this process, if it is not heard of any more, before they take its runs over;
            only with a URL.
        worker: What it takes on at the most, if it drives runs: ``sf.admin.WorkerLimits(threads=8)``.
        hooks: Told what happens.
        retention: For how long ended runs are kept, if this engine drives runs; by default until they are purged.

    Attributes:
        address: Which store, without secrets; empty if a space was given.
    """

    def __init__(  # noqa: PLR0913 -- keyword options
        self,
        store: str | Opening | Space,
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
        worker: WorkerLimits | None = None,
        hooks: Iterable[Hook] = (),
        retention: Retention | None = None,
    ) -> None:
        if worker is not None and not isinstance(worker, WorkerLimits):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise DeclarationError("Engine", f"worker is {worker!r:.60}; write sf.admin.WorkerLimits(...)")
        if not isinstance(store, str) and (namespace, tenant, lease) != ("default", "default", DEFAULT_LEASE):
            problem = "namespace, tenant and lease are those of the space that it is given; say them in sf.open(...)"
            raise DeclarationError("Engine", problem)
        self.hooks: Final = EngineHooks(hooks)
        self._retention: Final = retention
        self._sweeping: asyncio.Task[None] | None = None
        self._actor: Actor | None = None
        self._opening: Opening | None = None
        if isinstance(store, str):
            self._opening = open_space(store, namespace=namespace, tenant=tenant, lease=lease)
        elif isinstance(store, Opening):
            self._opening = store
        self._space: Space | None = store if isinstance(store, Space) else None
        self.address: Final = "" if self._opening is None else self._opening.address
        self._workflows: Final = _by_version(workflows)
        self._steps: Final = {each.name: each for each in map(as_step, steps)}
        self._errors: Final = tuple(errors)
        self._declared: Final = known_schedules(schedules, self._workflows)
        self._drives, self._recovers = drive, recover
        self._limits: Final = worker or WorkerLimits()
        self._runtime: Runtime | None = None
        self._worker: Worker | None = None
        self._ticker: Ticker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: Callable[[Engine], Awaitable[None]] | None = None
        self._fork = ForkGuard("the engine")

    # --- opening and closing ----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def open(self, *, drive: bool | None = None, hooks: Iterable[Hook] = ()) -> None:
        """Open the store, and begin to drive runs.

        Args:
            drive: Whether to drive runs, whatever the engine was made with.
            hooks: Told what happens, besides the engine's own; in the store and to locks only if the engine opens it.
        """
        if self._runtime is not None:
            raise DeclarationError("the engine", "it is open already")
        self._drives, self.hooks.opened_with = self._drives if drive is None else drive, tuple(hooks)
        self._loop, self._fork = asyncio.get_running_loop(), ForkGuard("the engine")
        if self._space is None and self._opening is not None:
            self._space = await self._opening.open_with(self.hooks)
        try:
            await self._begin(with_log(self.hooks))
            self.hooks.attach(self)
        except BaseException:
            await self.aclose()
            raise

    async def _begin(self, hooks: Hooks) -> None:
        assert self._space is not None  # noqa: S101 -- it was given, or opened
        most = self._limits
        threads, deaths = Threads(most.threads), most.quarantine_after
        runtime = Runtime(self._space, lines_of(self._space), hooks, threads, self._errors, most_deaths=deaths)
        self._runtime, runtime.room = runtime, most.max_loaded if self._drives else 0
        runtime.workflows.update(self._workflows)
        runtime.steps.update(self._steps)
        runtime.saw((await self._space.read(self._space.key("worker"))).at)
        await begin_index(self._space)
        if self._recovers:
            await admin.recover(runtime, insist=True)
        await self.schedules.declare(self._declared)
        if self._before is not None:
            await self._before(self)
        if self._drives:
            worker = self._worker = Worker(runtime, linger=most.linger, most_loaded=most.max_loaded)
            ticker = self._ticker = Ticker(runtime, lambda: worker.is_stopping)
            worker.on_schedule = ticker.on_timer
            await ticker.come_back()
            await declare(self._space, self._workflows.values())
            await runtime.ensure_presence()
            await worker.start()
            if self._retention is not None:
                self._sweeping = asyncio.create_task(Sweeper(runtime, self._retention).run())

    async def aclose(self, *, grace: Duration = GRACE) -> None:
        """Stop: hand every run back, so that others can take it up at once, and close the store.

        It can be opened again.
        """
        self.hooks.detach(self)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        (runtime, self._runtime), (worker, self._worker) = (self._runtime, None), (self._worker, None)
        if worker is not None and runtime is not None:
            await worker.stop(seconds(grace, what="grace"))
            await runtime.retire()
        if runtime is not None:
            runtime.threads.close()
            await runtime.processes.aclose()
        if self._opening is not None and self._space is not None:
            space, self._space = self._space, None
            await space.aclose()

    @property
    def runtime(self) -> Runtime:
        """What runs need of the engine; refused while it is not open, in another event loop, and after a fork."""
        runtime = self._runtime
        if runtime is None:
            raise EngineNotOpenError
        if self._fork.crossed:
            raise StoreClosedError(
                "the engine", "it was opened before this process was forked; open another one in the child"
            )
        if self._loop is not asyncio.get_running_loop():
            raise UsageError(
                "the engine",
                "belongs to another event loop",
                "make one for each event loop, or use a store to share between threads",
            )
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
        if self._runtime is not None and self._worker is not None and self._ticker is not None:
            self._worker.begin(self._ticker.come_back())
            self._worker.begin(declare(self.space, self._workflows.values()))
            self._worker.begin(self._runtime.tell_workflows())

    @property
    def space(self) -> Space:
        """The space that everything lies in, for locks and states of its own."""
        found = self.runtime.space  # refused while it is not open
        return self._space or found

    @property
    def state(self) -> Slots:
        """The states of workflows, executions and runs, for an administrator: ``engine.state.workflow(name, key)``."""
        return self.space.state

    # --- operators -----------------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """The operator who acts through this engine; None: it is used by a program for its own ends."""
        opened = self._space or self._opening
        return self._actor or (None if opened is None else opened.actor)

    def acting_as(self, actor: Actor) -> Engine:
        """Return this open engine, the same one, in the hands of an operator: what is done through it is recorded."""
        taken = copy(self)
        taken._actor, taken._space = actor, self.space.acting_as(actor)  # noqa: SLF001 -- of this class
        return taken

    def acts(self, action: str, subject: str = "", reason: str = "", **details: object) -> AuditedAction:
        """Return what an action is done in, for what belongs to the engine: it is recorded if an operator does it."""
        return Audit(self.runtime.space, self.actor).action(action, subject, reason=reason, details=details)

    async def audit(
        self,
        *,
        action: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> AuditPage:
        """Return a page of what operators did in this namespace and tenant, newest first; see :meth:`Space.audit`."""
        return await self.space.audit(action=action, subject=subject, actor=actor, limit=limit, after=after)

    # --- starting ------------------------------------------------------------------------------------------------

    @overload
    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    async def start(
        self,
        workflow: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> Run[R]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[..., R],
        /,
        *args: Any,  # noqa: ANN401 -- whatever the workflow takes
        kwargs: Mapping[str, Any] | None,
        **options: Unpack[StartOptions],
    ) -> Run[R]: ...
    @overload
    async def start(self, workflow: Bound[R], /, **options: Unpack[StartOptions]) -> Run[R]: ...
    @overload
    async def start(
        self,
        workflow: str,
        /,
        *args: Any,  # noqa: ANN401 -- whatever the workflow takes
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,
        idempotency_key: str | None = None,
        delay: Duration = 0,
        tags: Iterable[str] = (),
        connection: object = None,
        unknown: Unknown = "raise",
        **by_name: Any,  # noqa: ANN401 -- whatever the workflow takes
    ) -> Run[Any]: ...
    async def start(  # type: ignore[misc]  # mypy misses what a workflow takes: *args and **by_name take all of it
        self,
        workflow: Any,
        /,
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        id: str | None = None,  # noqa: A002 -- the word that users know
        idempotency_key: str | None = None,
        delay: Duration = 0,
        tags: Iterable[str] = (),
        connection: object = None,
        unknown: Unknown = "raise",
        **by_name: Any,
    ) -> Run[Any]:
        """Start a run. It is durable when this returns; with a ``connection``, when its transaction is committed.

            run = await engine.start(fulfil, order, priority=3)
            run = await engine.start(fulfil.bind(order, priority=3), id="order-7")
            run = await engine.start("fulfil", order, priority=3, id="order-7")

        What cannot be called like this is refused before anything is written. Type checkers see it too: by place and by
        name without options, by place with options, and whatever :meth:`Workflow.bind` was given. They see nothing of a
        call by name.

        Args:
            workflow: What to run: a workflow; one with its arguments, by :meth:`Workflow.bind`; or the name of one. A
                name needs no code in this process: workers tell the store which workflows they have.
            args: What it is called with, after its context. To start by name without the code: JSON-shaped data.
            by_name: What it is called with by name. What has the name of one of the following goes into ``kwargs``.
            kwargs: What it is called with by name, too.
            id: The run's id; by default a new one. Starting the same again returns the run that is there.
            idempotency_key: Like an id, for a run whose id does not matter: the same key, the same run.
            delay: How long to wait before it begins.
            tags: Words to find it by, see :meth:`list`.
            connection: A connection of yours to the PostgreSQL database of the store, with a transaction open;
                of asyncpg, psycopg or SQLAlchemy, used with ``await``. There is such a run if and only if you
                commit that transaction, and only then is it driven, by any worker.
            unknown: What to do with a name that neither this engine nor any worker of its namespace and tenant has had:
                ``"raise"``, or ``"start"`` a run that waits for a worker which has it. Its arguments are given by name.

        Raises:
            WrongArgumentsError: The workflow cannot be called with these arguments; it is a ``TypeError``.
            UnknownWorkflowError: This engine does not have the workflow, or no engine has one of that name.
            DeclarationError: This engine has another workflow under that name.
            WorkflowAlreadyExistsError: There is a run with that id or key, of another workflow or with another input.
            IdempotencyKeyPurgedError: The key belongs to a run that was purged.
            WorkflowConcurrencyLimitExceededError: As many runs as its limit allows are unfinished.
            InvalidArgumentError: The connection is not in a transaction, or not one to the store's database.
            UnsuitableStoreError: With a connection: the store is no PostgreSQL.
        """
        given: dict[str, Any] = {}
        if not (id is None and idempotency_key is None and not delay and tags == () and connection is None):
            given = {"id": id, "idempotency_key": idempotency_key, "delay": delay or None, "tags": tuple(tags) or None}
            given["connection"] = connection
        asked = await checked_start(self, workflow, args, kwargs, by_name, given, unknown)
        if self.actor is None and connection is None:  # as below, without a record of who did it
            started = await start(self.runtime, asked)
            return Run(self, started.run_id, code_of_start(asked), is_new=started.is_new)
        async with self.acts("run.start", asked.run_id, workflow=name_of(workflow)) as told:
            started = await (
                start(self.runtime, asked) if connection is None else start_over(self.runtime, asked, connection)
            )
            told.outcome = "done" if started.is_new else "nothing"
        return Run(self, started.run_id, code_of_start(asked), is_new=started.is_new)

    async def _start_within(self, *given: Any) -> tuple[Talk[Started], Workflow[..., Any] | None]:  # noqa: ANN401 -- as ``checked_start`` takes it
        """Prepare a start within a transaction, for a caller that has its connection in another thread."""
        asked = await checked_start(self, *given)
        return await start_within(self.runtime, asked), code_of_start(asked)

    @overload
    async def start_or_signal(
        self,
        workflow: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[SignalOptions],
    ) -> tuple[Run[R], Outcome]: ...
    @overload
    async def start_or_signal(
        self, workflow: Bound[R], /, **options: Unpack[SignalOptions]
    ) -> tuple[Run[R], Outcome]: ...
    @overload
    async def start_or_signal(
        self,
        workflow: str,
        /,
        *args: Any,  # noqa: ANN401 -- whatever the workflow takes
        **options: Unpack[SignalOptions],
    ) -> tuple[Run[Any], Outcome]: ...
    async def start_or_signal(  # type: ignore[misc]  # as of start
        self,
        workflow: Any,
        /,
        *args: Any,
        signal: str,
        value: object = None,
        id: str | None = None,  # noqa: A002 -- the word that users know
        idempotency_key: str | None = None,
        signal_id: str | None = None,
        on_terminal: OnTerminal = "raise",
        tags: Iterable[str] = (),
    ) -> tuple[Run[Any], Outcome]:
        """Signal a run, and start it first if it is not there: both in one commit. No signal of another caller is lost.

            run, outcome = await engine.start_or_signal(cart, "ann", id="cart-ann", signal="add", value="book")

        Args:
            workflow: What to start if there is no such run, as in :meth:`start`. If there is one, it must be a run of
                this workflow.
            args: What it is started with; not looked at if there is a run.
            signal: The signal's name.
            value: JSON-shaped data.
            id: Which run. This or an idempotency key is needed.
            idempotency_key: Like an id, for a run whose id does not matter.
            signal_id: Sent again with the same id, it is the same signal.
            on_terminal: What to do if the run has ended: ``"raise"``, or ``"start_new"``, which deletes that run and
                starts a new one with its id; that needs ``id`` and ``signal_id``.
            tags: Words to find a run by that is started.

        Returns:
            The run, and ``"started"`` or ``"signalled"``.

        Raises:
            StartOrSignalConflictError: The run has ended.
        """
        check_request(on_terminal, id, idempotency_key, signal_id)
        sent = self.runtime.linked(messages.signal_of(signal, value, signal_id))
        options = {"id": id, "idempotency_key": idempotency_key, "tags": tuple(tags) or None}
        asked = await checked_start(self, workflow, args, None, {}, options)
        async with self.acts("run.start", asked.run_id, workflow=name_of(workflow), signal=signal) as told:
            met = await start_or_signal(self.runtime, asked, sent, on_terminal)
            told.details["outcome"] = met.outcome
        return Run(self, met.run_id, code_of_start(asked), is_new=met.outcome == "started"), met.outcome

    def run(self, run_id: str) -> Run[Any]:
        """Return a handle on a run by its id. Whether there is such a run is found out when it is used."""
        return Run(self, run_id, None)

    # --- looking -------------------------------------------------------------------------------------------------

    async def get(self, run_id: str) -> RunInfo:
        """Return how a run is."""
        return await read_info(self.space, run_id)

    async def history(self, run_id: str) -> tuple[HistoryEntry, ...]:
        """Return everything that a run has recorded."""
        await read_info(self.space, run_id)
        return await read_history(self.space, run_id)

    async def timeline(self, run_id: str) -> Timeline:
        """Return where the time of a run went: when it worked, and what it waited for."""
        return await read_timeline(self.space, run_id)

    async def list(
        self, *, newest_first: bool = False, limit: int = 100, after: str | None = None, **filters: Unpack[RunFilters]
    ) -> Page:
        """Return a page of runs, in the order of the time since when each is as it is: ended, suspended, running.

            page = await engine.list(status="failed", workflow="fulfil", newest_first=True)

        With ``started_after`` or ``started_before`` they are in the order of their start. It costs what it shows,
        however many runs there are; a page that has to pass over too many others may be shorter than ``limit``, or
        empty, and have a ``next``. A run that changes has another place.

        Args:
            newest_first: Begin with what has changed last.
            limit: How many runs a page has.
            after: Where the page before ended: its ``next``.
            filters: ``status`` (one or several), ``workflow``, ``tag``; ``started_after``, ``started_before``,
                ``ended_after``, ``ended_before`` (datetimes with a zone); ``parent``: its children, by their ids.

        Raises:
            InvalidArgumentError: There is no such status, a time has no zone, or ``after`` is not of a page.
        """
        return await list_runs(self.space, chosen_by(**filters), newest_first=newest_first, limit=limit, after=after)

    async def count(self, *, most: int = MOST_COUNTED, **filters: Unpack[RunFilters]) -> RunCount:
        """Count runs, up to a bound: ``str`` of the answer is ``"17"``, or ``"1,000+"`` if there are more.

        Args:
            most: Where to stop. A count costs as much as it counts.
            filters: As in :meth:`list`.
        """
        return await count_runs(self.space, chosen_by(**filters), most=most)

    async def result(self, run_id: str, *, timeout: Duration | None = None) -> Any:  # noqa: ANN401 -- whatever it returned
        """Return what a run returned, waiting for its end; see :meth:`Run.result`."""
        return await self.run(run_id).result(timeout=timeout)

    # --- talking -------------------------------------------------------------------------------------------------

    async def signal(self, run_id: str, name: str, value: object = None, *, signal_id: str | None = None) -> bool:
        """Send a signal to a run. It is durable when this returns, and waits until the run takes it.

        Args:
            run_id: The run. One that went on as a new run hands it over to that.
            name: What the run waits for: 1 to 100 printable characters.
            value: JSON-shaped data.
            signal_id: Sent again with the same id, it is the same signal; then this returns False.

        Raises:
            WorkflowTerminalError: The run has ended, and this signal was not sent before.
        """
        return await self.run(run_id).signal(name, value, signal_id=signal_id)

    async def update(
        self,
        run_id: str,
        name: str,
        *args: Any,  # noqa: ANN401 -- whatever the handler takes
        timeout: Duration = "5 seconds",
        update_id: str | None = None,
    ) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run to change something, and return its answer.

        Args:
            run_id: The run. One that is not in memory is loaded for it.
            name: Which of its ``ctx.on_update`` handlers.
            args: JSON-shaped data for the handler.
            timeout: How long to wait for the answer.
            update_id: Sent again with the same id, it is the same update, and has the same answer.

        Raises:
            UpdateValidationError: The run refused it, and nothing has changed.
            UpdateTimeoutError: No answer came in time. It may still be done.
            WorkflowTerminalError: The run has ended without answering it.
        """
        return await self.run(run_id).update(name, *args, timeout=timeout, update_id=update_id)

    async def query(self, run_id: str, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run something, without leaving a trace: its history is replayed here, and its code is asked.

        It needs the run's code, and works for runs that are driven elsewhere or have ended. What the code returns is
        handed on as it is: let it return a copy of what it goes on to change.
        """
        return await query(self.runtime, run_id, name, args)

    async def cancel(self, run_id: str, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask a run to stop: its code gets :class:`RunCancelled` where it waits, and may clean up. Its children too.

        A run that no worker has begun, or that is quarantined, ends at once. One that has ended is left as it is.

        Args:
            run_id: The run.
            reason: Why, as the run shows it later.
            force: End it whatever its code does, with everything that it has started. Nothing is cleaned up; what it
                holds is released. If a step is running, its result is refused.
        """
        return await self.run(run_id).cancel(reason, force=force)

    # --- limits --------------------------------------------------------------------------------------------------

    async def set_limit(
        self,
        workflow: Workflow[..., Any] | str,
        max: int,  # noqa: A002 -- as in Limit
        *,
        key: str | None = None,
        until: datetime | None = None,
        lasts: Duration | None = None,
    ) -> Instant | None:
        """Allow ``max`` unfinished runs at a time from now on, in all processes, whatever their code says.

        It stays so until :meth:`clear_limit`, also while nothing runs. A larger number lets waiting runs begin at once;
        a smaller one ends none. With an end, the limit is afterwards what it was before, by itself: waiting runs that
        have room then begin, though nothing else happens. An end can be moved by setting it again. Return the end.

        Args:
            workflow: Which, or the name of one that workers have; it has to have such a limit.
            max: How many.
            key: The key of a limit for each key; None: the limit of all runs together.
            until: When it ends, with a time zone.
            lasts: How long it lasts, such as ``"2 hours"``; instead of ``until``.

        Raises:
            InvalidArgumentError: The end has passed, has no time zone, or is given twice.
        """
        end = limits.instant_of_end(self.runtime.now(), until, lasts)
        async with self.acts(
            "limit.set", name_of(workflow), max=max, key=key, until=None if end is None else moment(end)
        ):
            await limits.set_limit(self.runtime, workflow, max, key, end)
        return end

    async def clear_limit(self, workflow: Workflow[..., Any] | str, *, key: str | None = None) -> None:
        """Allow as many unfinished runs as the workflow's code says, from now on."""
        async with self.acts("limit.clear", name_of(workflow), key=key):
            await limits.clear_limit(self.runtime, workflow, key)

    async def limits(self, workflow: str | None = None, *, limit: int = 1_000) -> LimitPage:
        """Return the limits of unfinished runs, how much of each is used, and how many wait.

        Args:
            workflow: Only those of this workflow.
            limit: How many lines of limits are looked at: a limit of each key has a line for each key in use.
        """
        return await limits.list_limits(self.space, workflow, limit)

    # --- watching the whole ------------------------------------------------------------------------------------------

    async def workers(self, *, limit: int = 1_000) -> tuple[WorkerInfo, ...]:
        """Return up to ``limit`` workers: where they run, what they have, and when they were last heard of.

        One that died is among them until another one has taken over its runs. Nothing is changed by looking.
        """
        return await list_workers(self.space, limit=limit)

    async def overview(
        self, *, lately: Duration = LATELY, patience: Duration = PATIENCE, most: int = 1_000
    ) -> Overview:
        """Return how everything in this namespace and tenant is, and what needs a person.

        It reads a bounded number of records, however much is stored. Nothing is changed by looking.

        Args:
            lately: How long ago a failure still needs a person.
            patience: How long the first in a line may have waited.
            most: Up to how many runs are counted.
        """
        return await overview(self.runtime, self.address, lately, patience, most)

    # --- making runs go on ---------------------------------------------------------------------------------------

    async def resume(self, run_id: str) -> RunInfo:
        """Look at a run now, and return how it is then.

        If something of it is due and no worker drives it, this engine takes it up; one without a worker tells others.
        A run that is driven elsewhere, or has nothing due, is left as it is. Workers do this by themselves; this does
        it at once.
        """
        async with self.acts("run.resume", run_id):
            await self.get(run_id)
            await admin.poll_run(self.runtime, self.worker, run_id)
        return await self.get(run_id)

    async def sweep(self, limit: int = 100) -> tuple[Looked, ...]:
        """Look at every run that is due, the longest due first, and at those for which there is news.

        One that cannot be taken up does not keep the others from it.

        Args:
            limit: How many at most.

        Returns:
            What became of each; see :class:`~standfast.workflows.admin.Looked`.
        """
        async with self.acts("run.sweep", limit=limit) as told:
            looked = await admin.sweep(self.runtime, self.worker, limit)
            told.details["runs"] = len(looked)
        return looked

    async def recover_all(self, *, unknown: Literal["leave", "raise"] = "leave") -> Recovered:
        """Look at every unfinished run, and take up those that can go on.

        Workers do this by themselves; call it to know that nothing was forgotten.

        Args:
            unknown: What to do about runs of workflows, or versions, that this engine does not have: ``"leave"`` them
                to other engines, each with a :class:`~standfast.events.RunLeftAlone`; or ``"raise"``.

        Raises:
            WorkflowTypeNotRegisteredForRecoveryError: There are such runs. Nothing was resumed.
        """
        async with self.acts("run.recover", unknown=unknown) as told:
            recovered = await admin.recover_all(self.runtime, self.worker, unknown)
            told.details["runs"] = len(recovered.found)
        return recovered

    # --- starting again ------------------------------------------------------------------------------------------

    async def restart(self, run_id: str, *, id: str | None = None, input: Mapping[str, Any] | None = None) -> Run[Any]:  # noqa: A002 -- the words that users know
        """Start a new run with the input of another one, from its beginning. That one is left as it is.

        Args:
            run_id: The run to take the input from.
            id: The new run's id; by default a new one.
            input: Another input: the arguments by name, JSON-shaped. By default the same.
        """
        async with self.acts("run.restart", run_id, edited=None if input is None else True) as told:
            started = await admin.restart(self.runtime, run_id, id, input, drive=self.has_room)
            told.details["new_run"] = started.run_id
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
        async with self.acts("run.fork", run_id, step=step) as told:
            started = await admin.fork(self.runtime, run_id, step, id)
            told.details["new_run"] = started.run_id
        return Run(self, started.run_id, None, is_new=True)

    async def retry(self, run_id: str, *, step: str | None = None) -> RunInfo:
        """Let a run go on that failed, was cancelled, has timed out, or is quarantined; return how it is then.

        It goes on from its history. What made it fail is forgotten, with everything that was recorded after it: the
        step that failed runs again, with all its attempts, and so do those that cleaned up. If its code itself raised,
        nothing is forgotten, and it goes on with the code as it is now. A cancelled or timed-out run goes on where it
        was when it was told, with as much time as it had at first. Children that it still waits for resume, too. A run
        that has not ended is left as it is; one that has completed is refused.

        Args:
            run_id: The run.
            step: Go on from this step, in place of the one that failed.
        """
        async with self.acts("run.retry", run_id, step=step):
            await admin.retry(self.runtime, run_id, step)
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
        chosen: dict[str, Any] = {"before": before, "older_than": older_than, "status": status, "workflow": workflow}
        async with self.acts("run.purge", run_id or "", force=force or None, **chosen) as told:
            told.details["runs"] = purged = await retention.purge_chosen(self.runtime, run_id, **chosen, force=force)
        return purged

    async def erase(self, *, tenant: str) -> int:
        """Delete everything that this engine's tenant has in the store: runs, states, locks, idempotency keys.

        Runs that have not ended are cancelled by force first. Versions keep growing, so a fence that was given out
        before is never given out again. What others do in this tenant meanwhile may remain: stop them first.

        Args:
            tenant: The name of the tenant, so that none is erased by mistake: it must be the engine's own.

        Returns:
            How many records there were besides those of runs.
        """
        async with self.acts("run.erase", tenant) as told:
            told.details["records"] = erased = await retention.erase(self.runtime, tenant)
        return erased


def is_open(engine: Engine) -> bool:
    """Return True if an engine was opened, and not closed since."""
    return engine._runtime is not None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- of this module


def retention_of(engine: Engine) -> Retention | None:
    """Return for how long an engine keeps runs that have ended; None: it deletes none."""
    return engine._retention  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] -- a friend in the same module


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
    for workflow in chain.from_iterable(map(workflows_of, named.values() or cast("Iterable[Runnable]", given))):
        if found.setdefault((workflow.name, workflow.version), workflow) is not workflow:
            raise DeclarationError(workflow.name, "two workflows have this name and version; give one another version")
    return found
