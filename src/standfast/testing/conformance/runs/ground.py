"""What the tests of run locks stand on: two processes on one store, and time that passes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import pytest
from msgspec import Struct

from standfast.clock import SYSTEM_CLOCK
from standfast.keys import RecordKey
from standfast.space import Space
from standfast.testing.conformance.ground import Ground, reach, shortest_lease
from standfast.testing.simulation import VirtualClock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from standfast.clock import Instant
    from standfast.locks.run_locks import RunLease, RunLocks
    from standfast.stores import Store
    from standfast.testing.conformance.ground import OpenAnother

FLOW: Final = "checkout"
RUN: Final = "run-1"
OWNER: Final = "owner-1"
OTHER: Final = "owner-2"

BRIEF: Final = 0.3
"""A lease that is waited for in real time, in seconds, if the store takes such a short one."""


class Two(Struct, frozen=True):
    """Two processes on one store, and a way to let its time pass.

    Attributes:
        here: One of them.
        there: The other one.
        brief: A lease that tests wait for, in seconds.
        patience: How long they wait for one at most.
    """

    here: Space
    there: Space
    clock: VirtualClock | None
    brief: float
    patience: float

    async def until(self, instant: Instant, *, always: bool = False) -> None:
        """Return when the store's time is ``instant`` or later; skip the test if that takes too long."""
        if self.clock is None and not always:
            shortest_lease(self.here.store, BRIEF, self.patience)
        await reach(self.here.store, instant, self.clock, self.here.key("time"))

    async def lapsed(self, run_id: str = RUN, *, always: bool = False) -> RunLease:
        """Lease a run here, and let the lease lapse; ``always``: however long that takes on this store."""
        lease = await taken(self.here.run_locks, run_id, lease=self.brief)
        await self.until(lease.expires_at, always=always)
        return lease

    async def leftovers(self) -> list[str]:
        """Return every record of the space, but for presences, which expire."""
        root = RecordKey(self.here.namespace, self.here.tenant)
        page = await self.here.scan(*root.within(), limit=1_000)
        return [str(key) for key in page.records if key.parts[2] != "presence"]


async def taken(locks: RunLocks, run_id: str = RUN, *, lease: float | None = None) -> RunLease:
    """Lease a run, and insist on it."""
    found = await locks.try_acquire(FLOW, run_id, lease=lease)
    assert found is not None
    return found


class RunLockGround(Ground):
    """What the cases stand on."""

    @pytest.fixture
    async def two(
        self, store: Store, open_another: OpenAnother, clock: VirtualClock | None, patience: float
    ) -> AsyncGenerator[Two]:
        """Two processes, each with a handle of its own if there can be several."""
        namespace, time = f"runs-{uuid.uuid4().hex}", clock or SYSTEM_CLOCK
        second = store if open_another is None else await open_another()
        brief = 30.0 if clock is not None else max(BRIEF, store.capabilities.shortest_lease)
        async with (
            Space(store, namespace=namespace, clock=time) as here,
            Space(second, namespace=namespace, clock=time) as there,
        ):
            yield Two(here, there, clock, brief, patience)
