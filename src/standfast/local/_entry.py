"""One acquisition of a key, from asking to letting go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.local._caller import site

if TYPE_CHECKING:
    import asyncio
    from types import CodeType

    from standfast.keys import Key
    from standfast.local._caller import Task
    from standfast.local._line import Line
    from standfast.local._table import Table

NEVER_WAITS: Final = -1.0
"""The timeout of an entry that is refused rather than left to wait."""


class Entry:
    """What is known about one acquisition. Made without ``__init__``: that alone would cost a tenth of a hold."""

    __slots__ = ("alone", "at", "code", "future", "key", "line", "mode", "offset", "table", "task", "timeout")

    table: Table
    key: Key
    mode: str | None
    timeout: float | None
    """Seconds that it may wait; None is for ever, ``NEVER_WAITS`` is not at all."""
    code: CodeType
    offset: int
    """Where it was asked for: kept raw, made readable only when somebody reads it."""
    task: Task
    at: float
    """When the task took the key or, while it waits, when it asked."""
    line: Line | None
    """The line that it waits in or holds from; None as long as nobody else is concerned with its key."""
    future: asyncio.Future[bool]
    """How its wait ended; unset if it has never waited."""
    alone: bool | None
    """True: held, and neither the key nor the task has anything to do with another entry. False: it has, or it
    waits. None: not in use."""

    @property
    def site(self) -> str:
        """Where it was asked for: ``file:line``."""
        return site(self.code, self.offset)

    def described(self) -> str:
        """Name the task and the place, for an error."""
        return f"{self.task.get_name()} at {self.site}"
