"""The portal from threads to the async classes: one event loop a process, and calls into it.

The loop runs in a thread of its own. A :class:`Link` is an async space on it, opened anew after a fork; a
:class:`Counterpart` is the async object behind a blocking one.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, final

from msgspec import Struct

from standfast.clock import monotonic
from standfast.errors import StoreClosedError, UsageError
from standfast.ids import new_id
from standfast.space import Space as AsyncSpace
from standfast.stores.liveness import ForkGuard, run_in_forked_child
from standfast.threads import start_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from standfast.space import Space
    from standfast.workflows.engine import Engine

T = TypeVar("T")
A = TypeVar("A")

WAKES_EVERY: Final = 0.5
"""Seconds after which a waiting thread wakes up, so that an exception that another thread sent to it is raised."""

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
        background: The loop.
        work: What to do, called on the loop.
        undo: Undoes it, if the thread that asked was interrupted and will never learn that it was done.
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
        if self._task is None:
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

    # An interruption can come between any two steps. So the caller has a call in hand before it is begun.

    def begin(self) -> Self:
        """Ask; to ask twice is the same."""
        self._background.post(self._begin)
        return self

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is over, for ``seconds`` at most; return True if it is."""
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
            self.begin().wait(WITHDRAWN_WITHIN)  # the interruption may have come before it was asked
        else:
            BackgroundCall(self._background, self._withdraw).begin().wait(WITHDRAWN_WITHIN)


def call(
    background: Background,
    work: Callable[[], Coroutine[Any, Any, T]],
    undo: Callable[[T], Coroutine[Any, Any, object]] | None = None,
    *,
    shielded: bool = False,
) -> T:
    """Let the loop do something, and wait for it. A thread that is interrupted meanwhile leaves nothing behind."""
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
    global _current, _lock, _reopening  # noqa: PLW0603 -- a forked child has no such thread, and a lock may be held for ever
    _lock, _reopening = threading.Lock(), threading.Lock()
    if _current is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(_current))
        _current = None


run_in_forked_child(_start_anew)


@atexit.register
def _end() -> None:
    if _current is not None and _current.is_alive:
        _current.end(CLOSED_WITHIN)


_LIBRARIES: Final = {
    "gevent": ("gevent.monkey", "is_module_patched", ("threading", "thread", "select")),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", ("thread", "select")),
}


def refuse_running_loop(instead: str = "async with standfast.open(...)") -> None:
    """Raise if an event loop runs in this thread: it would stand still. The error says what to use ``instead``."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        "standfast.blocking",
        "blocks, and an event loop runs in this thread",
        f"use {instead}, or call it through asyncio.to_thread",
    )


def refuse_green_threads() -> None:
    """Raise if threads were replaced by green ones: the background loop would not run beside them."""
    for library, (home, question, modules) in _LIBRARIES.items():
        is_patched = getattr(sys.modules.get(home), question, None)
        patched = [module for module in modules if is_patched is not None and is_patched(module)]
        if patched:
            workers = "gunicorn --worker-class gthread, celery --pool prefork or threads"
            raise UsageError(
                library,
                f"has replaced the module {patched[0]}, so the background event loop could not run beside this code",
                f"use a worker with real threads ({workers}), or a process without it",
            )


_mine: Final = threading.local()


def owner_of_thread() -> str:
    """Return a name for the thread that runs now: for people to find, and unlike any other."""
    guard: ForkGuard | None = getattr(_mine, "guard", None)
    if guard is None or guard.crossed:
        shown = "".join(each for each in threading.current_thread().name[:60] if each.isprintable())
        _mine.name = f"{socket.gethostname()[:60]}/{os.getpid()}/{shown}#{new_id()[-8:]}"
        _mine.guard = ForkGuard(_mine.name)
    name: str = _mine.name
    return name


_reopening = threading.Lock()


class OpenedSpace(Struct, frozen=True):
    """An open async space, and the loop that it lives on."""

    background: Background
    space: AsyncSpace


@final
class Link:
    """An async space for all threads of a process, and another one for each process that is forked from it."""

    __slots__ = ("_is_closed", "_live", "_opening", "name")

    def __init__(self, name: str, opening: Callable[[], Awaitable[AsyncSpace]]) -> None:
        self.name: Final = name
        self._opening: Final = opening
        self._is_closed = False
        self._live: OpenedSpace | None = None
        self.live()

    def live(self) -> OpenedSpace:
        """Return the space of this process; open it if this is a forked child that has not used it yet."""
        refuse_running_loop()
        live = self._live
        if live is None or live.background.guard.crossed:
            with _reopening:
                live = self._live
                if live is None or (live.background.guard.crossed and not self._is_closed):
                    refuse_green_threads()
                    live = self._live = self._open()
        if self._is_closed:
            raise StoreClosedError(self.name, "it was closed; open a new one")
        return live

    def _open(self) -> OpenedSpace:
        here = background()
        asked = BackgroundCall(here, self._open_async, AsyncSpace.aclose)
        try:
            live = OpenedSpace(here, asked.result())
            here.spaces.add(live.space)
        except BaseException:
            asked.abandon()
            raise
        return live

    async def _open_async(self) -> AsyncSpace:
        return await self._opening()

    def close(self) -> None:
        """Close the space of this process, if it has one. Closing twice is fine."""
        refuse_running_loop()
        if self._is_closed:
            return
        self._is_closed = True
        live = self._live
        if live is not None and not live.background.guard.crossed and live.background.is_alive:
            live.background.spaces.discard(live.space)
            call(live.background, live.space.aclose, shielded=True)


@final
class Counterpart(Generic[A]):
    """The async object behind a blocking one: a lock, a state or the space itself, made anew after a fork."""

    __slots__ = ("_it", "_live", "_make", "link")

    def __init__(self, link: Link, make: Callable[[AsyncSpace], A]) -> None:
        self.link: Final = link
        self._make: Final = make
        self._live = link.live()
        self._it = make(self._live.space)

    def now(self) -> tuple[Background, A]:
        """Return it, and the loop that it lives on."""
        live = self.link.live()
        if live is not self._live:
            self._it, self._live = self._make(live.space), live
        return live.background, self._it

    def call(self, work: Callable[[A], Coroutine[Any, Any, T]]) -> T:
        """Let the loop do something with it, and wait for that."""
        here, it = self.now()
        return call(here, lambda: work(it))
