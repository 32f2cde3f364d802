"""Settlement: what became of a transaction whose answer was lost.

A missing trace proves nothing, because a write that timed out can still land later. So the attempt is *closed*: the
resolver claims the attempt's own name in the store. If it wins, the lost transaction can never land; if it loses, the
transaction has landed and its verdicts are there. A handle starts nothing new before that is known.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from standfast.clock import SYSTEM_CLOCK
from standfast.errors import OutcomeUnknownError, StoreError, StoreUnavailableError
from standfast.events import OutcomeSettled, OutcomeUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from standfast.events import Hooks
    from standfast.stores.backend import Applied, Backend, RiderBatch

TRIES: Final = 5
FIRST_PAUSE: Final = 0.01
SETTLED_WITHIN: Final = 10.0
"""Seconds after which a lost commit is not asked for again: or as long as the commit itself took, if that is longer.

A failover takes some seconds, and a caller that is told its outcome after that need not notice it. With the usual time
limits, the error for a server that takes connections and does not answer comes after some twenty seconds.
"""
REMEMBERED: Final = 1_000


@final
class AttemptSettler:
    """Applies batches and settles those whose outcome is unknown."""

    __slots__ = ("_backend", "_hooks", "_known", "_random", "pending")

    def __init__(self, backend: Backend, hooks: Hooks) -> None:
        self._backend: Final = backend
        self._hooks: Final = hooks
        self._random: Final = random.Random(0)  # noqa: S311 -- jitter, seeded so that a simulation repeats itself
        self._known: Final[OrderedDict[str, Applied | None]] = OrderedDict()
        self.pending: str | None = None

    async def apply(
        self, batch: RiderBatch, anew: Callable[[], RiderBatch], unknown: OutcomeUnknownError | None = None
    ) -> Applied:
        """Apply ``batch``; when an outcome is unknown, settle it, and if it never landed, try again ``anew``.

        With ``unknown`` the batch has been tried already and its outcome is not known.
        """
        loop = asyncio.get_running_loop()
        for _ in range(TRIES):
            sent = loop.time()
            if unknown is None:
                try:
                    return await self._backend.apply(batch)
                except OutcomeUnknownError as error:
                    unknown = error
            self.pending = batch.attempt
            now, store = SYSTEM_CLOCK.wall(), self._backend.name
            self._hooks.emit(OutcomeUnknown(at=now, store=store, attempt=batch.attempt, problem=unknown.problem))
            lost = loop.time()
            applied = await self._settle_until(lost + max(SETTLED_WITHIN, lost - sent), batch.attempt, unknown)
            if applied is not None:
                return applied
            batch, unknown = anew(), None
        raise StoreUnavailableError(
            self._backend.name, f"the commit was lost {TRIES} times on its way; it was not written"
        )

    async def settle_pending(self) -> None:
        """Settle what an earlier batch left open, so that nothing of it can land after what comes now."""
        if self.pending is None:
            return
        try:
            await self.settle(self.pending)
        except OutcomeUnknownError as unknown:  # of the earlier batch: what comes now has not been sent
            raise StoreUnavailableError(
                self._backend.name, "it is not known yet what became of an earlier commit; nothing new was written"
            ) from unknown

    async def settle(self, attempt: str) -> Applied | None:
        """Close ``attempt``; return what it applied, or None if it never landed and never will."""
        if attempt in self._known:
            return self._known[attempt]
        applied = await self._backend.settle(attempt)
        self._known[attempt] = applied
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if self.pending == attempt:
            self.pending = None
        if self._hooks:
            written, now = applied is not None, SYSTEM_CLOCK.wall()
            self._hooks.emit(OutcomeSettled(at=now, store=self._backend.name, attempt=attempt, written=written))
        return applied

    async def _settle_until(self, deadline: float, attempt: str, unknown: OutcomeUnknownError) -> Applied | None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        for _ in range(TRIES):
            try:
                return await self.settle(attempt)
            except StoreError:
                if loop.time() >= deadline:
                    break
                await asyncio.sleep(self._random.uniform(pause / 2, pause))
                pause *= 3
        raise OutcomeUnknownError(unknown.store, unknown.problem, attempt) from unknown
