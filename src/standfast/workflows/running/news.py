"""News for a run in memory: what has come into its inbox, and whether what it waits for has happened."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.errors import StandfastError
from standfast.stores.protocol import Check, Conflict, Delete
from standfast.workflows.running.control import RunCancelled, Unload
from standfast.workflows.storing.records import LIVES

if TYPE_CHECKING:
    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.journal import Claim


@final
class News:
    """Looks for news whenever somebody says that there is some, one look at a time.

    Attributes:
        is_waiting: There is news that nobody has looked at.
        looks: How often somebody has looked: those who waited by then were told, and no others.
    """

    __slots__ = ("_activation", "_looking", "is_waiting", "looks")

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._looking: asyncio.Task[None] | None = None
        self.is_waiting = False
        self.looks = 0

    @property
    def is_looking(self) -> bool:
        """Whether somebody is looking at the moment."""
        return self._looking is not None

    def poke(self) -> None:
        """Say that there is news."""
        activation = self._activation
        self.is_waiting = True
        if self._looking is None and not activation.is_unloading and activation.claim is not None:
            task = asyncio.get_running_loop().create_task(self._look())
            self._looking = None if task.done() else task  # an eager task may be over by now

    async def stop(self) -> None:
        """Wait until nobody is looking."""
        while self._looking is not None:
            await asyncio.wait({self._looking})

    async def _look(self) -> None:
        try:
            while self.is_waiting and not self._activation.is_unloading:
                self.is_waiting = False
                await self._look_once()
        except Unload:
            return
        except StandfastError:
            self.is_waiting = True  # the next round of the worker looks again
        finally:
            self._looking = None
            self._activation.note_idleness()

    async def _look_once(self) -> None:
        activation = self._activation
        space, keys = activation.host.space, activation.keys
        seen = await space.read(keys.ready, keys.life)
        activation.host.saw(seen.at)
        await activation.mail.fetch()
        if (record := seen.get(keys.life)) is not None and (reason := LIVES.decode(record.value).cancel) is not None:
            activation.cancel(RunCancelled(reason))
        for wait in activation.waits:
            if wait.look is not None and not wait.future.done():
                await wait.look(wait)
        self.looks += 1
        if activation.replay.is_over:
            await activation.mail.answer_updates()
        if (version := seen.version(keys.ready)) and activation.claim is not None:
            await self._heard(version, activation.claim)

    async def _heard(self, version: int, claim: Claim) -> None:
        """Take the flag away, if it was for this worker: if another one is to take the run up, it is for that one."""
        activation = self._activation
        ready = activation.keys.ready
        answer = await activation.host.space.commit(Check(claim.key, claim.fence), Delete(ready, version))
        if isinstance(answer, Conflict):
            if claim.key in answer.current:
                activation.depose()
            if answer.current.get(ready) is not None:
                self.is_waiting = True
