"""Records of a store: their names, how they are scanned, and how they expire."""

from __future__ import annotations

import asyncio
from random import Random, randrange
from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import Instant, later
from standfast.keys import RecordKey
from standfast.stores import Check, Decision, Delete, Put
from standfast.testing.conformance.ground import (
    MOMENT,
    TRIES,
    Ground,
    another,
    committed,
    create,
    increment,
    now,
    reach,
    refused,
    value_of,
)

if TYPE_CHECKING:
    from standfast.stores import Snapshot, Store
    from standfast.testing.conformance.ground import MakeKey, OpenAnother
    from standfast.testing.simulation import VirtualClock


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


HOUR = 3600.0


async def expired(store: Store, key: RecordKey, clock: VirtualClock | None, value: bytes = b"") -> int:
    """Create a record, let it expire, and return its version."""
    expires_at = later(await now(store, key), MOMENT)
    version = await create(store, key, value, expires_at=expires_at)
    await reach(store, expires_at, clock, key)
    return version


class ExpiryCases(Ground):
    """Records with an end."""

    async def test_a_record_says_when_it_expires(self, store: Store, key: MakeKey) -> None:
        """Until then it is there, with its instant."""
        expires_at = later(await now(store, key("a")), HOUR)
        await create(store, key("a"), b"value", expires_at=expires_at)

        record = (await store.read(key("a"))).get(key("a"))

        assert record is not None
        assert (record.value, record.expires_at) == (b"value", expires_at)

    async def test_a_record_is_there_until_its_instant_and_not_a_moment_longer(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """Every read sees it if its time is before the instant, and does not if it is the instant or later."""
        expires_at = later(await now(store, key("a")), MOMENT)
        await create(store, key("a"), expires_at=expires_at)
        seen: list[tuple[Instant, bool]] = []

        for step in (Instant(expires_at - 1), expires_at, Instant(expires_at + 1)):
            await reach(store, step, clock, key("a"))
            snapshot = await store.read(key("a"))
            seen.append((snapshot.at, key("a") in snapshot.records))

        assert [there for _, there in seen] == [at < expires_at for at, _ in seen]

    async def test_an_expired_record_is_absent_to_scans(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A scan leaves it out in both directions, and it takes up no room on the page."""
        for name in ("a", "c"):
            await create(store, key(name))
        await expired(store, key("b"), clock)

        for reverse in (False, True):
            page = await store.scan(*key().within(), limit=2, reverse=reverse)
            assert sorted(page.records) == [key("a"), key("c")]
            assert page.more is None

    async def test_an_expired_record_is_absent_to_guards(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """Its version guards nothing any more, and conflicts say that there is no record."""
        version = await expired(store, key("a"), clock)

        for guard in (
            Put(key("a"), b"", version),
            Delete(key("a"), expected=version),
            Check(key("a"), expected=version),
        ):
            conflict = await refused(store, guard, Put(key("b"), b""))
            assert conflict.current == {key("a"): None}
        assert await value_of(store, key("b")) is None

    async def test_an_expired_record_is_absent_to_updates(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A decision does not see it and may create it anew."""
        await expired(store, key("a"), clock, b"41")

        decided = await store.update([key("a")], increment(key("a")))

        assert decided.answer == 1

    async def test_an_expired_record_can_be_created_anew(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """A create over it succeeds, and the new record does not inherit its end."""
        await expired(store, key("a"), clock, b"old")

        await create(store, key("a"), b"new")

        record = (await store.read(key("a"))).get(key("a"))
        assert record is not None
        assert (record.value, record.expires_at) == (b"new", None)

    async def test_of_many_creates_over_an_expired_record_one_wins(
        self, store: Store, key: MakeKey, clock: VirtualClock | None
    ) -> None:
        """Taking over what has lapsed is a race with one winner."""
        await expired(store, key("a"), clock)

        answers = await asyncio.gather(*(store.commit(Put(key("a"), b"%d" % n)) for n in range(8)))

        assert sum(hasattr(answer, "versions") for answer in answers) == 1

    async def test_a_put_moves_the_expiry(self, store: Store, key: MakeKey, clock: VirtualClock | None) -> None:
        """A later put decides when the record ends: later, or never."""
        soon = later(await now(store, key("a")), MOMENT)
        version = await create(store, key("a"), b"", expires_at=soon)
        verdict = await store.commit(Put(key("a"), b"renewed", version, later(soon, HOUR)), before=soon)
        if not hasattr(verdict, "versions"):
            pytest.skip("this machine was too slow to renew in time")

        await reach(store, soon, clock, key("a"))

        assert await value_of(store, key("a")) == b"renewed"

    async def test_a_put_without_expiry_makes_the_record_stay(self, store: Store, key: MakeKey) -> None:
        """Leaving the expiry out takes it away."""
        version = await create(store, key("a"), expires_at=later(await now(store, key("a")), HOUR))

        await committed(store, Put(key("a"), b"", expected=version))

        record = (await store.read(key("a"))).get(key("a"))
        assert record is not None
        assert record.expires_at is None

    @pytest.mark.parametrize("expires_at", [0, 1])
    async def test_a_record_may_be_expired_from_the_start(self, store: Store, key: MakeKey, expires_at: int) -> None:
        """A put whose instant has passed is a commit like any other, and leaves nothing to be seen."""
        version = await create(store, key("a"), b"never seen", expires_at=Instant(expires_at))

        assert await value_of(store, key("a")) is None
        assert await create(store, key("a"), b"seen") > version

    async def test_a_put_that_is_already_expired_hides_the_record(self, store: Store, key: MakeKey) -> None:
        """Replacing a record by an expired one is a way to delete it."""
        version = await create(store, key("a"), b"present")

        await committed(store, Put(key("a"), b"", version, Instant(1)))

        assert (await store.read(key("a"))).records == {}

    async def test_updates_of_one_tick_agree_on_what_has_expired(self, store: Store, key: MakeKey) -> None:
        """An update after one that wrote an expired record does not see it."""

        def write_expired(seen: Snapshot) -> Decision[None]:
            return Decision(None, (Put(key("a"), b"7", seen.version(key("a")), Instant(1)),))

        await create(store, key("a"), b"41")
        _, decided = await asyncio.gather(
            store.update([key("a")], write_expired), store.update([key("a")], increment(key("a")))
        )

        assert decided.answer == 1

    async def test_handles_agree_on_what_has_expired(
        self, store: Store, key: MakeKey, clock: VirtualClock | None, open_another: OpenAnother
    ) -> None:
        """What is gone for one handle is gone for the others, and can be taken over there."""
        async with another(open_another) as other:
            version = await expired(store, key("a"), clock)

            assert await value_of(other, key("a")) is None
            assert await create(other, key("a")) > version
