"""The engine: starts runs, talks to them, and drives them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar, final

from holdfast.durations import seconds
from holdfast.errors import (
    EngineCreateNameMismatchError,
    InvalidWorkflowError,
    UnknownWorkflowError,
    UpdateTimeoutError,
    UpdateValidationError,
)
from holdfast.events import Hooks
from holdfast.ids import new_id
from holdfast.locks.options import DEFAULT_LEASE
from holdfast.masking import mask_url
from holdfast.space import Space, lines_of
from holdfast.space import open as open_space
from holdfast.workflows import sending
from holdfast.workflows.claiming import marks_of
from holdfast.workflows.definition import Step, Workflow, as_step
from holdfast.workflows.failures import restore
from holdfast.workflows.handle import Run
from holdfast.workflows.host import MOST_DEATHS, Host
from holdfast.workflows.information import list_runs, read_history, read_info
from holdfast.workflows.mail import ANSWERS
from holdfast.workflows.records import RunKeys
from holdfast.workflows.starting import Start, as_start, start
from holdfast.workflows.threads import MOST, Threads
from holdfast.workflows.values import PLAIN
from holdfast.workflows.watching import copy_of
from holdfast.workflows.worker import GRACE, Worker

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from holdfast.durations import Duration
    from holdfast.events import Hook
    from holdfast.workflows.activation import Activation
    from holdfast.workflows.information import HistoryEntry, Page, RunInfo

R = TypeVar("R")

LINGER: Final = 0.25
"""Seconds that a run in which everything waits stays in memory."""


@final
class Engine:
    """Runs durable workflows on a store.

    Args:
        url: Which store, as in :func:`holdfast.open`; or a space that is open, which stays open when the engine closes.
        workflows: What it can run: a list, or a mapping of their names.
        steps: Steps that workflows may call by name.
        errors: Exceptions that come back as themselves from steps and runs.
        drive: Whether this engine drives runs. If not it only starts them and talks to them.
        namespace: As in :func:`holdfast.open`.
        tenant: As in :func:`holdfast.open`.
        lease: How long others wait for this process, if it is not heard of any more, before they take its runs over.
        linger: How long a run in which everything waits stays in memory.
        max_loaded: How many runs are in memory at most.
        threads: How many steps that are plain functions run at a time.
        quarantine_after: How many workers may die with a run before it is left alone.
        hooks: Told what happens.

    Attributes:
        address: Which store, without secrets; empty if a space was given.
    """

    def __init__(
        self,
        url: str | Space,
        *,
        workflows: Iterable[Workflow[..., Any]] | Mapping[str, Workflow[..., Any]] = (),
        steps: Iterable[Step[..., Any] | Any] = (),
        errors: Iterable[type[Exception]] = (),
        drive: bool = True,
        namespace: str = "default",
        tenant: str = "default",
        lease: Duration = DEFAULT_LEASE,
        linger: Duration = LINGER,
        max_loaded: int = 10_000,
        threads: int = MOST,
        quarantine_after: int = MOST_DEATHS,
        hooks: Iterable[Hook] = (),
    ) -> None:
        self._opening = (
            None
            if isinstance(url, Space)
            else open_space(url, namespace=namespace, tenant=tenant, lease=lease, hooks=(hooks := tuple(hooks)))
        )
        self._space: Space | None = url if isinstance(url, Space) else None
        self.address: Final = "" if isinstance(url, Space) else mask_url(url)
        self._workflows: Final = _by_version(workflows)
        self._steps: Final = {each.name: each for each in map(as_step, steps)}
        self._errors: Final = tuple(errors)
        self._hooks: Final = tuple(hooks)
        self._drives = drive
        self._linger: Final = seconds(linger, what="linger")
        self._options: Final = (max_loaded, threads, quarantine_after)
        self._host: Host | None = None
        self._worker: Worker | None = None

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
        self._drives = self._drives if drive is None else drive
        if self._space is None and self._opening is not None:
            self._space = await self._opening
        assert self._space is not None  # noqa: S101 -- one of the two was given
        max_loaded, threads, deaths = self._options
        lines = lines_of(self._space)
        told = Hooks((*self._hooks, *hooks))
        self._host = Host(self._space, lines, told, Threads(threads), self._errors, most_deaths=deaths)
        self._host.workflows.update(self._workflows)
        self._host.steps.update(self._steps)
        if self._drives:
            self._worker = Worker(self._host, linger=self._linger, most_loaded=max_loaded)
            await self._host.attend()
            await self._worker.start()
        else:
            self._host.saw((await self._space.read(self._space.key("worker"))).at)

    async def aclose(self, *, grace: Duration = GRACE) -> None:
        """Stop: hand every run back, so that others can take it up at once, and close the store."""
        if self._host is None:
            return
        host, self._host = self._host, None
        if self._worker is not None:
            await self._worker.stop(seconds(grace, what="grace"))
            await host.retire()
        host.threads.close()
        if self._opening is not None and self._space is not None:
            await self._space.aclose()

    @property
    def host(self) -> Host:
        """What runs need of the engine; refused while it is closed."""
        if self._host is None:
            raise InvalidWorkflowError("the engine", "it is not open; use it in async with, or await engine.open()")
        return self._host

    @property
    def worker(self) -> Worker | None:
        """What drives runs here; None if this engine does not, or is not open."""
        return self._worker

    @property
    def space(self) -> Space:
        """The space that everything lies in, for locks and states of its own."""
        return self.host.space

    # --- starting ------------------------------------------------------------------------------------------------

    async def start(
        self,
        workflow: Workflow[..., R],
        *args: Any,
        id: str | None = None,  # noqa: A002 -- the word that users know
        idempotency_key: str | None = None,
        delay: Duration = 0,
    ) -> Run[R]:
        """Start a run. It is durable when this returns.

        Args:
            workflow: What to run.
            args: What it is called with, after its context.
            id: The run's id; by default a new one. Starting the same again returns the run that is there.
            idempotency_key: Like an id, for a run whose id does not matter: the same key, the same run.
            delay: How long to wait before it begins.
        """
        host = self.host
        found = self._known(workflow)
        asked = as_start(
            found,
            args,
            run_id=id,
            idempotency_key=idempotency_key,
            delay=seconds(delay, what="delay"),
            drive=self._worker is not None and len(host.loaded) < self._options[0],
        )
        started = await start(host, asked)
        return Run(self, started.run_id, found, is_new=started.is_new)

    def _known(self, workflow: Workflow[..., R]) -> Workflow[..., R]:
        if not isinstance(workflow, Workflow):  # pyright: ignore[reportUnnecessaryIsInstance] -- callers without a type checker
            raise InvalidWorkflowError(repr(workflow)[:100], "this is no workflow; declare it with @hf.workflow")
        found = self.host.workflows.get((workflow.name, workflow.version))
        if found is None and self._drives:
            raise UnknownWorkflowError(workflow.name, tuple(sorted({name for name, _ in self.host.workflows})))
        return workflow

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
            run_id: The run.
            name: What the run waits for.
            value: JSON-shaped data.
            signal_id: Sent again with the same id, it is the same signal; then this returns False.
        """
        packed = PLAIN.pack(value)
        checked = None if signal_id is None else sending.checked_signal_id(signal_id)
        return (await sending.send(self.host, run_id, "signal", name, packed, checked)).is_new

    async def update(
        self, run_id: str, name: str, *args: Any, timeout: Duration = "5 seconds", update_id: str | None = None
    ) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run to change something, and return its answer.

        Args:
            run_id: The run.
            name: Which of its ``ctx.on_update`` handlers.
            args: JSON-shaped data for the handler.
            timeout: How long to wait for the answer.
            update_id: Sent again with the same id, it is the same update.

        Raises:
            UpdateValidationError: The run refused it, and nothing has changed.
            UpdateTimeoutError: No answer came in time. It may still be done.
        """
        limit = seconds(timeout, what="timeout")
        item_id = update_id or new_id()
        keys = RunKeys(self.space, run_id)
        key = keys.answer(item_id)
        async with self.space.watch(key) as watch:
            if not (await self.space.read(key)).version(key):
                await sending.send(self.host, run_id, "update", name, PLAIN.pack(list(args)), item_id)
            try:
                async with asyncio.timeout(limit):
                    while (record := (await self.space.read(key)).get(key)) is None:
                        await watch.wait(0.5)
            except TimeoutError:
                raise UpdateTimeoutError(run_id, name, limit) from None
        answer = ANSWERS.decode(record.value)
        if answer.how == "refused":
            raise UpdateValidationError(run_id, name, answer.problem)
        if answer.failure is not None:
            raise restore(answer.failure, self.host.known)
        return PLAIN.unpack(answer.value or b"null")

    async def query(self, run_id: str, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask a run something, without leaving a trace: its history is replayed here, and its code is asked.

        It needs the run's code, and works for runs that are driven elsewhere or have ended.
        """
        loaded: Activation | None = self.host.loaded.get(run_id)
        if loaded is None or not loaded.replay.is_over:
            loaded = await copy_of(self.host, run_id)
        handler = loaded.mail.queries.get(name)
        if handler is None:
            known = ", ".join(sorted(loaded.mail.queries)) or "none"
            raise InvalidWorkflowError(f"query {name!r:.100}", f"the run answers {known}; declare it with ctx.on_query")
        return handler(*args)

    async def cancel(self, run_id: str, reason: str = "it was asked to") -> RunInfo:
        """Ask a run to stop: its code gets :class:`RunCancelled` where it waits, and may clean up. Its children too."""
        await sending.cancel(self.host, run_id, reason)
        return await self.get(run_id)


def _by_version(
    given: Iterable[Workflow[..., Any]] | Mapping[str, Workflow[..., Any]],
) -> dict[tuple[str, str], Workflow[..., Any]]:
    workflows = list(given.values()) if hasattr(given, "values") else list(given)
    if hasattr(given, "items"):
        for name, workflow in given.items():
            if name != workflow.name:
                raise EngineCreateNameMismatchError(name, workflow.name)
    found: dict[tuple[str, str], Workflow[..., Any]] = {}
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            raise InvalidWorkflowError(repr(workflow)[:100], "this is no workflow; declare it with @hf.workflow")
        if found.setdefault((workflow.name, workflow.version), workflow) is not workflow:
            raise InvalidWorkflowError(
                workflow.name, "two workflows have this name and version; give one another version"
            )
    return found


__all__ = ["Engine", "Literal", "Start", "marks_of"]
