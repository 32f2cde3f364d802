"""The caller's own SQL and Standfast's records in one transaction."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import apsw
import pytest

from standfast.clock import monotonic
from standfast.errors import InvalidChangeError, StoreError, UnsuitableStoreError, WorkTimeoutError
from standfast.keys import RecordKey
from standfast.scope import Scope
from standfast.stores import Commit, Conflict, GroupedStore, Put, Worked
from standfast.stores.memory import open_memory
from standfast.stores.sqlite import SqliteWork, open_sqlite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from standfast.stores import Change

K = RecordKey("ns", "k")
OTHER = RecordKey("ns", "other")
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[GroupedStore]:
    """An SQLite store with a table of the user's own."""
    opened = await open_sqlite(str(tmp_path / "h.db"))
    await opened.commit_with(
        lambda sql: sql.execute("CREATE TABLE paid (invoice TEXT)"), Put(RecordKey("ns", "made"), b"")
    )
    yield opened
    await opened.aclose()


def pay(sql: SqliteWork) -> int:
    """Write to the user's table and count its rows."""
    sql.executemany("INSERT INTO paid VALUES (?)", [("7",)])
    return int(sql.execute("SELECT count(*) FROM paid")[0][0])


async def paid(store: GroupedStore) -> int:
    """Count the rows of the user's table."""
    worked = await store.commit_with(
        lambda sql: sql.execute("SELECT count(*) FROM paid")[0][0], Put(RecordKey("ns", "look"), b"")
    )
    assert isinstance(worked, Worked)
    return int(worked.answer)


async def test_work_and_changes_happen_together(store: GroupedStore) -> None:
    """The work's answer comes back with the versions of the records."""
    worked = await store.commit_with(pay, Put(K, b"paid"))

    assert isinstance(worked, Worked)
    assert worked.answer == 1
    assert (await store.read(K)).version(K) == worked.versions[K]


async def test_a_lost_guard_runs_no_work(store: GroupedStore) -> None:
    """Whoever comes second pays nothing."""
    await store.commit_with(pay, Put(K, b"paid"))

    assert isinstance(await store.commit_with(pay, Put(K, b"paid again")), Conflict)
    assert await paid(store) == 1


async def test_work_that_raises_undoes_everything(store: GroupedStore) -> None:
    """Neither the user's row nor our record stays, and the store goes on."""

    def fail(sql: SqliteWork) -> None:
        pay(sql)
        raise LookupError("no such customer")

    with pytest.raises(LookupError, match="no such customer"):
        await store.commit_with(fail, Put(K, b"paid"))

    assert (await store.read(K)).records == {}
    assert await paid(store) == 0
    assert isinstance(await store.commit(Put(K, b"later")), Commit)


async def test_an_answer_that_cannot_be_recorded_undoes_the_work(store: GroupedStore) -> None:
    """Neither a lost guard nor an error in what follows leaves a row in the user's table."""

    def fail(_count: int) -> Sequence[Change]:
        raise LookupError("no place for it")

    await store.commit(Put(K, b"taken"))

    conflict = await store.commit_with(pay, Put(OTHER, b""), extra_changes=lambda _: [Put(K, b"paid")])
    assert isinstance(conflict, Conflict)
    with pytest.raises(LookupError, match="no place for it"):
        await store.commit_with(pay, Put(OTHER, b""), extra_changes=fail)
    assert await paid(store) == 0


async def test_an_answer_is_recorded_on_the_thread_of_the_work(store: GroupedStore) -> None:
    """What makes the record of an answer runs right after the work, where the work ran."""
    threads: list[int] = []

    def note(_answer: object) -> Sequence[Change]:
        threads.append(threading.get_ident())
        return [Put(K, b"paid")]

    await store.commit_with(lambda _: threads.append(threading.get_ident()), Put(OTHER, b""), extra_changes=note)

    assert threads[0] == threads[1] != threading.get_ident()


async def test_recording_an_answer_counts_as_work(store: GroupedStore) -> None:
    """All writers wait for it, so it has the same time limit."""

    def dawdle(_answer: object) -> Sequence[Change]:
        began = monotonic()
        while monotonic() - began < 0.05:
            pass
        return [Put(K, b"paid")]

    with pytest.raises(WorkTimeoutError, match="everything was undone"):
        await store.commit_with(pay, Put(OTHER, b""), timeout="10ms", extra_changes=dawdle)

    assert await paid(store) == 0


