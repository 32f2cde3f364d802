"""What is stored: the documents, and the conditions on them, as pure functions.

MongoDB compares binary data by length first, so a key is stored as text: each of its bytes becomes the character of
that number. Text is compared as UTF-8, byte by byte, and UTF-8 sorts like the numbers of its characters.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Final

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import ABSENT, Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from standfast.stores.remote.server import Intent, Row

    Document = dict[str, Any]

# What begins with an arrow is no record: its character comes after all that a key can be made of.
STORE: Final = "\u2192store"
ATTEMPT: Final = "\u2192attempt "
AFTER_ATTEMPTS: Final = "\u2192attempt!"

MILLISECOND: Final = 1_000
NOW: Final = {"$multiply": [{"$toLong": "$$NOW"}, MILLISECOND]}
"""The server's time in microseconds, constant within a command. Its own clock counts in milliseconds."""

_LATEST: Final = 2**62
UNEXPIRED: Final = {"$expr": {"$gt": [{"$ifNull": ["$expires_at", _LATEST]}, NOW]}}

LARGEST_COMMAND: Final = 8_000_000
"""Bytes of values in one command; a command may have 16 MB in all, a transaction any number of commands."""

MOST_STATEMENTS: Final = 1_000
_OVERHEAD: Final = 200


def to_id(key: bytes) -> str:
    """Return the text that a key is stored as."""
    return key.decode("latin-1")


def from_id(text: str) -> RecordKey:
    """Return the key that was stored as ``text``."""
    return RecordKey.from_encoded(text.encode("latin-1"))


def attempt_id(handle: str) -> str:
    """Return where the attempts of a handle are counted."""
    return ATTEMPT + handle


def salt(handle: str) -> int:
    """Return a number of a handle's own, so that its commits move the sum of all by a step of their own."""
    return zlib.crc32(handle.encode()) % 1_000_003 + 1


def record_of(found: Document) -> Record:
    """Return the record that a document holds."""
    expires_at = found.get("expires_at")
    return Record(
        from_id(found["_id"]),
        found["value"],
        int(found["version"]),  # the driver has a type of its own for large numbers
        None if expires_at is None else Instant(int(expires_at)),
    )


def is_live(found: Document, at: Instant) -> bool:
    """Tell whether a document had not expired at ``at``."""
    expires_at: int | None = found.get("expires_at")
    return expires_at is None or expires_at > at


# --- what an intent comes to ---------------------------------------------------------------------------------------


def lost_guards(intent: Intent, rows: Iterable[Document], at: Instant) -> bool:
    """Tell whether a key is not at the version that it must be at, given the documents that there are."""
    versions = {row["_id"]: row["version"] for row in rows if row["_id"] != STORE and is_live(row, at)}
    return any(versions.get(to_id(key), ABSENT) != version for key, version in intent.guards.items())


def latest_of(intent: Intent, rows: Iterable[Document], at: Instant) -> Instant | None:
    """Return when it is too late to commit: the window is over then, or a record that is guarded has expired."""
    ends = [int(row["expires_at"]) for row in rows if "expires_at" in row and is_live(row, at)]
    if intent.before is not None:
        ends.append(intent.before)
    return Instant(min(ends)) if ends else None


def updates_of(intent: Intent, at: Instant, versions: Sequence[int]) -> list[Document]:
    """Return the statements that write: the attempt, what is put, and a touch for what is only checked.

    Each of them must find its document as it is expected; to create one is to find none, or an expired one.
    """
    guards, touched = intent.guards, {*intent.deletes}
    statements = [_count(intent, at, versions)]
    for row in intent.puts:
        touched.add(row.key)
        statements.append(_put(row, guards[row.key], at, versions[row.draw]))
    for key, version in guards.items():
        if version != ABSENT and key not in touched:
            # A transaction notices only what it writes: without a change, two could each check what the other writes.
            statements.append({"q": _at_version(key, version, at), "u": {"$bit": {"touched": {"xor": 1}}}})
    return statements


def _count(intent: Intent, at: Instant, versions: Sequence[int]) -> Document:
    first = versions[0] if versions else 0
    counted = {"number": intent.number, "at": at, "first": first, "count": len(versions), "salt": salt(intent.handle)}
    return {
        "q": {"_id": attempt_id(intent.handle), "number": {"$lt": intent.number}},
        "u": {"$set": counted},
        "upsert": True,
    }


def _put(row: Row, expected: int, at: Instant, version: int) -> Document:
    document: Document = {"version": version, "value": row.value}
    if row.expires_at is not None:
        document["expires_at"] = row.expires_at
    if expected == ABSENT:
        return {"q": _expired(row.key, at), "u": document, "upsert": True}
    return {"q": _at_version(row.key, expected, at), "u": document}


def _at_version(key: RecordKey, version: int, at: Instant) -> Document:
    return {"_id": to_id(key), "version": version, "expires_at": {"$not": {"$lte": at}}}


def _expired(key: RecordKey, at: Instant) -> Document:
    return {"_id": to_id(key), "expires_at": {"$lte": at}}


def deletes_of(intent: Intent, at: Instant) -> tuple[list[Document], list[Document]]:
    """Return the statements that delete what is there, and those that remove what has expired, if it is there."""
    certain: list[Document] = []
    perhaps: list[Document] = []
    for key in intent.deletes:
        version = intent.guards[key]
        if version == ABSENT:
            perhaps.append({"q": _expired(key, at), "limit": 1})
        else:
            certain.append({"q": _at_version(key, version, at), "limit": 1})
    return certain, perhaps


def in_commands(statements: Iterable[Document]) -> Iterator[list[Document]]:
    """Split statements into what fits one command each, in their order."""
    some: list[Document] = []
    size = 0
    for statement in statements:
        cost = _OVERHEAD + len(statement["u"].get("value", b"")) if "u" in statement else _OVERHEAD
        if some and (size + cost > LARGEST_COMMAND or len(some) == MOST_STATEMENTS):
            yield some
            some, size = [], 0
        some.append(statement)
        size += cost
    if some:
        yield some
