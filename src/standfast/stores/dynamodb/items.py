"""Records as items, and an intent as one transaction.

An item has ``p`` (the namespace) and ``s`` (the rest of the key), ``v`` (the version), ``b`` (the value), ``x`` (when
it expires, in microseconds) and ``t`` (when the service may remove it, in seconds). A deleted record stays for a while
as a *tombstone*: without a value, so that no handle creates the key at a version that it has had.

Versions are the store's time in microseconds, or one more than the version that is replaced, whichever is more. They
are chosen here and checked there: an item is written over a dead one only if that has a lower version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from standfast.clock import MICROSECONDS, Instant
from standfast.errors import InvalidChangeError
from standfast.keys import RecordKey
from standfast.stores.protocol import ABSENT, Record
from standfast.stores.remote.server import Landed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from standfast.stores.remote.server import Intent, Row

    Item = Mapping[str, Any]


# --- attempts: which number a handle is at, and what came of it, as one item in a partition of its own -------------
#
# It is written in the same transaction as the records. So a handle that lost the answer finds it there, or closes the
# attempt by counting on: then a request that is still on its way is refused.

ITS_OWN: Final = b"\x00\x00"
"""What no encoded namespace begins with: partitions of the store's own begin with it."""

KEPT: Final = 7 * 86_400
"""How many seconds the attempts of a handle are kept after its last one; then the service removes them."""


def attempt_key(handle: str) -> dict[str, Any]:
    """Return where the attempts of a handle are counted."""
    return {"p": {"B": ITS_OWN + handle.encode()}, "s": {"B": b"a"}}


class CountedAttempt(Struct, frozen=True):
    """The last attempt of a handle that was counted: written by the request ``token``, or closed without a trace.

    ``frozen`` says why the handle cannot write any more; 0 if it can.
    """

    number: int
    landed: Landed | None
    token: str = ""
    frozen: int = 0


