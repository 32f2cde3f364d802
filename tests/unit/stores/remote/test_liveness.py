"""Liveness over a network: what a lost session means, and since when it is lost."""

from __future__ import annotations

import asyncio
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from standfast.stores.liveness import GRACE, VALID, liveness_of, now
from standfast.stores.remote.liveness import LivenessServer, join_liveness

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence


went_on_at: list[float] = []


class Stopped:
    """A session whose process is stopped until after its end, when it is first tried."""

    def __init__(self) -> None:
        self.tried_at, self.ends_at, self.is_lost = now() - 2 * GRACE, math.inf, False

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Nothing but the process itself ends it."""

    async def attach(self, number: int) -> None:
        """Do as asked."""

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Be stopped, and go on."""
        del numbers
        self.ends_at, self.is_lost = now() - GRACE, True
        went_on_at.append(now())
        return set()

    def abandon(self) -> None:
        """There is no socket."""


@asynccontextmanager
async def open_session() -> AsyncGenerator[Stopped]:
    """Open a session for the length of a block."""
    yield Stopped()


async def test_a_session_that_ended_while_its_process_was_stopped_is_lost_since_then() -> None:
    """What lasts only while it is renewed has ended for others, however late its own process notices."""
    lives = join_liveness(LivenessServer("t1", "store", "place", open_session, (OSError,), lambda _: False, 0.01))
    try:
        token = lives.liveness_token()
        proof = liveness_of(token)
        assert proof is not None
        over = asyncio.Event()
        proof.listen(lambda: over.set() if proof.left() <= 0 else None)
        async with asyncio.timeout(10):
            await over.wait()

        assert now() - went_on_at[0] < VALID / 2
        assert lives.liveness_token() != token
    finally:
        await lives.leave()
