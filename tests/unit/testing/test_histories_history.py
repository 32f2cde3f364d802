"""Recorded histories of stores, and histories with known verdicts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import Instant
from standfast.errors import NotLinearizableError
from standfast.keys import RecordKey
from standfast.stores import Commit, Conflict, Decided, Decision, Delete, Put, Record, Snapshot
from standfast.stores.backend import CommitRider, UpdateRider
from standfast.stores.memory import open_memory
from standfast.testing import (
    Faults,
    FaultyStore,
    History,
    NonAtomicStore,
    Operation,
    RecordingStore,
    check_store_history,
    simulate,
)
from standfast.testing.histories import Read, by_shared_keys

if TYPE_CHECKING:
    from standfast.testing.histories import Answer, StoreCall, StoreOperation

A, B, C = (RecordKey("history", name) for name in "abc")
AT = Instant(1_000)


def op(span: str, call: StoreCall, answer: Answer | None = None) -> StoreOperation:
    """Make an operation from a picture of when it ran: ``"  [--]"``, or ``"  [-?"`` if its outcome is unknown."""
    returned_at = None if span.endswith("?") else span.index("]")
    return Operation("client", call, span.index("["), returned_at, answer)


def put(span: str, value: bytes, expected: int = 0, version: int | None = None) -> StoreOperation:
    """Make a guarded put of A; without a version its outcome is unknown."""
    answer = None if version is None else Commit(AT, {A: version})
    return op(span, CommitRider((Put(A, value, expected),)), answer)


def read(span: str, record: Record | None) -> StoreOperation:
    """Make a read of A."""
    return op(span, Read((A,)), Snapshot(AT, {} if record is None else {A: record}))


def add(seen: Snapshot) -> Decision[int]:
    """Add one to the number at A."""
    number = 1 + (int(seen.records[A].value) if A in seen.records else 0)
    return Decision(number, (Put(A, b"%d" % number, seen.version(A)),))


GOOD = {
    "a put is read": [put("[-]", b"1", version=3), read("    [-]", Record(A, b"1", 3))],
    "a lost put is read, under a version that only the reader learns": [
        put("[-]", b"1", version=3),
        put("    [-?", b"2", expected=3),
        read("        [-]", Record(A, b"2", 9)),
    ],
    "a lost put never happened": [put("[-?", b"1"), read("    [-]", None), put("        [-]", b"2", version=1)],
    "a lost put happened later": [put("[-?", b"1"), read("    [-]", None), read("        [-]", Record(A, b"1", 2))],
    "a lost put lies under a later one": [
        put("[-]", b"1", version=3),
        put("    [-?", b"2", expected=3),
        op("        [-]", UpdateRider((A,), lambda seen: Decision(seen.records[A].value)), Decided(b"2", AT, {})),
    ],
    "a lost update lands twice over": [
        put("[-]", b"1", version=1),
        op("    [-?", UpdateRider((A,), add)),
        op("    [-?", UpdateRider((A,), add)),
        read("        [-]", Record(A, b"2", 5)),
        read("            [-]", Record(A, b"3", 8)),
    ],
    "a lost update that cannot decide": [
        put("[-]", b"x", version=1),
        op("    [-?", UpdateRider((A,), add)),
    ],
    "a conflict carries what a lost put wrote": [
        put("[-?", b"1"),
        op("    [-]", CommitRider((Put(A, b"2"),)), Conflict(AT, {A: Record(A, b"1", 4)})),
        put("        [-]", b"3", expected=4, version=5),
    ],
    "a record that expires is gone for later readers": [
        op("[-]", CommitRider((Put(A, b"1", 0, Instant(2_000)),)), Commit(AT, {A: 1})),
        op("    [-]", Read((A,)), Snapshot(Instant(2_000), {})),
    ],
    "a lost create over an expired record": [
        op("[-]", CommitRider((Put(A, b"1", 0, Instant(2_000)),)), Commit(AT, {A: 1})),
        op("    [-?", CommitRider((Put(A, b"2"),)), None),
        op("        [-]", Read((A,)), Snapshot(Instant(2_500), {A: Record(A, b"2", 2)})),
    ],
}

BAD = {
    "a stale read": [
        put("[-]", b"1", version=1),
        put("    [-]", b"2", expected=1, version=2),
        read("        [-]", Record(A, b"1", 1)),
    ],
    "two creates win": [put("[--]", b"1", version=1), put(" [--]", b"2", version=2)],
    "two puts win at one version": [
        put("[-]", b"0", version=1),
        put("    [--]", b"1", expected=1, version=2),
        put("     [--]", b"2", expected=1, version=3),
    ],
    "a version is used again after a delete": [
        put("[-]", b"1", version=7),
        op("    [-]", CommitRider((Delete(A, 7),)), Commit(AT, {})),
        put("        [-]", b"2", version=7),
    ],
    "a version changes by itself": [put("[-]", b"1", version=1), read("    [-]", Record(A, b"1", 2))],
    "a conflict without a reason": [op("[-]", CommitRider((Put(A, b"1"),)), Conflict(AT, {}))],
    "a conflict that hides a guard that failed": [
        put("[-]", b"1", version=1),
        op("    [-]", CommitRider((Put(A, b""), Put(B, b"", 5))), Conflict(AT, {A: Record(A, b"1", 1)})),
    ],
    "half a commit": [
        op("[-]", CommitRider((Put(A, b"1"), Put(B, b"1"))), Commit(AT, {A: 1, B: 1})),
        op("    [-]", Read((A, B)), Snapshot(AT, {A: Record(A, b"1", 1)})),
    ],
    "an expired record is read": [
        op("[-]", CommitRider((Put(A, b"1", 0, Instant(2_000)),)), Commit(AT, {A: 1})),
        op("    [-]", Read((A,)), Snapshot(Instant(2_000), {A: Record(A, b"1", 1, Instant(2_000))})),
    ],
    "a lost update that happened twice": [
        put("[-]", b"1", version=1),
        op("    [-?", UpdateRider((A,), add)),
        read("        [-]", Record(A, b"3", 8)),
    ],
    "a lost update that could not decide": [
        put("[-]", b"x", version=1),
        op("    [-?", UpdateRider((A,), add)),
        read("        [-]", Record(A, b"1", 2)),
    ],
    "a lost put that happened twice": [
        put("[-?", b"1"),
        read("    [-]", Record(A, b"1", 1)),
        op("        [-]", CommitRider((Delete(A, 1),)), Commit(AT, {})),
        read("            [-]", Record(A, b"1", 2)),
    ],
}


@pytest.mark.parametrize("operations", GOOD.values(), ids=GOOD)
def test_a_good_history_of_a_store_passes(operations: list[StoreOperation]) -> None:
    """What the contract allows is explained."""
    check_store_history(operations)


@pytest.mark.parametrize("operations", BAD.values(), ids=BAD)
def test_a_bad_history_of_a_store_is_refused(operations: list[StoreOperation]) -> None:
    """What the contract forbids is not."""
    with pytest.raises(NotLinearizableError):
        check_store_history(operations)


def test_keys_that_never_meet_are_checked_apart() -> None:
    """Operations are grouped by the keys that they share, directly or through others."""
    single, pair, other = Read((A,)), Read((A, B)), Read((C,))
    groups = by_shared_keys([op("[-]", call) for call in (single, other, pair, other)])
    assert [[operation.call for operation in group] for group in groups] == [[single, pair], [other, other]]


# --- recording ------------------------------------------------------------------------------------------------------


async def test_a_recorder_writes_down_calls_and_answers() -> None:
    """What goes through a recording store is in the history, with its answer."""
    history = History()
    store = RecordingStore(open_memory(), history, "ann")

    commit = await store.commit(Put(A, b"1"))
    snapshot = await store.read(A)
    decided = await store.update([A], add)

    assert [operation.answer for operation in history.operations] == [commit, snapshot, decided]
    assert {operation.client for operation in history.operations} == {"ann"}
    check_store_history(history.operations)


async def test_what_failed_without_an_effect_is_not_recorded() -> None:
    """A refusal says that nothing was written, so there is nothing to explain."""
    history = History()
    store = RecordingStore(FaultyStore(open_memory(), seed=1, faults=Faults(refuse=1, fail_read=1)), history, "ann")
    await asyncio.gather(store.commit(Put(A, b"")), store.read(A), return_exceptions=True)
    assert history.operations == []


@pytest.mark.parametrize(("faults", "lands"), [(Faults(lose_reply=1), True), (Faults(lose_request=1), False)])
async def test_an_unknown_outcome_is_recorded_until_it_is_settled(faults: Faults, lands: bool) -> None:  # noqa: FBT001 -- a parameter
    """Before, it may have happened or not; after, it is an answer, or has never been."""
    history = History()
    store = RecordingStore(FaultyStore(open_memory(), seed=1, faults=faults), history, "ann")
    with pytest.raises(Exception, match="unknown") as unknown:
        await store.commit(Put(A, b"1"))
    assert [operation.returned_at for operation in history.operations] == [None]

    problem: Any = unknown.value
    verdict = await store.settle(problem.attempt)

    assert isinstance(verdict, Commit) == lands
    assert [operation.answer for operation in history.operations] == ([verdict] if lands else [])


@pytest.mark.parametrize("ticks", range(4))
async def test_a_cancelled_commit_is_recorded_as_what_it_was(ticks: int) -> None:
    """Withdrawn, it leaves no trace; under way, its verdict is in the history."""
    history, memory = History(), open_memory()
    task = asyncio.create_task(RecordingStore(memory, history, "ann").commit(Put(A, b"1")))
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})

    assert len(history.operations) == len((await memory.read(A)).records)
    check_store_history(history.operations)


def test_a_store_that_is_not_atomic_is_found_out_by_its_history() -> None:
    """Two racers both win, and no order of events explains that."""

    async def race() -> int:
        history, store = History(), NonAtomicStore()
        racers = [RecordingStore(store, history, f"racer {n}") for n in range(2)]
        answers = await asyncio.gather(*(each.commit(Put(A, b"%d" % n)) for n, each in enumerate(racers)))
        with pytest.raises(NotLinearizableError):
            check_store_history(history.operations)
        return sum(isinstance(answer, Commit) for answer in answers)

    assert simulate(1, race) == 2


async def test_another_handle_writes_into_the_same_history() -> None:
    """What one client does through two handles is one history of that client."""
    history = History()
    store = RecordingStore(open_memory(), history, "client")
    other = await store.another()
    await store.commit(Put(A, b"1"))
    await other.read(A)

    assert [type(each.call) for each in history.operations] == [CommitRider, Read]
    assert {each.client for each in history.operations} == {"client"}
    check_store_history(history.operations)
    await asyncio.gather(store.aclose(), other.aclose())
