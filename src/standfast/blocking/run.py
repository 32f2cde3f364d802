"""A handle on a run, for blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, final

from standfast.workflows.run import Run as AsyncRun

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.blocking.engine_link import EngineLink
    from standfast.durations import Duration
    from standfast.workflows.definition import Workflow
    from standfast.workflows.queries import HistoryEntry, RunInfo

R = TypeVar("R")
T = TypeVar("T")


@final
class Run(Generic[R]):
    """A run, as seen by whoever started it or asks for it. It may be driven anywhere.

    Any thread may use it, and so may a forked child.

    Attributes:
        id: The run's id.
        is_new: Whether the call that returned this handle started it.
    """

    __slots__ = ("_link", "_workflow", "id", "is_new")

    def __init__(
        self, link: EngineLink, run_id: str, workflow: Workflow[..., R] | None, *, is_new: bool = False
    ) -> None:
        self._link, self._workflow = link, workflow
        self.id: Final = run_id
        self.is_new: Final = is_new

    def __repr__(self) -> str:
        return f"<blocking run {self.id}>"

    def result(self, *, timeout: Duration | None = None) -> R:
        """Return what the run returned, waiting for its end.

        Ctrl-C and the time limits of task queues end the wait, and nothing else.

        Args:
            timeout: How long to wait at most. The run goes on whether or not anybody waits.

        Raises:
            RunFailedError: It failed; what it raised is the ``__cause__``.
            RunCancelledError: It was cancelled.
            RunTimedOutError: It took longer than its workflow allows.
            ResultTimeoutError: It had not ended in time.
        """
        return self._call(lambda run: run.result(timeout=timeout))

    def info(self) -> RunInfo:
        """Return how the run is."""
        return self._call(lambda run: run.info())

    def place(self) -> int | None:
        """Count the runs that have their turn before this one: 0 is next. None: it does not wait because of a limit."""
        return self._call(lambda run: run.place())

    def history(self) -> tuple[HistoryEntry, ...]:
        """Return everything that the run has recorded."""
        return self._call(lambda run: run.history())

    def signal(self, name: str, value: object = None, *, signal_id: str | None = None) -> bool:
        """Send a signal, see :meth:`Engine.signal`."""
        return self._call(lambda run: run.signal(name, value, signal_id=signal_id))

    def update(self, name: str, *args: Any, timeout: Duration = "5 seconds", update_id: str | None = None) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Send an update and return its answer, see :meth:`Engine.update`."""
        return self._call(lambda run: run.update(name, *args, timeout=timeout, update_id=update_id))

    def query(self, name: str, *args: Any) -> Any:  # noqa: ANN401 -- whatever the run answers
        """Ask the run something, see :meth:`Engine.query`."""
        return self._call(lambda run: run.query(name, *args))

    def cancel(self, reason: str = "it was asked to", *, force: bool = False) -> RunInfo:
        """Ask the run to stop, see :meth:`Engine.cancel`."""
        return self._call(lambda run: run.cancel(reason, force=force))

    def _call(self, work: Callable[[AsyncRun[R]], Coroutine[Any, Any, T]]) -> T:
        return self._link.call(lambda engine: work(AsyncRun(engine, self.id, self._workflow, is_new=self.is_new)))


def as_blocking(link: EngineLink, run: AsyncRun[R]) -> Run[R]:
    """Return a handle for blocking code on the run of an async handle."""
    return Run(link, run.id, run._workflow, is_new=run.is_new)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the same handle, for another kind of code
