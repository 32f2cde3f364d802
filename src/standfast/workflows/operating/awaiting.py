"""Waiting for the ends of runs, wherever they are driven."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.errors import RunNotFoundError, StandfastError
from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from standfast.scope import Scope
    from standfast.workflows.storing.records import Life

LOOK_EVERY: Final = 1.0
"""Seconds between two looks at a run whose end somebody waits for, if nothing tells earlier."""

FEW: Final = 16
"""How many runs are watched one by one. With more, one watch on all runs costs less than one on each."""

PAGE: Final = 100
"""The most records that are read at once."""


@final
class Endings:
    """Tells everybody in this engine who waits for the end of a run.

    Args:
        scope: Where the runs lie.
        loaded: The runs that are driven here: of those it is told without looking.
    """

    def __init__(self, scope: Scope, loaded: Container[str] = ()) -> None:
        self._scope, self._loaded = scope, loaded
        self._watched = 0
        self._waiting: Final[dict[str, list[asyncio.Future[Life]]]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def of(self, run_id: str) -> Life:
        """Return how a run has ended, once it has.

        Raises:
            RunNotFoundError: There is no such run.
        """
        if self._watched < FEW:
            return await self._watch(run_id)
        return await self._listen(run_id)

    async def _watch(self, run_id: str) -> Life:
        self._watched += 1
        try:
            async with self._scope.watch(RunKeys(self._scope, run_id).life) as watch:
                while (life := (await self._read([run_id]))[run_id]) is None or not life.has_ended:
                    if life is None:
                        raise RunNotFoundError(run_id)
                    await watch.wait(LOOK_EVERY)
                return life
        finally:
            self._watched -= 1

    async def _listen(self, run_id: str) -> Life:
        future: asyncio.Future[Life] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(run_id, []).append(future)
        if self._listening is None or self._listening.done():
            self._listening = asyncio.get_running_loop().create_task(self._hear())
        try:
            await self._look_at([run_id])
            return await future
        finally:
            self._forget(run_id, future)

    def _forget(self, run_id: str, future: asyncio.Future[Life]) -> None:
        waiting = self._waiting.get(run_id, [])
        if future in waiting:
            waiting.remove(future)
        if not waiting:
            self._waiting.pop(run_id, None)
        if not self._waiting and self._listening is not None:
            self._listening.cancel()
            self._listening = None

    def tell(self, run_id: str, life: Life) -> None:
        """Say that a run has ended here."""
        for future in self._waiting.pop(run_id, ()):
            if not future.done():
                future.set_result(life)

    async def _hear(self) -> None:
        root, time, due = self._scope.key("life"), asyncio.get_running_loop().time, float("-inf")
        try:
            async with self._scope.watch(root) as watch:
                while True:
                    hint = None if time() >= due else await watch.wait(due - time())
                    if hint is None or not hint.complete:  # also while others end all the time: a hint may be lost
                        due = time() + LOOK_EVERY
                        await self._look_at(list(self._waiting))
                    elif told := [run_id for key in hint.about if self._is_news_of(run_id := key.parts[-1])]:
                        await self._look_at(told)
        except StandfastError as problem:
            self._fail(problem)

    def _is_news_of(self, run_id: str) -> bool:
        return run_id in self._waiting and run_id not in self._loaded

    async def _look_at(self, run_ids: list[str]) -> None:
        for run_id, life in (await self._read(run_ids)).items():
            if life is None:
                self._fail(RunNotFoundError(run_id), [run_id])
            elif life.has_ended:
                self.tell(run_id, life)

    def _fail(self, problem: StandfastError, run_ids: Iterable[str] | None = None) -> None:
        for run_id in list(self._waiting if run_ids is None else run_ids):
            for future in self._waiting.pop(run_id, ()):
                if not future.done():
                    future.set_exception(problem)

    async def _read(self, run_ids: list[str]) -> dict[str, Life | None]:
        found: dict[str, Life | None] = {}
        page = self._scope.at_most(PAGE)
        for first in range(0, len(run_ids), page):
            keys = {run_id: RunKeys(self._scope, run_id).life for run_id in run_ids[first : first + page]}
            seen = await self._scope.read(*keys.values())
            for run_id, key in keys.items():
                record = seen.get(key)
                found[run_id] = None if record is None else LIVES.decode(record.value)
        return found
