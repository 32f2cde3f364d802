"""A batch that is written as if every guard held comes to what folding it comes to, or to nothing."""

from __future__ import annotations

import asyncio
import itertools
import random
from importlib import resources
from typing import TYPE_CHECKING, cast

import apsw

import standfast as sf
from standfast.clock import Instant
from standfast.keys import RecordKey
from standfast.stores import Check, Commit, Conflict, Delete, Put, Record, Wake
from standfast.stores.backend import ChoiceRider, CommitRider
from standfast.stores.fold import fold, fold_in_order
from standfast.stores.memory import CAPABILITIES
from standfast.stores.protocol import MAX_VERSION, Alternative, Append, Empty, MoveFirst, Present, Stamped
from standfast.stores.sqlite import plain_batch
from standfast.stores.sqlite.plain_batch import PlainBatch, write_alone

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from standfast.stores import Change
    from standfast.stores.backend import Rider
    from standfast.stores.sqlite.connection import SqliteConnection

NOW, LAST = Instant(1_000), 50
KEYS = [RecordKey("ns", f"{number:03}") for number in range(80)]
EXPIRES = {7: NOW, 17: Instant(NOW - 1), 27: Instant(NOW + 1), 37: Instant(NOW + 1)}
SEEDED = {key: Record(key, b"before", number + 1, EXPIRES.get(number)) for number, key in enumerate(KEYS) if number % 2}
"""Every other key has a record; two of those are expired, and two are about to."""

ROUNDS = 600


def table(records: dict[RecordKey, Record]) -> SqliteConnection:
    """Return a database that holds records."""
    connection = cast("SqliteConnection", apsw.Connection(""))
    connection.execute(resources.files("standfast.stores.sqlite").joinpath("schema.sql").read_text())
    rows = [(each.key, each.version, each.expires_at, each.value) for each in records.values()]
    connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows)
    return connection


def count(connection: SqliteConnection, last_version: int) -> None:
    """Let a version be the last that was given out."""
    connection.execute("UPDATE counters SET count = ? WHERE handle = ''", (last_version,))


def content(connection: SqliteConnection) -> dict[RecordKey, Record]:
    """Return what a database holds."""
    rows = connection.execute("SELECT key, value, version, expires_at FROM records").fetchall()
    return {(key := RecordKey.from_encoded(row[0])): Record(key, *row[1:]) for row in rows}


def is_apart(riders: Sequence[CommitRider]) -> bool:
    """Return True if no rider changes what another one looks at."""
    changed = [change.key for rider in riders for change in rider.changes if not isinstance(change, Check)]
    checked = {change.key for rider in riders for change in rider.changes if isinstance(change, Check)}
    return len({*changed}) == len(changed) and checked.isdisjoint(changed)


def change_of(draw: random.Random, key: RecordKey, *, holds: bool = True) -> Change:
    """Return a change of a record, whose guard holds or does not."""
    record = SEEDED.get(key)
    expected = 0 if record is None or record.is_expired(NOW) else record.version
    if not holds:
        wrong = {0, 1, expected + 1, expected if record is None else record.version} - {expected}
        expected = draw.choice(sorted(wrong))
    kind = draw.choice((Put, Put, Delete, Check)) if expected else Put
    if kind is Put:
        return Put(key, b"after", expected, draw.choice((None, None, Instant(NOW + 5))))
    return Delete(key, expected) if kind is Delete else Check(key, expected)


def batch_of(draw: random.Random) -> list[CommitRider]:
    """Return riders with records of their own whose guards hold; or so but for one thing."""
    keys = draw.sample(KEYS, draw.randint(2, 20))
    made = [change_of(draw, key) for key in keys]
    spoiled, before = draw.randrange(len(made)), None
    if draw.randrange(2):  # the records that are expired, or nearly, are few
        keys[spoiled] = KEYS[draw.choice([*EXPIRES])]
        made = [change_of(draw, key) for key in dict.fromkeys(keys)]
        spoiled = min(spoiled, len(made) - 1)
    match draw.randrange(8):
        case 0:
            made[spoiled] = change_of(draw, keys[spoiled], holds=False)
        case 1:
            made.append(change_of(draw, keys[spoiled]))  # behind another rider, which may have changed it
        case 2:
            made.append(change_of(draw, keys[spoiled], holds=False))
        case 3:
            made[spoiled] = Put(keys[spoiled], b"after", made[spoiled].expected, draw.choice((NOW, Instant(NOW - 1))))
        case 4:
            before = draw.choice((NOW, Instant(NOW + 1)))
        case _:
            pass
    batch: list[CommitRider] = []
    while made:
        some = {change.key: change for change in (made.pop(0) for _ in range(min(len(made), draw.randint(1, 4))))}
        batch.append(CommitRider(tuple(some.values()), before=before, wake=(Wake(KEYS[0]),) * draw.randrange(2)))
    return batch


