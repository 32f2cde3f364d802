"""The calls of the store's SQL functions: their text, their parameters, and what their answers mean.

Nothing here knows a driver: the same calls can be made over any connection to the database.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import itertools
from typing import TYPE_CHECKING, Any, Final, final

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.protocol import ABSENT, Record, Snapshot
from standfast.stores.remote.server import Refused, Written

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from standfast.stores.remote.server import Intent, Message, Row

    Fields = Iterable[Any]
    """A row, as any driver returns it."""

_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_READ: Final = (
    f"SELECT t.at, r.key, r.value, r.version, r.expires_at FROM (SELECT {_NOW} AS at OFFSET 0) AS t"  # noqa: S608 -- of two constants
    " LEFT JOIN @.records AS r ON r.key = ANY ($1::bytea[]) AND (r.expires_at IS NULL OR r.expires_at > t.at)"
)
_SCAN: Final = (
    f"SELECT t.at, r.key, r.value, r.version, r.expires_at FROM (SELECT {_NOW} AS at OFFSET 0) AS t"  # noqa: S608 -- of two constants
    " LEFT JOIN LATERAL (SELECT * FROM @.records AS r WHERE r.key >= $1 AND r.key < $2"
    " AND (r.expires_at IS NULL OR r.expires_at > t.at) ORDER BY r.key LIMIT $3) AS r ON true ORDER BY r.key"
)
_WRITTEN: Final = 0


@final
class Calls:
    """The texts of all statements, for one schema."""

    __slots__ = (
        "audience",
        "close_attempt",
        "forget",
        "hold",
        "look_closely",
        "mark",
        "next_generation",
        "notify",
        "raise_versions",
        "read",
        "reserve",
        "scan",
        "scan_back",
        "store_here",
        "subscribe",
        "sweep",
        "write",
    )

    def __init__(self, schema: str) -> None:
        at = functools.partial(_in, schema)
        self.write: Final = at(
            "SELECT * FROM @.write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)"
        )
        self.hold: Final = at("SELECT * FROM @.hold($1, $2, $3, $4)")
        self.look_closely: Final = at("SELECT * FROM @.look_closely($1, $2, $3)")
        self.close_attempt: Final = at("SELECT * FROM @.close_attempt($1, $2)")
        self.reserve: Final = at("SELECT nextval('@.versions'::regclass) FROM generate_series(1, $1::int)")
        self.forget: Final = at(
            "WITH gone AS (DELETE FROM @.topics WHERE handle = $1) DELETE FROM @.attempts WHERE handle = $1"
        )
        self.read: Final = at(_READ)
        self.scan: Final = at(_SCAN)
        self.scan_back: Final = at(_SCAN.replace("ORDER BY r.key", "ORDER BY r.key DESC"))
        self.sweep: Final = at("SELECT @.sweep($1)")
        self.subscribe: Final = at("SELECT @.subscribe($1, $2, $3)")
        self.next_generation: Final = at("SELECT nextval('@.generations'::regclass)")
        self.audience: Final = at("SELECT * FROM @.audience()")
        self.notify: Final = (
            "SELECT pg_notify(m.channel, m.payload) FROM unnest($1::text[], $2::text[]) AS m (channel, payload)"
        )
        # What handles have written is counted in the same transactions; a sequence would run ahead of them.
        self.mark: Final = at("SELECT bit_xor(hashtextextended(handle || number, 0)) FROM @.attempts")
        self.raise_versions: Final = at("SELECT @.raise_versions()")
        self.store_here: Final = at("SELECT @.store_here()")


def _in(schema: str, statement: str) -> str:
    return statement.replace("@", f'"{schema}"')


# --- writing -----------------------------------------------------------------------------------------------------


def write_parameters(intent: Intent, schema: str) -> tuple[Any, ...]:
    """Return the parameters of ``write`` for an intent."""
    guards, puts, messages = intent.guards, intent.puts, intent.messages
    keys, expected = list(guards), list(guards.values())
    absent = expected.count(ABSENT)
    rows: Sequence[Row | None] = puts
    locks, draws, made = None, [row.draw + 1 for row in puts], absent
    if len(puts) != len(keys):  # else all of them are put, in the same order
        locks, rows, draws = _beside_others(keys, intent)
        made = sum([guards[row.key] == ABSENT for row in puts]) if absent else 0
    ends = [None if row is None else row.expires_at for row in rows]
    return (
        intent.handle,
        intent.number,
        keys,
        expected,
        len(expected) - absent,
        locks,
        [None if row is None else row.value for row in rows],
        draws,
        None if ends.count(None) == len(ends) else ends,
        made,
        len(puts) - made,
        len(intent.deletes),
        intent.draws,
        intent.exact or None,
        intent.after,
        intent.before,
        [channel(schema, message.topic) for message in messages] or None,
        [payload(message) for message in messages] or None,
    )


def _beside_others(keys: Sequence[RecordKey], intent: Intent) -> tuple[list[int] | None, list[Row | None], list[int]]:
    """Return how to lock the keys, what to put at each, and what becomes of each, where some are not put."""
    puts, gone = {row.key: row for row in intent.puts}, frozenset(intent.deletes)
    rows = [puts.get(key) for key in keys]
    draws = [row.draw + 1 if row is not None else -1 if key in gone else 0 for key, row in zip(keys, rows, strict=True)]
    return lock_runs([draw != 0 for draw in draws]), rows, draws


def lock_runs(writes: Sequence[bool]) -> list[int] | None:
    """Say how to lock keys in their order: so many to write (positive), so many to compare (negative), and so on.

    None: all of them are to be written.
    """
    if all(writes):
        return None
    lengths = [(is_written, len(list(run))) for is_written, run in itertools.groupby(writes)]
    return [length if is_written else -length for is_written, length in lengths]


def written(answer: Fields, intent: Intent) -> Written | Refused:
    """Return what ``write`` answered."""
    status, at, drawn, generation, *lost = answer
    if status == _WRITTEN:
        return Written(Instant(at), tuple(drawn), generation)
    return Refused(Instant(at), lost_records(list(intent.guards), lost))


def lost_records(keys: Sequence[RecordKey], lost: Fields) -> dict[RecordKey, Record | None]:
    """Return the live records of the keys whose guards did not hold."""
    places, values, versions, ends = lost
    current: dict[RecordKey, Record | None] = {}
    for place, value, version, end in zip(places or (), values or (), versions or (), ends or (), strict=True):
        key = keys[place - 1]
        current[key] = None if version is None else Record(key, value, version, None if end is None else Instant(end))
    return current


# --- reading -----------------------------------------------------------------------------------------------------


def records(rows: Iterable[Fields]) -> tuple[Instant, dict[RecordKey, Record]]:
    """Return the time and the records of ``read`` or ``scan``."""
    at, found = 0, dict[RecordKey, Record]()
    for at, encoded, value, version, ends in rows:  # noqa: B007 -- the time is the same in all of them
        if encoded is not None:
            key = RecordKey.from_encoded(encoded)
            found[key] = Record(key, value, version, None if ends is None else Instant(ends))
    return Instant(at), found


def page(rows: Iterable[Fields], limit: int, *, reverse: bool) -> Snapshot:
    """Return a page of a scan that was asked for one record more than fits."""
    at, found = records(rows)
    if len(found) <= limit:
        return Snapshot(at, found)
    found.popitem()
    last = next(reversed(found))
    return Snapshot(at, found, last if reverse else last.successor())


# --- hints -------------------------------------------------------------------------------------------------------


def channel(schema: str, topic: bytes) -> str:
    """Return the name of the channel of a topic: short enough for PostgreSQL, whatever the topic is."""
    digest = hashlib.blake2b(topic, digest_size=20, key=schema.encode())
    return f"sf_{digest.hexdigest()}"


def channels(schema: str, topics: Iterable[bytes]) -> Mapping[str, bytes]:
    """Return the channels of topics."""
    return {channel(schema, topic): topic for topic in topics}


def payload(message: Message) -> str:
    """Return the data of a message as text, which is what a channel takes."""
    return base64.b64encode(message.data).decode()


def data_of(text: str) -> bytes:
    """Return the data of a message that was heard; what nobody of us sent means: look at everything."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""
