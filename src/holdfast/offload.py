"""The only starter of threads.

Blocking work leaves the event loop through a :class:`Lane`: one worker thread that does what it is given in
order. A lane asks the running loop to run it (``run_in_executor``), so a simulated loop can run the same work
as a seeded callback instead, and a whole store becomes deterministic under test.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, TypeVar, final

from holdfast.errors import StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

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
        self._executor: ThreadPoolExecutor | None = None

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        """Start ``work`` on the lane's thread and return its future on the running loop."""
        if self._closed:
            raise StoreClosedError(f"the thread {self.name}", "it takes no more work; open the store anew")
        if self._executor is None:
            self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"holdfast-{self.name}")
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
            self._executor.shutdown(wait=wait, cancel_futures=False)
            self._executor = None
