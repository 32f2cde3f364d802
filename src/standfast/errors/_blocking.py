"""Errors of code that blocks."""

from __future__ import annotations

from standfast.errors._root import StandfastError


class BlockingInLoopError(StandfastError, RuntimeError):
    """A call that blocks was made where an event loop runs: everything on that loop would stand still meanwhile.

    Use the same name with ``await``: ``async with sf.open(...)``. From a coroutine that must call blocking code, go
    through ``asyncio.to_thread``.
    """

    def __init__(self, call: str, instead: str) -> None:
        super().__init__(call, instead)
        self.call, self.instead = call, instead

    def __str__(self) -> str:
        return f"{self.call} blocks, and an event loop runs in this thread; use {self.instead}, or call it through asyncio.to_thread"


class PatchedThreadsError(StandfastError, RuntimeError):
    """Threads have been replaced by green ones, so the background event loop would never get its turn.

    Use real threads: ``gunicorn --worker-class gthread``, ``celery --pool prefork`` or ``--pool threads``; or talk to
    Standfast from a process in which nothing is patched.
    """

    def __init__(self, library: str, module: str) -> None:
        super().__init__(library, module)
        self.library, self.module = library, module

    def __str__(self) -> str:
        return (
            f"{self.library} has replaced the module {self.module}, so the background event loop could not run beside this code;"
            " use a worker with real threads (gunicorn --worker-class gthread, celery --pool prefork or threads), or a process without it"
        )
