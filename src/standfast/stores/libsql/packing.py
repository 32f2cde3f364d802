"""Packing: many keys and values as one blob and a list of places in it, so that a statement is always the same text.

A statement with a parameter for each key would be parsed anew for every number of keys, by the server twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from standfast.keys import RecordKey
    from standfast.stores.remote.server import Row

Packed: TypeAlias = tuple[bytes, str]
"""The blob, and the places as JSON. A place is a start, counted from 1 as SQL does, and a length."""

MOST_BYTES: Final = 1_000_000
"""How much goes into one blob, give or take a record. Servers take rows of 5 MB."""

_encode: Final = msgspec.json.Encoder().encode


def pack_keys(keys: Iterable[RecordKey]) -> Packed:
    """Pack keys: ``[[start, length], ...]``."""
    places: list[tuple[int, int]] = []
    start = 1
    keys = tuple(keys)
    for key in keys:
        places.append((start, len(key)))
        start += len(key)
    return b"".join(keys), _encode(places).decode()


def pack_guards(guards: Mapping[RecordKey, int]) -> Packed:
    """Pack keys with the version that each must be at: ``[[start, length, version], ...]``."""
    places: list[tuple[int, int, int]] = []
    start = 1
    for key, version in guards.items():
        places.append((start, len(key), version))
        start += len(key)
    return b"".join(guards), _encode(places).decode()


def pack_rows(rows: Sequence[Row]) -> Iterator[Packed]:
    """Pack records: ``[[start, length, start of the value, its length, draw, expires_at], ...]``."""
    parts: list[bytes] = []
    places: list[tuple[int, int, int, int, int, int | None]] = []
    start = 1
    for row in rows:
        value_start = start + len(row.key)
        places.append((start, len(row.key), value_start, len(row.value), row.draw, row.expires_at))
        parts += (row.key, row.value)
        start = value_start + len(row.value)
        if start > MOST_BYTES:
            yield b"".join(parts), _encode(places).decode()
            parts, places, start = [], [], 1
    if places:
        yield b"".join(parts), _encode(places).decode()
