"""The user's own SQL and a commit in one transaction, on PostgreSQL."""

# ruff: noqa: S608 -- the names are made up here

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from standfast.errors import AttemptClosedError, InvalidChangeError, StoreError, WorkTimeoutError
from standfast.keys import RecordKey
from standfast.stores import Conflict, Put, Worked
from standfast.stores.backend import CommitRider, WorkRider
from tests.integration.postgresql.ground import made, opened, run_sql, schema_of, server_of

if TYPE_CHECKING:
    from standfast.stores.postgresql import PostgresWork

A = RecordKey("n", "a")


@pytest.fixture
async def url(postgresql_url: str) -> str:
    """A place with a table of the user's."""
    url = await made(postgresql_url)
    await run_sql(url, "CREATE TABLE mine_@ (id int PRIMARY KEY)")
    return url


async def mine(url: str) -> int:
    """Return how much is in the user's table."""
    return len(await run_sql(url, "SELECT FROM mine_@"))


async def test_a_key_that_was_created_meanwhile_is_a_conflict(url: str) -> None:
    """Nobody could lock what was not there; all the work is undone, and the record that came first is shown."""

    async def work(sql: PostgresWork) -> None:
        await sql.execute(f"INSERT INTO mine_{schema_of(url)} VALUES (1)")
        await other.commit(Put(A, b"theirs"))

    async with opened(url, url) as [store, other]:
        answer = await store.commit_with(work, Put(A, b"mine"))

        assert isinstance(answer, Conflict)
        record = answer.current[A]
        assert record is not None
        assert record.value == b"theirs"
        await store.commit_with(lambda _: None, Put(A, b"next", record.version))
    assert await mine(url) == 0


async def test_work_of_an_attempt_that_was_closed_is_undone_and_told_so(url: str) -> None:
    """It cannot be taken for a server that is away."""

    async def work(sql: PostgresWork) -> None:
        await sql.execute(f"INSERT INTO mine_{schema_of(url)} VALUES (1)")

    async with opened(url) as [store]:
        server = server_of(store)
        await server.close_attempt("handle", 1, b"")
        rider = WorkRider(CommitRider((Put(A, b""),), None, None, ()), work, 5.0, None)
        with pytest.raises(AttemptClosedError):
            await server.work(rider, "handle", 1, lambda _: None)
    assert await mine(url) == 0


@pytest.mark.parametrize("statement", ["DELETE FROM {}.records", 'SELECT "{}" . sweep(1)', "select {}.Write()"])
async def test_what_is_the_stores_own_is_refused(url: str, statement: str) -> None:
    """By its full name; its views may be read."""
    async with opened(url) as [store]:
        with pytest.raises(InvalidChangeError, match="its own"):
            await store.commit_with(lambda sql: sql.execute(statement.format(schema_of(url))), Put(A, b""))

        assert isinstance(
            await store.commit_with(lambda sql: sql.fetch(f"SELECT * FROM {schema_of(url)}.runs"), Put(A, b"")),
            Worked,
        )


@pytest.mark.parametrize("statement", ["COMMIT", " rollback", "BEGIN", "abort;", "end"])
async def test_the_transaction_cannot_be_ended_by_the_work(url: str, statement: str) -> None:
    """It belongs to the store."""
    async with opened(url) as [store]:
        with pytest.raises(InvalidChangeError, match="savepoint"):
            await store.commit_with(lambda sql: sql.execute(statement), Put(A, b""))

        assert (await store.read(A)).get(A) is None


async def test_a_transaction_that_was_ended_out_of_sight_is_noticed(url: str) -> None:
    """Nothing of the store's is written then."""
    async with opened(url) as [store]:
        with pytest.raises(StoreError, match="ended"):
            await store.commit_with(lambda sql: sql.execute("SELECT 1; COMMIT; BEGIN"), Put(A, b""))

        assert (await store.read(A)).get(A) is None


async def test_a_part_that_fails_can_be_undone_alone(url: str) -> None:
    """By a savepoint."""

    async def work(sql: PostgresWork) -> None:
        await sql.execute(f"INSERT INTO mine_{schema_of(url)} VALUES (1)")
        with pytest.raises(asyncpg.UniqueViolationError):
            async with sql.savepoint():
                await sql.execute(f"INSERT INTO mine_{schema_of(url)} VALUES (2), (1)")

    async with opened(url) as [store]:
        assert isinstance(await store.commit_with(work, Put(A, b"")), Worked)
    assert await mine(url) == 1


async def test_work_has_its_own_time_limit(url: str) -> None:
    """That of the URL is for the store's own calls; a statement may take longer."""

    async def work(sql: PostgresWork) -> None:
        await sql.execute("SELECT pg_sleep(0.4)")

    async with opened(f"{url}&timeout=200ms") as [store]:
        assert isinstance(await store.commit_with(work, Put(A, b""), timeout=5), Worked)
        with pytest.raises(WorkTimeoutError):
            await store.commit_with(work, Put(RecordKey("n", "b"), b""), timeout=0.1)


async def test_work_that_is_cancelled_has_done_nothing(url: str) -> None:
    """Whoever is cancelled learns that, and the store goes on."""
    begun = asyncio.Event()

    async def work(sql: PostgresWork) -> Any:
        await sql.execute(f"INSERT INTO mine_{schema_of(url)} VALUES (1)")
        begun.set()
        await asyncio.sleep(0.1)
        raise LookupError

    async with opened(url) as [store]:
        task = asyncio.create_task(store.commit_with(work, Put(A, b"")))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.read(A)
    assert await mine(url) == 0
