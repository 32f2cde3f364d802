"""What one tenant may have at most, so that none gets in the way of others. The rest is refused, and told the limit.

What waits is counted in each process. What lies in the store is counted over all of them: a process reads how many
there are when it first serves a tenant, adds what it takes on itself, and counts again, beside the requests, after a
tenth of what was left. So ten processes keep to a limit but for one request each, and more of them pass it by at most
that tenth for each further one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, final

from standfast.durations import seconds
from standfast.errors import TooManyRequestsError
from standfast.flows.counting import result_of
from standfast.flows.options import checked_count
from standfast.flows.quarantine import Quarantine
from standfast.flows.records import SESSION_KEPT, idempotency_of, unfinished_of
from standfast.flows.values import Value
from standfast.locks.driving.removing import remove
from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.scope import Scope

MOST: Final = 10_000_000
PAGE: Final = 500
AGAIN: Final = 1.0
"""Seconds after which a limit that is reached is counted anew, and somebody who was refused may try again."""

SHARE: Final = 10
"""Which part of what is left a process takes on before it counts again: a tenth."""

REMEMBERED: Final = 10_000
"""How many tenants a process remembers."""


@final
class TenantLimits(Value):
    """How much of each tenant there may be. One too many is refused (429), and the error names the limit.

    Args:
        waiting: Requests whose callers wait, and that wait for their turn or for room, in each process.
        durable: Durable requests that have not ended, over all processes. A burst or batch counts as one, and is as
            large as its policy says.
        keys: Keys that are in use at a time, if the arbiter is local.
        idempotency: Idempotency keys that are remembered, over all processes.
        quarantined: Durable requests that ended their servers and are quarantined, over all processes. A tenant that
            has so many gets no more durable ones until an operator has retried or cancelled some
            (:class:`~standfast.errors.TooManyQuarantinedError`). None: any number.
        session_kept: How long the state of a session, and whose it is, are kept after their last use.

    Raises:
        InvalidFlowError: A number makes no sense.
        InvalidDurationError: The time makes no sense.
    """

    __slots__ = ("durable", "idempotency", "keys", "quarantined", "session_kept", "waiting")

    def __init__(
        self,
        *,
        waiting: int = 1_000,
        durable: int = 10_000,
        keys: int = 10_000,
        idempotency: int = 100_000,
        quarantined: int | None = 20,
        session_kept: Duration = SESSION_KEPT,
    ) -> None:
        where = "TenantLimits"
        self.waiting: Final = checked_count(where, "waiting", waiting, MOST)
        self.durable: Final = checked_count(where, "durable", durable, MOST)
        self.keys: Final = checked_count(where, "keys", keys, MOST)
        self.idempotency: Final = checked_count(where, "idempotency", idempotency, MOST)
        most = None if quarantined is None else checked_count(where, "quarantined", quarantined, MOST)
        self.quarantined: Final = most
        self.session_kept: Final = seconds(session_kept, what="session_kept", minimum=1.0)


@final
class Tenants:
    """The tenants of one process, and what they have.

    Args:
        scope: Where everything lies.
        limits: How much that may be.

    Attributes:
        limits: How much that may be.
        durable: Counts durable requests that have not ended.
        idempotency: Counts idempotency keys.
        quarantine: Counts durable requests that are quarantined.
    """

    def __init__(self, scope: Scope, limits: TenantLimits) -> None:
        self.limits: Final = limits
        self._waiting: Final[dict[str, int]] = {}
        self._scope: Final = scope
        self.durable: Final = Census(
            "unfinished durable requests of the tenant", limits.durable, self._count_durable, self._count_unended
        )
        self.idempotency: Final = Census(
            "idempotency keys of the tenant", limits.idempotency, self._count_idempotency, self._count_idempotency
        )
        self.quarantine: Final = Quarantine(scope, limits.quarantined)

    # --- those who wait --------------------------------------------------------------------------------------------

    def wait(self, tenant: str) -> Literal[True]:
        """Count a request that waits from now on, and say so.

        Raises:
            TooManyRequestsError: As many of the tenant wait as may.
        """
        waiting = self._waiting.get(tenant, 0)
        if waiting >= self.limits.waiting:
            raise TooManyRequestsError("waiting requests of the tenant", self.limits.waiting, AGAIN)
        self._waiting[tenant] = waiting + 1
        return True

    def waits_no_longer(self, tenant: str) -> None:
        """Count a request no longer."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]

    # --- what lies in the store ------------------------------------------------------------------------------------

    async def _count_durable(self, tenant: str) -> int:
        return await count(self._scope, unfinished_of(self._scope, tenant), self.limits.durable)

    async def _count_idempotency(self, tenant: str) -> int:
        return await count(self._scope, idempotency_of(self._scope, tenant), self.limits.idempotency)

    async def _count_unended(self, tenant: str) -> int:
        """Count durable requests one by one, and forget those whose runs have ended without telling."""
        found, (start, end) = 0, unfinished_of(self._scope, tenant).within()
        while True:
            page = await self._scope.scan(start, end, limit=self._scope.at_most(PAGE))
            for key in page.records:
                if await self._has_ended(key.parts[-1]):
                    await remove(self._scope.store, key)
                else:
                    found += 1
            if page.more is None or found >= self.limits.durable:
                return found
            start = page.more

    async def _has_ended(self, run_id: str) -> bool:
        key = RunKeys(self._scope, run_id).life
        record = (await self._scope.read(key)).get(key)
        return record is None or LIVES.decode(record.value).has_ended

    async def aclose(self) -> None:
        """Stop counting."""
        await self.durable.aclose()
        await self.idempotency.aclose()
        await self.quarantine.aclose()


