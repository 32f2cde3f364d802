"""What is stored in MongoDB: keys keep their order, and commands stay within their size."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.clock import Instant
from holdfast.keys import RecordKey
from holdfast.stores.mongodb.documents import (
    LARGEST_COMMAND,
    STORE,
    attempt_id,
    deletes_of,
    from_id,
    in_commands,
    only_looked_at,
    to_id,
    updates_of,
)
from holdfast.stores.remote.server import Intent, Row

AT = Instant(1_000)
K = RecordKey("n", "k")


@given(st.lists(st.binary(max_size=12), min_size=2, max_size=6))
def test_text_sorts_like_the_bytes_it_stands_for(keys: list[bytes]) -> None:
    """As MongoDB compares it: by its UTF-8, byte by byte, the shorter one first."""
    assert sorted(keys) == sorted(keys, key=lambda key: to_id(key).encode())


@given(st.binary(max_size=50))
def test_a_key_comes_back(key: bytes) -> None:
    """Every byte of it."""
    assert from_id(to_id(key)) == key


@given(st.binary(max_size=50))
def test_no_key_is_taken_for_a_document_of_the_store_itself(key: bytes) -> None:
    """Those come after all keys, so that no range of keys has them in it."""
    assert to_id(key) < min(STORE, attempt_id(""))


def test_what_is_only_checked_is_changed_all_the_same() -> None:
    """Else two transactions could each check what the other one writes."""
    intent = Intent("h", 1, {K: 5}, (), (), 0)

    _, touch = updates_of(intent, AT, ())

    assert touch["q"]["version"] == 5
    assert touch["u"] == {"$bit": {"touched": {"xor": 1}}}


def test_what_must_be_absent_and_is_not_created_is_read() -> None:
    """So is an expired record that is deleted: it may have come alive."""
    intent = Intent("h", 1, {K: 0, K.child("new"): 0}, (Row(K.child("new"), b"", 0),), (K,), 1)

    assert only_looked_at(intent) == [to_id(K)]
    assert deletes_of(intent, AT) == ([], [{"q": {"_id": to_id(K), "expires_at": {"$lte": AT}}, "limit": 1}])


def test_large_values_are_spread_over_several_commands() -> None:
    """A command of MongoDB has 16 megabytes at most."""
    rows = tuple([Row(K.child(str(n)), b"x" * 350_000, n) for n in range(100)])
    intent = Intent("h", 1, {row.key: 0 for row in rows}, rows, (), 100)

    commands = list(in_commands(updates_of(intent, AT, range(1, 101))))

    sizes = [sum(len(each["u"].get("value", b"")) for each in some) for some in commands]
    assert sum(sizes) == 35_000_000
    assert max(sizes) <= LARGEST_COMMAND
