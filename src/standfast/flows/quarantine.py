"""A tenant whose requests end their servers gets no more of them until somebody has looked.

Each request that is quarantined has cost several servers. A process counts those of a tenant when it first serves it,
and then now and then, beside the requests. A limit that is reached is counted anew before the next one is refused.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Final, final

from standfast.errors import TooManyQuarantinedError
from standfast.flows.call import tags_of
from standfast.flows.counting import result_of
from standfast.flows.records import REQUESTS, RequestKeys
from standfast.flows.shares import is_spent, sharer_of
from standfast.stores.protocol import Delete
from standfast.workflows.storing.records import LIVES, RunKeys, quarantined_with

if TYPE_CHECKING:
    from collections.abc import Mapping

    from standfast.keys import RecordKey
    from standfast.scope import Scope
    from standfast.stores.protocol import Record

EVERY: Final = 5.0
"""Seconds after which they are counted again, if there may be more of them."""

AGAIN: Final = 1.0
"""Seconds after which a limit that is reached is counted anew."""

SAID: Final = 60.0
"""After how many seconds somebody who was refused may try again: it takes a person to change it."""

PAGE: Final = 100
REMEMBERED: Final = 10_000
"""How many tenants a process remembers."""


@final
class _Known:
    """What is known of one tenant."""

    __slots__ = ("at", "counting", "numbers")

    def __init__(self) -> None:
        self.numbers, self.at = Counter[str](), float("-inf")
        self.counting: asyncio.Task[None] | None = None


@final
class Quarantine:
    """How many durable requests of each tenant are quarantined, as far as one process knows.

    Args:
        scope: Where they lie.
        most: How many there may be; None: any number.
    """

    def __init__(self, scope: Scope, most: int | None) -> None:
        self._scope, self._most = scope, most
        self._tenants: Final[OrderedDict[str, _Known]] = OrderedDict()
        self._counting: Final[set[asyncio.Task[None]]] = set()

    async def check(self, tenant: str, sharer: str = "") -> None:
        """Refuse a durable request of a tenant that has so many in quarantine, or of a user with a share of them.

        Raises:
            TooManyQuarantinedError: It has.
        """
        most = self._most
        if most is None:
            return
        known = self._of(tenant)
        is_full, age = (
            is_spent(known.numbers[sharer], most - known.numbers.total()),
            asyncio.get_running_loop().time() - known.at,
        )
        if age >= (AGAIN if is_full else EVERY):
            counting = known.counting or self._begin_to_count(tenant, known, most)
            if is_full or age == float("inf"):
                await result_of(counting)
        own, total = known.numbers[sharer], known.numbers.total()
        if total >= most:
            raise TooManyQuarantinedError("durable requests of the tenant", most, SAID)
        if is_spent(own, most - total):
            raise TooManyQuarantinedError("durable requests of this user", own, SAID)

    def _of(self, tenant: str) -> _Known:
        known = self._tenants.get(tenant)
        if known is None:
            if len(self._tenants) >= REMEMBERED:
                self._tenants.popitem(last=False)
            known = self._tenants[tenant] = _Known()
        return known

    def _begin_to_count(self, tenant: str, known: _Known, most: int) -> asyncio.Task[None]:
        """Count in a task of its own, for all who want to know."""

        def is_over(task: asyncio.Task[None]) -> None:
            known.counting = None
            self._counting.discard(task)
            if not task.cancelled():
                task.exception()  # told to those who wait for it; others try again

        counting = known.counting = asyncio.get_running_loop().create_task(self._count(tenant, known, most))
        self._counting.add(counting)
        counting.add_done_callback(is_over)
        return counting

    async def _count(self, tenant: str, known: _Known, most: int) -> None:
        found, (start, end) = Counter[str](), quarantined_with(self._scope, tags_of(tenant)[0]).within()
        while True:
            page = await self._scope.scan(start, end, limit=self._scope.at_most(PAGE))
            found += await self._count_lives(tenant, page.records)
            if page.more is None or found.total() >= most:
                break
            start = page.more
        known.numbers, known.at = found, asyncio.get_running_loop().time()

    async def _count_lives(self, tenant: str, listed: Mapping[RecordKey, Record]) -> Counter[str]:
        """Count those that are quarantined still by who sent them, and forget that the others were."""
        found = Counter[str]()
        for key in listed:
            life, sent = (
                RunKeys(self._scope, key.parts[-1]).life,
                RequestKeys(self._scope, tenant, key.parts[-1]).record,
            )
            seen = await self._scope.read(life, sent)
            record, request = seen.get(life), seen.get(sent)
            if record is None or LIVES.decode(record.value).status != "quarantined":
                await self._scope.commit(Delete(key, listed[key].version))
                continue
            sender = None if request is None else REQUESTS.decode(request.value)
            found[sharer_of(sender.user, sender.transport) if sender else ""] += 1
        return found

    async def aclose(self) -> None:
        """Stop counting."""
        counting = tuple(self._counting)
        for task in counting:
            task.cancel()
        await asyncio.gather(*counting, return_exceptions=True)
