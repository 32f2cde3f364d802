"""What ``hold`` returns: the path that every acquisition takes."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, final

from standfast.errors import HoldMisuseError, NotAsyncError
from standfast.local._caller import current_task, here
from standfast.local._done import DONE
from standfast.local._entry import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")


@final
class Hold(Entry):
    """A key to be held: for the length of an ``async with`` block, or of each call of a function that it decorates.

        async with exclusion.hold(REPO(path)):
            ...

        @exclusion.hold(MIGRATION())
        async def migrate() -> None: ...

    The key is asked for when the block is entered, not before, and it is free again when the block is left, however
    that happens: an exception, a cancellation, or a task that is thrown away. It belongs to the task that entered
    the block. Another task of the same event loop may leave it (an async generator is sometimes closed by another
    task than the one that ran it); the key is freed all the same.

    One hold serves one block at a time; ask for another with ``exclusion.hold`` rather than sharing it.
    """

    __slots__ = ()

    def __aenter__(self) -> Coroutine[Any, Any, None]:
        table = self.table
        encoded = self.key.encoded
        if (
            here() != table.home
            or (task := current_task(table.loop)) is None
            or task in table.held
            or encoded in table.entries
        ):
            return table.take(self)
        table.entries[encoded] = table.held[task] = self
        self.task = task
        self.alone = True
        now = table.now
        self.at = now()
        return DONE

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> Coroutine[Any, Any, None]:
        table = self.table
        if not self.alone:
            table.leave(self)
            return DONE
        self.alone = None
        del table.entries[self.key.encoded]
        del table.held[self.task]
        return DONE

    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function: each call takes the key anew and holds it until the call ends."""
        if not inspect.iscoroutinefunction(function):
            raise NotAsyncError(getattr(function, "__qualname__", repr(function)))

        @wraps(function)
        async def holding(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self._another():
                return await function(*args, **kwargs)

        return holding

    def _another(self) -> Hold:
        another = Hold()
        another.table, another.key, another.mode, another.timeout = self.table, self.key, self.mode, self.timeout
        another.code, another.offset = self.code, self.offset
        another.alone = another.line = None
        return another

    def __reduce__(self) -> NoReturn:
        raise HoldMisuseError(str(self.key), "cannot be copied or pickled")

    def __repr__(self) -> str:
        mode = "" if self.mode is None else f" in mode {self.mode!r}"
        return f"<Hold {self.key}{mode} from {self.site}>"
