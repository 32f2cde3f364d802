"""Errors of schedules."""

from __future__ import annotations

from standfast.errors._workflows import WorkflowError


class InvalidScheduleError(WorkflowError, ValueError):
    """A schedule was declared in a way that makes no sense. Nothing was written; fix what the message names."""

    def __init__(self, what: str, given: str, problem: str) -> None:
        super().__init__(what, given, problem)
        self.what, self.given, self.problem = what, given, problem

    def __str__(self) -> str:
        return f"{self.given} cannot be the {self.what} of a schedule: {self.problem}"


class UnknownZoneError(WorkflowError, LookupError):
    """This machine does not know a time zone that a stored schedule is in. The schedule is untouched.

    Install the time zones here (``pip install tzdata``, or the system's package ``tzdata``), or leave the schedule to
    machines that have them.
    """

    def __init__(self, zone: str) -> None:
        super().__init__(zone)
        self.zone = zone

    def __str__(self) -> str:
        return f"this machine knows no time zone {self.zone!r}; install tzdata, or write a name like Europe/Berlin"


class ScheduleExistsError(WorkflowError):
    """There is a schedule with that id, and it is as it was.

    Choose another id, or say what to do about it: ``create(..., exists="keep")`` or ``exists="replace"``.
    """

    def __init__(self, schedule_id: str) -> None:
        super().__init__(schedule_id)
        self.schedule_id = schedule_id

    def __str__(self) -> str:
        return f"there is a schedule {self.schedule_id!r} already"


class ScheduleNotFoundError(WorkflowError, LookupError):
    """There is no schedule with that id: it was never made in this namespace and tenant, or it was deleted."""

    def __init__(self, schedule_id: str) -> None:
        super().__init__(schedule_id)
        self.schedule_id = schedule_id

    def __str__(self) -> str:
        return f"there is no schedule {self.schedule_id!r}"
