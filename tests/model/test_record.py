"""Every interleaving of a few names on one lock record, and wrong locks to show that it would be noticed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from standfast.locks import lock_record as by_hand
from standfast.locks.lock_record import LockHolder, LockRecord, LockWaiter
from standfast.testing.explorer import Exploration, explore
from tests.model.record_world import RECORD_PROPERTIES, ByHand, RecordModel, canonical_record
from tests.sizes import size

LEASE = size(full=2, quick=1)


def search(model: RecordModel, most_states: int = 2_000_000) -> Exploration:
    """Explore what can happen around one record."""
    return explore(model.start(), model.steps, RECORD_PROPERTIES, canonical=canonical_record, most_states=most_states)


@pytest.mark.heavy
@pytest.mark.parametrize(("names", "permits", "lease"), [("ab", 1, 2), ("abc", 1, LEASE), ("abc", 2, LEASE)])
def test_no_interleaving_breaks_the_lock(names: str, permits: int, lease: int) -> None:
    """Whoever polls, renews, releases late, withdraws or lapses, and if the record is lost: all properties hold."""
    found = search(RecordModel(tuple(names), permits, lease))
    print(f"{names} for {permits}: {found}")
    assert found.complete, found


def barging(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Let anyone have a free permit, whoever waits."""
    alone, place = by_hand.try_acquire(structs.replace(record, waiters=()), holder_id, **options)
    if not place.acquired:
        return by_hand.try_acquire(record, holder_id, **options)
    waiters = tuple(each for each in record.waiters if each.holder_id != holder_id)
    return structs.replace(alone, waiters=waiters), place


def immortal(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Let waiters live for ever."""
    waiters = tuple(LockWaiter(each.holder_id) for each in record.waiters)
    return by_hand.try_acquire(structs.replace(record, waiters=waiters), holder_id, **options)


def forgetful(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Take the fence from the record alone."""
    return by_hand.try_acquire(record, holder_id, **{**options, "version": 0})


def familiar(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Give one who lapsed and comes back its old fence."""
    old = {each.holder_id: each.fence for each in record.holders}
    after, place = by_hand.try_acquire(record, holder_id, **options)
    fence = old.get(holder_id, place.fence) if place.acquired else 0
    holders = tuple(structs.replace(h, fence=fence) if h.holder_id == holder_id else h for h in after.holders)
    return structs.replace(after, holders=holders), structs.replace(place, fence=fence)


def revived(record: LockRecord, holder_id: str, *, now: Any, lease: int, **options: Any) -> Any:
    """Renew a lease though it is over, if nobody took the permit."""
    holders = tuple(
        LockHolder(each.holder_id, max(each.lease_expires_at, now + 1), each.fence) for each in record.holders
    )
    return by_hand.renew(structs.replace(record, holders=holders), holder_id, now=now, lease=lease, **options)


def by_name(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Release by name, whichever hold was meant."""
    return by_hand.release(record, holder_id, **{**options, "fence": None})


def quiet(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Turn a holder out and leave the fence where it is."""
    return by_hand.release(record, holder_id, **options)


def greedy(record: LockRecord, holder_id: str, **options: Any) -> Any:
    """Have one permit more than there are."""
    return by_hand.try_acquire(record, holder_id, **{**options, "permits": options["permits"] + 1})


MUTANTS = {
    "barging": ByHand(try_acquire=barging),
    "waiters never expire": ByHand(try_acquire=immortal),
    "fence from the record alone": ByHand(try_acquire=forgetful),
    "the old fence for one who comes back": ByHand(try_acquire=familiar),
    "renewal after the end": ByHand(renew=revived),
    "release by name only": ByHand(release=by_name),
    "force without a new fence": ByHand(force_release=quiet),
    "a permit too many": ByHand(try_acquire=greedy),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_lock_is_found_out(mutant: str) -> None:
    """Each wrong lock breaks a property in some interleaving."""
    found = search(RecordModel(("a", "b", "c"), functions=MUTANTS[mutant]), 20_000)
    assert found.violation is not None, found
    print(f"{mutant}: after {found.states:,} states, {found.violation}")
