"""An intent as a transaction of etcd: what it compares, what it writes, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.etcd.gateway import KeyValue
from standfast.stores.etcd.records import (
    EXPIRES_WITHIN,
    PLACES,
    RESERVED,
    EtcdKeys,
    KnownRecord,
    TxnGround,
    closed_attempt,
    drawn_value,
    given_value,
    intent_txn,
    landed_attempt,
    read_attempt,
    read_record,
    removals,
)
from standfast.stores.remote.server import Intent, Message, Row

KEYS = EtcdKeys("shop")
A, B = RecordKey("n", "a"), RecordKey("n", "b")
GROUND = TxnGround(3, 0, 4, b"12345678")
NOW = Instant(1_000)


def txn(intent: Intent, known: dict[RecordKey, KnownRecord] | None = None, most: int = 128) -> Any:
    """Return the transaction of an intent."""
    return intent_txn(KEYS, intent, known or {}, GROUND, NOW, most)


def test_a_version_is_the_revision_and_the_place() -> None:
    """Of one transaction each has another, and all of the next one are higher."""
    first, second, later = (
        read_record(KeyValue(KEYS.record(A), revision, drawn_value(b"v", place, None)), A)[0].version
        for revision, place in ((7, 0), (7, 1), (8, 0))
    )
    assert first == 7 << PLACES
    assert first < second < later


def test_a_reserved_version_lies_between_its_revision_and_the_next() -> None:
    """Above all that were drawn in the revision in which it was reserved, below all of later ones."""
    highest_drawn, reserved, next_drawn = (7 << PLACES) + RESERVED - 1, (7 << PLACES) + RESERVED, 8 << PLACES
    assert highest_drawn < reserved < next_drawn
    record, known = read_record(KeyValue(KEYS.record(A), 9, given_value(b"v", reserved, Instant(0))), A)
    assert (record.version, record.value, record.expires_at) == (reserved, b"v", 0)
    assert (known.version, known.revision) == (reserved, 9)


@pytest.mark.parametrize("expires_at", [None, Instant(0), Instant(1), Instant(2**53 - 1)])
def test_an_expiry_comes_back_as_it_was(expires_at: Instant | None) -> None:
    """The first instant of all, too."""
    found = KeyValue(KEYS.record(A), 9, drawn_value(b"", 0, expires_at))
    assert read_record(found, A)[0].expires_at == expires_at


def test_guards_are_compared_by_revision() -> None:
    """A record that is there by its own; one that must be absent by none. Values are brought only if they changed."""
    intent = Intent("h", 1, {A: 5, B: 0}, (Row(B, b"", 0),), (A,), 1)
    request = txn(intent, {A: KnownRecord(5, 77, None)}).request
    compared = {each["key"]: each["mod_revision"] for each in request["compare"]}
    assert compared == {KEYS.store: 3, KEYS.attempt("h"): 4, KEYS.record(A): 77, KEYS.record(B): 0}
    assert request["failure"][2:] == [
        {"request_range": {"key": KEYS.record(A), "min_mod_revision": 78}},
        {"request_range": {"key": KEYS.record(B)}},
    ]


def test_a_delete_touches_its_pulse_and_a_reserved_create_compares_it() -> None:
    """So a version can never go back because its key came and went meanwhile."""
    deleting = txn(Intent("h", 1, {A: 5}, (), (A,), 1), {A: KnownRecord(5, 77, None)}).request
    assert {"request_put": {"key": KEYS.pulse(A), "value": b""}} in deleting["success"]

    version = (60 << PLACES) + RESERVED
    creating = txn(Intent("h", 1, {A: 0}, (Row(A, b"", 0),), (), 1, exact=(version,)))
    assert creating.compares_pulses
    assert {"key": KEYS.pulse(A), "target": "MOD", "result": "LESS", "mod_revision": 61} in creating.request["compare"]


def test_messages_that_do_not_fit_are_handed_back() -> None:
    """The commit goes first."""
    messages = tuple(Message(b"t%d" % n, b"") for n in range(10))
    made = txn(Intent("h", 1, {A: 0}, (Row(A, b"", 0),), (), 1, messages=messages), most=8)
    assert len(made.request["success"]) == 8
    assert list(made.unsent) == list(messages[5:])


def test_an_attempt_tells_what_came_of_it() -> None:
    """Landed with versions of its revision, or with those that it had; or closed for good."""
    drawn = Intent("h", 6, {A: 0}, (), (), 2)
    attempt = read_attempt(KeyValue(b"", 9, landed_attempt(drawn, 100, NOW, b"12345678")))
    assert (attempt.number, attempt.token) == (6, b"12345678")
    assert attempt.landed is not None
    assert attempt.landed.versions == (109 << PLACES, (109 << PLACES) + 1)

    given = Intent("h", 6, {A: 0}, (), (), 2, exact=(41, 42))
    landed = read_attempt(KeyValue(b"", 9, landed_attempt(given, 100, NOW, b""))).landed
    assert landed is not None
    assert landed.versions == (41, 42)
    assert read_attempt(KeyValue(b"", 9, closed_attempt(6, NOW))).landed is None


def test_what_expires_together_is_found_together_and_not_too_early() -> None:
    """A bucket is over when the last of its records has expired."""
    bucket = -(-NOW // EXPIRES_WITHIN)
    assert KEYS.expiry(A, NOW).startswith(KEYS.expiries(bucket))
    assert bucket * EXPIRES_WITHIN >= NOW
    assert KEYS.expiring(KEYS.expiry(A, NOW)) == bytes(A)


def test_a_record_that_was_written_again_is_not_removed() -> None:
    """It is compared with the revision of the entry that says that it has expired."""
    entry = KeyValue(KEYS.expiry(A, NOW), 55)
    [removal, pulse] = removals(KEYS, [entry])["success"]
    assert removal["request_txn"]["compare"] == [
        {"key": KEYS.record(A), "target": "MOD", "result": "EQUAL", "mod_revision": 55}
    ]
    assert removal["request_txn"]["failure"] == [{"request_delete_range": {"key": entry.key}}]
    assert pulse["request_put"]["key"] == KEYS.pulse(A)
