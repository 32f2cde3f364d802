"""What to do about a presence that ends too far ahead: the store's clock was set back since it was renewed.

A process that lives renews its presence soon, by the new clock. One that died before would be taken for alive until the
clock has made up for the step. But no presence is made to last longer than its lease, so an end that lies farther
ahead is worth nothing, and whoever looks brings it back to a lease from now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import later, seconds_between
from standfast.stores.protocol import Put

if TYPE_CHECKING:
    from standfast.clock import Instant
    from standfast.locks.driving.presence import PresenceRecord
    from standfast.stores.protocol import Record, Store

FARTHEST: Final = 2.0
"""How many leases ahead an end may lie before it is brought back: servers that take turns may differ a little."""


async def end_of(store: Store, record: Record, presence: PresenceRecord, now: Instant) -> Instant:
    """Return when a presence ends, and bring that back to a lease from now if it lies too far ahead."""
    end = record.expires_at
    if end is None or seconds_between(now, end) <= FARTHEST * presence.lease:
        return end or now
    sooner = later(now, presence.lease)
    # If this is refused, the presence was renewed, ended or brought back meanwhile: the next look finds out.
    await store.commit(Put(record.key, record.value, record.version, expires_at=sooner))
    return sooner
