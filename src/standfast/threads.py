"""The only starter of threads.

Blocking work leaves the event loop through a :class:`Lane`: one worker thread that does what it is given in
order. A lane asks the running loop to run it (``run_in_executor``), so a simulated loop can run the same work
as a seeded callback instead, and a whole store becomes deterministic under test.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import threading
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, final, runtime_checkable

from standfast.errors import StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


P = ParamSpec("P")
T = TypeVar("T")


@final
class Lane:
    """One worker thread for blocking calls, started when it is first needed.

    Calls run one at a time in the order they were given. ``close`` waits for the ones under way; a closed lane
    starts no second thread, it refuses.
    """

    __slots__ = ("_closed", "_executor", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._closed = False
        self._executor: _DaemonThread | None = None

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Start ``work`` on the lane's thread and return its future on the running loop."""
        if self._closed:
            raise StoreClosedError(f"the thread {self.name}", "it takes no more work; open the store anew")
        if self._executor is None:
            self._executor = _DaemonThread(f"standfast-{self.name}")
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work`` on the lane's thread and return what it returns.

        A cancellation of the caller does not stop work that has begun; it runs to its end on the thread.
        """
        return await self.start(work, *args, **kwargs)

    def close(self, *, wait: bool = True) -> None:
        """Take no more work; with ``wait``, return when the thread has ended. Closing twice is fine."""
        self._closed = True
        if self._executor is not None:
            self._executor.shutdown(wait=wait)
            self._executor = None


@runtime_checkable
class _RunsBeside(Protocol):
    """A loop that has a way of its own to run something beside it."""

    def run_beside(self, main: Callable[[], Coroutine[Any, Any, T]], name: str) -> asyncio.Future[T]: ...


def run_beside(main: Callable[[], Coroutine[Any, Any, T]], name: str) -> asyncio.Future[T]:
    """Run ``main()`` on an event loop of its own, in a thread of its own, and return its result as a future here.

    It goes on while the calling loop is held up by other code. It begins with an empty context, and tasks that it
    leaves behind are cancelled at its end. Cancelling the future does not cancel ``main``: tell it to stop by other
    means. Neither the end of the calling loop nor that of the program waits for it.

    A loop that has a ``run_beside`` method of its own, as a simulated loop has, is asked to run it instead.

    Args:
        main: Called on the new loop, so what it opens belongs to that loop.
        name: What the thread is called, after ``standfast-``.
    """
    loop = asyncio.get_running_loop()
    if isinstance(loop, _RunsBeside):
        return loop.run_beside(main, name)
    future: asyncio.Future[T] = loop.create_future()
    threading.Thread(target=_run_loop, args=(main, future), name=f"standfast-{name}", daemon=True).start()
    return future


def _run_loop(main: Callable[[], Coroutine[Any, Any, T]], future: asyncio.Future[T]) -> None:
    deliver: Callable[[], None]
    try:
        with asyncio.Runner() as runner:
            result = runner.run(_called(main), context=contextvars.Context())
    except BaseException as error:  # noqa: BLE001 -- it belongs to the caller that waits for the result
        deliver = functools.partial(_fail, future, error)
    else:
        deliver = functools.partial(_succeed, future, result)
    with contextlib.suppress(RuntimeError):  # the calling loop is closed: there is no caller any more
        future.get_loop().call_soon_threadsafe(deliver)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """End a future with what was raised, unless it was cancelled meanwhile."""
    if future.done():
        return
    if isinstance(error, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(error)


def start_loop(main: Callable[[], Coroutine[Any, Any, object]], name: str) -> threading.Thread:
    """Run ``main()`` on an event loop of its own in a thread of its own, for code that has no loop to call from.

    Return the thread. It ends when ``main`` returns; tasks that are left behind are cancelled then, and the loop is
    closed. The end of the program does not wait for it.

    Args:
        main: Called on the new loop, with an empty context.
        name: What the thread is called, after ``standfast-``.
    """

    def run() -> None:
        with asyncio.Runner() as runner:
            runner.run(_called(main), context=contextvars.Context())

    thread = threading.Thread(target=run, name=f"standfast-{name}", daemon=True)
    thread.start()
    return thread


def start_daemon(work: Callable[[], None], name: str) -> threading.Thread:
    """Run plain code in a thread of its own that keeps no program from ending."""
    thread = threading.Thread(target=work, name=f"standfast-{name}", daemon=True)
    thread.start()
    return thread


async def _called(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return await main()


@final
class _DaemonThread(Executor):
    """An executor with one thread that never keeps the process alive.

    The standard pool joins its threads when the interpreter exits. Ours may be waiting for a file lock of a process
    that is stopped, and would keep a finished program from ending. It starts with the first work: a simulated loop
    gives it none.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        future: Future[T] = Future()
        self._work.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 -- it belongs to the caller that waits for the result
                future.set_exception(error)
            del item, future, work  # keep nothing alive while waiting for the next

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 -- as in Executor
        del cancel_futures
        self._work.put(None)
        if wait and self._thread is not None:
            self._thread.join()
