"""The engine for blocking code: starts runs, talks to them, operates them, and executes them if it is to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    final,
    overload,
)

from standfast.blocking._engine_portal import EngineLink
from standfast.blocking._portal import Link
from standfast.blocking.run import Run, as_blocking, start_within
from standfast.blocking.schedules import Schedules
from standfast.blocking.space import Space, link_of
from standfast.locks.locks import DEFAULT_LEASE
from standfast.space import open as open_async
from standfast.workflows.engine import Engine as AsyncEngine
from standfast.workflows.overview import LATELY, PATIENCE
from standfast.workflows.run import Run as AsyncRun
from standfast.workflows.run_index import MOST_COUNTED
from standfast.workflows.worker import GRACE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable
    from datetime import datetime

    from standfast.audit import Actor, AuditPage
    from standfast.blocking.state import Slots
    from standfast.clock import Instant
    from standfast.durations import Duration
    from standfast.events import Hook
    from standfast.space import Opening
    from standfast.space import Space as AsyncSpace
    from standfast.stores.user_transactions import Talk
    from standfast.workflows.admin import Looked, Recovered
    from standfast.workflows.capacity import WorkerLimits
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

    Workflows: TypeAlias = Iterable[Runnable] | Mapping[str, Runnable]

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
T = TypeVar("T")


@final
class Engine:
    """Runs durable workflows on a store, for code without an event loop.

        with blocking.Engine("sqlite:///standfast.db", workflows=[fulfil]) as engine:
            run = engine.start(fulfil, "order-7", id="order-7")
            print(run.result(timeout="1 minute"))

    Any thread may use it. It is opened by ``with``, by :meth:`open`, or when it is first used, so one can be made where
    a module is loaded and serve all requests. A forked child that uses the engine of its parent opens it anew, by
    itself, with the same arguments; the runs that the parent drives stay the parent's. A program that ends without
    closing it hands its runs back within two seconds.

    If it drives runs, their code runs on the event loop that all blocking code of the process shares, so it must not
    block; steps that are plain functions run in threads.

    Args:
        store: Which store: a URL; ``standfast.open(url, ...)`` for more options, which the engine opens and closes; or
            a blocking space, which stays open when the engine closes.
        workflows: What it can run: a list, or a mapping of their names. A :class:`Debounced` or :class:`Batched` brings
            along what it needs; see :meth:`call`.
        steps: Steps that workflows may call by name.
        errors: Exceptions that come back as themselves from steps and runs.
        schedules: Made when the engine opens, or changed if they are declared in another way than the last time. Those
            that are paused stay so.
        drive: Whether this engine drives runs. If not it only starts them and talks to them, and workers elsewhere
            drive them.
        recover: Refuse to open if there are unfinished runs of workflows, or versions, that it does not have; see
            :meth:`recover_all`. In any case it takes up what it can.
        namespace: As in :func:`standfast.blocking.open`; only with a URL.
        tenant: As in :func:`standfast.blocking.open`; only with a URL.
        lease: How long others wait for this process, if it is not heard of any more, before they take its runs over;
            only with a URL.
        worker: What it takes on at the most, if it drives runs: ``sf.admin.WorkerLimits(threads=8)``.
        hooks: Told what happens, on Standfast's own thread.
        retention: For how long runs are kept after they have ended, if this engine drives runs.

    Attributes:
        address: Which store, without secrets; empty if a space was given.

    Raises:
        UsageError: When it is used: an event loop runs in this thread. Use :class:`standfast.Engine`.
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
        known = cast("Workflows", workflows if isinstance(workflows, Mapping) else tuple(workflows))
        named, raised, declared, told = tuple(steps), tuple(errors), tuple(schedules), tuple(hooks)

        def make(store: str | Opening | AsyncSpace, **names: Any) -> AsyncEngine:  # noqa: ANN401 -- as it was given
            return AsyncEngine(
                store,
                workflows=known,
                steps=named,
                errors=raised,
                schedules=declared,
                drive=drive,
                recover=recover,
                worker=worker,
                hooks=told,
                retention=retention,
                **names,
            )

        # Never opened: it finds the mistakes in what it is given, here and not when the engine is first used.
        given = link_of(store).live().space if isinstance(store, Space) else store
        self._draft: Final = make(given, namespace=namespace, tenant=tenant, lease=lease)
        self.address: Final = self._draft.address
        if isinstance(store, Space):
            self._link = EngineLink(lambda: link_of(store), make, is_own=False)
            return
        opening = (
            open_async(store, namespace=namespace, tenant=tenant, lease=lease) if isinstance(store, str) else store
        )
        self._link = EngineLink(lambda: Link(self.address, lambda: opening.open_with(told)), make, is_own=True)

    def __repr__(self) -> str:
        return f"<blocking Engine on {self.address or 'a space'}>"

    # --- life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def open(self, *, drive: bool | None = None, hooks: Iterable[Hook] = ()) -> None:
        """Open the store, and begin to drive runs.

        Args:
            drive: Whether to drive runs, whatever the engine was made with.
            hooks: Told what happens to runs, besides the engine's own.
        """
        self._link.open(drive, hooks)

    def close(self, *, grace: Duration = GRACE) -> None:
        """Stop: hand every run back, so that others can take it up at once, and close the store.

        Steps get ``grace`` to end; Ctrl-C cuts that short. Closing twice is fine. It can be opened again.
        """
        self._link.close(grace)

    # --- the rest ------------------------------------------------------------------------------------------------

    @property
    def actor(self) -> Actor | None:
        """The operator who acts through this engine; None: it is used by a program for its own ends."""
        return self._draft.actor

    @property
    def schedules(self) -> Schedules:
        """The schedules that lie in the store: make, pause, change, trigger and delete them."""
        return Schedules(self._link)

    def register(self, *workflows: Runnable) -> None:
        """Add workflows. Runs that were left alone because their code was not here go on soon."""
        self._draft.register(*workflows)
        self._link.register(*workflows)

    @overload
    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, AsyncRun[R]]]) -> Run[R]: ...
    @overload
    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, T]]) -> T: ...

    def call(self, work: Callable[[AsyncEngine], Coroutine[Any, Any, Any]]) -> Any:
        """Run async code with the async engine, on Standfast's own event loop, and return what it returns.

        For what has no blocking name: ``run = engine.call(lambda engine: reindex_soon.start(engine, "doc-7", text))``.
        A handle on a run is returned as a blocking one. The code shares the loop with everything else here, so it must
        not block.
        """
        found = self._link.call(work)
        if isinstance(found, AsyncRun):
            return as_blocking(self._link, found)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType] -- of anything
        return found

    @property
    def space(self) -> Space:
        """The space that everything lies in, for locks and states of its own."""
        return Space(self._link.store())

    @property
    def state(self) -> Slots:
        """The states of workflows, executions and runs, for an administrator: ``engine.state.workflow(name, key)``."""
        return self.space.state

    # --- starting ------------------------------------------------------------------------------------------------

    @overload
    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]: ...
    @overload
    def start(
        self,
        workflow: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[StartOptions],
    ) -> Run[R]: ...
    @overload
    def start(
        self,
        workflow: Workflow[..., R],
        /,
        *args: Any,  # noqa: ANN401 -- whatever the workflow takes
        kwargs: Mapping[str, Any] | None,
        **options: Unpack[StartOptions],
    ) -> Run[R]: ...
    @overload
    def start(self, workflow: Bound[R], /, **options: Unpack[StartOptions]) -> Run[R]: ...
    @overload
    def start(
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
    def start(  # type: ignore[misc]  # mypy misses what a workflow takes: *args and **by_name take all of it
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

        A caller that is interrupted meanwhile does not know whether it was started: give an id or an idempotency key,
        and it can be asked for again.

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
                of psycopg, SQLAlchemy or Django, and used in this thread. There is such a run if and only if you
                commit that transaction, and only then is it driven, by any worker.
            unknown: What to do with a name that neither this engine nor any worker of its namespace and tenant has had:
                ``"raise"``, or ``"start"`` a run that waits for a worker which has it. Its arguments are given by name.

        Raises:
            WrongArgumentsError: The workflow cannot be called with these arguments; it is a ``TypeError``.
            UnknownWorkflowError: This engine does not have the workflow, or none has one of that name.
            DeclarationError: This engine has another workflow under that name.
            WorkflowAlreadyExistsError: There is a run with that id or key, of another workflow or with another input.
            IdempotencyKeyPurgedError: The key belongs to a run that was purged.
            WorkflowConcurrencyLimitExceededError: As many runs as its limit allows are unfinished.
            InvalidArgumentError: The connection is not in a transaction, or not one to the store's database.
            UnsuitableStoreError: With a connection: the store is no PostgreSQL.
        """
        words = tuple(tags)  # here: what they are read from may be for this thread alone
        options = {"id": id, "idempotency_key": idempotency_key, "delay": delay or None, "tags": words or None}
        if connection is not None:
            given = (workflow, args, kwargs, by_name, options | {"connection": connection}, unknown)
            return start_within(self._link, connection, lambda engine: _prepared(engine, given))
        run: AsyncRun[Any] = self._link.call(
            lambda engine: engine.start(
                workflow,
                *args,
                kwargs=kwargs,
                id=id,
                idempotency_key=idempotency_key,
                delay=delay,
                tags=words,
                unknown=unknown,
                **by_name,
            )
        )
        return as_blocking(self._link, run)

    @overload
    def start_or_signal(
        self,
        workflow: Callable[[Unpack[Ts]], Coroutine[Any, Any, R]],
        /,
        *args: *Ts,
        **options: Unpack[SignalOptions],
    ) -> tuple[Run[R], Outcome]: ...
    @overload
    def start_or_signal(self, workflow: Bound[R], /, **options: Unpack[SignalOptions]) -> tuple[Run[R], Outcome]: ...
    @overload
    def start_or_signal(
        self,
        workflow: str,
        /,
        *args: Any,  # noqa: ANN401 -- whatever the workflow takes
        **options: Unpack[SignalOptions],
    ) -> tuple[Run[Any], Outcome]: ...
    def start_or_signal(  # type: ignore[misc]  # as of start
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
        """Signal a run, and start it first if it is not there: both in one commit. No other that does so is lost.

        Args:
            workflow: What to start if there is no such run. If there is one, it must be a run of this workflow.
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
        words = tuple(tags)
        run, outcome = self._link.call(
            lambda engine: engine.start_or_signal(
                workflow,
                *args,
                signal=signal,
                value=value,
                id=id,
                idempotency_key=idempotency_key,
                signal_id=signal_id,
                on_terminal=on_terminal,
                tags=words,
            )
        )
        return as_blocking(self._link, run), outcome

    def run(self, run_id: str) -> Run[Any]:
        """Return a handle on a run by its id. Whether there is such a run is found out when it is used."""
        return Run(self._link, run_id, None)

    # --- generated by tools/generate_blocking.py from standfast.workflows.engine.Engine: do not edit

    def audit(
        self,
        *,
        action: str | None = None,
        subject: str | None = None,
        actor: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> AuditPage:
        """Return a page of what operators did in this namespace and tenant, newest first; see :meth:`Space.audit`."""
        return self._link.call(
            lambda engine: engine.audit(action=action, subject=subject, actor=actor, limit=limit, after=after)
        )

    def get(self, run_id: str) -> RunInfo:
        """Return how a run is."""
        return self._link.call(lambda engine: engine.get(run_id))

    def history(self, run_id: str) -> tuple[HistoryEntry, ...]:
        """Return everything that a run has recorded."""
        return self._link.call(lambda engine: engine.history(run_id))

    def timeline(self, run_id: str) -> Timeline:
        """Return where the time of a run went: when it worked, and what it waited for."""
        return self._link.call(lambda engine: engine.timeline(run_id))

    def list(
        self, *, newest_first: bool = False, limit: int = 100, after: str | None = None, **filters: Unpack[RunFilters]
    ) -> Page:
        """Return a page of runs, in the order of the time since when each is as it is: ended, suspended, running.

            page = engine.list(status="failed", workflow="fulfil", newest_first=True)

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
        return self._link.call(
            lambda engine: engine.list(newest_first=newest_first, limit=limit, after=after, **filters)
        )

    def count(self, *, most: int = MOST_COUNTED, **filters: Unpack[RunFilters]) -> RunCount:
        """Count runs, up to a bound: ``str`` of the answer is ``"17"``, or ``"1,000+"`` if there are more.

        Args:
            most: Where to stop. A count costs as much as it counts.
            filters: As in :meth:`list`.
        """
        return self._link.call(lambda engine: engine.count(most=most, **filters))

    def result(self, run_id: str, *, timeout: Duration | None = None) -> Any:  # noqa: ANN401 -- whatever it returned
        """Return what a run returned, waiting for its end; see :meth:`Run.result`."""
        return self._link.call(lambda engine: engine.result(run_id, timeout=timeout))

    def signal(self, run_id: str, name: str, value: object = None, *, signal_id: str | None = None) -> bool:
        """Send a signal to a run. It is durable when this returns, and waits until the run takes it.

        Args:
            run_id: The run. One that went on as a new run hands it over to that.
            name: What the run waits for: 1 to 100 printable characters.
            value: JSON-shaped data.
            signal_id: Sent again with the same id, it is the same signal; then this returns False.

        Raises:
            WorkflowTerminalError: The run has ended, and this signal was not sent before.
        """
        return self._link.call(lambda engine: engine.signal(run_id, name, value, signal_id=signal_id))

    def update(
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
        return self._link.call(lambda engine: engine.update(run_id, name, *args, timeout=timeout, update_id=update_id))

    def query(self, run_id: str, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run something, without leaving a trace: its history is replayed here, and its code is asked.

        It needs the run's code, and works for runs that are driven elsewhere or have ended. What the code returns is
        handed on as it is: let it return a copy of what it goes on to change.
        """
        return self._link.call(lambda engine: engine.query(run_id, name, *args))

    def cancel(self, run_id: str, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask a run to stop: its code gets :class:`RunCancelled` where it waits, and may clean up. Its children too.

        A run that no worker has begun, or that is quarantined, ends at once. One that has ended is left as it is.

        Args:
            run_id: The run.
            reason: Why, as the run shows it later.
            force: End it whatever its code does, with everything that it has started. Nothing is cleaned up; what it
                holds is released. If a step is running, its result is refused.
        """
        return self._link.call(lambda engine: engine.cancel(run_id, reason, force=force))

    def set_limit(
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
        return self._link.call(lambda engine: engine.set_limit(workflow, max, key=key, until=until, lasts=lasts))

    def clear_limit(self, workflow: Workflow[..., Any] | str, *, key: str | None = None) -> None:
        """Allow as many unfinished runs as the workflow's code says, from now on."""
        self._link.call(lambda engine: engine.clear_limit(workflow, key=key))

    def limits(self, workflow: str | None = None, *, limit: int = 1_000) -> LimitPage:
        """Return the limits of unfinished runs, how much of each is used, and how many wait.

        Args:
            workflow: Only those of this workflow.
            limit: How many lines of limits are looked at: a limit of each key has a line for each key in use.
        """
        return self._link.call(lambda engine: engine.limits(workflow, limit=limit))

    def workers(self, *, limit: int = 1_000) -> tuple[WorkerInfo, ...]:
        """Return up to ``limit`` workers: where they run, what they have, and when they were last heard of.

        One that died is among them until another one has taken over its runs. Nothing is changed by looking.
        """
        return self._link.call(lambda engine: engine.workers(limit=limit))

    def overview(self, *, lately: Duration = LATELY, patience: Duration = PATIENCE, most: int = 1_000) -> Overview:
        """Return how everything in this namespace and tenant is, and what needs a person.

        It reads a bounded number of records, however much is stored. Nothing is changed by looking.

        Args:
            lately: How long ago a failure still needs a person.
            patience: How long the first in a line may have waited.
            most: Up to how many runs are counted.
        """
        return self._link.call(lambda engine: engine.overview(lately=lately, patience=patience, most=most))

    def resume(self, run_id: str) -> RunInfo:
        """Look at a run now, and return how it is then.

        If something of it is due and no worker drives it, this engine takes it up; one without a worker tells others.
        A run that is driven elsewhere, or has nothing due, is left as it is. Workers do this by themselves; this does
        it at once.
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

        Workers do this by themselves; call it to know that nothing was forgotten.

        Args:
            unknown: What to do about runs of workflows, or versions, that this engine does not have: ``"leave"`` them
                to other engines, each with a :class:`~standfast.events.RunLeftAlone`; or ``"raise"``.

        Raises:
            WorkflowTypeNotRegisteredForRecoveryError: There are such runs. Nothing was resumed.
        """
        return self._link.call(lambda engine: engine.recover_all(unknown=unknown))

    def restart(self, run_id: str, *, id: str | None = None, input: Mapping[str, Any] | None = None) -> Run[Any]:  # noqa: A002 -- the words that users know
        """Start a new run with the input of another one, from its beginning. That one is left as it is.

        Args:
            run_id: The run to take the input from.
            id: The new run's id; by default a new one.
            input: Another input: the arguments by name, JSON-shaped. By default the same.
        """
        return as_blocking(self._link, self._link.call(lambda engine: engine.restart(run_id, id=id, input=input)))

    def fork(self, run_id: str, step: str, *, id: str | None = None) -> Run[Any]:  # noqa: A002 -- the word that users know
        """Start a new run that goes on from a step of another one, which is left as it is.

        The new run has recorded what the other one had when it came to the step: earlier steps are not run again, the
        step itself and everything after it are. What came later in other branches is not taken over, and neither are
        signals that were not taken by then, nor the states of the run. A step inside of ``with ctx.mutex(...)``
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
        was when it was told, with as much time as it had at first. Children that it still waits for resume, too. A run
        that has not ended is left as it is; one that has completed is refused.

        Args:
            run_id: The run.
            step: Go on from this step, in place of the one that failed.
        """
        return self._link.call(lambda engine: engine.retry(run_id, step=step))

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

            engine.purge(older_than="30 days")

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
            tenant: The name of the tenant, so that none is erased by mistake: it must be the engine's own.

        Returns:
            How many records there were besides those of runs.
        """
        return self._link.call(lambda engine: engine.erase(tenant=tenant))

    # --- end of what is generated


async def _prepared(engine: AsyncEngine, given: tuple[Any, ...]) -> tuple[Talk[Started], Workflow[..., Any] | None]:
    return await engine._start_within(*given)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the other half of this start
