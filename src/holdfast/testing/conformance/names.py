"""Keys: every one its own, whatever characters it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.keys import RecordKey
from holdfast.stores import Delete, Put
from holdfast.testing.conformance.ground import Ground, committed, create, refused, value_of

if TYPE_CHECKING:
    from holdfast.stores import Store
    from holdfast.testing.conformance.ground import MakeKey

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


class NameCases(Ground):
    """Keys with difficult names."""

    async def test_difficult_keys_are_all_different(self, store: Store, key: MakeKey) -> None:
        """Case, spaces, accents, control characters, wildcards and separators tell keys apart."""
        keys = [key(*parts) for parts in NASTY]

        commit = await committed(store, *(Put(each, b"%d" % n) for n, each in enumerate(keys)))

        assert len(commit.versions) == len(keys)
        for n, each in enumerate(keys):
            assert await value_of(store, each) == b"%d" % n

    async def test_difficult_keys_come_back_as_they_were(self, store: Store, key: MakeKey) -> None:
        """A scan returns the parts that were written, in the order of their bytes."""
        keys = [key(*parts) for parts in NASTY]
        await committed(store, *(Put(each, b"") for each in keys))

        found = list((await store.scan(*key().within(), limit=100)).records)

        assert found == sorted(keys)
        assert {each.parts[1:] for each in found} == set(NASTY)

    async def test_a_difficult_key_is_deleted_alone(self, store: Store, key: MakeKey) -> None:
        """Deleting a key that looks like a pattern removes that key only."""
        keys = [key(*parts) for parts in NASTY]
        versions = (await committed(store, *(Put(each, b"") for each in keys))).versions
        patterns = [key(mark) for mark in ("*", "%", "_", "?", "[a]")]

        await committed(store, *(Delete(each, versions[each]) for each in patterns))

        assert set((await store.read(*keys)).records) == set(keys) - set(patterns)

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