async def test_a_space_keeps_what_follows_inside(store: GroupedStore) -> None:
    """Neither part of the commit may name a key of another tenant."""
    mine, other = Scope(store, tenant="mine"), Scope(store, tenant="other")
    key, strange = mine.key("k"), other.key("k")

    worked = await mine.commit_with(pay, Put(key, b""), extra_changes=lambda _: [Put(mine.key("b"), b"")])
    assert isinstance(worked, Worked)
    assert set(worked.versions) == {key, mine.key("b")}
    with pytest.raises(InvalidChangeError, match="does not lie in"):
        await mine.commit_with(pay, Put(strange, b""))
    with pytest.raises(InvalidChangeError, match="does not lie in"):
        await mine.commit_with(pay, Put(mine.key("c"), b""), extra_changes=lambda _: [Put(strange, b"")])
    assert await paid(store) == 1


async def test_work_that_takes_too_long_is_undone(store: GroupedStore) -> None:
    """A statement without end is interrupted at the time limit."""
    with pytest.raises(WorkTimeoutError, match="everything was undone"):
        await store.commit_with(lambda sql: sql.execute(ENDLESS), Put(K, b""), timeout="50ms")

    assert (await store.read(K)).records == {}


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "SAVEPOINT mine",
        "SELECT * FROM records",
        "DELETE FROM counters",
        "DROP TABLE facts",
        "ALTER TABLE records RENAME TO mine",
        "PRAGMA user_version = 9",
        "ATTACH 'other.db' AS other",
        'CREATE TEMP TABLE "RECORDS" (key, version, expires_at, value)',
        "CREATE TEMP VIEW Counters AS SELECT 1",
        "CREATE TRIGGER mine AFTER INSERT ON records BEGIN DELETE FROM paid; END",
        "CREATE TEMP TRIGGER mine AFTER INSERT ON main.Records BEGIN DELETE FROM paid; END",
        "CREATE INDEX mine ON records (value)",
    ],
)
async def test_work_is_kept_to_its_own_tables(store: GroupedStore, statement: str) -> None:
    """Our tables, the transaction and the database's settings are out of its reach."""
    with pytest.raises(apsw.AuthError):
        await store.commit_with(lambda sql: sql.execute(statement), Put(K, b""))

    assert isinstance(await store.commit(Put(K, b"")), Commit)


async def test_no_table_of_the_user_can_take_the_place_of_ours(store: GroupedStore) -> None:
    """A temporary table, renamed to a name of ours, receives none of our records."""

    def shadow(sql: SqliteWork) -> None:
        sql.execute("CREATE TEMP TABLE mine (key PRIMARY KEY, version, expires_at, value)")
        sql.execute("ALTER TABLE temp.mine RENAME TO records")

    await store.commit_with(shadow, Put(RecordKey("ns", "shadow"), b""))
    await store.commit(Put(K, b"kept"))

    assert (await store.read(K)).records[K].value == b"kept"


async def test_sql_that_rolls_back_by_itself_undoes_everything(store: GroupedStore) -> None:
    """An error that ends the transaction cannot be caught to write the rest outside of one."""

    def pay_twice(sql: SqliteWork) -> None:
        sql.execute("CREATE UNIQUE INDEX once ON paid (invoice)")
        pay(sql)
        with contextlib.suppress(apsw.ConstraintError):
            sql.execute("INSERT OR ROLLBACK INTO paid VALUES ('7')")

    with pytest.raises(StoreError, match="nothing was written"):
        await store.commit_with(pay_twice, Put(K, b"paid"))

    assert (await store.read(K)).records == {}
    assert await paid(store) == 0


async def test_sql_after_a_rollback_is_refused(store: GroupedStore) -> None:
    """What would be written outside of the transaction is not written at all."""

    def go_on(sql: SqliteWork) -> None:
        with contextlib.suppress(apsw.ConstraintError):
            sql.execute("CREATE TABLE own (a UNIQUE ON CONFLICT ROLLBACK)")
            sql.executemany("INSERT INTO own VALUES (?)", [(1,), (1,)])
        pay(sql)

    with pytest.raises(StoreError, match="nothing was written"):
        await store.commit_with(go_on, Put(K, b"paid"))

    assert await paid(store) == 0


async def test_the_connection_is_of_no_use_after_the_work(store: GroupedStore) -> None:
    """Nobody can keep it and write outside of a transaction."""
    kept: list[SqliteWork] = []
    await store.commit_with(kept.append, Put(K, b""))

    with pytest.raises(RuntimeError, match="the transaction is over"):
        kept[0].execute("SELECT 1")


async def test_a_store_without_sql_says_so() -> None:
    """Memory has no transaction to share."""
    store = open_memory()

    with pytest.raises(UnsuitableStoreError, match="cannot share a transaction"):
        await store.commit_with(lambda _: None, Put(K, b""))
    await store.aclose()
