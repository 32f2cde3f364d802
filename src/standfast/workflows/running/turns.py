"""Turns: each branch of a run gets its recorded marks in the order in which they were made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

from standfast.workflows.running.cancelling import cancel_of, told_again
from standfast.workflows.running.control import Unload
from standfast.workflows.running.losing import lost_again, raise_lost
from standfast.workflows.running.replay import ANYWHERE, LIVE, Mismatch
from standfast.workflows.storing.records import Mark

if TYPE_CHECKING:
    from collections.abc import Collection

    from standfast.workflows.running.activation import Activation
    from standfast.workflows.running.branches import Branch


@final
class Turns:
    """Who of a run's branches waits for its turn to resume."""

    __slots__ = ("_activation", "_waiting")

    def __init__(self, activation: Activation) -> None:
        self._activation: Final = activation
        self._waiting: Final[dict[str, asyncio.Future[None]]] = {}

    async def take(
        self, branch: Branch, kinds: Collection[str], operation_id: str, *, is_leaving: bool = False
    ) -> Mark | None:
        """Return the mark of an operation when it is its turn to be replayed; None if it is to be done now.

        A branch that is leaving something does so whatever it is to be told; it is told at its next operation.
        """
        activation = self._activation
        while True:
            if activation.is_unloading:
                raise Unload
            if activation.ending and not activation.replay.is_over:
                await asyncio.sleep(0)  # what the mark before led to comes before this one, as it did when it was made
                continue
            found = activation.replay.ask(branch.path, kinds, operation_id)
            if type(found) is Mark:
                self.go_on()
                return self._taken(branch, found)
            if found is LIVE:
                if activation.is_stopping or activation.claim is None:
                    raise Unload
                if not is_leaving:
                    self._tell(branch, operation_id)
                return None
            if type(found) is Mismatch:
                activation.differ(found.recorded, found.asked)
                raise Unload
            await self._wait(branch, operation_id)

    def _taken(self, branch: Branch, mark: Mark) -> Mark:
        """Return a mark, or raise what it says that was raised there."""
        if mark.kind == "cancelled":
            raise told_again(branch, cancel_of(mark))
        if mark.kind == ANYWHERE:
            raise lost_again(self._activation, mark)
        return mark

    def _tell(self, branch: Branch, operation_id: str) -> None:
        """Raise what a branch is to be told where it begins an operation."""
        if branch.cancel is not None:
            self._activation.raise_cancel(branch, operation_id)
        if branch.lost is not None:
            raise_lost(self._activation, branch, operation_id)

    async def _wait(self, branch: Branch, operation_id: str) -> None:
        activation, loop = self._activation, asyncio.get_running_loop()
        future = self._waiting[branch.path] = loop.create_future()
        try:
            if activation.replay.by_the_way is not None:
                loop.call_soon(self.pass_by)
            if self._is_stalled():
                activation.differ(activation.replay.left_over(), f"nothing there, but {operation_id!r}")
                raise Unload
            await future
        finally:
            self._waiting.pop(branch.path, None)

    def _is_stalled(self) -> bool:
        """Tell whether nobody is left who could take the mark whose turn it is."""
        replay, waiting = self._activation.replay, self._waiting
        if replay.is_over or replay.by_the_way is not None or replay.next_branch in waiting:
            return False
        return all(branch.path in waiting for branch in self._activation.branches if not branch.children)

    def someone_ended(self) -> None:
        """A branch has ended: those that are left may all be waiting now."""
        if self._waiting and self._is_stalled():
            self._activation.differ(self._activation.replay.left_over(), "nothing there: the branch has ended")

    def go_on(self) -> None:
        """A mark was taken: let whoever is next have its turn, once the code that took this one waits again."""
        replay = self._activation.replay
        if replay.by_the_way is not None:
            asyncio.get_running_loop().call_soon(self.pass_by)
        elif replay.is_over:
            for future in self._waiting.values():
                _release(future)
            if self._activation.mail.has_updates:
                self._activation.poke()
        elif (next_one := self._waiting.get(replay.next_branch or "")) is not None:
            _release(next_one)

    def pass_by(self) -> None:
        """Do again what came from outside at this place of the history."""
        activation = self._activation
        mark = activation.replay.by_the_way
        if mark is not None and not activation.is_unloading:
            activation.mail.replay_update(mark)
            activation.replay.pass_by()
            self.go_on()
            activation.check_predicates()

    def unload(self) -> None:
        """Let those who wait know that the run is taken off."""
        for future in tuple(self._waiting.values()):
            if not future.done():
                future.set_exception(Unload())
                future.exception()  # whoever waits for it may have gone


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
