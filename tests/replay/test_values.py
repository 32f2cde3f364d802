"""Stored values of every format ever written stay readable.

The files here are never edited: a value that was stored once is read for ever.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from standfast.clock import Instant
from standfast.codec import PLAIN, Codec
from standfast.locks.heartbeat import PRESENCES, PresenceRecord
from standfast.locks.rate_limiter import BUCKETS, BucketWaiter, RefillRate, TokenBucket


class Grant(Struct, frozen=True, tag="grant"):
    """A record that has gained ``until`` since the first of them were stored."""

    holder: str
    fence: int
    until: int | None = None


class Vacant(Struct, frozen=True, tag="vacant"):
    """The other kind of record at the same place."""

    last_fence: int


class Typed(Struct, frozen=True):
    """Fields that plain JSON could not restore."""

    data: bytes
    price: Decimal
    at: Annotated[datetime, Meta(tz=True)]
    pair: tuple[str, int]
    names: frozenset[str]


GRANTS: Codec[Any] = Codec(Grant | Vacant)
TYPED: Codec[Any] = Codec(Typed)
AT = datetime(2025, 6, 15, 15, 6, 40, 1, tzinfo=UTC)

WAITER = BucketWaiter("w", 2, Instant(9), Instant(0), "1.2.3")

VALUES: dict[str, tuple[Codec[Any], object]] = {
    "nothing": (PLAIN, None),
    "truth": (PLAIN, [True, False]),
    "integers": (PLAIN, [0, -1, 2**53 + 1, 2**64, -(2**63) - 1]),
    "floats": (PLAIN, [0.5, -0.0, 1e300, 5e-324, 0.1]),
    "text": (PLAIN, 'a"b\\c\n\x00é\N{MUSICAL SYMBOL G CLEF}\N{LINE SEPARATOR}'),
    "nested": (PLAIN, {"order": {"lines": [{"n": 2, "sku": "x"}], "note": ""}, "zz": []}),
    "grant": (GRANTS, Grant("p-1", 17)),
    "grant-before-until": (GRANTS, Grant("p-1", 17)),
    "grant-with-a-later-field": (GRANTS, Grant("p-1", 17, 5)),
    "vacant": (GRANTS, Vacant(17)),
    "presence": (PRESENCES, PresenceRecord(7, "host", "worker", 30.0, "1.2.3")),
    "bucket": (BUCKETS, TokenBucket(RefillRate(10, 100_000), 3, Instant(5), waiters=(WAITER,))),
    "typed": (TYPED, Typed(b"held", Decimal("19.90"), AT, ("a", 1), frozenset({"x"}))),
}
LINES = Path(__file__).with_name("values_format_1.txt").read_bytes().splitlines()
STORED = {name.decode(): data for name, _, data in (line.partition(b"\t") for line in LINES)}
WRITTEN_OTHERWISE = {"grant-before-until", "grant-with-a-later-field"}


def test_every_stored_value_is_read_by_a_test() -> None:
    """Nothing was added to one side only."""
    assert STORED.keys() == VALUES.keys()


@pytest.mark.parametrize("name", STORED)
def test_a_stored_value_is_read_for_ever(name: str) -> None:
    """What format 1 wrote is read as it was meant."""
    codec, value = VALUES[name]
    assert codec.decode(STORED[name]) == value


@pytest.mark.parametrize("name", sorted(STORED.keys() - WRITTEN_OTHERWISE))
def test_a_value_is_written_byte_for_byte_as_before(name: str) -> None:
    """Older readers, digests and other tools see the same bytes."""
    codec, value = VALUES[name]
    assert codec.encode(value) == STORED[name]
