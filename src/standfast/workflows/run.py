"""A handle on a run: its id, and what can be done with it from any process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from standfast.durations import seconds
from standfast.errors import ResultTimeoutError
from standfast.workflows import messages
from standfast.workflows.control import next_id, raise_ending
from standfast.workflows.execution import query
from standfast.workflows.limits import place_of
from standfast.workflows.queries import read_history, read_info
from standfast.workflows.values import PLAIN

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.workflows.definition import Workflow
    from standfast.workflows.queries import HistoryEntry, RunInfo
    from standfast.workflows.records import RunState
    from standfast.workflows.runtime import AnyEngine


R = TypeVar("R")


@final
class Run(Generic[R]):
    """A handle on a run, which may be executed anywhere.

    Attributes:
        id: The run's id.
        is_new: Whether the call that returned this handle started it.
    """

    __slots__ = ("_engine", "_workflow", "id", "is_new")

    def __init__(
        self, engine: AnyEngine, run_id: str, workflow: Workflow[..., R] | None, *, is_new: bool = False
    ) -> None:
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
            loaded = self._engine.runtime.loaded.get(self.id)
            state = None if loaded is None else await loaded.until_over()  # as _end does; mostly that is all
            if state is None or state.continues:
                return self._result_of(await self._end())
            if (
                loaded is not None
                and loaded.restored
                and state.status == "completed"
                and loaded.workflow is self._workflow
            ):
                result: R = loaded.restored.pop()
                return result  # as it was read back when it was written: it need not be again
            return self._result_of(state)
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
        while True:
            loaded = self._engine.runtime.loaded.get(run_id)
            state = None if loaded is None else await loaded.until_over()
            if state is None:
                state = await self._engine.runtime.endings.of(run_id)
            if not state.continues:
                return state
            run_id = next_id(run_id)

    def _result_of(self, state: RunState) -> R:
        runtime = self._engine.runtime
        workflow = self._workflow or runtime.workflows.get((state.workflow, state.version))
        if state.status != "completed":
            known = runtime.known_with(() if workflow is None else workflow.raises)
            timeout = None if workflow is None else workflow.timeout
            raise_ending(self.id, state.status, state.failure, known, state.cancel, timeout)
        result: R = (PLAIN if workflow is None else workflow.signature.result).unpack(state.result or b"null")
        return result

    async def info(self) -> RunInfo:
        """Return how the run is."""
        return await read_info(self._engine.runtime.space, self.id)

    async def place(self) -> int | None:
        """Count the runs that have their turn before this one: 0 is next. None: it does not wait because of a limit."""
        return await place_of(self._engine.runtime, self.id)

    async def history(self) -> tuple[HistoryEntry, ...]:
        """Return everything that the run has recorded."""
        await self.info()
        return await read_history(self._engine.runtime.space, self.id)

    async def signal(self, name: str, value: object = None, *, signal_id: str | None = None) -> bool:
        """Send a signal, see :meth:`Engine.signal`."""
        message = self._engine.runtime.linked(messages.signal_of(name, value, signal_id))
        async with self._engine.acts("run.signal", self.id, signal=name) as told:
            sent = await self._engine.runtime.inboxes.send(self.id, message)
            told.outcome = "done" if sent.is_new else "nothing"
        return sent.is_new

    async def update(self, name: str, *args: Any, timeout: Duration = "5 seconds", update_id: str | None = None) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Send an update and return its answer, see :meth:`Engine.update`."""
        async with self._engine.acts("run.update", self.id, update=name):
            return await messages.update(
                self._engine.runtime, self.id, name, args, timeout, update_id, workflow=self._workflow
            )

    async def query(self, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask the run something, see :meth:`Engine.query`."""
        return await query(self._engine.runtime, self.id, name, args)

    async def cancel(self, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask the run to stop, see :meth:`Engine.cancel`."""
        async with self._engine.acts("run.force_cancel" if force else "run.cancel", self.id, reason):
            await messages.cancel(self._engine.runtime, self.id, reason, force=force)
        return await self.info()
