"""Shares locks of every kind with other processes, as it is told: ``share URL LEASE LEDGER``.

``KIND ROUNDS SECONDS`` holds a lock of that kind so often, the first time for so many seconds, and says
``KIND LOST LONGEST``: how often it lost its hold, and the seconds that it waited at most. Several kinds in one line go
on at the same time. Every hold writes when it begins and before it ends to the ledger, with its slot and its fence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, final

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import LeaseLostError, RunHeldError
from tests.integration.sqlite.programs.dialogue import ARGUMENTS, say, told
from tests.integration.workflows.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from standfast.locks import Hold

PERMITS: Final = {"mutex": 1, "semaphore": 2, "run": 1}
"""The kinds of locks, and how many may be inside."""


@final
class Sharer:
    """Holds locks of one kind."""

    def __init__(self, space: sf.Space, ledger: Ledger, kind: str) -> None:
        self._space, self._ledger, self._kind = space, ledger, kind
        self.lost, self.longest = 0, 0.0

    async def share(self, rounds: int, seconds: float) -> None:
        """Hold it so often."""
        for number in range(rounds):
            asked_at = monotonic()
            try:
                await self._hold(asked_at, seconds if number == 0 else 0.002)
            except LeaseLostError:
                self.lost += 1
        say(self._kind, self.lost, self.longest)

    def _holding(self) -> AbstractAsyncContextManager[Hold]:
        if self._kind == "mutex":
            return self._space.mutex("shared").hold()
        if self._kind == "semaphore":
            return self._space.semaphore("permits", permits=PERMITS["semaphore"]).hold()
        return self._space.run_locks.hold("flow", "shared")

    async def _hold(self, asked_at: float, seconds: float) -> None:
        while True:
            try:
                async with self._holding() as hold:
                    self.longest = max(self.longest, monotonic() - asked_at)
                    slot = f"{self._kind} {hold.guard.key.parts[-1]}"
                    self._ledger.write("in", key=slot, nonce=str(hold.fence), name=self._kind)
                    await asyncio.sleep(seconds)  # the work
                    self._ledger.write("out", key=slot, nonce=str(hold.fence), name=self._kind)
                    return
            except RunHeldError:  # nobody waits in line for a run
                await asyncio.sleep(0.01)


def _triples(words: list[str]) -> Iterator[tuple[str, str, str]]:
    return zip(words[::3], words[1::3], words[2::3], strict=True)


async def main(url: str, lease: str, path: str) -> None:
    """Open the store, say so, and do as told."""
    ledger = Ledger(path)
    async with sf.open(url, lease=float(lease)) as space:
        say("ready")
        while words := told():
            wanted = [(Sharer(space, ledger, kind), int(n), float(s)) for kind, n, s in _triples(words)]
            await asyncio.gather(*(sharer.share(rounds, seconds) for sharer, rounds, seconds in wanted))


if __name__ == "__main__":
    asyncio.run(main(*ARGUMENTS))
