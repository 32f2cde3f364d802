"""What is stored in MongoDB: keys keep their order, and commands stay within their size."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.mongodb.records import (
    LARGEST_COMMAND,
    STORE,
    attempt_id,
    deletes_of,
    from_id,
    in_commands,
    latest_of,
    lost_guards,
    to_id,
    updates_of,
)
from standfast.stores.remote.server import Intent, Row

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


def test_what_has_expired_is_removed_if_it_is_there() -> None:
    """To delete what must be absent is not to find it, and not to touch what is alive."""
    intent = Intent("h", 1, {K: 0}, (), (K,), 0)

    assert deletes_of(intent, AT) == ([], [{"q": {"_id": to_id(K), "expires_at": {"$lte": AT}}, "limit": 1}])


@pytest.mark.parametrize(
    ("expected", "rows", "lost"),
    [
        (5, [{"version": 5}], False),
        (5, [{"version": 6}], True),
        (5, [], True),
        (5, [{"version": 5, "expires_at": AT}], True),
        (0, [], False),
        (0, [{"version": 5, "expires_at": AT}], False),
        (0, [{"version": 5, "expires_at": AT + 1}], True),
    ],
)
def test_a_guard_holds_at_its_version_only(expected: int, rows: list[dict[str, int]], *, lost: bool) -> None:
    """An expired record is none."""
    found: list[dict[str, Any]] = [{"_id": STORE}, *[{"_id": to_id(K), **row} for row in rows]]

    assert lost_guards(Intent("h", 1, {K: expected}, (), (), 0), found, AT) is lost


def test_it_is_too_late_when_the_window_is_over_or_a_guarded_record_expires() -> None:
    """Whichever comes first; an expired one was never guarded."""
    rows: list[dict[str, Any]] = [
        {"_id": "old", "expires_at": AT},
        {"_id": to_id(K), "expires_at": AT + 9},
        {"_id": STORE},
    ]

    assert latest_of(Intent("h", 1, {}, (), (), 0), rows, AT) == AT + 9
    assert latest_of(Intent("h", 1, {}, (), (), 0, before=Instant(AT + 3)), rows, AT) == AT + 3
    assert latest_of(Intent("h", 1, {}, (), (), 0), [{"_id": STORE}], AT) is None


def test_large_values_are_spread_over_several_commands() -> None:
    """A command of MongoDB has 16 megabytes at most."""
    rows = tuple([Row(K.child(str(n)), b"x" * 350_000, n) for n in range(100)])
    intent = Intent("h", 1, {row.key: 0 for row in rows}, rows, (), 100)

    commands = list(in_commands(updates_of(intent, AT, range(1, 101))))

    sizes = [sum(len(each["u"].get("value", b"")) for each in some) for some in commands]
    assert sum(sizes) == 35_000_000
    assert max(sizes) <= LARGEST_COMMAND
