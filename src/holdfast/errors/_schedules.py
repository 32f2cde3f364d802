"""Errors of schedules."""

from __future__ import annotations

from holdfast.errors._workflows import WorkflowError


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
