"""Room at one limit, and who waits for it in this process: the highest priority first, then the order of arrival.

A gate has permits. They lie in memory if this process is the sole server, and in a line of the store otherwise: then
each one that waits here has a place in that line, and a permit that comes goes to the most important of them. So
processes get their permits in the order in which they asked, and each hands them out by priority.
"""

from __future__ import annotations

import asyncio
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

from standfast.errors import StandfastError, WouldWaitError
from standfast.ids import new_id
from standfast.locks.algebra.line import Rules
from standfast.locks.driving.acquiring import Wish
from standfast.locks.driving.hold import Holding
from standfast.locks.driving.records import Site
from standfast.space import lines_of
from standfast.workflows.limiting.standing import LIMIT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from standfast.space import Space

Permit: TypeAlias = Holding | None
"""What is given back: a place in a line, or only a number."""

Coming: TypeAlias = "asyncio.Future[Permit]"

SPARE: Final = 64
"""How many of those who have left may be kept among those who wait."""


class Gate(Protocol):
    """Room at one limit."""

    @property
    def waiting(self) -> int:
        """How many wait here."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or runs here, so that it can be forgotten."""
        ...

    async def try_take(self) -> tuple[bool, Permit]:
        """Take a permit if there is one and nobody waits for it."""
        ...

    async def take(self, priority: int) -> Permit:
        """Wait for a permit."""
        ...

    def give_back(self, permit: Permit) -> None:
        """Let the next one in, at once or as soon as the store has answered."""
        ...

    async def aclose(self) -> None:
        """Leave nobody in a line."""
        ...


@final
class Waiters:
    """Those who wait, in order. Those who have left are dropped when they come to the front."""

    __slots__ = ("_heap", "_number", "count")

    def __init__(self) -> None:
        self._heap: Final[list[tuple[int, int, Coming]]] = []
        self._number = self.count = 0

    def add(self, priority: int) -> Coming:
        """Let one wait."""
        coming: Coming = asyncio.get_running_loop().create_future()
        self._number += 1
        self.count += 1
        heappush(self._heap, (-priority, self._number, coming))
        return coming

    def left(self) -> None:
        """Note that one has left that got nothing."""
        self.count -= 1
        if len(self._heap) > 2 * self.count + SPARE:
            self._heap[:] = [each for each in self._heap if not each[2].done()]
            heapify(self._heap)

    def pop(self) -> Coming | None:
        """Return the next one, which waits no longer."""
        while self._heap:
            coming = heappop(self._heap)[2]
            if not coming.done():
                self.count -= 1
                return coming
        return None