def test_what_is_written_is_what_folding_comes_to() -> None:
    """The same answers, the same records, versions and wakes; and nothing is refused that could be written."""
    draw, written = random.Random(7), 0
    for _ in range(ROUNDS):
        batch = batch_of(draw)
        expected = fold_in_order(batch, NOW, LAST, SEEDED, CAPABILITIES)
        connection = table(SEEDED)
        plain = PlainBatch.of(batch, NOW, LAST)
        done = None if plain is None else plain.write(connection)
        if done is not None:
            written += 1
            assert done.outcomes == expected.outcomes
            assert (done.wakes, done.last_version) == (expected.wakes, expected.last_version)
            assert done.writes.keys() == expected.writes.keys()
            wanted = SEEDED | {key: record for key, record in expected.writes.items() if record is not None}
            gone = {key for key, record in expected.writes.items() if record is None}
            assert content(connection) == {key: record for key, record in wanted.items() if key not in gone}
        else:
            was_expired = any(key in SEEDED and SEEDED[key].is_expired(NOW) for key in expected.writes)
            is_timed = any(rider.before is not None for rider in batch)
            has_lost = any(isinstance(each, Conflict) for each in expected.outcomes)
            assert has_lost or not is_apart(batch) or was_expired or is_timed
    assert ROUNDS // 8 < written < ROUNDS // 2


