"""A handle on a run: its id, and what can be done with it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

from standfast.durations import seconds
from standfast.errors import ResultTimeoutError
from standfast.workflows.limiting.setting import place_of
from standfast.workflows.running.continuing import next_id
from standfast.workflows.running.endings import raise_ending
from standfast.workflows.starting.sending import life_in
from standfast.workflows.storing.records import HEADERS, Life, RunKeys
from standfast.workflows.storing.values import PLAIN

if TYPE_CHECKING:
    from standfast.durations import Duration
    from standfast.workflows.client import Client
    from standfast.workflows.declaring.definition import Workflow
    from standfast.workflows.operating.information import HistoryEntry, RunInfo

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
                life = await self._end()
        except TimeoutError:
            info = await self.info()
            raise ResultTimeoutError(self.id, limit, info.status) from None
        return self._result_of(life)

    async def _end(self) -> Life:
        run_id = self.id
        while (life := await self._end_of(run_id)).continues:
            run_id = next_id(run_id)
        return life

    async def _end_of(self, run_id: str) -> Life:
        loaded = self._engine.host.loaded.get(run_id)
        if loaded is not None and (life := await asyncio.shield(loaded.over)) is not None:
            return life
        return await self._engine.host.endings.of(run_id)

    def _result_of(self, life: Life) -> R:
        workflow = self._workflow or self._engine.host.workflows.get((life.workflow, life.version))
        if life.status != "completed":
            known = self._engine.host.known_with(() if workflow is None else workflow.raises)
            timeout = None if workflow is None else workflow.timeout
            raise_ending(self.id, life.status, life.failure, known, life.cancel, timeout)
        result: R = (PLAIN if workflow is None else workflow.signature.result).unpack(life.result or b"null")
        return result

    async def info(self) -> RunInfo:
        """Return how the run is."""
        return await self._engine.get(self.id)

    async def place(self) -> int | None:
        """Count the runs that have their turn before this one: 0 is next. None: it does not wait because of a limit."""
        return await place_of(self._engine.host, self.id)

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
    seen = await engine.space.read(keys.header, keys.life)
    life_in(seen, keys)
    record = seen.get(keys.header)
    return None if record is None else PLAIN.unpack(HEADERS.decode(record.value).input)
