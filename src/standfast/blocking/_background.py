"""One event loop a process, in a thread of its own, and calls into it from threads that have none."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, final

from standfast.clock import monotonic
from standfast.errors import StoreClosedError
from standfast.stores.liveness import ForkGuard, run_in_forked_child
from standfast.threads import start_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.space import Space
    from standfast.workflows.engine import Engine

T = TypeVar("T")

WAKES_EVERY: Final = 0.5
"""Seconds after which a waiting thread looks up, so that an exception that was sent to it from another is raised."""

WITHDRAWN_WITHIN: Final = 5.0
"""Seconds for which an interrupted call waits until nothing is left of it. The loop goes on with it after that."""

CLOSED_WITHIN: Final = 2.0
"""Seconds within which a program that ends closes what it has left open."""


@final
class Background:
    """The loop, and the spaces and engines that live on it."""

    def __init__(self) -> None:
        self.guard: Final = ForkGuard("the background event loop")
        self.spaces: Final[set[Space]] = set()
        self.engines: Final[set[Engine]] = set()
        self._is_ready: Final = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: Final = asyncio.Event()
        self._leavings: Final[dict[asyncio.Task[Any], list[asyncio.Task[Any]]]] = {}
        self._thread: Final = start_loop(self._main, "blocking")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop itself, once it runs."""
        while self._loop is None:
            self._is_ready.wait(WAKES_EVERY)
        return self._loop

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        self._loop = loop
        self._is_ready.set()
        await self._ends.wait()

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:  # noqa: ANN401 -- whatever the loop passes on
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        if self._leavings:
            parent = asyncio.current_task(loop)
            if parent is not None and parent in self._leavings:
                self._leavings[parent].append(task)
        return task

    async def cancel(self, task: asyncio.Task[Any]) -> None:
        """Cancel a task, and wait for it and for whatever it leaves to others: a withdrawal runs on by itself."""
        leavings = self._leavings[task] = []
        task.cancel()
        try:
            await asyncio.wait({task})
        finally:
            del self._leavings[task]
        if leavings:
            await asyncio.wait(leavings)

    def post(self, action: Callable[[], object]) -> None:
        """Let the loop call something, some time soon."""
        try:
            self.loop.call_soon_threadsafe(action)
        except RuntimeError:
            raise _ended() from None

    def end(self, within: float) -> None:
        """Close all engines, all spaces and the loop; wait for that no longer than ``within`` seconds."""
        deadline = monotonic() + within
        BackgroundCall(self, lambda: self._close_all(within / 2)).begin().wait(within)
        self.loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(max(0.0, deadline - monotonic()))

    async def _close_all(self, grace: float) -> None:
        await asyncio.gather(*(engine.aclose(grace=grace) for engine in self.engines), return_exceptions=True)
        await asyncio.gather(*(space.aclose() for space in self.spaces), return_exceptions=True)
        self.engines.clear()
        self.spaces.clear()


@final
class BackgroundCall(Generic[T]):
    """Something asked of the loop by a thread that waits for it.

    Args:
        background: Whom to ask.
        work: What to do, called on the loop.
        undo: Undoes it, if the one who asked was interrupted and will never hear that it was done.
        shielded: Let it run to its end even so.
    """

    __slots__ = ("_background", "_is_over", "_over", "_problem", "_result", "_shielded", "_task", "_undo", "_work")

    def __init__(
        self,
        background: Background,
        work: Callable[[], Coroutine[Any, Any, T]],
        undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
        *,
        shielded: bool = False,
    ) -> None:
        self._background, self._work, self._undo, self._shielded = background, work, undo, shielded
        self._task: asyncio.Task[None] | None = None
        self._problem: BaseException | None = None
        self._result: list[T] = []
        self._is_over = False
        self._over: Final = threading.Lock()  # held until it is over: the cheapest thing to wait for
        self._over.acquire()

    # --- on the loop ---------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = self._background.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            self._result.append(await self._work())
        except BaseException as problem:  # noqa: BLE001 -- it belongs to the thread that waits
            self._problem = problem
        self._is_over = True
        self._over.release()

    async def _withdraw(self) -> None:
        if self._task is not None and not self._is_over:
            await self._background.cancel(self._task)
        if self._result and self._undo is not None:
            await self._undo(self._result.pop())

    # --- in the thread -------------------------------------------------------------------------------------------

    # An interruption can come between any two steps. So whoever makes a call has it in hand before it is begun.

    def begin(self) -> Self:
        """Ask."""
        self._background.post(self._begin)
        return self

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is over, for so many seconds at most; tell whether it is."""
        deadline = float("inf") if seconds is None else monotonic() + seconds
        while not self._over.acquire(timeout=max(0.0, min(WAKES_EVERY, deadline - monotonic()))):
            if monotonic() >= deadline:
                return False
            if not self._background.is_alive:
                raise _ended()
        return True

    def result(self) -> T:
        """Ask, and wait for what it returns or raises."""
        self.begin().wait()
        if self._result:
            return self._result[0]
        problem = self._problem
        if problem is None or isinstance(problem, asyncio.CancelledError):
            raise _ended()
        try:
            raise problem
        finally:
            del problem, self  # else the traceback and what it shows keep each other alive

    def abandon(self) -> None:
        """Give up, in a thread that was interrupted: return when nothing is left of it."""
        if self._is_over and not (self._result and self._undo):
            return
        if self._shielded:
            self.wait(WITHDRAWN_WITHIN)
        else:
            BackgroundCall(self._background, self._withdraw).begin().wait(WITHDRAWN_WITHIN)


def call(
    background: Background,
    work: Callable[[], Coroutine[Any, Any, T]],
    undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
    *,
    shielded: bool = False,
) -> T:
    """Let the loop do something, and wait for it. Who is interrupted meanwhile leaves nothing behind."""
    asked = BackgroundCall(background, work, undo, shielded=shielded)
    try:
        return asked.result()
    except BaseException:
        asked.abandon()
        raise


def _ended() -> StoreClosedError:
    return StoreClosedError("standfast.blocking", "its event loop has ended with the program")


_lock = threading.Lock()
_current: Background | None = None


def background() -> Background:
    """Return the loop of this process; begin it if there is none."""
    global _current  # noqa: PLW0603 -- one a process is what it is
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def _start_anew() -> None:
    """Forget what was inherited, without ending it: its files are the parent's, too."""
    global _current, _lock  # noqa: PLW0603 -- a forked child has no such thread, and the lock may be held for ever
    _lock = threading.Lock()
    if _current is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_current))
        _current = None


run_in_forked_child(_start_anew)


@atexit.register
def _end() -> None:
    if _current is not None and _current.is_alive:
        _current.end(CLOSED_WITHIN)
