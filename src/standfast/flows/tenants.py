"""What one tenant may have at most, so that none gets in the way of others. The rest is refused, and told the limit.

Users share what their tenant may have, see :mod:`standfast.flows.shares`: who has some gets one more only while as many
are left to the others.

What waits is counted in each process. What lies in the store is counted over all of them: a process reads how many
there are when it first serves a tenant, adds what it takes on itself, and counts again, beside the requests, after a
tenth of what was left. So ten processes keep to a limit but for one request each, and more of them pass it by at most
that tenth for each further one. Bytes are counted by :mod:`standfast.flows.storage`.
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
from standfast.flows.records import SESSION_KEPT, UNFINISHED, idempotency_of, unfinished_of
from standfast.flows.shares import Counts, is_spent
from standfast.flows.storage import Storage
from standfast.flows.values import Value
from standfast.locks.driving.removing import remove
from standfast.workflows.storing.records import LIVES, RunKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from standfast.durations import Duration
    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record

MOST: Final = 10_000_000
MOST_BYTES: Final = 10**15
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
        bytes_kept: Bytes that the store keeps of the tenant, over all processes and users: what durable requests were
            sent with, results, events, idempotency keys and the state of sessions. One that has so many gets no more
            requests that would be written down, or that come in a session
            (:class:`~standfast.errors.TooManyBytesError`), until some have expired. None: any number.
        session_kept: How long the state of a session, and whose it is, are kept after their last use.

    Raises:
        InvalidFlowError: A number makes no sense.
        InvalidDurationError: The time makes no sense.
    """

    __slots__ = ("bytes_kept", "durable", "idempotency", "keys", "quarantined", "session_kept", "waiting")

    def __init__(
        self,
        *,
        waiting: int = 1_000,
        durable: int = 10_000,
        keys: int = 10_000,
        idempotency: int = 100_000,
        quarantined: int | None = 20,
        bytes_kept: int | None = 10_000_000_000,
        session_kept: Duration = SESSION_KEPT,
    ) -> None:
        where = "TenantLimits"
        self.waiting: Final = checked_count(where, "waiting", waiting, MOST)
        self.durable: Final = checked_count(where, "durable", durable, MOST)
        self.keys: Final = checked_count(where, "keys", keys, MOST)
        self.idempotency: Final = checked_count(where, "idempotency", idempotency, MOST)
        most = None if quarantined is None else checked_count(where, "quarantined", quarantined, MOST)
        self.quarantined: Final = most
        room = None if bytes_kept is None else checked_count(where, "bytes_kept", bytes_kept, MOST_BYTES)
        self.bytes_kept: Final = room
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
        storage: Counts the bytes that are kept.
    """

    def __init__(self, scope: Scope, limits: TenantLimits) -> None:
        self.limits: Final = limits
        self._waiting: Final[dict[str, Counts]] = {}
        self._scope: Final = scope
        self.durable: Final = Census(
            "unfinished durable requests", limits.durable, self._count_durable, self._count_unended
        )
        self.idempotency: Final = Census(
            "idempotency keys", limits.idempotency, self._count_idempotency, self._count_idempotency
        )
        self.quarantine: Final = Quarantine(scope, limits.quarantined)
        self.storage: Final = Storage(scope, limits.bytes_kept)

    # --- those who wait --------------------------------------------------------------------------------------------

    def wait(self, tenant: str, sharer: str) -> Literal[True]:
        """Count a request that waits from now on, and say so.

        Raises:
            TooManyRequestsError: As many of the tenant wait as may, or of the user its share of them.
        """
        waiting = self._waiting.get(tenant) or self._waiting.setdefault(tenant, Counts())
        own, left = waiting.of(sharer), self.limits.waiting - waiting.total
        if left <= 0:
            raise TooManyRequestsError("waiting requests of the tenant", self.limits.waiting, AGAIN)
        if is_spent(own, left):
            raise TooManyRequestsError("waiting requests of this user", own, AGAIN)
        waiting.add(sharer)
        return True

    def waits_no_longer(self, tenant: str, sharer: str) -> None:
        """Count a request no longer."""
        waiting = self._waiting[tenant]
        waiting.add(sharer, -1)
        if not waiting.total:
            del self._waiting[tenant]

    # --- what lies in the store ------------------------------------------------------------------------------------

    async def _count_durable(self, tenant: str) -> Counts:
        return await count(self._scope, unfinished_of(self._scope, tenant), self.limits.durable, _sharer_of)

    async def _count_idempotency(self, tenant: str) -> Counts:
        return await count(self._scope, idempotency_of(self._scope, tenant), self.limits.idempotency, _user_of)

    async def _count_unended(self, tenant: str) -> Counts:
        """Count durable requests one by one, and forget those whose runs have ended without telling."""
        found, (start, end) = Counts(), unfinished_of(self._scope, tenant).within()
        while True:
            page = await self._scope.scan(start, end, limit=self._scope.at_most(PAGE))
            lives = {key: RunKeys(self._scope, key.parts[-1]).life for key in page.records}
            seen = await self._scope.read(*lives.values()) if lives else None
            for key, record in page.records.items():
                life = None if seen is None else seen.get(lives[key])
                if life is None or LIVES.decode(life.value).has_ended:
                    await remove(self._scope.store, key)
                else:
                    found.add(_sharer_of(record))
            if page.more is None or found.total >= self.limits.durable:
                return found
            start = page.more

    async def aclose(self) -> None:
        """Stop counting."""
        await self.durable.aclose()
        await self.idempotency.aclose()
        await self.quarantine.aclose()
        await self.storage.aclose()


async def count(scope: Scope, root: RecordKey, most: int, whose: Callable[[Record], str]) -> Counts:
    """Count the records under a key by whose they are, up to a number."""
    found, (start, end) = Counts(), root.within()
    while found.total < most:
        page = await scope.scan(start, end, limit=min(PAGE, most - found.total))
        for record in page.records.values():
            found.add(whose(record))
        if page.more is None:
            break
        start = page.more
    return found


def _sharer_of(unfinished: Record) -> str:
    return UNFINISHED.decode(unfinished.value).sharer


def _user_of(idempotency: Record) -> str:
    return idempotency.key.parts[-2]


@final
class _Known:
    """What is known of one tenant: how many were counted, what came here since then, and what is coming."""

    __slots__ = ("added", "at", "coming", "counted", "counting")

    def __init__(self, counted: Counts | None = None) -> None:
        self.counted, self.added, self.coming = counted or Counts(), Counts(), Counts()
        self.at = float("-inf")
        self.counting: asyncio.Task[None] | None = None

    def of(self, sharer: str) -> int:
        """Return how many one has."""
        return self.counted.of(sharer) + self.added.of(sharer) + self.coming.of(sharer)

    @property
    def total(self) -> int:
        """How many all have."""
        return self.counted.total + self.added.total + self.coming.total


@final
class Census:
    """How much of something each tenant has, as far as one process knows.

    Args:
        what: What is counted, for people: ``"idempotency keys"``.
        most: How many there may be.
        look: Counts them in the store, quickly.
        look_closer: Counts them one by one, where it seems that there are too many.
    """

    def __init__(
        self,
        what: str,
        most: int,
        look: Callable[[str], Awaitable[Counts]],
        look_closer: Callable[[str], Awaitable[Counts]],
    ) -> None:
        self._what, self._most, self._look, self._look_closer = what, most, look, look_closer
        self._tenants: Final[OrderedDict[str, _Known]] = OrderedDict()

    async def enter(self, tenant: str, sharer: str) -> None:
        """Count one more.

        Raises:
            TooManyRequestsError: As many are there as may be, or the user has its share of them.
        """
        known = self._tenants.get(tenant)
        if known is None:
            known = await self._first(tenant)
        if self._is_full(known, sharer):
            await self._check(tenant, sharer, known)
        known.coming.add(sharer)

    def settle(self, tenant: str, sharer: str, *, is_there: bool) -> None:
        """Hear whether one that was counted is in the store by now, or was not taken on after all."""
        known = self._tenants.get(tenant)
        if known is None or not known.coming.of(sharer):
            return
        known.coming.add(sharer, -1)
        known.added.add(sharer, int(is_there))
        if known.added.total * SHARE >= self._most - known.counted.total and known.counting is None:
            self._begin_to_count(known, partial(self._look, tenant))  # if it fails, what was counted here still counts

    def _is_full(self, known: _Known, sharer: str) -> bool:
        return is_spent(known.of(sharer), self._most - known.total)

    async def _first(self, tenant: str) -> _Known:
        known = _Known()
        await self._count(known, partial(self._look, tenant))
        if len(self._tenants) >= REMEMBERED:
            self._tenants.popitem(last=False)
        return self._tenants.setdefault(tenant, known)

    async def _check(self, tenant: str, sharer: str, known: _Known) -> None:
        """Refuse one too many. However many come at a time, they are counted once for all of them."""
        if known.counting is not None:
            await result_of(known.counting)
        if self._is_full(known, sharer) and asyncio.get_running_loop().time() - known.at >= AGAIN:
            await result_of(known.counting or self._begin_to_count(known, partial(self._look_closer, tenant)))
        if known.total >= self._most:
            raise TooManyRequestsError(f"{self._what} of the tenant", self._most, AGAIN)
        if self._is_full(known, sharer):
            raise TooManyRequestsError(f"{self._what} of this user", known.of(sharer), AGAIN)

    def _begin_to_count(self, known: _Known, look: Callable[[], Awaitable[Counts]]) -> asyncio.Task[None]:
        """Count in a task of its own: two counts at a time would each take off what came here before them."""

        def is_over(task: asyncio.Task[None]) -> None:
            known.counting = None
            if not task.cancelled():
                task.exception()  # told to those who wait for it

        counting = known.counting = asyncio.get_running_loop().create_task(self._count(known, look))
        counting.add_done_callback(is_over)
        return counting

    async def _count(self, known: _Known, look: Callable[[], Awaitable[Counts]]) -> None:
        """Take over what the store says; what came here while it was asked may be in it or not, and counts besides."""
        before = known.added.copy()
        known.counted = await look()
        known.added.take_off(before)
        known.at = asyncio.get_running_loop().time()

    async def aclose(self) -> None:
        """Stop counting."""
        counting = [known.counting for known in self._tenants.values() if known.counting is not None]
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)
