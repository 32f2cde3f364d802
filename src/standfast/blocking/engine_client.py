"""Starting runs and talking to them, from blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from standfast.blocking.run import Run, as_blocking
from standfast.blocking.space import Space
from standfast.blocking.within import start_within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

    from standfast.blocking.engine_link import EngineLink
    from standfast.blocking.states import Slots
    from standfast.durations import Duration
    from standfast.stores.user_transactions import Talk
    from standfast.workflows.definition import Bound, Workflow
    from standfast.workflows.engine import Engine as AsyncEngine
    from standfast.workflows.queries import HistoryEntry, Page, RunInfo
    from standfast.workflows.records import Started
    from standfast.workflows.run import Run as AsyncRun
    from standfast.workflows.start import OnTerminal, Outcome, SignalOptions, StartOptions, Unknown

P = ParamSpec("P")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Client:
    """What anybody does with runs who has a store in common with those who drive them."""

    _link: EngineLink

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

        Whoever is interrupted meanwhile does not know whether it was started: give an id or an idempotency key, and it
        can be asked for again.

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
            UnknownWorkflowError: This engine does not have the workflow, or nobody has one of that name.
            DeclarationError: This engine has another workflow under that name.
            WorkflowAlreadyExistsError: There is a run with that id or key, of another workflow or with another input.
            IdempotencyKeyPurgedError: The key belongs to a run that was purged.
            WorkflowConcurrencyLimitExceededError: As many runs as its limit allows are unfinished.
            UnsuitableConnectionError: The connection is not in a transaction, or not one to the store's database.
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
        """Signal a run, and start it first if it is not there: both in one commit. Nobody who does so too is lost.

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

    # --- looking -------------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> RunInfo:
        """Return how a run is."""
        return self._link.call(lambda engine: engine.get(run_id))

    def history(self, run_id: str) -> tuple[HistoryEntry, ...]:
        """Return everything that a run has recorded."""
        return self._link.call(lambda engine: engine.history(run_id))

    def list(
        self,
        *,
        workflow: str | None = None,
        status: str | Collection[str] | None = None,
        parent: str | None = None,
        tag: str | None = None,
        newest_first: bool = False,
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Return a page of runs, in the order of their ids; those without an id of their own sort by their start.

        Args:
            workflow: Only of this workflow.
            status: Only those that are so.
            parent: Only the children of this run.
            tag: Only those with this tag.
            newest_first: Begin at the other end.
            limit: How many.
            after: Where the page before ended: its ``next``.
        """
        return self._link.call(
            lambda engine: engine.list(
                workflow=workflow,
                status=status,
                parent=parent,
                tag=tag,
                newest_first=newest_first,
                limit=limit,
                after=after,
            )
        )

    def result(self, run_id: str, *, timeout: Duration | None = None) -> Any:  # noqa: ANN401 -- whatever it returned
        """Return what a run returned, waiting for its end; see :meth:`Run.result`."""
        return self.run(run_id).result(timeout=timeout)

    # --- talking -------------------------------------------------------------------------------------------------

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
        return self.run(run_id).signal(name, value, signal_id=signal_id)

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
        return self.run(run_id).update(name, *args, timeout=timeout, update_id=update_id)

    def query(self, run_id: str, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run something, without leaving a trace: its history is replayed here, and its code is asked.

        It needs the run's code, and works for runs that are driven elsewhere or have ended. The code runs on
        Standfast's own thread. What it returns is handed on as it is: let it return a copy of what it goes on to
        change.
        """
        return self.run(run_id).query(name, *args)

    def cancel(self, run_id: str, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask a run to stop: its code gets :class:`RunCancelled` where it waits, and may clean up. Its children too.

        A run that nobody has begun, or that is quarantined, ends at once. One that has ended is left as it is.

        Args:
            run_id: The run.
            reason: Why, for whoever asks later.
            force: End it whatever its code does, with everything that it has started. Nothing is cleaned up; what it
                holds is released. If a step is running, its result is refused.
        """
        return self.run(run_id).cancel(reason, force=force)


async def _prepared(engine: AsyncEngine, given: tuple[Any, ...]) -> tuple[Talk[Started], Workflow[..., Any] | None]:
    return await engine._start_within(*given)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the other half of this start
