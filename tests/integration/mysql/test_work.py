"""The user's own SQL and a commit in one transaction, on MariaDB."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from asyncmy.errors import ProgrammingError

import standfast as sf
from standfast.errors import StoreError, WorkTimeoutError
from standfast.keys import RecordKey
from standfast.stores import Check, Conflict, Put, Worked
from tests.integration.mysql.ground import opened, place, prefix_of, run_sql

if TYPE_CHECKING:
    from standfast.stores.mysql import MysqlWork

A, B = RecordKey("n", "a"), RecordKey("n", "b")


@pytest.fixture
async def url(mysql_url: str) -> str:
    """A place with a table of the user's."""
    url = place(mysql_url)
    await run_sql(url, f"CREATE TABLE {prefix_of(url)}_mine (id INT PRIMARY KEY, note TEXT) ENGINE=InnoDB")
    return url


async def mine(url: str) -> list[tuple[Any, ...]]:
    """What is in the user's table."""
    return await run_sql(url, f"SELECT * FROM {prefix_of(url)}_mine")


def recorded(answer: Any) -> list[Put]:
    """A record of what the work answered."""
    return [Put(B, b"%d" % answer)]


async def test_rows_and_records_are_written_together(url: str) -> None:
    """The work may be a coroutine function; what it answers goes into a record."""

    async def work(sql: MysqlWork) -> int:
        await sql.executemany(f"INSERT INTO {prefix_of(url)}_mine VALUES (%s, %s)", [(1, "a"), (2, "b")])
        [[count]] = await sql.execute(f"SELECT COUNT(*) FROM {prefix_of(url)}_mine WHERE id<%s", (9,))
        return int(count)

    async with opened(url) as [store]:
        worked: Any = await store.commit_with(work, Put(A, b""), extra_changes=recorded)

        assert isinstance(worked, Worked)
        assert (await store.read(B)).records[B].value == b"2"
    assert await mine(url) == [(1, "a"), (2, "b")]


async def test_a_guard_that_does_not_hold_keeps_the_work_from_running(url: str) -> None:
    """Nothing is called, nothing is written."""
    async with opened(url) as [store]:
        answer = await store.commit_with(lambda _: pytest.fail("it ran"), Check(A, 5))

    assert isinstance(answer, Conflict)


async def test_an_error_of_the_work_undoes_everything(url: str) -> None:
    """It arrives as the driver said it, and neither rows nor records are there."""

    async def work(sql: MysqlWork) -> None:
        await sql.execute(f"INSERT INTO {prefix_of(url)}_mine VALUES (1, 'a')")
        await sql.execute("SELECT nonsense FROM nowhere")

    async with opened(url) as [store]:
        with pytest.raises(ProgrammingError):
            await store.commit_with(work, Put(A, b""))

        assert (await store.read(A)).get(A) is None
    assert await mine(url) == []


async def test_work_that_ends_the_transaction_is_found_out(url: str) -> None:
    """A change of a table commits by itself here: nothing of the commit is written then."""

    async def work(sql: MysqlWork) -> None:
        await sql.execute(f"ALTER TABLE {prefix_of(url)}_mine ADD COLUMN more INT")

    async with opened(url) as [store]:
        with pytest.raises(StoreError, match="ended the transaction"):
            await store.commit_with(work, Put(A, b""))

        assert (await store.read(A)).get(A) is None


async def test_a_connection_that_is_lost_within_the_work_is_made_good_by_the_engine(url: str) -> None:
    """The work is undone by the server, and done again: what the driver told it is not its outcome."""
    attempts: list[int] = []

    async def note(sql: MysqlWork) -> int:
        attempts.append(1)
        insert = f"INSERT INTO {prefix_of(url)}_mine VALUES (%s, 'a')"
        await sql.execute(insert, (len(attempts),))
        if len(attempts) == 1:
            [[number]] = await sql.execute("SELECT CONNECTION_ID()")
            await run_sql(url, f"KILL {number}")
            await sql.execute(insert, (7,))
        return len(attempts)

    @sf.workflow
    async def noting(ctx: sf.Context) -> int:
        return await ctx.transaction(note)

    async with sf.Engine(url, workflows=[noting]) as engine:
        assert await (await engine.start(noting)).result(timeout=40) == 2
    assert await mine(url) == [(2, "a")]


async def test_work_that_takes_too_long_is_undone(url: str) -> None:
    """The store goes on with another connection."""

    async def work(sql: MysqlWork) -> None:
        await sql.execute(f"INSERT INTO {prefix_of(url)}_mine VALUES (1, 'a')")
        await sql.execute("DO SLEEP(5)")

    async with opened(url) as [store]:
        with pytest.raises(WorkTimeoutError):
            await store.commit_with(work, Put(A, b""), timeout=0.1)
        await store.commit(Put(A, b"free"))
    assert await mine(url) == []


async def test_the_connection_is_of_no_use_when_the_work_is_over(url: str) -> None:
    """Whoever keeps it is told."""
    kept: list[MysqlWork] = []

    async with opened(url) as [store]:
        await store.commit_with(kept.append, Put(A, b""))
        with pytest.raises(RuntimeError, match="the transaction is over"):
            await kept[0].execute("SELECT 1")


async def test_of_two_works_that_create_the_same_key_one_is_undone(url: str) -> None:
    """Both had run; the rows of the one that was late are not there."""

    def work(number: int) -> Any:
        async def insert(sql: MysqlWork) -> None:
            await sql.execute(f"INSERT INTO {prefix_of(url)}_mine VALUES (%s, '')", (number,))
            await asyncio.sleep(0.02)

        return insert

    async with opened(url, url) as [one, two]:
        answers = await asyncio.gather(one.commit_with(work(1), Put(A, b"")), two.commit_with(work(2), Put(A, b"")))

    assert {type(answer) for answer in answers} == {Worked, Conflict}
    assert len(await mine(url)) == 1


@pytest.mark.parametrize("is_raised", [False, True])
async def test_settings_that_the_work_changes_are_put_back(url: str, *, is_raised: bool) -> None:
    """What guards a commit is that nothing is replaced silently, also in the transactions after it."""

    async def careless(sql: MysqlWork) -> None:
        await sql.execute("SET SESSION sql_mode=''")
        await sql.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if is_raised:
            raise ZeroDivisionError

    async def settings(sql: MysqlWork) -> Any:
        return await sql.execute("SELECT @@SESSION.sql_mode,@@SESSION.tx_isolation")

    async with opened(url) as [store]:
        before: Any = await store.commit_with(settings, Put(A.child("before"), b""))
        with pytest.raises(ZeroDivisionError) if is_raised else contextlib.nullcontext():
            await store.commit_with(careless, Put(A, b""))
        after: Any = await store.commit_with(settings, Put(A.child("after"), b""))

    assert after.answer == before.answer
