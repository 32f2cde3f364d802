"""Ids of requests, and where their records lie."""

from __future__ import annotations

import re

import standfast as sf
from standfast.flows.records import RequestKeys, new_request_id, number_of


def test_an_id_has_more_random_bits_than_can_be_guessed() -> None:
    """128 bits, after the part that sorts by time."""
    ids = [new_request_id() for _ in range(100)]

    assert ids == sorted(ids)
    assert len({each[-32:] for each in ids}) == 100
    assert all(re.fullmatch(r"[0-9a-f]{15}-[0-9a-f]{32}", each) for each in ids)


async def test_the_records_of_two_tenants_have_no_key_in_common() -> None:
    """Whatever the ids are."""
    async with sf.open("memory://") as space:
        one, two = RequestKeys(space, "a", "b"), RequestKeys(space, "a:b", "")

        assert {one.record, one.cancel, one.events}.isdisjoint({two.record, two.cancel, two.events})
        assert [number_of(one.event(number)) for number in (1, 12)] == [1, 12]
        assert one.event(2) < one.event(10)
