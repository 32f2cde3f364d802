"""Keys: every one its own, whatever characters it is made of."""

from __future__ import annotations

from random import Random, randrange
from typing import TYPE_CHECKING, Final

import pytest

from standfast.keys import RecordKey
from standfast.stores import Delete, Put
from standfast.testing.conformance.ground import Ground, committed, create, refused, value_of

if TYPE_CHECKING:
    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey

NASTY: Final[tuple[tuple[str, ...], ...]] = (
    ("",),
    ("", ""),
    ("a",),
    ("A",),
    ("a", ""),
    ("", "a"),
    ("a", "b"),
    ("ab",),
    ("a ",),
    (" a",),
    ("a\t",),
    ("a\n",),
    ("a\r\n",),
    ("a\x00",),
    ("a\x00b",),
    ("a\x00\x01",),
    ("a", "\x01"),
    ("\x00",),
    ("\x00", "\x00"),
    ("\x00\xff",),
    ("\x1f",),
    ("a\x1fb",),
    ("a:b",),
    ("a/b",),
    ("a,b",),
    ("a.b",),
    ("$a",),
    ("*",),
    ("%",),
    ("_",),
    ("?",),
    ("[a]",),
    ("{a}",),
    ("a%",),
    ("a_",),
    ("\\",),
    ("'",),
    ('"',),
    ("';--",),
    ("caf\u00e9",),
    ("cafe\u0301",),
    ("CAF\u00c9",),
    ("stra\u00dfe",),
    ("strasse",),
    ("\u0130",),
    ("i\u0307",),
    ("\ufeff",),
    ("\ufeffa",),
    ("\u200b",),
    ("\uffff",),
    ("\U0001f512",),
    ("\U0001f512\ufe0f",),
    ("\U0010ffff",),
)
"""Parts of keys that have been confused with each other somewhere: padding, collation, wildcards, separators."""


AWKWARD: Final = "\x00\x01\x02\x1f ~%_*?[]{}\\'\":/.,aAbB\u00e9\u0301\u00df\ufeff\ufffd\uffff\U0001f512\U0010ffff"
"""Characters that random keys are made of: each of them has a meaning somewhere, or sorts in its own way."""

FEW: Final = 25
"""As many keys as any store takes in one commit."""


async def create_all(store: Store, values: dict[RecordKey, bytes]) -> dict[RecordKey, int]:
    """Create records, in as many commits as it takes, and return their versions."""
    versions: dict[RecordKey, int] = {}
    puts = [Put(each, value) for each, value in values.items()]
    for first in range(0, len(puts), store.capabilities.max_changes):
        versions |= (await committed(store, *puts[first : first + store.capabilities.max_changes])).versions
    return versions


def random_keys(make: MakeKey, seed: int, count: int) -> list[RecordKey]:
    """Return different keys of one to three parts, some of which are parts of others."""
    random = Random(seed)
    found: dict[RecordKey, None] = {}
    while len(found) < count:
        parts = ["".join(random.choices(AWKWARD, k=random.randrange(6))) for _ in range(random.randint(1, 3))]
        found[make(*parts)] = None
    return list(found)


class NameCases(Ground):
    """Keys with difficult names."""

    @pytest.mark.parametrize("number", range(4))
    async def test_random_keys_come_back_exactly_and_in_order(self, store: Store, key: MakeKey, number: int) -> None:
        """Whatever they are made of: each has a record of its own, and a scan goes by their bytes, both ways."""
        seed = randrange(2**32)
        keys = random_keys(key, seed, min(4 * FEW, store.capabilities.max_changes))
        note = f"seed {seed}, attempt {number}"
        await committed(store, *(Put(each, repr(each.parts).encode()) for each in keys))

        read = (await store.read(*keys)).records
        forwards = list((await store.scan(*key().within(), limit=1_000)).records)
        backwards = list((await store.scan(*key().within(), limit=1_000, reverse=True)).records)
        assert {each: record.value for each, record in read.items()} == {k: repr(k.parts).encode() for k in keys}, note
        assert forwards == sorted(keys), note
        assert backwards == sorted(keys, reverse=True), note
        assert [each.parts for each in forwards] == [each.parts for each in sorted(keys)], note

    async def test_random_keys_bound_ranges_exactly(self, store: Store, key: MakeKey) -> None:
        """A scan between any two of them finds those between, and no other."""
        seed = randrange(2**32)
        keys = sorted(random_keys(key, seed, FEW))
        await committed(store, *(Put(each, b"") for each in keys))

        for first, last in ((0, 1), (3, 17), (5, 24), (0, 24), (11, 12)):
            found = list((await store.scan(keys[first], keys[last], limit=100)).records)
            assert found == keys[first:last], f"seed {seed}"

    async def test_difficult_keys_are_all_different(self, store: Store, key: MakeKey) -> None:
        """Case, spaces, accents, control characters, wildcards and separators tell keys apart."""
        keys = [key(*parts) for parts in NASTY]

        versions = await create_all(store, {each: b"%d" % n for n, each in enumerate(keys)})

        assert len(versions) == len(keys)
        for n, each in enumerate(keys):
            assert await value_of(store, each) == b"%d" % n

    async def test_difficult_keys_come_back_as_they_were(self, store: Store, key: MakeKey) -> None:
        """A scan returns the parts that were written, in the order of their bytes."""
        keys = [key(*parts) for parts in NASTY]
        await create_all(store, dict.fromkeys(keys, b""))

        found = list((await store.scan(*key().within(), limit=100)).records)

        assert found == sorted(keys)
        assert {each.parts[1:] for each in found} == set(NASTY)

    async def test_a_difficult_key_is_deleted_alone(self, store: Store, key: MakeKey) -> None:
        """Deleting a key that looks like a pattern removes that key only."""
        keys = [key(*parts) for parts in NASTY]
        versions = await create_all(store, dict.fromkeys(keys, b""))
        patterns = [key(mark) for mark in ("*", "%", "_", "?", "[a]")]

        await committed(store, *(Delete(each, versions[each]) for each in patterns))

        assert set((await store.scan(*key().within(), limit=100)).records) == set(keys) - set(patterns)

    async def test_a_key_that_looks_like_another_does_not_conflict_with_it(self, store: Store, key: MakeKey) -> None:
        """Guards compare keys byte by byte."""
        await create(store, key("a"))
        for alike in (key("A"), key("a "), key("a\x00"), key("a", "")):
            await create(store, alike)
        await refused(store, Put(key("a"), b""))

    async def test_a_range_below_a_pattern_holds_no_other_key(self, store: Store, key: MakeKey) -> None:
        """No character of a key means "anything" to a scan."""
        await committed(store, *(Put(key(part, "x"), b"") for part in ("*", "%", "_", "a", "ab", "?", "[a]")))

        for pattern in ("*", "%", "_", "?", "[a]"):
            assert list((await store.scan(*key(pattern).within(), limit=10)).records) == [key(pattern, "x")]

    async def test_difficult_names_work_as_namespaces(self, store: Store, key: MakeKey) -> None:
        """A namespace is a name like any other."""
        name = key().parts[0]
        spaces = [RecordKey(name + tail, "k") for tail in ("*", "%", "_", "\x00", " ", "\U0001f512")]

        for n, each in enumerate(spaces):
            await create(store, each, b"%d" % n)

        assert [await value_of(store, each) for each in spaces] == [b"%d" % n for n in range(len(spaces))]