async def count(scope: Scope, root: RecordKey, most: int) -> int:
    """Count the records under a key, up to a number."""
    found, (start, end) = 0, root.within()
    while found < most:
        page = await scope.scan(start, end, limit=min(PAGE, most - found))
        found += len(page.records)
        if page.more is None:
            break
        start = page.more
    return found


@final
class _Known:
    """What is known of one tenant: how many were counted, what came here since then, and what is coming."""

    __slots__ = ("added", "at", "coming", "counted", "counting")

    def __init__(self) -> None:
        self.counted = self.added = self.coming = 0
        self.at = float("-inf")
        self.counting: asyncio.Task[None] | None = None


@final
class Census:
    """How much of something each tenant has, as far as one process knows.

    Args:
        what: What is counted, for people.
        most: How many there may be.
        look: Counts them in the store, quickly.
        look_closer: Counts them one by one, where it seems that there are too many.
    """

    def __init__(
        self,
        what: str,
        most: int,
        look: Callable[[str], Awaitable[int]],
        look_closer: Callable[[str], Awaitable[int]],
    ) -> None:
        self._what, self._most, self._look, self._look_closer = what, most, look, look_closer
        self._tenants: Final[OrderedDict[str, _Known]] = OrderedDict()

    async def enter(self, tenant: str) -> None:
        """Count one more.

        Raises:
            TooManyRequestsError: As many are there as may be.
        """
        known = self._tenants.get(tenant)
        if known is None:
            known = await self._first(tenant)
        if self._is_full(known):
            await self._check(tenant, known)
        known.coming += 1

    def settle(self, tenant: str, *, is_there: bool) -> None:
        """Hear whether one that was counted is in the store by now, or was not taken on after all."""
        known = self._tenants.get(tenant)
        if known is None or not known.coming:
            return
        known.coming -= 1
        known.added += is_there
        if known.added * SHARE >= self._most - known.counted and known.counting is None:
            self._begin_to_count(known, partial(self._look, tenant))  # if it fails, what was counted here still counts

    def _is_full(self, known: _Known) -> bool:
        return known.counted + known.added + known.coming >= self._most

    async def _first(self, tenant: str) -> _Known:
        known = _Known()
        await self._count(known, partial(self._look, tenant))
        if len(self._tenants) >= REMEMBERED:
            self._tenants.popitem(last=False)
        return self._tenants.setdefault(tenant, known)

    async def _check(self, tenant: str, known: _Known) -> None:
        """Refuse one too many. However many come at a time, they are counted once for all of them."""
        if known.counting is not None:
            await result_of(known.counting)
        if self._is_full(known) and asyncio.get_running_loop().time() - known.at >= AGAIN:
            await result_of(known.counting or self._begin_to_count(known, partial(self._look_closer, tenant)))
        if self._is_full(known):
            raise TooManyRequestsError(self._what, self._most, AGAIN)

    def _begin_to_count(self, known: _Known, look: Callable[[], Awaitable[int]]) -> asyncio.Task[None]:
        """Count in a task of its own: two counts at a time would each take off what came here before them."""

        def is_over(task: asyncio.Task[None]) -> None:
            known.counting = None
            if not task.cancelled():
                task.exception()  # told to those who wait for it

        counting = known.counting = asyncio.get_running_loop().create_task(self._count(known, look))
        counting.add_done_callback(is_over)
        return counting

    async def _count(self, known: _Known, look: Callable[[], Awaitable[int]]) -> None:
        """Take over what the store says; what came here while it was asked may be in it or not, and counts besides."""
        before = known.added
        known.counted = await look()
        known.added -= before
        known.at = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Stop counting."""
        counting = [known.counting for known in self._tenants.values() if known.counting is not None]
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)
