"""Records as they lie in a hash: version and expiry, 16 digits each, and the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import Instant
from standfast.stores.protocol import Record

if TYPE_CHECKING:
    from standfast.keys import RecordKey

NEVER: Final = b"9" * 16
"""The expiry of a record that has none: later than every instant."""


def digits(number: int) -> bytes:
    """Return a version as the scripts compare it."""
    return b"%016d" % number


def expiry(instant: Instant | None) -> bytes:
    """Return an expiry as it is stored."""
    return NEVER if instant is None else b"%016d" % instant


def unpack(key: RecordKey, raw: bytes | None, at: Instant) -> Record | None:
    """Return the record that lies at ``key``, if it is there and alive."""
    if raw is None:
        return None
    expires = raw[16:32]
    if expires == NEVER:
        return Record(key, raw[32:], int(raw[:16]))
    expires_at = Instant(int(expires))
    return None if expires_at <= at else Record(key, raw[32:], int(raw[:16]), expires_at)
