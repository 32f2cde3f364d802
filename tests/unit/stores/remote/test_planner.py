"""Plans: whatever is assumed, riders are answered as if they had been folded where the records are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores.backend import CommitRider, Deferred, RiderBatch, UpdateRider
from standfast.stores.fold import fold_in_order
from standfast.stores.protocol import Check, Commit, Conflict, Decided, Decision, Delete, Put, Record
from standfast.stores.remote import RemoteBackend
from standfast.stores.remote.planner import UNDRAWN, RecordCache, plan, wants_reserve
from standfast.testing import VirtualClock
from tests.unit.stores.remote.table import CAPABILITIES, Table, TableServer

if TYPE_CHECKING:
    from standfast.stores.backend import Outcome, Rider
    from standfast.stores.protocol import Change, Snapshot

KEYS = [RecordKey("n", name) for name in "abc"]
A, B, C = KEYS
AT = Instant(1_000)


def append(key: RecordKey, text: bytes) -> UpdateRider:
    """An update that appends to a record, and deletes it when it is long."""

    def decide(seen: Snapshot) -> Decision[bytes]:
        record = seen.get(key)
        whole = text if record is None else record.value + text
        if record is not None and len(whole) > 5:
            return Decision(whole, (Delete(key, record.version),))
        return Decision(whole, (Put(key, whole, seen.version(key)),))

    return UpdateRider((key,), decide)


def look(*keys: RecordKey) -> UpdateRider:
    """An update that only looks."""
    return UpdateRider(keys, lambda seen: Decision([record.value for record in seen.records.values()]))


def planned(*riders: Rider, assumed: dict[RecordKey, Record | None] | None = None, **options: Any) -> Any:
    """Plan some riders on some cache."""
    cache = RecordCache()
    cache.learn(assumed or {})
    return plan(riders, AT, cache, options.pop("fresh", {}), CAPABILITIES, **options)


def test_a_commit_is_guarded_by_what_it_expects() -> None:
    """No record is needed to plan it: its own expectations are the guards."""
    made = planned(CommitRider((Check(A, 7), Put(B, b"new"))))

    assert made.guards == {A: 7, B: 0}
    assert [row.key for row in made.puts] == [B]
    assert not made.unknown


def test_commits_that_disagree_need_the_record() -> None:
    """One of them is wrong, and is to be shown what is there."""
    assert planned(CommitRider((Check(A, 7),)), CommitRider((Check(A, 8),))).unknown == {A}
    assert planned(CommitRider((Put(A, b""),)), CommitRider((Check(A, 8),))).unknown == {A}


def test_a_conflict_with_what_a_neighbour_writes_is_guarded_whole() -> None:
    """The neighbour writes later than the server was looked at: what else the conflict shows must still be so then."""
    fresh: dict[RecordKey, Record | None] = {A: Record(A, b"", 1), B: Record(B, b"", 2)}
    riders = CommitRider((Delete(A, 1),)), CommitRider((Check(A, 1), Check(B, 1)))

    made = planned(*riders, fresh=fresh, shown=frozenset({A, B}))

    assert isinstance(made.outcomes[1], Conflict)
    assert made.guards == {A: 1, B: 2}


def test_a_conflict_is_of_the_moment_at_which_its_records_were_shown() -> None:
    """A neighbour may be written a little later, when what the conflict shows has expired."""
    fresh: dict[RecordKey, Record | None] = {A: Record(A, b"", 1, Instant(AT + 10))}
    riders = CommitRider((Put(A, b""),)), CommitRider((Put(B, b""),))

    applied = planned(*riders, fresh=fresh, shown=frozenset({A})).applied(Instant(AT + 20), (2,))

    assert applied.outcomes[0] == Conflict(AT, dict(fresh))
    assert applied.outcomes[1] == Commit(Instant(AT + 20), {B: 2})


def test_what_a_neighbour_puts_must_not_have_expired_when_it_is_written() -> None:
    """Who was told of it would have been told of what is no more."""
    riders = CommitRider((Put(A, b"", expires_at=Instant(AT + 10)),)), CommitRider((Put(A, b""),))

    assert planned(*riders).before == AT + 10
    assert planned(*riders[:1]).before is None


def test_a_conflict_that_the_server_has_shown_whole_needs_no_guard() -> None:
    """It was true at one moment since it was asked for, and that is enough."""
    made = planned(CommitRider((Check(A, 1),)), fresh={A: Record(A, b"", 2)}, shown=frozenset({A}))

    assert isinstance(made.outcomes[0], Conflict)
    assert made.guards == {}


def test_an_update_that_reads_what_a_neighbour_writes_is_put_off() -> None:
    """Its neighbour's version is not drawn yet, and nobody may see it before."""
    made = planned(append(A, b"1"), append(A, b"2"), append(B, b"3"))

    assert [type(each) for each in made.outcomes] == [Decided, Deferred, Decided]
    assert set(made.guards) == {A, B}


def test_riders_behind_one_that_was_put_off_stay_behind_it() -> None:
    """On the same key the order of the calls is kept, whatever each of them is."""
    made = planned(append(A, b"1"), append(A, b"2"), CommitRider((Put(A, b"late"),)))

    assert [type(each) for each in made.outcomes] == [Decided, Deferred, Deferred]


def test_with_reserved_versions_nobody_is_put_off() -> None:
    """Each sees the version that its neighbour is going to have."""
    seen: list[int] = []

    def decide(snapshot: Snapshot) -> Decision[None]:
        seen.append(snapshot.version(A))
        return Decision(None, (Put(A, b"", snapshot.version(A)),))

    made = planned(append(A, b"1"), UpdateRider((A,), decide), reserved=(50, 60))

    assert seen == [50]
    assert made.exact == (50, 60)
    assert made.applied(AT, made.exact).outcomes[1].versions == {A: 60}


