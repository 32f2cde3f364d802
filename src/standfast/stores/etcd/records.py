"""How records lie in etcd, and an intent as one transaction of it.

Below the prefix of a store: ``r/`` records, ``x/`` when they expire, ``a/`` attempts, ``p/`` pulses, ``m/`` messages,
``l/`` listeners, ``v/`` tokens of living processes, ``g`` the generation of the listeners, ``s`` the store itself.

**A version** is the revision in which the record was written and its place among the versions of that transaction, so
it grows across deletes without a trace of them. Versions that were *reserved*, or came with an import, are written in
the record itself. A reserved one holds as long as its key did not come and go meanwhile: every delete touches the
*pulse* of its key, and who creates with reserved versions compares it.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import StandfastError
from standfast.keys import RecordKey
from standfast.stores.etcd.gateway import KeyValue
from standfast.stores.protocol import ABSENT, Record
from standfast.stores.remote.server import Landed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.stores.remote.server import Intent, Message, Row

    Operation = dict[str, Any]

# --- keys ----------------------------------------------------------------------------------------------------------

PULSES: Final = 64
EXPIRES_WITHIN: Final = 15 * MICROSECONDS
"""Records that expire within this time of each other are found together, and removed when the last one has."""


@final
class EtcdKeys:
    """The keys of a store below a prefix."""

    __slots__ = ("_head", "_records", "generation", "store")

    def __init__(self, prefix: str) -> None:
        self._head: Final = prefix.encode() + b"/"
        self._records: Final = self._head + b"r/"
        self.store: Final = self._head + b"s"
        self.generation: Final = self._head + b"g"

    def record(self, key: bytes) -> bytes:
        """Return where a record lies."""
        return self._records + key

    def record_key(self, key: bytes) -> RecordKey:
        """Return the key of the record that lies there."""
        return RecordKey.from_encoded(key[len(self._records) :])

    def attempt(self, handle: str) -> bytes:
        """Return where the attempts of a handle are counted."""
        return self._head + b"a/" + handle.encode()

    def pulse(self, key: bytes) -> bytes:
        """Return what a delete of a key touches: some other keys have the same."""
        return self._head + b"p/%02x" % (zlib.crc32(key) % PULSES)

    def expiry(self, key: bytes, expires_at: int) -> bytes:
        """Return what says that a record expires."""
        return self.expiries(-(-expires_at // EXPIRES_WITHIN)) + key

    def expiries(self, bucket: int) -> bytes:
        """Return what the expiries of a while begin with."""
        return self._head + b"x/" + bucket.to_bytes(8)

    def expiring(self, key: bytes) -> bytes:
        """Return the encoded key of the record that an expiry is about."""
        return key[len(self._head) + 10 :]

    def topic(self, topic: bytes) -> bytes:
        """Return where messages to a topic are put."""
        return self._head + b"m/" + topic

    def listener(self, handle: str) -> bytes:
        """Return where a handle says what it listens to."""
        return self._head + b"l/" + handle.encode()

    def below(self, kind: bytes) -> tuple[bytes, bytes]:
        """Return the range of all keys of a kind."""
        return self._head + kind + b"/", self._head + kind + b"0"

    def last_part(self, key: bytes) -> bytes:
        """Return what follows the kind in a key."""
        return key[len(self._head) + 2 :]


# --- operations ----------------------------------------------------------------------------------------------------


def put(key: bytes, value: bytes, lease: int = 0) -> Operation:
    """Return the operation that puts a value."""
    request: Operation = {"key": key, "value": value}
    return {"request_put": request | {"lease": lease} if lease else request}


def get(key: bytes, *, newer_than: int = 0) -> Operation:
    """Return the operation that reads a key; its value is left out if it has not changed since a revision."""
    request: Operation = {"key": key}
    return {"request_range": request | {"min_mod_revision": newer_than + 1} if newer_than else request}


def delete(key: bytes) -> Operation:
    """Return the operation that deletes a key."""
    return {"request_delete_range": {"key": key}}


def is_at(key: bytes, revision: int) -> Operation:
    """Return the comparison that a key was last written at a revision; 0: that it is not there."""
    return {"key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def is_not_after(key: bytes, revision: int) -> Operation:
    """Return the comparison that a key has not been written since a revision."""
    return {"key": key, "target": "MOD", "result": "LESS", "mod_revision": revision + 1}


# --- values --------------------------------------------------------------------------------------------------------

PLACES: Final = 12
"""How many bits of a version are its place in the transaction; half of the places are for reserved versions."""

RESERVED: Final = 1 << (PLACES - 1)

_HEAD: Final = struct.Struct(">BQQ")
_DRAWN, _GIVEN = 0, 1


class KnownRecord(NamedTuple):
    """What pins a record down: the revision in which it was written. Its version and its expiry go with that."""

    version: int
    revision: int
    expires_at: Instant | None

    def is_live(self, at: Instant) -> bool:
        """Return True if it has not expired."""
        return self.expires_at is None or self.expires_at > at


def drawn_value(value: bytes, place: int, expires_at: Instant | None) -> bytes:
    """Return what is kept for a record whose version is its revision, and a place (with the store's base)."""
    return _HEAD.pack(_DRAWN, place, 0 if expires_at is None else expires_at + 1) + value


def given_value(value: bytes, version: int, expires_at: Instant | None) -> bytes:
    """Return what is kept for a record whose version is known beforehand."""
    return _HEAD.pack(_GIVEN, version, 0 if expires_at is None else expires_at + 1) + value


def read_record(found: KeyValue, key: RecordKey) -> tuple[Record, KnownRecord]:
    """Return the record that a key holds, and what pins it down."""
    kind, number, expires = _HEAD.unpack_from(found.value)
    version = number + (found.mod_revision << PLACES) if kind == _DRAWN else number
    expires_at = Instant(expires - 1) if expires else None
    known = KnownRecord(version, found.mod_revision, expires_at)
    return Record(key, found.value[_HEAD.size :], version, expires_at), known


def row_value(row: Row, base: int, exact: Sequence[int]) -> bytes:
    """Return what is kept for a record that an intent writes, with the versions ``exact`` if there are any."""
    if exact:
        return given_value(row.value, exact[row.draw], row.expires_at)
    return drawn_value(row.value, (base << PLACES) + row.draw, row.expires_at)


# --- messages ------------------------------------------------------------------------------------------------------

_SHOWING: Final = b"\x02"
"""What a message begins with that shows records as they are kept. Their version is that of the message itself."""

_shown: Final = msgspec.msgpack.Decoder(tuple[bytes, list[tuple[bytes, bytes, bytes]], list[bytes]])


class ShownRecord(NamedTuple):
    """A record that a message shows, the key that is notified of it, and what pins it down."""

    to: RecordKey
    record: Record
    known: KnownRecord


def message_value(message: Message, base: int, exact: Sequence[int]) -> bytes:
    """Return a message that is put in the transaction of what it shows."""
    if not message.shown:
        return message.data
    shown = [(bytes(to), bytes(row.key), row_value(row, base, exact)) for to, row in message.shown]
    gone = [bytes(key) for key in message.gone]
    return _SHOWING + msgspec.msgpack.encode((message.data, shown, gone))


def read_message(found: KeyValue) -> tuple[bytes, list[ShownRecord], list[RecordKey]]:
    """Return the data of a message, the records that it shows, and the keys that it shows to be gone."""
    if found.value[:1] != _SHOWING:
        return found.value, [], []
    read = RecordKey.from_encoded
    try:
        data, shown, gone = _shown.decode(memoryview(found.value)[1:])
        records = [
            ShownRecord(read(to), *read_record(KeyValue(key, found.mod_revision, kept), read(key)))
            for to, key, kept in shown
        ]
        return data, records, [*map(read, gone)]
    except (msgspec.DecodeError, struct.error, StandfastError):
        return found.value, [], []  # which says that anything may have changed


# --- the store itself ----------------------------------------------------------------------------------------------

FORMAT: Final = 1
"""The format that this release writes. A store in a newer one is refused."""


class EtcdFacts(Struct, frozen=True, omit_defaults=True):
    """What is kept of the store as a whole. Every write compares that it has not changed.

    Attributes:
        id: What tells this store from all others.
        cluster: The cluster that it was last opened on: one restored from a backup has another.
        base: What is added to revisions: above every version that was imported, or may have been lost.
        frozen: Why it takes no writes; 0: it does.
    """

    id: str
    cluster: str
    base: int = 0
    frozen: int = 0
    format: int = FORMAT

    def encoded(self) -> bytes:
        """Return it as bytes."""
        return msgspec.json.encode(self)


facts: Final = msgspec.json.Decoder(EtcdFacts)

# --- attempts ------------------------------------------------------------------------------------------------------

_ATTEMPT: Final = struct.Struct(">QBQQH8s")
_CLOSED, _LANDED_DRAWN, _LANDED_GIVEN = range(3)


class EtcdAttempt(NamedTuple):
    """The last attempt of a handle: its number, the revision of that, and what came of it."""

    number: int
    revision: int
    at: Instant
    landed: Landed | None
    token: bytes
    """Drawn at random for each write: the same one comes back if its request was sent twice."""


def number_below(key: bytes, number: int) -> Operation:
    """Return the comparison that the last attempt of a handle has a lower number. It fails if there is none."""
    return {"key": key, "target": "VALUE", "result": "LESS", "value": number.to_bytes(8)}


def closed_attempt(number: int, at: Instant) -> bytes:
    """Return what is kept of an attempt that can never land any more."""
    return _ATTEMPT.pack(number, _CLOSED, at, 0, 0, b"")


def landed_attempt(intent: Intent, base: int, at: Instant, token: bytes) -> bytes:
    """Return what is kept of an attempt, in the transaction that carries it out."""
    if intent.exact:
        return _ATTEMPT.pack(intent.number, _LANDED_GIVEN, at, intent.exact[0], len(intent.exact), token)
    return _ATTEMPT.pack(intent.number, _LANDED_DRAWN, at, base << PLACES, intent.draws, token)


def read_attempt(found: KeyValue) -> EtcdAttempt:
    """Return the attempt that a key holds."""
    number, kind, at, first, count, token = _ATTEMPT.unpack(found.value)
    if kind == _LANDED_DRAWN:
        first += found.mod_revision << PLACES
    landed = None if kind == _CLOSED else Landed(Instant(at), tuple(range(first, first + count)))
    return EtcdAttempt(number, found.mod_revision, Instant(at), landed, token)


# --- an intent as a transaction ------------------------------------------------------------------------------------

STORE, ATTEMPT, FIRST_GUARD = range(3)
"""The places of what a refusal brings: the store, the attempt, and then each guard."""

GENERATION: Final = 1
"""The place of the generation in what a success brings."""


class IntentTxn(NamedTuple):
    """A transaction that carries out an intent, and the messages that did not fit into it."""

    request: Operation
    unsent: Sequence[Any]
    compares_pulses: bool


class TxnGround(NamedTuple):
    """What a transaction rests on besides the guards: the store and the attempt as they were last seen."""

    store_revision: int
    base: int
    attempt_revision: int
    token: bytes


def intent_txn(
    keys: EtcdKeys, intent: Intent, known: Mapping[RecordKey, KnownRecord], ground: TxnGround, at: Instant, most: int
) -> IntentTxn:
    """Return the transaction that does all of ``intent`` or nothing, with at most ``most`` operations.

    ``known`` has every guarded key that is to be there, and those that are only there because they were not swept yet.
    """
    attempt = keys.attempt(intent.handle)
    compare = [is_at(keys.store, ground.store_revision), is_at(attempt, ground.attempt_revision)]
    failure = [get(keys.store), get(attempt)]
    for key in intent.guards:
        place, there = keys.record(key), known.get(key)
        revision = there.revision if there is not None else 0
        compare.append(is_at(place, revision))
        failure.append(get(place, newer_than=revision))
    pulses: dict[bytes, None] = {}
    if intent.exact:
        pulses = {keys.pulse(row.key): None for row in intent.puts if intent.guards[row.key] == ABSENT}
        reserved_at = (intent.exact[0] >> PLACES) - ground.base
        compare.extend(is_not_after(pulse, reserved_at) for pulse in pulses)
    success = [put(attempt, landed_attempt(intent, ground.base, at, ground.token)), get(keys.generation)]
    for row in intent.puts:
        success.append(put(keys.record(row.key), row_value(row, ground.base, intent.exact)))
        if row.expires_at is not None:
            success.append(put(keys.expiry(row.key, row.expires_at), b""))
    success.extend(delete(keys.record(key)) for key in intent.deletes)
    success.extend(put(pulse, b"") for pulse in {keys.pulse(key): None for key in intent.deletes})
    room = max(0, most - len(success))
    success.extend(
        put(keys.topic(message.topic), message_value(message, ground.base, intent.exact))
        for message in intent.messages[:room]
    )
    request = {"compare": compare, "success": success, "failure": failure}
    return IntentTxn(request, intent.messages[room:], bool(pulses))


def removals(keys: EtcdKeys, expired: Sequence[KeyValue]) -> Operation:
    """Return the transaction that removes records whose time is over, unless they were written again since."""
    operations: list[Operation] = []
    pulses: dict[bytes, None] = {}
    for each in expired:
        key = keys.expiring(each.key)
        record = keys.record(key)
        pulses[keys.pulse(key)] = None
        both = {
            "compare": [is_at(record, each.mod_revision)],
            "success": [delete(record), delete(each.key)],
            "failure": [delete(each.key)],
        }
        operations.append({"request_txn": both})
    return {"success": [*operations, *(put(pulse, b"") for pulse in pulses)]}
