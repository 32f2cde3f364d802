"""Names of keys: one slot for a namespace, and no two namespaces with the same."""

from __future__ import annotations

import pytest
import redis.crc
from hypothesis import given
from hypothesis import strategies as st

from standfast.keys import RecordKey
from standfast.stores.redis.scripts import RedisKeys, slot_of

SUFFIXES = ("head", "records", "order", "expiries", "attempts", "topics", "channel")


def keys_of(namespace: str) -> list[bytes]:
    """Return all keys of a namespace, as in a cluster."""
    names = RedisKeys(RecordKey(namespace).namespace, "standfast", 0, one_slot=True)
    return [getattr(names, suffix) for suffix in SUFFIXES]


@given(st.text(alphabet="{}:a\x00é", max_size=8))
def test_all_keys_of_a_namespace_are_in_one_slot(namespace: str) -> None:
    """Whatever braces it has, by our reckoning and by the driver's."""
    keys = keys_of(namespace)

    assert len({slot_of(key) for key in keys}) == 1
    assert {redis.crc.key_slot(key) for key in keys} == {slot_of(keys[0])}


@given(st.sets(st.text(alphabet="{}:a\x00\x01\xff", max_size=6), min_size=2, max_size=2))
def test_no_two_namespaces_share_a_key(namespaces: set[str]) -> None:
    """Not even if one is made to look like the key of another."""
    one, other = namespaces

    assert not {*keys_of(one)} & {*keys_of(other)}


@pytest.mark.parametrize(
    ("key", "hashed"), [(b"{a}b", b"a"), (b"x{a}{b}", b"a"), (b"{}a", b"{}a"), (b"{a", b"{a"), (b"a}", b"a}")]
)
def test_a_slot_is_that_of_the_tag(key: bytes, hashed: bytes) -> None:
    """What stands between the first braces, or all of it."""
    assert slot_of(key) == redis.crc.key_slot(key) == slot_of(hashed)


def test_people_can_read_the_keys() -> None:
    """As they are shown by redis-cli."""
    assert keys_of("prod")[:2] == [b"{standfast:prod}:head", b"{standfast:prod}:records"]
