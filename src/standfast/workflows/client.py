"""Starting runs and talking to them, from any process: whether or not it drives any."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    ParamSpec,
    Required,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    final,
    overload,
)

from msgspec import structs

from standfast.durations import seconds
from standfast.errors import InvalidWorkflowError, ResultTimeoutError, UpdateValidationError
from standfast.workflows import messages as sending
from standfast.workflows.catalog import RemoteWorkflow
from standfast.workflows.control import next_id, raise_ending
from standfast.workflows.definition import Workflow
from standfast.workflows.execution import copy_of
from standfast.workflows.failures import restore
from standfast.workflows.limits import place_of
from standfast.workflows.messages import end_by_force, state_in
from standfast.workflows.messages import find as find_run
from standfast.workflows.queries import list_runs, read_history, read_info
from standfast.workflows.records import HEADERS, RunKeys, RunState
from standfast.workflows.start import (
    as_start,
    check_request,
    find,
    packed_arguments,
    start,
    start_or_signal,
    start_over,
    start_within,
)
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping

    from standfast.durations import Duration
    from standfast.locks.state import Slots
    from standfast.space import Space
    from standfast.stores.user_transactions import Talk
    from standfast.workflows.activation import Activation
    from standfast.workflows.definition import Bound
    from standfast.workflows.queries import HistoryEntry, Page, RunInfo
    from standfast.workflows.records import Start, Started
    from standfast.workflows.runtime import Runtime
    from standfast.workflows.start import OnTerminal, Outcome, StartOptions, Unknown


# --- A handle on a run: its id, and what can be done with it -------------------------------------------------------

R = TypeVar("R")

LOOK_EVERY = 1.0
"""Seconds between two looks at a run whose end somebody waits for, if nothing tells earlier."""


@final
class Run(Generic[R]):
    """A run, as seen by whoever started it or asks for it. It may be driven anywhere.

    Attributes:
        id: The run's id.
        is_new: Whether the call that returned this handle started it.
    """

    __slots__ = ("_engine", "_workflow", "id", "is_new")

    def __init__(self, engine: Client, run_id: str, workflow: Workflow[..., R] | None, *, is_new: bool = False) -> None:
        self._engine, self._workflow = engine, workflow
        self.id = run_id
        self.is_new = is_new

    def __repr__(self) -> str:
        return f"<run {self.id}>"

    async def result(self, *, timeout: Duration | None = None) -> R:
        """Return what the run returned, waiting for its end.

        Args:
            timeout: How long to wait at most. The run goes on whether or not anybody waits.

        Raises:
            RunFailedError: It failed; what it raised is the ``__cause__``.
            RunCancelledError: It was cancelled.
            RunTimedOutError: It took longer than its workflow allows.
            ResultTimeoutError: It had not ended in time.
        """
        if timeout is None:
            return self._result_of(await self._end())
        limit = seconds(timeout, what="timeout")
        try:
            async with asyncio.timeout(limit):
                state = await self._end()
        except TimeoutError:
            info = await self.info()
            raise ResultTimeoutError(self.id, limit, info.status) from None
        return self._result_of(state)

    async def _end(self) -> RunState:
        run_id = self.id
        while (state := await self._end_of(run_id)).continues:
            run_id = next_id(run_id)
        return state

    async def _end_of(self, run_id: str) -> RunState:
        loaded = self._engine.runtime.loaded.get(run_id)
        if loaded is not None and (state := await asyncio.shield(loaded.over)) is not None:
            return state
        return await self._engine.runtime.endings.of(run_id)

    def _result_of(self, state: RunState) -> R:
        workflow = self._workflow or self._engine.runtime.workflows.get((state.workflow, state.version))
        if state.status != "completed":
            known = self._engine.runtime.known_with(() if workflow is None else workflow.raises)
            timeout = None if workflow is None else workflow.timeout
            raise_ending(self.id, state.status, state.failure, known, state.cancel, timeout)
        result: R = (PLAIN if workflow is None else workflow.signature.result).unpack(state.result or b"null")
        return result

    async def info(self) -> RunInfo:
        """Return how the run is."""
        return await self._engine.get(self.id)

    async def place(self) -> int | None:
        """Count the runs that have their turn before this one: 0 is next. None: it does not wait because of a limit."""
        return await place_of(self._engine.runtime, self.id)

    async def history(self) -> tuple[HistoryEntry, ...]:
        """Return everything that the run has recorded."""
        return await self._engine.history(self.id)

    async def signal(self, name: str, value: object = None, *, signal_id: str | None = None) -> bool:
        """Send a signal, see :meth:`Engine.signal`."""
        return await self._engine.signal(self.id, name, value, signal_id=signal_id)

    async def update(self, name: str, *args: Any, timeout: Duration = "5 seconds", update_id: str | None = None) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Send an update and return its answer, see :meth:`Engine.update`."""
        return await self._engine._update(self.id, name, args, timeout, update_id, self._workflow)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the other half of it

    async def query(self, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask the run something, see :meth:`Engine.query`."""
        return await self._engine.query(self.id, name, *args)

    async def cancel(self, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask the run to stop, see :meth:`Engine.cancel`."""
        return await self._engine.cancel(self.id, reason, force=force)


async def input_of(engine: Client, run_id: str) -> Any:  # noqa: ANN401 -- whatever it was started with
    """Return what a run was started with, as JSON-shaped data."""
    keys = RunKeys(engine.space, run_id)
    seen = await engine.space.read(keys.header, keys.state)
    state_in(seen, keys)
    record = seen.get(keys.header)
    return None if record is None else PLAIN.unpack(HEADERS.decode(record.value).input)


# --- starting runs and talking to them, from any process: whether or not it drives any -----------------------------

P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


class SignalOptions(TypedDict, total=False):
    """What ``engine.start_or_signal`` takes besides the arguments of the workflow; see there."""

    signal: Required[str]
    value: object
    id: str | None
    idempotency_key: str | None
    signal_id: str | None
    on_terminal: OnTerminal
    tags: Iterable[str]


class Client(ABC):
    """What anybody does with runs who has a store in common with those who drive them."""

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """What runs need of the engine; refused while it is not open."""

    @property
    @abstractmethod
    def drives(self) -> bool:
        """Whether this engine drives runs."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether this engine drives runs, and should drive one more that is started here."""

    @property
    def space(self) -> Space:
        """The space that everything lies in, for locks and states of its own."""
        return self.runtime.space

    @property
    def state(self) -> Slots:
        """The states of workflows, executions and runs, for an administrator: ``engine.state.workflow(name, key)``."""
        return self.space.state

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
            UnknownWorkflowError: This engine does not have the workflow, or nobody has one of that name.
            WorkflowMismatchError: This engine has another workflow under that name.
            WorkflowAlreadyExistsError: There is a run with that id or key, of another workflow or with another input.
            IdempotencyKeyPurgedError: The key belongs to a run that was purged.
            WorkflowConcurrencyLimitExceededError: As many runs as its limit allows are unfinished.
            UnsuitableConnectionError: The connection is not in a transaction, or not one to the store's database.
            UnsuitableStoreError: With a connection: the store is no PostgreSQL.
        """
        options = {"id": id, "idempotency_key": idempotency_key, "delay": delay or None, "tags": tuple(tags) or None}
        asked = await self._asked(workflow, args, kwargs, by_name, options | {"connection": connection}, unknown)
        started = await (
            start(self.runtime, asked) if connection is None else start_over(self.runtime, asked, connection)
        )
        return Run(self, started.run_id, _code_of(asked), is_new=started.is_new)

    async def _start_within(self, *given: Any) -> tuple[Talk[Started], Workflow[..., Any] | None]:  # noqa: ANN401 -- as ``_asked`` takes it
        """Prepare a start within a transaction, for whoever has a connection in another thread."""
        asked = await self._asked(*given)
        return await start_within(self.runtime, asked), _code_of(asked)

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
        """Signal a run, and start it first if it is not there: both in one commit. Nobody who does so too is lost.

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
        sent = sending.signal_of(signal, value, signal_id)
        options = {"id": id, "idempotency_key": idempotency_key, "tags": tuple(tags) or None}
        asked = await self._asked(workflow, args, None, {}, options)
        met = await start_or_signal(self.runtime, asked, sent, on_terminal)
        return Run(self, met.run_id, _code_of(asked), is_new=met.outcome == "started"), met.outcome

    async def _asked(
        self,
        workflow: object,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] | None,
        by_name: Mapping[str, Any],
        options: Mapping[str, Any],
        unknown: Unknown = "raise",
    ) -> Start:
        """Return a start that is checked; options that are None were not given."""
        given = {name: value for name, value in options.items() if value is not None}
        target = await find(self.runtime, workflow, drives=self.drives, unknown=unknown)
        asked = as_start(
            target,
            packed_arguments(workflow, target, args, kwargs, by_name, given),
            run_id=given.get("id"),
            idempotency_key=given.get("idempotency_key"),
            delay=seconds(given.get("delay", 0), what="delay"),
            drive=self.has_room and isinstance(target, Workflow),
        )
        words = tuple(sending.checked_name("tag", tag) for tag in given.get("tags", ()))
        return structs.replace(asked, tags=words) if words else asked

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

    async def list(
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
        wanted = {status} if isinstance(status, str) else status
        if type(limit) is not int or limit < 1:
            raise InvalidWorkflowError("list", f"limit is {limit!r:.100}; it must be a whole number, at least 1")
        return await list_runs(
            self.space,
            workflow=workflow,
            status=wanted,
            parent=parent,
            tag=tag,
            newest_first=newest_first,
            limit=limit,
            after=after,
        )

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
        return (await self.runtime.inboxes.send(run_id, sending.signal_of(name, value, signal_id))).is_new

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
        return await self._update(run_id, name, args, timeout, update_id, None)

    async def _update(
        self,
        run_id: str,
        name: str,
        args: tuple[Any, ...],
        timeout: Duration,
        update_id: str | None,
        workflow: Workflow[..., Any] | None,
    ) -> Any:  # noqa: ANN401 -- whatever the run answers
        limit = seconds(timeout, what="timeout")
        answer = await sending.ask(self.runtime, run_id, sending.update_of(name, args, update_id), limit)
        if answer.how == "refused":
            raise UpdateValidationError(run_id, name, answer.problem)
        if answer.failure is not None:
            state = (await find_run(self.space, run_id)).state
            code = workflow or self.runtime.workflows.get((state.workflow, state.version))
            raise restore(answer.failure, self.runtime.known_with(() if code is None else code.raises))
        return PLAIN.unpack(answer.value or b"null")

    async def query(self, run_id: str, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run something, without leaving a trace: its history is replayed here, and its code is asked.

        It needs the run's code, and works for runs that are driven elsewhere or have ended. What the code returns is
        handed on as it is: let it return a copy of what it goes on to change.
        """
        while (await find_run(self.space, run_id)).state.continues:
            run_id = next_id(run_id)
        loaded: Activation | None = self.runtime.loaded.get(run_id)
        if loaded is None or not loaded.branches or not loaded.replay.is_over:  # here, but not yet as far as it was
            loaded = await copy_of(self.runtime, run_id)
        handler = loaded.inbox.queries.get(name)
        if handler is None:
            known = ", ".join(sorted(loaded.inbox.queries)) or "none"
            raise InvalidWorkflowError(f"query {name!r:.100}", f"the run answers {known}; declare it with ctx.on_query")
        return handler(*args)

    async def cancel(self, run_id: str, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask a run to stop: its code gets :class:`RunCancelled` where it waits, and may clean up. Its children too.

        A run that nobody has begun, or that is quarantined, ends at once. One that has ended is left as it is.

        Args:
            run_id: The run.
            reason: Why, for whoever asks later.
            force: End it whatever its code does, with everything that it has started. Nothing is cleaned up; what it
                holds is released. If a step is running, its result is refused.
        """
        if force:
            await end_by_force(self.runtime, run_id, reason)
        else:
            await sending.cancel(self.runtime, run_id, reason)
        return await self.get(run_id)


def _code_of(asked: Start) -> Workflow[..., Any] | None:
    found: Workflow[..., Any] = asked.workflow
    return None if isinstance(asked.workflow, RemoteWorkflow) else found