def test_reserved_versions_below_what_is_there_are_not_used() -> None:
    """Somebody was faster: then those who need them are put off."""
    there = Record(A, b"", 55)
    made = planned(append(A, b"1"), append(A, b"2"), fresh={A: there}, reserved=(50, 60))

    assert made.exact == ()
    assert [type(each) for each in made.outcomes] == [Decided, Deferred]


def test_undrawn_versions_never_leave_a_plan() -> None:
    """Answers carry what the server drew, also inside of the records that a conflict shows."""
    made = planned(CommitRider((Put(A, b"1"),)), CommitRider((Put(A, b"2"),)))
    first, second = made.applied(AT, (42, 43)).outcomes

    assert first.versions == {A: 42}
    assert second.current[A].version == 42
    assert UNDRAWN > 2**51


def test_versions_are_reserved_only_where_one_reads_what_another_may_write() -> None:
    """Most batches need none."""
    assert wants_reserve([append(A, b""), append(B, b"")]) == 0
    assert wants_reserve([CommitRider((Put(A, b""),)), CommitRider((Put(A, b""),))]) == 0
    assert wants_reserve([CommitRider((Put(A, b""),)), look(A, B)]) == 2


def test_a_window_that_seemed_missed_is_tried_again_if_it_was_open() -> None:
    """By the server's time, which alone counts, the commit may be in it."""
    late = CommitRider((Put(A, b""),), after=Instant(2_000))
    made = planned(late, append(B, b""))

    assert type(made.applied(Instant(1_500), (1, 2)).outcomes[0]) is Conflict
    assert type(made.applied(Instant(2_500), (1, 2)).outcomes[0]) is Deferred


# --- against the fold ---------------------------------------------------------------------------------------------

versions = st.integers(min_value=1, max_value=3)
changes = st.one_of(
    st.builds(lambda key, expected: Put(key, b"put", expected), st.sampled_from(KEYS), st.integers(0, 3)),
    st.builds(Delete, st.sampled_from(KEYS), versions),
    st.builds(Check, st.sampled_from(KEYS), versions),
)


def test_nobody_passes_one_whose_window_seemed_missed() -> None:
    """It may be tried again; whoever names a key of its, and came after it, stays behind it."""
    soon = CommitRider((Put(A, b"first"),), after=Instant(AT + 500))
    made = planned(soon, CommitRider((Put(A, b"second"),)), CommitRider((Put(B, b"apart"),)))

    first, second, apart = made.applied(Instant(AT + 600), (7,)).outcomes

    assert isinstance(first, Deferred)
    assert isinstance(second, Deferred)
    assert isinstance(apart, Commit)


def distinct(found: list[Change]) -> CommitRider:
    """A commit of changes of different keys."""
    return CommitRider(tuple({change.key: change for change in found}.values()))


riders = st.lists(
    st.one_of(
        st.lists(changes, min_size=1, max_size=3).map(distinct),
        st.builds(append, st.sampled_from(KEYS), st.sampled_from([b"x", b"y"])),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True).map(lambda keys: look(*keys)),
    ),
    min_size=1,
    max_size=6,
)
records = st.dictionaries(st.sampled_from(KEYS), versions).map(
    lambda found: {key: Record(key, b"v%d" % version, version) for key, version in found.items()}
)


def shown(outcome: Outcome, names: dict[int, int]) -> object:
    """An outcome with its versions replaced by the order in which they were met."""

    def name(version: int) -> int:
        return version if version <= 3 else names.setdefault(version, 100 + len(names))

    if isinstance(outcome, Commit | Decided):
        answer = outcome.answer if isinstance(outcome, Decided) else None
        return type(outcome), answer, {key: name(version) for key, version in outcome.versions.items()}
    if isinstance(outcome, Conflict):
        pairs = outcome.current.items()
        return Conflict, {key: record and (record.value, name(record.version)) for key, record in pairs}
    return outcome


@pytest.mark.parametrize("puts_off", [False, True])
@given(riders=riders, there=records, assumed=records)
async def test_riders_fare_as_if_folded_where_the_records_are(
    *, puts_off: bool, riders: list[Rider], there: dict[RecordKey, Record], assumed: dict[RecordKey, Record]
) -> None:
    """Whatever was assumed, and whether they travel together or one after the other."""
    expected = fold_in_order(riders, AT, 1_000, there, CAPABILITIES)
    table = Table(VirtualClock())
    table.records.update(there)
    table.version = 3
    backend = RemoteBackend(TableServer(table))
    backend._writer.cache.learn(assumed)

    outcomes: dict[int, Outcome] = {}
    left, number = list(enumerate(riders)), 0
    while left:
        number += 1
        if puts_off:
            table.version += 5  # as if others had drawn
        applied = await backend.apply(RiderBatch(f"h.{number}", tuple(rider for _, rider in left)))
        outcomes |= {index: each for (index, _), each in zip(left, applied.outcomes, strict=True)}
        left = [pair for pair in left if isinstance(outcomes[pair[0]], Deferred)]
    await backend.aclose()

    assert {key: record.value for key, record in table.records.items()} == {
        key: record.value for key, record in {**there, **expected.writes}.items() if record is not None
    }
    names: dict[int, int] = {}
    told: dict[int, int] = {}
    assert [shown(outcomes[index], told) for index in range(len(riders))] == [
        shown(outcome, names) for outcome in expected.outcomes
    ]