@final
class LocalGate:
    """Permits in memory."""

    def __init__(self, most: int) -> None:
        self._most, self._running = most, 0
        self._waiters: Final = Waiters()

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return self._waiters.count

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or runs here."""
        return not self._running and not self._waiters.count

    @property
    def has_room(self) -> bool:
        """Whether one more could run now."""
        return self._running < self._most and not self._waiters.count

    async def try_take(self) -> tuple[bool, Permit]:
        """Take a permit if there is one and nobody waits for it."""
        if not self.has_room:
            return False, None
        self._running += 1
        return True, None

    async def take(self, priority: int) -> Permit:
        """Wait for a permit."""
        coming = self._waiters.add(priority)
        self._let_in()
        try:
            return await coming
        except BaseException:
            if coming.done() and not coming.cancelled():
                self.give_back(None)
            else:
                self._waiters.left()
            raise

    def give_back(self, permit: Permit) -> None:  # noqa: ARG002 -- it is only a number
        """Let the next one in."""
        self._running -= 1
        self._let_in()

    async def aclose(self) -> None:
        """Do nothing: nobody stands in a line."""

    def _let_in(self) -> None:
        while self._running < self._most and (coming := self._waiters.pop()) is not None:
            self._running += 1
            coming.set_result(None)


@final
class SharedGate:
    """Permits in a line of the store, where requests of other processes stand as well, and durable ones.

    Args:
        space: Where everything lies.
        address: Where its line lies.
        label: What it is called for people.
        most: How many it admits.
        note: What is said in the line about those who stand in it: flow and action.
        on_idle: Called when nobody waits or runs here any more.
    """

    def __init__(
        self,
        space: Space,
        address: tuple[str, ...],
        label: str,
        most: int,
        note: str,
        on_idle: Callable[[], None],
    ) -> None:
        self._lines: Final = lines_of(space)
        self._lease: Final = space.lease
        self._address, self._label, self._note, self._on_idle = address, label, note, on_idle
        self._site: Final = Site(LIMIT, Rules(most))
        self._waiters: Final = Waiters()
        self._standing: Final[dict[asyncio.Task[Any], None]] = {}
        self._leaving: Final[dict[asyncio.Task[Any], None]] = {}
        self._held = 0

    @property
    def waiting(self) -> int:
        """How many wait here."""
        return self._waiters.count

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits or runs here."""
        return not (self._held or self._waiters.count or self._standing or self._leaving)

    async def try_take(self) -> tuple[bool, Permit]:
        """Take a permit if there is one and nobody waits for it."""
        if self._waiters.count:
            return False, None
        self._held += 1
        try:
            return True, await self._enter(waits=False)
        except BaseException as problem:
            self._held -= 1
            if isinstance(problem, WouldWaitError):
                return False, None
            raise

    async def take(self, priority: int) -> Permit:
        """Wait for a permit: its own place in the line, or that of another one here that is less important."""
        coming = self._waiters.add(priority)
        self._own(self._stand(), self._standing)
        try:
            return await coming
        except BaseException:
            if coming.done() and not coming.cancelled() and coming.exception() is None:
                self.give_back(coming.result())
            elif coming.cancelled():
                self._waiters.left()
            self._stand_less()
            raise

    def give_back(self, permit: Permit) -> None:
        """Leave the line, whoever is cancelled meanwhile."""
        self._held -= 1
        if permit is not None:
            self._own(permit.__aexit__(None, None, None), self._leaving)

    async def _enter(self, *, waits: bool) -> Holding:
        wish = Wish(
            self._label,
            self._address,
            self._site,
            self._lease,
            self._note,
            owner=new_id(),
            waits=waits,
            note=self._note,
            may_circle=False,
            permits=self._site.rules.permits,
        )
        holding = Holding(self._lines, wish, "tell")
        await holding.__aenter__()
        return holding

    async def _stand(self) -> None:
        """Stand in line for whoever is the most important when the permit comes."""
        try:
            holding = await self._enter(waits=True)
        except StandfastError as problem:
            self._stands_no_longer(asyncio.current_task())
            if (coming := self._waiters.pop()) is not None:
                coming.set_exception(problem)
            return
        self._stands_no_longer(asyncio.current_task())
        self._held += 1
        coming = self._waiters.pop()
        if coming is None:
            self.give_back(holding)
        else:
            coming.set_result(holding)

    def _stand_less(self) -> None:
        """Leave the places that nobody needs any more, the newest first."""
        for task in list(reversed(self._standing))[: max(0, len(self._standing) - self._waiters.count)]:
            self._stands_no_longer(task)
            task.cancel()

    def _stands_no_longer(self, task: asyncio.Task[Any] | None) -> None:
        """Note at once that a place is one for nobody: else another one would be left in its stead."""
        if task is not None and task in self._standing:
            del self._standing[task]
            self._leaving[task] = None

    def _own(self, work: Coroutine[Any, Any, None], among: dict[asyncio.Task[Any], None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        among[task] = None
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._standing.pop(task, None)
        self._leaving.pop(task, None)
        if not task.cancelled():
            task.exception()  # a place that could not be left lapses with the lease
        if self.is_idle:
            self._on_idle()

    async def aclose(self) -> None:
        """Wait until nobody stands in line for those who have left."""
        for task in self._standing:
            task.cancel()
        while tasks := (*self._standing, *self._leaving):
            await asyncio.wait(tasks)
            await asyncio.sleep(0)
