"""Faults: drawn from a seed, each doing what it says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from standfast.clock import Instant
from standfast.errors import InvalidArgumentError, OutcomeUnknownError, StoreUnavailableError, UnsuitableStoreError
from standfast.keys import RecordKey
from standfast.space import Space
from standfast.stores import Commit, Conflict, Decision, Delete, GroupedStore, Put, Wake
from standfast.stores.memory import MemoryBackend, MemoryRecords, open_memory
from standfast.testing import ROUGH, Faults, FaultyBackend, FaultyStore, NonAtomicStore, VirtualClock, simulate
from standfast.testing.faults import Dice, Fate

if TYPE_CHECKING:
    from standfast.stores import Snapshot, Store

A, B = RecordKey("faults", "a"), RecordKey("faults", "b")


async def attempt_of(store: Store) -> str:
    """Commit, insist that the outcome is unknown, and return the attempt."""
    with pytest.raises(OutcomeUnknownError) as unknown:
        await store.commit(Put(A, b"value"))
    return unknown.value.attempt


# --- drawing --------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_faults() -> None:
    """And another seed draws others."""
    draws = [[Dice(ROUGH, seed).fate() for _ in range(1)] + [Dice(ROUGH, seed).moment()] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_every_fault_happens_about_as_often_as_asked(seed: int) -> None:
    """Over many draws the chances come true."""
    dice = Dice(Faults(refuse=0.1, lose_request=0.2, lose_reply=0.3, land_late=0.15), seed)
    fates = [dice.fate() for _ in range(10_000)]
    shares = {fate: fates.count(fate) / 10_000 for fate in Fate}
    expected = {Fate.REFUSED: 0.1, Fate.REQUEST_LOST: 0.2, Fate.REPLY_LOST: 0.3, Fate.LATE: 0.15, Fate.FINE: 0.25}
    assert shares == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize(
    "wrong", [{"refuse": -0.1}, {"refuse": 1.1}, {"delay": float("nan")}, {"lose_reply": 0.6, "land_late": 0.6}]
)
def test_chances_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    """A chance lies between 0 and 1, and those that exclude each other add up to 1 at most."""
    with pytest.raises(InvalidArgumentError):
        Faults(**wrong)


# --- a faulty store -------------------------------------------------------------------------------------------------


async def test_a_refused_commit_writes_nothing() -> None:
    """The error says so, and it is so."""
    memory = open_memory()
    with pytest.raises(StoreUnavailableError):
        await FaultyStore(memory, seed=1, faults=Faults(refuse=1)).commit(Put(A, b""))
    assert (await memory.read(A)).records == {}


async def test_a_lost_request_is_settled_as_never_written() -> None:
    """The caller cannot know, until it settles."""
    memory = open_memory()
    store = FaultyStore(memory, seed=1, faults=Faults(lose_request=1))
    assert await store.settle(await attempt_of(store)) is None
    assert (await memory.read(A)).records == {}


async def test_a_lost_reply_is_settled_with_its_verdict() -> None:
    """A commit that landed and then failed is found out: won or lost."""
    memory = open_memory()
    store = FaultyStore(memory, seed=1, faults=Faults(lose_reply=1))
    won, lost = await attempt_of(store), await attempt_of(store)
    assert isinstance(await store.settle(won), Commit)
    assert isinstance(await store.settle(lost), Conflict)


def test_a_late_landing_happens_unless_it_is_settled_first() -> None:
    """Over the seeds, a settled attempt is sometimes in time and sometimes not, and what it says is so for good."""

    async def main(seed: int) -> bool:
        memory = open_memory()
        store = FaultyStore(memory, seed=seed, faults=Faults(land_late=1))
        attempt = await attempt_of(store)
        await asyncio.sleep(0.03)
        verdict = await store.settle(attempt)
        await asyncio.sleep(1)
        assert isinstance(verdict, Commit) == (A in (await memory.read(A)).records)
        return verdict is None

    assert {simulate(seed, main, seed) for seed in range(20)} == {True, False}


def test_a_late_landing_happens_by_itself() -> None:
    """Nobody has to settle it."""

    async def main() -> bool:
        memory = open_memory()
        await attempt_of(FaultyStore(memory, seed=1, faults=Faults(land_late=1)))
        early = A in (await memory.read(A)).records
        await asyncio.sleep(1)
        return not early and A in (await memory.read(A)).records

    assert simulate(1, main)


async def test_an_update_meets_the_same_faults() -> None:
    """Its answer is found out by settling."""
    store = FaultyStore(open_memory(), seed=1, faults=Faults(lose_reply=1))
    with pytest.raises(OutcomeUnknownError) as unknown:
        await store.update([A], lambda _: Decision("answer", (Put(A, b""),)))
    verdict = await store.settle(unknown.value.attempt)
    assert getattr(verdict, "answer", None) == "answer"


async def test_reads_and_scans_can_fail() -> None:
    """And settling, too."""
    store = FaultyStore(open_memory(), seed=1, faults=Faults(fail_read=1, fail_settle=1))
    for call in (store.read(A), store.scan(*A.within(), limit=1), store.settle("x.1/0")):
        with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
            await call


def test_a_delay_takes_time() -> None:
    """As much as allowed, and nothing else goes wrong."""

    async def main() -> float:
        store = FaultyStore(open_memory(), seed=1, faults=Faults(delay=1, longest_delay=10))
        await store.commit(Put(A, b""))
        return asyncio.get_running_loop().time()

    assert 0 < simulate(1, main) <= 10


@pytest.mark.parametrize(
    ("faults", "hints"),
    [(Faults(), 1), (Faults(drop_hint=1), 0), (Faults(double_hint=1), 2), (Faults(delay_hint=1), 1)],
    ids=["fine", "lost", "doubled", "late"],
)
def test_hints_are_lost_doubled_or_late(faults: Faults, hints: int) -> None:
    """Everything that a watcher must cope with."""

    async def main() -> int:
        store = FaultyStore(open_memory(), seed=1, faults=faults)
        async with store.watch(A) as watch:
            await store.commit(Put(A, b""))
            return [await watch.wait(1) is not None for _ in range(3)].count(True)

    assert simulate(1, main) == hints


async def test_closing_waits_for_what_lands_late() -> None:
    """Nothing is left behind."""
    memory = MemoryRecords()
    store = FaultyStore(GroupedStore(MemoryBackend(memory)), seed=1, faults=Faults(land_late=1, longest_delay=0.001))
    await attempt_of(store)
    await store.aclose()
    assert A in (await GroupedStore(MemoryBackend(memory)).read(A)).records


# --- a faulty backend -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lose_request", "lose_reply", "land_late"])
def test_common_code_hides_unknown_outcomes_of_a_backend(fault: str) -> None:
    """The store settles and tries again by itself: its caller sees one answer, and it happened once."""

    def grow(seen: Snapshot) -> Decision[int]:
        value = seen.records[A].value + b"x" if seen.records else b"x"
        return Decision(len(value), (Put(A, value, seen.version(A)),))

    async def main() -> list[int]:
        faults = Faults(**{fault: 0.2}, fail_settle=0.2)
        store = GroupedStore(FaultyBackend(MemoryBackend(MemoryRecords()), seed=3, faults=faults))
        answers = [(await store.update([A], grow)).answer for _ in range(20)]
        await store.aclose()
        return answers

    assert simulate(1, main) == list(range(1, 21))


def test_a_backend_mishears_hints() -> None:
    """Dropped ones never arrive, whoever they were for."""

    async def main() -> object:
        store = GroupedStore(FaultyBackend(MemoryBackend(MemoryRecords()), seed=1, faults=Faults(drop_hint=1)))
        async with store.watch(B) as watch:
            await store.commit(Put(A, b""), wake=[Wake(B)])
            return await watch.wait(1)

    assert simulate(1, main) is None


# --- a store that is not atomic -------------------------------------------------------------------------------------


async def test_a_store_that_is_not_atomic_is_refused() -> None:
    """Whatever excludes does not work on it, and says so."""
    with pytest.raises(UnsuitableStoreError, match="two racers could both win"):
        Space(NonAtomicStore())


async def test_a_store_that_is_not_atomic_works_for_one() -> None:
    """Alone, it does what a store does: that is why nobody notices."""
    clock = VirtualClock()
    store = NonAtomicStore(clock)
    created = await store.commit(Put(A, b"1", expires_at=Instant(clock.wall() + 10)), Put(B, b"2"))
    assert isinstance(created, Commit)
    assert isinstance(await store.commit(Put(A, b"2")), Conflict)
    assert list((await store.scan(*RecordKey("faults").within(), limit=1)).records) == [A]
    decided = await store.update([B], lambda seen: Decision(seen.records[B].value, (Put(B, b"3", seen.version(B)),)))
    assert decided.answer == b"2"
    clock.advance(1)
    assert list((await store.read(A, B)).records) == [B]
    assert isinstance(await store.commit(Delete(B, decided.versions[B])), Commit)
    assert (await store.read(A, B)).records == {}


async def test_a_store_that_is_not_atomic_sends_no_hints() -> None:
    """It says so, and a watch of it waits in vain."""
    store = NonAtomicStore()
    assert store.capabilities.wakes == "poll"
    async with store.watch(A) as watch:
        await store.commit(Put(A, b""))
        assert await watch.wait(0.001) is None
    assert await store.settle("any") is None
    await store.aclose()


# --- other handles --------------------------------------------------------------------------------------------------


async def test_another_handle_has_the_same_faults() -> None:
    """What goes wrong with one handle goes wrong with another, whether the store or its backend is faulty."""
    faulty = FaultyStore(open_memory(), seed=1, faults=Faults(refuse=1.0))
    grouped = GroupedStore(FaultyBackend(MemoryBackend(MemoryRecords()), seed=1, faults=Faults(refuse=1.0)))
    for store in (faulty, grouped):
        other = await store.another()
        for each in (other, store):
            with pytest.raises(StoreUnavailableError):
                await each.commit(Put(A, b""))
            await each.aclose()


async def test_another_handle_meets_its_faults_in_an_order_of_its_own() -> None:
    """The same program opens the same handles, and each has its seed."""

    async def fates() -> list[str]:
        store = FaultyStore(open_memory(), seed=7, faults=Faults(fail_read=0.5))
        return [await _fate(each) for each in (store, await store.another(), await store.another())]

    first = await fates()
    assert len(set(first)) == 3
    assert await fates() == first


async def _fate(store: FaultyStore) -> str:
    """Return how each of twenty reads ended, and close the store."""
    answers = await asyncio.gather(*(store.read(A) for _ in range(20)), return_exceptions=True)
    await store.aclose()
    return "".join("x" if isinstance(answer, StoreUnavailableError) else "." for answer in answers)


async def test_another_handle_on_a_store_that_is_not_atomic_has_the_same_records() -> None:
    """What is written through one is read through the other, and neither sees deaths."""
    store = NonAtomicStore()
    other = await store.another()
    await store.commit(Put(A, b"value"))

    assert (await other.read(A)).records[A].value == b"value"
    assert other.liveness_token() == ""
    assert not other.is_dead("")
