"""Scans: ranges in the order of the bytes, page by page, within one namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from standfast.keys import RecordKey
from standfast.stores import Delete, Put
from standfast.testing.conformance.ground import TRIES, Ground, another, committed, create

if TYPE_CHECKING:
    from standfast.stores import Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother

LETTERS = "abcdefghij"


async def write_letters(store: Store, key: MakeKey) -> list[RecordKey]:
    """Create ten records, not in order, and return their keys in order."""
    await committed(store, *(Put(key(letter), letter.encode()) for letter in "fbhdjaicge"))
    return [key(letter) for letter in LETTERS]


async def pages(
    store: Store, start: RecordKey, end: RecordKey, *, limit: int, reverse: bool = False
) -> list[list[RecordKey]]:
    """Scan a range to its end, and return the keys of each page."""
    found: list[list[RecordKey]] = []
    for _ in range(TRIES):
        page = await store.scan(start, end, limit=limit, reverse=reverse)
        found.append(list(page.records))
        if page.more is None:
            return found
        start, end = (start, page.more) if reverse else (page.more, end)
    pytest.fail(f"the pages do not end: {found}")


class ScanCases(Ground):
    """What a scan finds, in which order, on which page."""

    async def test_a_scan_finds_records_in_the_order_of_their_keys(self, store: Store, key: MakeKey) -> None:
        """The order is that of the keys, not of the writes."""
        keys = await write_letters(store, key)
        assert await pages(store, *key().within(), limit=100) == [keys]

    async def test_a_reverse_scan_finds_them_backwards(self, store: Store, key: MakeKey) -> None:
        """From the end of the range to its start."""
        keys = await write_letters(store, key)
        assert await pages(store, *key().within(), limit=100, reverse=True) == [keys[::-1]]

    async def test_the_records_are_those_that_a_read_returns(self, store: Store, key: MakeKey) -> None:
        """Value, version and expiry are the same whichever way a record is found."""
        keys = await write_letters(store, key)
        assert (await store.scan(*key().within(), limit=100)).records == (await store.read(*keys)).records

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_a_range_has_its_start_and_not_its_end(self, store: Store, key: MakeKey, reverse: bool) -> None:  # noqa: FBT001 -- a parameter of the test
        """``start <= key < end``, in both directions."""
        keys = await write_letters(store, key)

        page = await store.scan(keys[2], keys[5], limit=100, reverse=reverse)

        assert sorted(page.records) == keys[2:5]

    async def test_a_range_may_begin_and_end_between_records(self, store: Store, key: MakeKey) -> None:
        """The bounds of a range need not exist."""
        keys = await write_letters(store, key)
        assert list((await store.scan(keys[2].successor(), key("e!"), limit=100)).records) == keys[3:5]

    @pytest.mark.parametrize("limit", [1, 3, 5, 9, 10])
    @pytest.mark.parametrize("reverse", [False, True])
    async def test_pages_cover_a_range_once(self, store: Store, key: MakeKey, limit: int, reverse: bool) -> None:  # noqa: FBT001 -- a parameter of the test
        """Following ``more`` finds every record once, on pages as long as they may be, without an empty last one."""
        keys = await write_letters(store, key)
        ordered = keys[::-1] if reverse else keys

        found = await pages(store, *key().within(), limit=limit, reverse=reverse)

        assert found == [ordered[at : at + limit] for at in range(0, len(keys), limit)]

    async def test_a_range_without_records_is_one_empty_page(self, store: Store, key: MakeKey) -> None:
        """Nothing there, nothing found, nothing more."""
        assert await pages(store, *key().within(), limit=10) == [[]]
        assert await pages(store, key("b"), key("a"), limit=10) == [[]]

    async def test_a_range_below_a_key_holds_what_continues_it(self, store: Store, key: MakeKey) -> None:
        """Parts are whole: what only begins with the same letters lies elsewhere."""
        inside = [key("a", "b"), key("a", "b", ""), key("a", "b", "c", "d"), key("a", "b", "\U0010ffff")]
        outside = [key("a"), key("a", ""), key("a", "bc"), key("a", "a"), key("ab", "b"), key("b")]
        await committed(store, *(Put(each, b"") for each in inside + outside))

        page = await store.scan(*key("a", "b").within(), limit=100)

        assert list(page.records) == inside

    async def test_a_scan_does_not_see_other_namespaces(self, store: Store, key: MakeKey) -> None:
        """Not even those whose names begin alike."""
        name = key().parts[0]
        for neighbour in (name + "0", name[:-1], name + "\x00"):
            await create(store, RecordKey(neighbour, "a"))
        await create(store, key("a"))

        assert await pages(store, *key().within(), limit=10) == [[key("a")]]

    async def test_a_deleted_record_is_not_found(self, store: Store, key: MakeKey) -> None:
        """Nor does it take up room on a page."""
        keys = await write_letters(store, key)
        present = await store.read(*keys)
        await committed(store, *(Delete(each, present.version(each)) for each in keys[1::2]))

        assert await pages(store, *key().within(), limit=5) == [keys[::2]]

    async def test_a_long_range_is_found_page_by_page(self, store: Store, key: MakeKey) -> None:
        """More records than fit on a page, both ways."""
        keys = [key(f"{n:04}") for n in range(1_100)]
        step = store.capabilities.max_changes
        for at in range(0, len(keys), step):
            await committed(store, *(Put(each, b"") for each in keys[at : at + step]))

        assert await pages(store, *key().within(), limit=1_000) == [keys[:1_000], keys[1_000:]]
        assert await pages(store, *key().within(), limit=600, reverse=True) == [keys[:499:-1], keys[499::-1]]

    async def test_a_scan_sees_what_another_handle_committed(
        self, store: Store, key: MakeKey, open_another: OpenAnother
    ) -> None:
        """A commit that was answered is found by every scan that starts after it."""
        async with another(open_another) as other:
            for letter in LETTERS:
                await create(other, key(letter))
                assert key(letter) in (await store.scan(*key().within(), limit=100)).records
