"""The schedules of an engine, for blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from standfast.blocking.run import Run, as_blocking

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from datetime import datetime

    from standfast.blocking.engine_link import EngineLink
    from standfast.workflows.schedules.schedules import Exists, ScheduleInfo
    from standfast.workflows.schedules.schedules import Schedules as AsyncSchedules
    from standfast.workflows.schedules.spec import Overlap, Schedule

T = TypeVar("T")


@final
class Schedules:
    """The schedules of a namespace and tenant. Get them from ``engine.schedules``.

        engine.schedules.create(sf.Schedule(report, "eu", id="daily-report", cron="0 9 * * mon-fri"))
        engine.schedules.pause("daily-report", "the source is down")

    They lie in the store, and any engine that drives runs and has the workflow looks after them.
    """

    __slots__ = ("_link",)

    def __init__(self, link: EngineLink) -> None:
        self._link: Final = link

    # --- making --------------------------------------------------------------------------------------------------

    def create(self, schedule: Schedule, *, exists: Exists = "raise") -> ScheduleInfo:
        """Make a schedule. It is durable when this returns.

        Args:
            schedule: What to start, and when.
            exists: If there is one with that id: ``"raise"``, ``"keep"`` it as it is, or ``"replace"`` what it says;
                then its counts stay, and it stays paused if it is.

        Raises:
            ScheduleExistsError: There is a schedule with that id. It is as it was.
        """
        return self._call(lambda schedules: schedules.create(schedule, exists=exists))

    def change(self, schedule: Schedule) -> ScheduleInfo:
        """Replace what a schedule says. Its counts stay, it stays paused if it is, and so do runs that wait their turn.

        A period begins anew, unless it is the same. What has fired does not fire again.
        """
        return self._call(lambda schedules: schedules.change(schedule))

    def declare(self, schedules: Iterable[Schedule]) -> None:
        """Make schedules that code declares, and change those whose declaration has changed since.

        What was changed by hand stays until then. A schedule that is no longer declared goes on: delete it.
        """
        declared = tuple(schedules)
        self._call(lambda schedules: schedules.declare(declared))

    # --- looking -------------------------------------------------------------------------------------------------

    def get(self, schedule_id: str) -> ScheduleInfo:
        """Return how a schedule is.

        Raises:
            ScheduleNotFoundError: There is none with that id.
        """
        return self._call(lambda schedules: schedules.get(schedule_id))

    def list(self) -> tuple[ScheduleInfo, ...]:
        """Return all schedules, in the order of their ids; ``queued`` is left out."""
        return self._call(lambda schedules: schedules.list())

    # --- changing ------------------------------------------------------------------------------------------------

    def pause(self, schedule_id: str, note: str = "") -> ScheduleInfo:
        """Let a schedule fire no longer, until it is resumed. Runs that wait for their turn are cancelled.

        A run that has begun goes on. ``note`` says why, for whoever looks.
        """
        return self._call(lambda schedules: schedules.pause(schedule_id, note))

    def resume(self, schedule_id: str) -> ScheduleInfo:
        """Let a paused schedule fire again, from its next tick on. Ticks in the pause are not made up for."""
        return self._call(lambda schedules: schedules.resume(schedule_id))

    def delete(self, schedule_id: str) -> None:
        """Remove a schedule. Runs that wait for their turn are cancelled; one that has begun goes on."""
        self._call(lambda schedules: schedules.delete(schedule_id))

    # --- starting ------------------------------------------------------------------------------------------------

    def trigger(self, schedule_id: str, *, overlap: Overlap | None = None) -> Run[Any]:
        """Start a run now, whatever the time is, and also if the schedule is paused. It counts as one of its runs.

        Args:
            schedule_id: The schedule.
            overlap: What to do while a run is unfinished, if not what the schedule says.

        Raises:
            WorkflowConcurrencyLimitExceededError: A run is unfinished, and the schedule says ``"skip"``; or a limit of
                the workflow is in the way.
        """
        return as_blocking(self._link, self._call(lambda schedules: schedules.trigger(schedule_id, overlap=overlap)))

    def backfill(
        self, schedule_id: str, start: datetime, end: datetime, *, overlap: Overlap = "queue"
    ) -> tuple[Run[Any], ...]:
        """Start the runs of the ticks from ``start`` to before ``end``, the oldest first, as if they were due now.

        A tick that has had its run does not get another one, so a call that failed can be made again.

        Args:
            schedule_id: The schedule.
            start: The first moment, with a time zone.
            end: The moment after the last, at most now.
            overlap: What to do while a run is unfinished; by default they wait for each other.

        Returns:
            The runs that were started, without those that were there.
        """
        started = self._call(lambda schedules: schedules.backfill(schedule_id, start, end, overlap=overlap))
        return tuple(as_blocking(self._link, run) for run in started)

    def _call(self, work: Callable[[AsyncSchedules], Coroutine[Any, Any, T]]) -> T:
        return self._link.call(lambda engine: work(engine.schedules))