def counting(handle: str, number: int, table: str, landed: Landed | None, token: str, now: Instant) -> dict[str, Any]:
    """Return the conditional put that counts an attempt, if it is not counted yet."""
    item: dict[str, Any] = attempt_key(handle) | {
        "n": {"N": str(number)},
        "t": {"N": str(now // MICROSECONDS + KEPT)},
    }
    if landed is not None:
        first, count = (landed.versions[0] if landed.versions else 0), len(landed.versions)
        item |= {"w": {"N": str(landed.at)}, "f": {"N": str(first)}, "c": {"N": str(count)}, "r": {"S": token}}
    return {
        "TableName": table,
        "Item": item,
        "ConditionExpression": "(attribute_not_exists(n) OR n < :n) AND attribute_not_exists(z)",
        "ExpressionAttributeValues": {":n": {"N": str(number)}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def closing(handle: str, number: int, table: str) -> dict[str, Any]:
    """Return the update that counts an attempt as closed where the handle is frozen, and stays so."""
    return {
        "TableName": table,
        "Key": attempt_key(handle),
        "UpdateExpression": "SET n = :n REMOVE w, f, c, r",
        "ConditionExpression": "n < :n",
        "ExpressionAttributeValues": {":n": {"N": str(number)}},
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def attempt_of(item: Mapping[str, Any]) -> CountedAttempt:
    """Return the attempt that an item holds."""
    number, frozen = int(item["n"]["N"]), int(item["z"]["N"]) if "z" in item else 0
    if "f" not in item:
        return CountedAttempt(number, None, frozen=frozen)
    first, count = int(item["f"]["N"]), int(item["c"]["N"])
    landed = Landed(Instant(int(item["w"]["N"])), tuple(range(first, first + count)))
    return CountedAttempt(number, landed, str(item["r"]["S"]), frozen)


# --- records as items, and an intent as one transaction ------------------------------------------------------------

GRACE: Final = 900 * MICROSECONDS
"""How long a dead item is kept, in microseconds.

A request that is stuck on its way is refused by the service once its signature is five minutes old, by a clock that
may itself be five minutes wrong. Until then it must find what others did meanwhile.
"""

MOST_BYTES: Final = 4_000_000
"""What fits into one transaction."""

_RECORD: Final = b"r"
_PRESENT: Final = "v = :v AND attribute_exists(b) AND (attribute_not_exists(x) OR x > :now)"
_DEAD: Final = "(attribute_not_exists(b) OR x <= :now)"
_ABSENT: Final = f"attribute_not_exists(v) OR {_DEAD}"
_CREATABLE: Final = f"attribute_not_exists(v) OR ({_DEAD} AND v < :new)"


# --- keys ----------------------------------------------------------------------------------------------------------


def key_of(key: RecordKey) -> dict[str, Any]:
    """Return where the item of a record lies."""
    namespace = key.namespace
    return {"p": {"B": namespace}, "s": {"B": _RECORD + key[len(namespace) :]}}


def sort_key(bound: RecordKey, namespace: bytes) -> bytes:
    """Return the sort key of a bound of a range."""
    return _RECORD + bound[len(namespace) :]


def record_key(item: Item) -> RecordKey:
    """Return the key of the record that an item holds."""
    return RecordKey.from_encoded(bytes(item["p"]["B"]) + bytes(item["s"]["B"])[len(_RECORD) :])


# --- items ---------------------------------------------------------------------------------------------------------


def version_of(item: Item) -> int:
    """Return the version of an item, dead or alive."""
    return int(item["v"]["N"])


def live_record(item: Item | None, key: RecordKey, at: Instant) -> Record | None:
    """Return the record that an item holds at ``at``; None if there is none, or not any more."""
    if not item or "b" not in item:
        return None
    expires_at = Instant(int(item["x"]["N"])) if "x" in item else None
    record = Record(key, bytes(item["b"]["B"]), version_of(item), expires_at)
    return None if record.is_expired(at) else record


def removable_at(item: Item) -> Instant | None:
    """Return when a dead or expiring item may be removed; None for a record that stays."""
    return Instant(int(item["t"]["N"]) * MICROSECONDS) if "t" in item else None


def _removable(version: int, instant: Instant) -> dict[str, str]:
    return {"N": str((max(version, instant) + GRACE) // MICROSECONDS + 1)}


def full(row: Row | Record, version: int) -> dict[str, Any]:
    """Return the item of a record."""
    item = key_of(row.key) | {"v": {"N": str(version)}, "b": {"B": row.value}}
    if row.expires_at is not None:
        item |= {"x": {"N": str(row.expires_at)}, "t": _removable(version, row.expires_at)}
    return item


# --- transactions --------------------------------------------------------------------------------------------------


class Transaction(Struct, frozen=True):
    """An intent as the service takes it. The first item is the attempt; then one for each guard, in their order."""

    token: str
    items: list[dict[str, Any]]
    tombstones: dict[RecordKey, int]


def transaction(intent: Intent, table: str, token: str, now: Instant, versions: Sequence[int]) -> Transaction:
    """Make a transaction of an intent: guarded at ``now``, with these versions."""
    puts = {row.key: row for row in intent.puts}
    last = versions[-1] if versions else ABSENT
    tombstones = {key: max(intent.guards[key], last) for key in intent.deletes}
    written = {key: full(row, versions[row.draw]) for key, row in puts.items()}
    written |= {
        key: (key_of(key) | {"v": {"N": str(version)}, "t": _removable(version, now)})
        for key, version in tombstones.items()
    }
    size = sum(len(key) + 100 + len(item["b"]["B"] if "b" in item else b"") for key, item in written.items())
    if size > MOST_BYTES:
        raise InvalidChangeError(
            f"the changes have {size:,} bytes, and DynamoDB takes {MOST_BYTES:,} in one transaction"
        )
    items = [{"Put": counting(intent.handle, intent.number, table, Landed(now, tuple(versions)), token, now)}]
    items.extend(_guarded(table, key, guard, written.get(key), now) for key, guard in intent.guards.items())
    return Transaction(token, items, tombstones)


def _guarded(table: str, key: RecordKey, guard: int, item: Item | None, now: Instant) -> dict[str, Any]:
    """Return the item of a transaction that checks one guard, and writes there what is to be written, if anything."""
    values = {":now": {"N": str(now)}}
    if guard == ABSENT:
        condition = _ABSENT if item is None else _CREATABLE
        if item is not None:
            values[":new"] = item["v"]
    else:
        condition = _PRESENT
        values[":v"] = {"N": str(guard)}
    request = {
        "TableName": table,
        **({"Key": key_of(key)} if item is None else {"Item": item}),
        "ConditionExpression": condition,
        "ExpressionAttributeValues": values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return {"ConditionCheck" if item is None else "Put": request}
