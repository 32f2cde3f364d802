"""Liveness on etcd: a lease that its process keeps alive, and whose age others ask for.

A cluster counts down every lease in the memory of its leader, and tells how many whole seconds are left. So a process
that was silent for a second is seen as soon as that second is over. No process has to wait until a lease has ended,
which the cluster looks for twice a second only, and which it gives for no less than one and a half elections.

A process that could not keep its lease alive for a second gives its session up and opens another one; see
:mod:`standfast.stores.remote.liveness`. A new leader starts all leases anew. The grace is longer than an election, so
an election costs no process its life.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import aiohttp

from standfast.errors import StoreError, UnsuitableStoreError
from standfast.stores.etcd.gateway import GRANT, KEEP_ALIVE, RANGE, REVOKE, TIME_TO_LIVE, CompactedError, EtcdConnection
from standfast.stores.etcd.records import EtcdKeys, facts
from standfast.stores.liveness import now
from standfast.stores.remote.liveness import CONNECTED_WITHIN, LivenessServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from standfast.stores.etcd.gateway import EtcdOptions

LEASE: Final = 2
"""For how many seconds a lease is asked for. A cluster gives no less than one and a half elections."""

SILENT: Final = 1
"""After how many seconds without a word of its process a lease is suspicious: whole ones, as a cluster tells them."""

KEPT_EVERY: Final = 0.3
"""Seconds between two words."""

SHORTEST_GRACE: Final = 0.75
"""The grace with elections of two thirds of a second at most: then a death is seen in 2 s."""

GRACE_OF_A_SECOND: Final = 0.95
"""The grace for each second of the shortest lease that a cluster gives: with its defaults, an election of 2 s fits."""

_ERRORS: Final = (StoreError, aiohttp.ClientError, TimeoutError, CompactedError)


async def grace_of(connection: EtcdConnection) -> float:
    """Return how long a process may be out of sight: an election long, as the cluster's shortest lease tells it."""
    if connection.options.grace:
        return connection.options.grace
    lease = await connection.ask(GRANT, {"TTL": 1})
    with contextlib.suppress(*_ERRORS):  # it ends by itself
        await connection.ask(REVOKE, {"ID": lease.ID})
    return SHORTEST_GRACE if lease.TTL <= 1 else GRACE_OF_A_SECOND * lease.TTL


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
        session = EtcdLivenessSession(connection)
        try:
            yield session
        finally:
            await session.aclose()
    finally:
        await connection.aclose()


def lease_of(number: int) -> int:
    """Return the lease of a number: leases are positive."""
    return (number & (1 << 63) - 1) or 1


@final
class EtcdLivenessSession:
    """A lease, kept alive by whichever member answers.

    Attributes:
        tried_at: When it was last kept alive.
    """

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection, self._lease = connection, 0
        self._told: Callable[[], object] | None = None
        self.tried_at = now()
        self.is_lost = False
        self._keeping: asyncio.Task[None] | None = None

    @property
    def ends_at(self) -> float:
        """When others begin to miss it unless it is kept alive: also while this process is stopped."""
        return self.tried_at + SILENT

    def when_lost(self, tell: Callable[[], object]) -> None:
        """Call ``tell`` when it ends."""
        self._told = tell
        if self.is_lost:
            tell()

    async def attach(self, number: int) -> None:
        """Take the lease of a number, or keep alive what an older session of this process has left of it."""
        lease, asked_at = lease_of(number), now()
        if not await self._keep(lease):
            asked_at = now()
            await self._connection.ask(GRANT, {"TTL": LEASE, "ID": lease}, seconds=CONNECTED_WITHIN)
        self._lease, self.tried_at = lease, asked_at
        self._keeping = asyncio.get_running_loop().create_task(self._keep_alive())

    async def _keep(self, lease: int, seconds: float = CONNECTED_WITHIN) -> bool:
        """Keep a lease alive; False if there is none."""
        kept = await self._connection.ask(KEEP_ALIVE, {"ID": lease}, seconds=seconds)
        return kept.result.TTL > 0

    async def _keep_alive(self) -> None:
        while True:
            left = self.ends_at - now()
            if left <= 0:
                break
            await asyncio.sleep(min(KEPT_EVERY, left))
            sent_at = now()
            with contextlib.suppress(*_ERRORS):
                if not await self._keep(self._lease, max(self.ends_at - sent_at, 0.1)):
                    break
                self.tried_at = sent_at
        self.is_lost = True
        if self._told is not None:
            self._told()

    async def unattached(self, numbers: Sequence[int]) -> set[int]:
        """Return the numbers whose leases were not kept alive for a second, or are over."""
        asked = [self._connection.ask(TIME_TO_LIVE, {"ID": lease_of(number)}) for number in numbers]
        answers = await asyncio.gather(*asked)
        found = zip(numbers, answers, strict=True)
        return {number for number, each in found if max(0, each.grantedTTL - SILENT) > each.TTL}

    async def aclose(self) -> None:
        """Give the lease up, so that other processes see at once that this one is gone."""
        if self._keeping is None:
            return
        self._keeping.cancel()
        await asyncio.wait({self._keeping})
        if not self.is_lost:
            with contextlib.suppress(*_ERRORS):
                await self._connection.ask(REVOKE, {"ID": self._lease}, seconds=CONNECTED_WITHIN)

    def abandon(self) -> None:
        """Do nothing in a forked child: it has no thread that could keep the lease alive."""
