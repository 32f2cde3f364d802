"""What run locks read and write of a run's life, beside the engine that owns the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import Raw, structs

from standfast.clock import Instant
from standfast.locks.line import Entry, Granted, Holder, Until
from standfast.locks.line_records import Answer, Left, MissingKeysError, StepSnapshot
from standfast.locks.run_locks import ClaimGuard, DrivenError, RunClaim
from standfast.scope import Scope
from standfast.stores import GroupedStore
from standfast.stores.memory import MemoryBackend, MemoryRecords
from standfast.stores.protocol import Change, Put, Record
from standfast.workflows.records import RUN_STATES, RunKeys, RunState

if TYPE_CHECKING:
    from standfast.keys import RecordKey

FULL = RunState(
    "suspended", "ship", "v2", Instant(7), claims=3, deaths=1, position=9, until=Instant(99), waits_for='"tea"',
    admitted=1, ticket=4, cancel="no", result=Raw(b'{"a":[1,2]}'), leaving=True,
)  # fmt: skip
BARE = RunState("pending", "ship", "", Instant(7))
GRANTED = Granted(Holder(Entry("e", "me", Until(Instant(9)), Instant(0)), 0, Instant(0)))


@pytest.fixture
async def scope() -> Scope:
    """Where the run lies."""
    return Scope(GroupedStore(MemoryBackend(MemoryRecords())), namespace="n", tenant="t")


def seen(life: RunState, keys: RunKeys, *more: RecordKey) -> StepSnapshot:
    """Return a snapshot that shows a life, and perhaps more that is not there."""
    record = Record(keys.state, RUN_STATES.encode(life), 5, Instant(0))
    return StepSnapshot(Instant(8), {keys.state: record}, given=frozenset({keys.state, keys.ready, *more}))


def changed(guard: ClaimGuard, answer: Answer, shown: StepSnapshot) -> tuple[Change, ...]:
    """Return what goes with the answer to a request for the lock, or to its release."""
    extra_changes = guard.on_leave if isinstance(answer, Left) else guard.on_enter
    decided = extra_changes.decide(answer, shown)
    return tuple(decided)


@pytest.mark.parametrize("life", [FULL, BARE])
def test_taking_and_giving_up_a_lock_leaves_all_else_of_a_life_as_it_is(scope: Scope, life: RunState) -> None:
    """The engine reads the same life, but for the two fields that are about the lock."""
    keys, guard = RunKeys(scope, "r"), ClaimGuard(scope, "ship", "r")
    [taken] = changed(guard, GRANTED, seen(life, keys))
    assert isinstance(taken, Put)
    assert (taken.key, taken.expected) == (keys.state, 5)
    assert RUN_STATES.decode(taken.value) == structs.replace(life, leased=True)

    awaited = structs.replace(life, leased=True, lease_awaited=True)
    left, ready = changed(guard, Left(was_holding=True, was_waiting=False), seen(awaited, keys))
    assert isinstance(left, Put)
    assert RUN_STATES.decode(left.value) == life
    assert ready.key == keys.ready


def test_a_run_of_another_workflow_is_another_run(scope: Scope) -> None:
    """Run locks tell runs apart by workflow and id; an engine's run has one workflow."""
    keys, guard = RunKeys(scope, "r"), ClaimGuard(scope, "other", "r")
    assert changed(guard, GRANTED, seen(BARE, keys)) == ()


def test_a_driven_run_is_taken_only_from_a_worker_that_is_gone(scope: Scope) -> None:
    """Then the worker's grant goes in the same commit, and the run is ready for others and listed."""
    keys, guard = RunKeys(scope, "r"), ClaimGuard(scope, "ship", "r")
    driven = structs.replace(BARE, status="running", owner="p.1")
    assert guard.own("p.1") == keys.own("p.1")
    with pytest.raises(DrivenError):
        changed(guard, GRANTED, seen(driven, keys))

    guard.void.add("p.1")
    with pytest.raises(MissingKeysError) as missing:
        guard.on_enter.decide(GRANTED, seen(driven, keys))
    assert missing.value.keys == {keys.own("p.1"), keys.header}
    listed = keys.listed(structs.replace(driven, owner=""), None)
    taken, ready, *others = changed(guard, GRANTED, seen(driven, keys, keys.own("p.1"), keys.header, *listed))
    assert isinstance(taken, Put)
    assert RUN_STATES.decode(taken.value) == structs.replace(driven, owner="", leased=True, waits_for="a worker")
    assert ready.key == keys.ready
    assert [each.key for each in others] == list(listed)


def test_a_claim_is_a_part_of_a_life() -> None:
    """Every field has the same name, and the same default, in both."""
    whole = {field.name: field.default for field in structs.fields(RunState)}
    for field in structs.fields(RunClaim):
        assert whole[field.name] == field.default
