"""Standfast's mutex as one of the contestants, and the work that only Standfast is asked to do.

Started as a program, it is a process that contends for the mutex, or that keeps a line of waiting tasks.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import standfast as sf
from benchmarks._lock_contender import heard, say, serve_orders, until
from standfast.locks.line import Granted, Waiting
from standfast.locks.line_records import Enter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks._lock_contender import Lock
    from standfast.locks.line_driver import LocalLine
    from standfast.locks.line_records import LockSpec, Request
    from standfast.locks.line_step import Answered
    from standfast.locks.locks import Holding, Mutex
    from standfast.space import Space

NAME: Final = "bench"
BATCH: Final = 5  # hand-overs in a row that are timed; then the line is filled up again


def line_of(space: Space, name: str = NAME) -> LocalLine:
    """Return this process's part of the line: its tickets tell who came before whom, and nothing public does."""
    mutex = space.mutex(name)
    return space._lines.line(mutex._address)  # noqa: SLF001 -- see above


class Ours:
    """A durable mutex. A grant is proved by its fence, the life of the line, and the place in it."""

    def __init__(self, space: Space, name: str = NAME) -> None:
        self.space = space
        self._mutex: Mutex = space.mutex(name)
        self._holding: Holding | None = None
        self._place: tuple[str, float] = ("", 0.0)
        self._listen_to(line_of(space, name).driver)

    def _listen_to(self, driver: Any) -> None:  # noqa: ANN401 -- one method of it is replaced
        do = driver.do

        async def listening(request: Request, site: LockSpec) -> Answered:
            answered: Answered = await do(request, site)
            if isinstance(request, Enter):
                self._note(answered)
            return answered

        driver.do = listening

    def _note(self, answered: Answered) -> None:
        """Note the ticket; one who need not wait comes before the next ticket and after all others."""
        sight, answer = answered.sight, answered.answer
        assert isinstance(answer, Granted | Waiting)
        place = answer.ticket if isinstance(answer, Waiting) else sight.line.next_ticket - 0.5
        self._place = (sight.life, place)

    def beside(self, number: int) -> Lock:
        """Return the mutex of another key."""
        return Ours(self.space, f"{NAME}-{number}")

    async def acquire(self) -> object:
        """Wait in the line."""
        self._holding = self._mutex.hold()
        hold = await self._holding.__aenter__()
        return (hold.fence, *self._place)

    async def release(self) -> None:
        """Hand over to the next one."""
        assert self._holding is not None
        await self._holding.__aexit__(None, None, None)


@asynccontextmanager
async def ours(where: str) -> AsyncIterator[Lock]:
    """Open a space on a SQLite file, and a mutex in it."""
    async with sf.open(f"sqlite:///{where}.db?busy=60s") as space:
        yield Ours(space)


@asynccontextmanager
async def ours_at(where: str) -> AsyncIterator[Lock]:
    """Open a space on the store at a URL, and a mutex in it."""
    async with sf.open(where) as space:
        yield Ours(space)


@asynccontextmanager
async def ours_in_memory(_where: str) -> AsyncIterator[Lock]:
    """Open a space in memory, and a mutex in it."""
    async with sf.open("memory://") as space:
        yield Ours(space)


# --- a line that stands -------------------------------------------------------------------------------------------


class StandingLine:
    """Tasks that wait in one line, which is kept at its length."""

    def __init__(self, space: Space, length: int) -> None:
        self._mutex, self._line, self._length = space.mutex(NAME), line_of(space), length
        self._pass: Final = asyncio.Semaphore(0)
        self._granted = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._left = 0

    async def _stand(self) -> None:
        async with self._mutex.hold():
            self._left -= 1
            if self._left == 0:
                self._granted.set()
            await self._pass.acquire()

    def _is_filled(self) -> bool:
        return sum(wait.ticket is not None for wait in self._line.waits.values()) == self._length

    async def fill(self) -> None:
        """Let as many join as are missing, and wait until all of them stand in line behind a holder."""
        missing = self._length + (not self._line.holds) - len(self._line.waits)
        for _ in range(missing):
            task = asyncio.create_task(self._stand())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(0)
        await until(self._is_filled, every=0.002)

    async def hand_over(self) -> float:
        """Hand over a few times in a row; return the seconds that took."""
        self._left = BATCH
        self._granted.clear()
        started = time.perf_counter()
        for _ in range(BATCH):
            self._pass.release()
        await self._granted.wait()
        return time.perf_counter() - started


async def stand(lock: Lock, _begin: int, length: int, rounds: int) -> None:
    """Keep a line of so many; each time that it is asked, hand over a few times and say the µs of one hand-over."""
    assert isinstance(lock, Ours)
    line = StandingLine(lock.space, length)
    await line.fill()
    say("standing")
    while await heard():
        took = 0.0
        for _ in range(rounds):
            took += await line.hand_over()
            await line.fill()
        say(took * 1e6 / (rounds * BATCH))


if __name__ == "__main__":
    serve_orders({"SQLite": ours, "memory": ours_in_memory, "URL": ours_at}, {"stand": stand})
