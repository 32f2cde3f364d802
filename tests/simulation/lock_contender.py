"""One task of a simulated process that takes durable locks, writes by them, and gives up at times."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any, Final, cast, final

from msgspec import Struct

from standfast.errors import StandfastError, StoreError
from standfast.stores.protocol import Conflict, Put
from tests.simulation.lock_states import Attempt

if TYPE_CHECKING:
    from standfast.locks.locks import Hold, Holding
    from standfast.space import Space
    from tests.simulation.lock_program import Site, World

NESTED: Final = 0.1
"""How often one that holds a lock takes another one."""


class Lock(Struct, frozen=True):
    """A key and what is locked by it."""

    name: str
    kind: str
    permits: int | None = 1

    def on(self, space: Space) -> Any:
        """Return the lock in one process's space."""
        if self.kind == "mutex":
            return space.mutex(self.name)
        if self.kind == "semaphore":
            return space.semaphore(self.name, permits=self.permits or 1)
        return space.mode_lock(self.name, modes=("read", "append"), alone=("write",))


@final
class Contender:
    """One task of one process that takes locks, writes by them, and gives up at times."""

    def __init__(self, world: World, site: Site, name: str, *, asks_for_all: bool = False) -> None:
        self.world, self.site, self.name, self._asks_for_all = world, site, name, asks_for_all
        self.chance: Final = random.Random(world.chance.random())
        self.task: asyncio.Task[None] | None = None
        self._attempts = 0
        self._is_nested = False

    async def run(self) -> None:
        """Take a lock a few times."""
        if self.chance.random() < 0.15:
            asyncio.get_running_loop().call_later(self.chance.uniform(0, 4), self._give_up)
        for _ in range(self.chance.choice((1, 1, 2))):
            await asyncio.sleep(self.chance.choice((0.0, self.chance.uniform(0, 2))))
            lock = self.chance.choice(self.world.locks)
            with contextlib.suppress(StandfastError):  # too late, too heavy, taken, lost: all of it may be
                await self.take(lock, self._options())

    def _give_up(self) -> None:
        if self.task is not None and not self.site.process.is_dead:
            self.task.cancel()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"on_lost": self.chance.choice(("cancel", "tell"))}
        if self.chance.random() < 0.4:
            options["timeout"] = self.chance.uniform(0, 3)
        if self.chance.random() < 0.1:
            options["max_hold"] = self.chance.uniform(0.1, 1)
        return options

    async def take(self, lock: Lock, options: dict[str, Any]) -> None:
        """Hold a lock for a while."""
        attempt = Attempt(f"{self.name}.{self._attempts}", self.site.process)
        self._attempts += 1
        self.world.watch.attempts[attempt.note] = attempt
        async with self._holding(lock, attempt, {**options, "note": attempt.note}) as hold:
            attempt.hold, attempt.entry, attempt.is_inside = hold, hold._place.entry.id, True
            try:
                self.world.watch.came_in(lock.name, attempt)
                await self._work(lock, attempt, hold)
            finally:
                attempt.is_inside = False

    def _holding(self, lock: Lock, attempt: Attempt, options: dict[str, Any]) -> Holding:
        on, most = lock.on(self.site.space), lock.permits or 1
        arguments: tuple[Any, ...] = ()
        if lock.kind == "semaphore":
            arguments = (most if self._asks_for_all else self.chance.choice((1, 1, self.chance.randint(1, most))),)
        elif lock.kind == "mode lock":
            arguments = ("write" if self._asks_for_all else self.chance.choice(("read", "read", "append", "write")),)
        attempt.waits = "timeout" in options or self.chance.random() < 0.8
        return cast("Holding", on.hold(*arguments, **options) if attempt.waits else on.try_hold(*arguments, **options))

    async def _take_another(self, held: Lock) -> None:
        """Take another lock while holding one, though others may do so the other way round."""
        others = [lock for lock in self.world.locks if lock is not held]
        if others and not self._is_nested:
            self._is_nested = True
            try:
                await self.take(self.chance.choice(others), {"timeout": self.chance.uniform(0, 2)})
            except StandfastError:
                return
            finally:
                self._is_nested = False

    async def _work(self, lock: Lock, attempt: Attempt, hold: Hold) -> None:
        watch, process = self.world.watch, self.site.process
        longest = self.chance.choice((0.0, 0.3, 0.3, 1.5))
        for number in range(self.chance.randint(1, 3)):
            await asyncio.sleep(self.chance.uniform(0, longest))
            if process.is_dead or self.chance.random() < 0.5:
                await process.awake()  # not only its wire stands still, but all of it
            if self.chance.random() < NESTED:
                await self._take_another(lock)
            watch.goes_on(lock.name, attempt)
            watch.writes(lock.name, attempt)
            key = self.site.space.key("effect", lock.name, attempt.note, str(number))
            try:
                answer = await self.site.space.commit(Put(key, b""), hold.guard)
            except StoreError:
                continue
            if isinstance(answer, Conflict):
                watch.was_refused(lock.name, attempt)
