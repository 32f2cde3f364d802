"""What is raised in a workflow's code to make it stop, by design out of reach of ``except Exception``."""

from __future__ import annotations

import asyncio
from typing import final


@final
class Unload(BaseException):
    """The run is taken out of memory. It goes on from its records when it is woken.

    Let it pass. Nothing that the context does after it is recorded, and nothing is released: whoever catches it only
    delays it, and that is reported.
    """


class RunCancelled(asyncio.CancelledError):
    """The run, or this branch of it, was cancelled.

    Raised once, where the code waits. ``finally`` blocks may then use the context as always.

    Attributes:
        reason: Who or what cancelled it, in words.
        of_run: The whole run was cancelled, not only this branch of it.
        group: The path of the branches of which another has ended first, if that is why.
        timed_out: It was not cancelled by anybody; the workflow's ``timeout`` is over.
    """

    def __init__(self, reason: str = "", *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.timed_out, self.of_run, self.group = reason, timed_out, False, ""

    def is_beyond(self, group: str) -> bool:
        """Tell whether more is cancelled than branches of a group: it is not over when they have ended."""
        return self.of_run or (bool(self.group) and group.startswith(f"{self.group}."))
