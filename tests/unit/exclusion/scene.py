"""A stage for tests: tasks with names hold keys, and what happened is written down in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from standfast.exclusion import Exclusion
from standfast.keys import KeyFamily

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from standfast.events import Hook
    from standfast.keys import Key

PLAIN = KeyFamily("test-plain")
OTHER = KeyFamily("test-other")
MODES = KeyFamily("test-modes", modes=("pull", "observe"), alone=("exclusive",))


async def ticks(number: int = 5) -> None:
    """Let the loop go round a few times, so that everything that can happen has happened."""
    for _ in range(number):
        await asyncio.sleep(0)


def held(exclusion: Exclusion, key: Key) -> list[str]:
    """Return the names of the tasks that hold ``key``."""
    return [holder.task for holder in exclusion.inspect(key).holders]


def waiting(exclusion: Exclusion, key: Key) -> list[str]:
    """Return the names of the tasks that wait for ``key``, in order."""
    return [waiter.task for waiter in exclusion.inspect(key).waiters]


class Scene:
    """Tasks that hold one key until they are told to let go. ``log`` has who went in, in order."""

    def __init__(self, key: Key | None = None, *hooks: Hook) -> None:
        self.exclusion = Exclusion(hooks=hooks)
        self.key = PLAIN("stage") if key is None else key
        self.log: list[str] = []
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.afterwards: dict[str, Callable[[], object]] = {}
        """What a task does right after its block, before anybody else can run."""
        self._let_go: dict[str, asyncio.Event] = {}

    async def enter(self, name: str, mode: str | None = None, timeout: float | None = None) -> asyncio.Task[None]:
        """Start a task that asks for the key, and let it get as far as it can."""
        task = self.start(name, self._hold(name, mode, timeout))
        await ticks()
        return task

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task without letting it run yet."""
        self._let_go[name] = asyncio.Event()
        self.tasks[name] = task = asyncio.create_task(work, name=name)
        return task

    async def _hold(self, name: str, mode: str | None, timeout: float | None) -> None:
        async with self.exclusion.hold(self.key, mode=mode, timeout=timeout):
            self.log.append(name)
            await self._let_go[name].wait()
        self.afterwards.get(name, bool)()

    def let_go(self, name: str) -> None:
        """Tell a task to leave its block; it does so when it next runs."""
        self._let_go[name].set()

    async def leave(self, name: str) -> None:
        """Let a task leave its block, and everybody else get as far as they can."""
        self.let_go(name)
        await ticks()

    @property
    def inside(self) -> list[str]:
        """Who holds the key."""
        return held(self.exclusion, self.key)

    @property
    def line(self) -> list[str]:
        """Who waits for it, in order."""
        return waiting(self.exclusion, self.key)

    @property
    def is_idle(self) -> bool:
        """Whether nothing at all is left of anybody."""
        table = self.exclusion._table
        return not (table.entries or table.held or table.stuck)


@asynccontextmanager
async def ended(scene: Scene) -> AsyncIterator[None]:
    """Let everybody go at the end, and see that nothing is left."""
    yield
    for name in scene.tasks:
        scene.let_go(name)
    await asyncio.gather(*scene.tasks.values(), return_exceptions=True)
    assert scene.is_idle


class Overlaps:
    """Counts who is inside at once."""

    def __init__(self) -> None:
        self.inside: Counter[str] = Counter()
        self.most = 0

    async def visit(self, name: str) -> None:
        """Be inside for a few ticks."""
        self.inside[name] += 1
        self.most = max(self.most, self.inside.total())
        await ticks(2)
        self.inside[name] -= 1
