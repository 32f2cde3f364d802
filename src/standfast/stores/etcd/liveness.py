"""Liveness on etcd: a key under a lease that its process keeps alive, so that a death is seen soon.

The lease lasts a few seconds beyond the last word of its process. A process that could not keep it alive for nearly as
long gives up first; see :mod:`standfast.stores.remote.liveness`. A new leader starts all leases anew, so an election
costs no process its life.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import aiohttp

from standfast.errors import StoreError, UnsuitableStoreError
from standfast.stores.etcd.gateway import GRANT, KEEP_ALIVE, RANGE, REVOKE, TXN, CompactedError, EtcdConnection
from standfast.stores.etcd.records import EtcdKeys, facts, put
from standfast.stores.liveness import now
from standfast.stores.remote.liveness import CONNECTED_WITHIN, LivenessServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.etcd.gateway import EtcdOptions

LEASE: Final = 2
"""How many seconds a lease lasts: the shortest that a cluster gives, one and a half elections by default.

A cluster looks for leases that have ended twice a second. Then others let the grace pass. So a death is seen 3 to 4 s
after the last word of a process, and one that was silent for less than 2.6 s, because of an election, say, lives on.
"""

BEFORE_THE_END: Final = 0.25
"""How many seconds before its lease ends a process that could not keep it alive gives it up."""

KEPT_EVERY: Final = 0.4
"""Seconds between two words."""

LOOKED_AT: Final = 100
_ERRORS: Final = (StoreError, aiohttp.ClientError, TimeoutError, CompactedError)


def liveness_server(options: EtcdOptions, store: str) -> LivenessServer:
    """Return where sessions are opened; ``store`` tells the store from all others."""
    place = f"{','.join(options.urls)}/{options.prefix}"
    open_session = functools.partial(open_liveness_session, options, store)
    return LivenessServer("e1", store, place, open_session, _ERRORS, lambda _: False, LEASE / 4, options.grace)


@asynccontextmanager
async def open_liveness_session(options: EtcdOptions, store: str) -> AsyncGenerator[EtcdLivenessSession]:
    """Open a session for the length of a block. It is refused if another store is there by now."""
    connection, keys = EtcdConnection(options), EtcdKeys(options.prefix)
    try:
        found = (await connection.ask(RANGE, {"key": keys.store}, seconds=CONNECTED_WITHIN)).kvs
        if not found or facts.decode(found[0].value).id != store:
            raise UnsuitableStoreError(options.name, "another store is at this address")
        granted_at = now()
        lease = await connection.ask(GRANT, {"TTL": LEASE}, seconds=CONNECTED_WITHIN)
        session = EtcdLivenessSession(connection, keys, lease.ID, lease.TTL, granted_at)
        try:
            yield session
        finally:
            await session.aclose()
    finally:
        await connection.aclose()


@final
class EtcdLivenessSession:
    """A lease, kept alive by whichever member answers.

    Attributes:
        tried_at: When it was last kept alive.
    """

    def __init__(
        self, connection: EtcdConnection, keys: EtcdKeys, lease: int, seconds: float, granted_at: float
    ) -> None:
        self._connection, self._keys, self._lease, self._seconds = connection, keys, lease, seconds
        self._told: Callable[[], object] | None = None
        self.tried_at = granted_at
        self.is_lost = False
        self._keeping: Final = asyncio.get_running_loop().create_task(self._keep_alive())

    @property
    def ends_at(self) -> float:
        """When it ends unless it is kept alive: also while this process is stopped."""
        return self.tried_at + self._seconds - BEFORE_THE_END

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self.is_lost:
            tell()

    async def attach(self, number: int) -> None:
        """Put the key of a number under the lease; one of an older lease of this process is taken over."""
        await self._connection.ask(TXN, {"success": [put(self._keys.alive(number), b"", self._lease)]})

    async def _keep_alive(self) -> None:
        while True:
            left = self.ends_at - now()
            if left <= 0:
                break
            await asyncio.sleep(min(KEPT_EVERY, left))
            sent_at = now()
            with contextlib.suppress(*_ERRORS):
                kept = await self._connection.ask(KEEP_ALIVE, {"ID": self._lease}, seconds=max(left, 0.1))
                if kept.result.TTL <= 0:
                    break
                self.tried_at = sent_at
        self.is_lost = True
        if self._told is not None:
            self._told()

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers whose keys are gone."""
        gone = set[int]()
        for place in range(0, len(numbers), LOOKED_AT):
            some = numbers[place : place + LOOKED_AT]
            keys = [{"request_range": {"key": self._keys.alive(number), "count_only": True}} for number in some]
            answer = await self._connection.ask(TXN, {"success": keys})
            gone |= {number for number, each in zip(some, answer.responses, strict=True) if not each.found.count}
        return gone

    async def aclose(self) -> None:
        """Give the lease up, so that everyone sees at once that this process is gone."""
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        if not self.is_lost:
            with contextlib.suppress(*_ERRORS):
                await self._connection.ask(REVOKE, {"ID": self._lease}, seconds=CONNECTED_WITHIN)

    def abandon(self) -> None:
        """Do nothing in a forked child: it has no thread that could keep the lease alive."""
