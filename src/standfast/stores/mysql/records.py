"""Rows of the table of records, as records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import Record

if TYPE_CHECKING:
    from collections.abc import Iterable


def record_of(row: tuple[Any, ...]) -> Record:
    """Return a row: key, version, expiry, value."""
    key, version, expires_at, value = row
    return Record(RecordKey.from_encoded(key), value, version, None if expires_at is None else Instant(expires_at))


def live(rows: Iterable[tuple[Any, ...]], at: Instant) -> dict[RecordKey, Record]:
    """Return the records that have not expired at ``at``, in the order of the rows."""
    found = map(record_of, rows)
    return {record.key: record for record in found if not record.is_expired(at)}
