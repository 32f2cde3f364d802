"""Errors of durations and stored values."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class InvalidDurationError(StandfastError, ValueError):
    """A duration could not be read. Write ``"5 seconds"``, ``"1.5 hours"``, a ``timedelta`` or seconds."""

    def __init__(self, given: str, problem: str, what: str = "duration") -> None:
        super().__init__(given, problem, what)
        self.given, self.problem, self.what = given, problem, what

    def __str__(self) -> str:
        article = "" if self.what.startswith("the ") else "an " if self.what[:1] in "aeiou" else "a "
        return f'{self.given} cannot be {article}{self.what}: {self.problem}; write "5 seconds", "1.5 hours", a timedelta or a number of seconds'


class EncodeError(StandfastError, ValueError):
    """A value cannot be stored. Nothing was written; store JSON-shaped data, or convert the value first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class DecodeError(StandfastError, ValueError):
    """Stored bytes are not what they should be, or go past a limit. Nothing was executed or imported."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class FormatTooNewError(StandfastError):
    """The data was written by a newer Standfast. Upgrade this process; the data is untouched."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(what, found, known)
        self.what, self.found, self.known = what, found, known

    def __str__(self) -> str:
        return f"{self.what} has format {self.found}, this version of Standfast reads up to {self.known}; upgrade standfast here"