def test_a_commit_that_is_alone_comes_to_what_folding_it_comes_to() -> None:
    """The same answer, records, version and wakes; what is not written so is refused by the fold, or lay expired."""
    draw, written, refused = random.Random(11), 0, 0
    for rider in [each for _ in range(ROUNDS // 2) for each in batch_of(draw)]:
        last = draw.choice([NOW - 1, NOW, NOW + 1])  # as the time in microseconds has it, or past it
        expected = fold_in_order([rider], NOW, last, SEEDED, CAPABILITIES)
        connection = table(SEEDED)
        count(connection, last if last >= NOW else LAST)
        try:
            done = write_alone(connection, rider, lambda _, __: NOW)
        except apsw.ConstraintError:
            done = None
        else:
            assert done is not None or content(connection) == SEEDED
        if done is not None:
            written += 1
            assert (done.outcomes, done.wakes) == (expected.outcomes, expected.wakes)
            assert (done.last_version, done.writes.keys()) == (expected.last_version, expected.writes.keys())
            after = SEEDED | expected.writes
            assert content(connection) == {key: record for key, record in after.items() if record is not None}
        else:
            refused += 1
            expires = any(each.key in SEEDED and SEEDED[each.key].expires_at is not None for each in rider.changes)
            assert expires or isinstance(expected.outcomes[0], Conflict)
    assert written > ROUNDS
    assert refused > ROUNDS // 10


def test_a_lone_choice_comes_to_what_folding_it_comes_to() -> None:
    """Whatever lies at the records of a mutex and in its queue: the same answer and records, or nothing is written."""
    head, grant, queue = RecordKey("ns", "head"), RecordKey("ns", "grant"), RecordKey("ns", "queue")
    ticket = Append(queue, b"").key_of(3)
    enter = Alternative((Put(head, b"h"), Stamped(grant, b"g"))), Alternative((Present(head), Append(queue, b"w")))
    free = Alternative((Empty(queue), Delete(head, 1), Delete(grant, 2)))
    leave = Alternative((MoveFirst(queue, grant, 2, RecordKey("ns", "inbox")),)), free
    written = 0
    for rider in (ChoiceRider(enter), ChoiceRider(leave), ChoiceRider(leave[:1]), ChoiceRider((free,))):
        for versions in itertools.product((0, 1), (0, 2, 3), (0, 3)):
            there = zip((head, grant, ticket), versions, strict=True)
            seeded = {key: Record(key, b"before", version) for key, version in there if version}

            def look(
                prefix: RecordKey, most: int, _without: object = (), seeded: dict[RecordKey, Record] = seeded
            ) -> list[Record]:
                return [seeded[key] for key in seeded if key.startswith(prefix) and key != prefix][:most]

            expected = fold([rider], at=NOW, last_version=NOW - 1, records=seeded, limits=CAPABILITIES, ranges=look)
            connection = table(seeded)
            try:
                done = write_alone(connection, rider, lambda _, __: NOW)
            except apsw.ConstraintError:
                continue
            if done is None:
                assert content(connection) == seeded
                continue
            written += 1
            assert (done.outcomes, done.last_version) == (expected.outcomes, expected.last_version)
            after = seeded | expected.writes
            assert content(connection) == {key: record for key, record in after.items() if record is not None}
    assert written == 3  # a free mutex is taken, with or without a waiter, and given back if there is none


def test_a_commit_alone_after_the_last_version_is_left_to_the_fold() -> None:
    """Which refuses it."""
    connection, put = table({}), Put(KEYS[0], b"")
    count(connection, MAX_VERSION)
    assert write_alone(connection, CommitRider((put,)), lambda _, __: NOW) is None
    assert not content(connection)
    count(connection, MAX_VERSION - 1)
    assert write_alone(connection, CommitRider((put,)), lambda _, __: NOW) is not None


async def test_a_commit_alone_that_meets_a_record_leaves_nothing_behind(tmp_path: Path) -> None:
    """What it had inserted before is gone, and the answer names the record that was in the way."""
    async with sf.open(f"sqlite:///{tmp_path / 'a.db'}") as space:
        first, second = space.key("k", "1"), space.key("k", "2")
        there = await space.commit(Put(second, b"there"))
        answer = await space.commit(Put(first, b"new"), Put(second, b"new"))

        assert isinstance(answer, Conflict)
        assert {key: record and record.value for key, record in answer.current.items()} == {second: b"there"}
        seen = await space.read(first, second)
        assert seen.records.keys() == {second}
        assert isinstance(there, Commit)
        again = await space.commit(Put(first, b"new"), Check(second, there.versions[second]))
        assert isinstance(again, Commit)


def test_many_rows_are_inserted_by_few_statements_in_the_order_of_their_keys() -> None:
    """Those that fill a statement, and those that are left over, in whatever order their riders came."""
    for number in (1, 31, 32, 33, 64, 80):
        connection, keys = table({}), random.Random(number).sample(KEYS[:number], number)
        plain = PlainBatch.of([CommitRider((Put(key, key),)) for key in keys], NOW, LAST)
        assert plain is not None
        assert plain.write(connection) is not None
        rows = connection.execute("SELECT key, version, value FROM records ORDER BY rowid").fetchall()
        assert rows == [(key, LAST + 1 + keys.index(key), key) for key in KEYS[:number]]


def test_more_checks_than_one_statement_takes_are_all_looked_at() -> None:
    """The last of them is as good a guard as the first."""
    keys = [RecordKey("ns", f"{number:05}") for number in range(1_100)]
    connection = table({key: Record(key, b"", 7) for key in keys})

    def batch(last: int) -> list[CommitRider]:
        checks = [CommitRider((Check(key, 7), Put(key.child("new"), b""))) for key in keys[:-1]]
        return [*checks, CommitRider((Check(keys[-1], last), Put(keys[-1].child("new"), b"")))]

    wrong, right = PlainBatch.of(batch(6), NOW, LAST), PlainBatch.of(batch(7), NOW, LAST)
    assert wrong is not None
    assert right is not None
    assert wrong.write(connection) is None
    assert right.write(connection) is not None


def test_what_is_no_commit_or_has_no_version_left_is_not_plain() -> None:
    """Choices are folded; so is what comes after the last version, which folding refuses."""
    put = Put(KEYS[0], b"")
    others: list[list[Rider]] = [[CommitRider((put,)), ChoiceRider((Alternative((put,)),))]]
    for batch in others:
        assert PlainBatch.of(batch, NOW, LAST) is None
    assert PlainBatch.of([CommitRider((put,))], NOW, MAX_VERSION) is None
    assert PlainBatch.of([CommitRider((put,))], NOW, MAX_VERSION - 1) is not None


async def test_a_batch_of_which_one_is_refused_is_folded_and_its_like_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rider gets its own verdict, nothing of the first attempt is kept, and later batches are plain again."""
    tried: list[int] = []
    of = PlainBatch.of

    def counted(batch: Sequence[Rider], at: Instant, last_version: int) -> PlainBatch | None:
        tried.append(len(batch))
        return of(batch, at, last_version)

    monkeypatch.setattr(plain_batch.PlainBatch, "of", counted)
    async with sf.open(f"sqlite:///{tmp_path / 'a.db'}") as space:
        keys = [space.key("k", f"{number:03}") for number in range(40)]

        async def both(first: Change, second: Change) -> list[object]:
            space.store.expect_another()  # type: ignore[attr-defined] # pyright: ignore -- of a GroupedStore
            return [type(each) for each in await asyncio.gather(space.commit(first), space.commit(second))]

        assert await both(Put(keys[0], b"1"), Put(keys[1], b"1")) == [Commit, Commit]
        assert tried == [2]
        assert await both(Put(keys[0], b"2"), Put(keys[2], b"1")) == [Conflict, Commit]
        assert tried == [2, 2]
        seen = await space.read(*keys[:3])
        assert [seen.records[key].value for key in keys[:3]] == [b"1", b"1", b"1"]
        for number in range(plain_batch.PAUSE):
            put = Put(keys[3], b"", seen.version(keys[3]))
            assert await both(put, Put(space.key("more", f"{number}"), b"")) == [Commit, Commit]
            seen = await space.read(keys[3])
        assert tried == [2, 2]
        assert await both(Put(keys[4], b"1"), Put(keys[5], b"1")) == [Commit, Commit]
        assert tried == [2, 2, 2]
