"""Runs that are started in a transaction of the user's own: they are there if and only if it is committed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Literal

import asyncpg
import psycopg
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

import standfast as sf
from standfast.errors import (
    DeclarationError,
    InvalidArgumentError,
    RunNotFoundError,
    UnsuitableStoreError,
    WorkflowAlreadyExistsError,
)
from standfast.keys import RecordKey
from standfast.stores.url import open_store
from standfast.workflows.records import HEADERS, RunKeys
from tests.integration.postgresql.joined import (
    AWAITED,
    SCHEMA,
    Ground,
    RolledBackError,
    asyncpg_connection,
    make_ground,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from standfast.stores import GroupedStore


@sf.workflow
async def ship(ctx: sf.Context, order: str) -> str:
    """Say where an order is."""
    return f"{order} is on its way at {ctx.run_id}"


@sf.workflow(concurrency=sf.Limit(1, on_limit="queue", ttl="1 hour"))
async def one_at_a_time(_: sf.Context, order: str) -> str:
    """Wait in line."""
    return order


@sf.workflow(concurrency=sf.Limit(1))
async def one_or_none(_: sf.Context, order: str) -> str:
    """Be rejected where there is one already."""
    return order


@pytest.fixture
async def ground(postgresql_url: str) -> Ground:
    """A place of its own."""
    return await make_ground(postgresql_url)


@pytest.fixture
async def engine(ground: Ground) -> AsyncIterator[sf.Engine]:
    """An engine that drives runs."""
    known = [ship, one_at_a_time, one_or_none]
    async with sf.Engine(ground.url, namespace=ground.namespace, workflows=known) as engine:
        yield engine


@pytest.mark.parametrize("kind", AWAITED)
async def test_a_committed_transaction_has_started_its_run(ground: Ground, engine: sf.Engine, kind: str) -> None:
    """Whatever the connection is, the run and the effect are there together, and a worker drives the run."""
    async with AWAITED[kind](ground) as guested:
        await guested.run(ground.write("order-1"))
        run = await engine.start(ship, "order-1", id="order-1", connection=guested.connection)
        with pytest.raises(RunNotFoundError):
            await engine.get("order-1")

    assert run.is_new
    assert await run.result(timeout=20) == "order-1 is on its way at order-1"
    assert await ground.effects() == ["order-1"]


@pytest.mark.parametrize("kind", AWAITED)
async def test_a_transaction_that_is_rolled_back_has_started_nothing(
    ground: Ground, engine: sf.Engine, kind: str
) -> None:
    """Neither the run nor the effect is there, and the same id is free."""
    with contextlib.suppress(RolledBackError):
        async with AWAITED[kind](ground) as guested:
            await guested.run(ground.write("order-1"))
            await engine.start(ship, "order-1", id="order-1", connection=guested.connection)
            raise RolledBackError

    assert await ground.effects() == []
    assert (await engine.start(ship, "another", id="order-1")).is_new


async def test_a_transaction_starts_a_run_under_the_id_of_a_purged_one(ground: Ground, engine: sf.Engine) -> None:
    """What is left under the id counts as no run, and how often the id was used is kept."""
    await (await engine.start(ship, "order-1", id="order-1")).result(timeout=20)
    await engine.purge("order-1")
    async with asyncpg_connection(ground) as guested:
        run = await engine.start(ship, "order-1", id="order-1", connection=guested.connection)

    assert run.is_new
    assert await run.result(timeout=20) == "order-1 is on its way at order-1"
    keys = RunKeys(engine.space, "order-1")
    header = (await engine.space.read(keys.header)).records[keys.header]
    assert HEADERS.decode(header.value).incarnation == 2


async def test_the_same_start_in_the_same_transaction_is_one_run(ground: Ground, engine: sf.Engine) -> None:
    """What was started a moment ago is found, though nobody else can see it yet."""
    async with asyncpg_connection(ground) as guested:
        first = await engine.start(ship, "o", idempotency_key="k", connection=guested.connection)
        again = await engine.start(ship, "o", idempotency_key="k", connection=guested.connection)

    assert (first.is_new, again.is_new) == (True, False)
    assert first.id == again.id
    assert await first.result(timeout=20)


async def test_another_start_with_that_id_leaves_the_transaction_as_it_is(ground: Ground, engine: sf.Engine) -> None:
    """It is refused, and what else the transaction does can still be committed."""
    await engine.start(ship, "mine", id="order-1")

    async with asyncpg_connection(ground) as guested:
        with pytest.raises(WorkflowAlreadyExistsError):
            await engine.start(ship, "theirs", id="order-1", connection=guested.connection)
        same = await engine.start(ship, "mine", id="order-1", connection=guested.connection)
        await guested.run(ground.write("all the same"))

    assert not same.is_new
    assert await ground.effects() == ["all the same"]


async def test_of_two_transactions_that_start_the_same_run_one_does(ground: Ground, engine: sf.Engine) -> None:
    """The second waits for the first; it finds that run if it was committed, without being aborted itself."""
    async with asyncpg_connection(ground) as second:
        async with asyncpg_connection(ground) as first:
            run = await engine.start(ship, "o", id="o", connection=first.connection)
            racing = asyncio.create_task(engine.start(ship, "o", id="o", connection=second.connection))
            await _until_it_waits(ground, second.connection)
        met = await racing
        await second.run(ground.write("second"))

    assert (run.is_new, met.is_new) == (True, False)
    assert await ground.effects() == ["second"]


async def _until_it_waits(ground: Ground, connection: asyncpg.Connection) -> None:
    other = await asyncpg.connect(ground.server)
    blocking = "SELECT cardinality(pg_blocking_pids($1))"
    try:
        while not await other.fetchval(blocking, connection.get_server_pid()):
            continue
    finally:
        await other.close()


async def test_workers_are_told_when_the_transaction_is_committed(ground: Ground, engine: sf.Engine) -> None:
    """The hint comes from the server at the commit, and names the run; nobody has to look for it."""
    store: GroupedStore = await open_store(ground.url)
    ready = RunKeys(engine.space, "later").ready
    async with store.watch(ready) as watch:
        async with asyncpg_connection(ground) as guested:
            while (await watch.wait(0)) is not None:
                continue
            await engine.start(ship, "o", id="later", connection=guested.connection)
        async with asyncio.timeout(20):
            while (hint := await watch.wait()) is None or ready not in hint.about:
                continue
    await store.aclose()


async def test_runs_wait_in_line_once_they_are_committed(ground: Ground, engine: sf.Engine) -> None:
    """With a limit that queues, workers let the run enter its line, and all of them are driven."""
    async with asyncpg_connection(ground) as guested:
        runs = [await engine.start(one_at_a_time, f"{n}", connection=guested.connection) for n in range(3)]

    assert [await run.result(timeout=20) for run in runs] == ["0", "1", "2"]


async def test_a_run_that_waits_for_a_worker_can_be_cancelled(ground: Ground) -> None:
    """It stands in no line yet, and ends all the same."""
    async with sf.Engine(ground.url, namespace=ground.namespace, workflows=[one_at_a_time], drive=False) as engine:
        async with asyncpg_connection(ground) as guested:
            run = await engine.start(one_at_a_time, "o", connection=guested.connection)
        await run.cancel()

        assert (await run.info()).status == "cancelled"


async def test_a_limit_that_rejects_is_refused_before_anything_is_written(ground: Ground, engine: sf.Engine) -> None:
    """Whether it rejects cannot be known before the commit, so the start says what to do instead."""
    async with asyncpg_connection(ground) as guested:
        with pytest.raises(DeclarationError, match="queue"):
            await engine.start(one_or_none, "o", connection=guested.connection)
        with pytest.raises(DeclarationError, match="delay"):
            await engine.start(one_at_a_time, "o", delay=5, connection=guested.connection)
        await guested.run(ground.write("goes on"))

    assert await ground.effects() == ["goes on"]


async def test_a_delayed_start_begins_after_its_delay(ground: Ground, engine: sf.Engine) -> None:
    """A delay counts from the start, not from the commit."""
    async with asyncpg_connection(ground) as guested:
        run = await engine.start(ship, "o", delay=0.2, connection=guested.connection)

    assert await run.result(timeout=20)


# --- what is refused ---------------------------------------------------------------------------------------------


async def test_a_connection_without_a_transaction_is_refused(ground: Ground, engine: sf.Engine) -> None:
    """With autocommit the run would be there at once: the server notices, and nothing is written."""
    plain = await asyncpg.connect(ground.server)
    committing = await psycopg.AsyncConnection.connect(ground.server, autocommit=True)
    alchemy = create_async_engine(ground.of("asyncpg"), isolation_level="AUTOCOMMIT")
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(plain.close)
        stack.push_async_callback(committing.close)
        stack.push_async_callback(alchemy.dispose)
        isolated = await stack.enter_async_context(alchemy.connect())

        for connection in (plain, committing, isolated):
            with pytest.raises(InvalidArgumentError, match="transaction"):
                await engine.start(ship, "o", id="o", connection=connection)

    with pytest.raises(RunNotFoundError):
        await engine.get("o")


async def test_a_connection_to_another_database_is_refused(ground: Ground, engine: sf.Engine) -> None:
    """Be there a store of its own, or none."""
    elsewhere = Ground(f"{ground.server.rpartition('/')[0]}/postgres", ground.namespace)
    async with asyncpg_connection(elsewhere) as guested:
        with pytest.raises(InvalidArgumentError, match="another database"):
            await engine.start(ship, "o", connection=guested.connection)

    await (await open_store(elsewhere.url)).aclose()
    async with asyncpg_connection(elsewhere) as guested:
        with pytest.raises(InvalidArgumentError, match="another database"):
            await engine.start(ship, "o", connection=guested.connection)


async def test_what_is_no_connection_is_refused(ground: Ground, engine: sf.Engine) -> None:
    """The error says what can be passed."""
    with pytest.raises(InvalidArgumentError, match="asyncpg or psycopg"):
        await engine.start(ship, "o", connection=object())
    with psycopg.connect(ground.server) as blocking, pytest.raises(InvalidArgumentError, match="blocks"):
        await engine.start(ship, "o", connection=blocking)


async def test_a_store_without_transactions_to_join_is_refused(ground: Ground) -> None:
    """Only PostgreSQL can; the error says what to do on others."""
    async with sf.Engine("memory://", workflows=[ship]) as engine, asyncpg_connection(ground) as guested:
        with pytest.raises(UnsuitableStoreError, match="after your commit"):
            await engine.start(ship, "o", connection=guested.connection)


async def test_a_user_without_privileges_is_told_how_to_get_them(ground: Ground, engine: sf.Engine) -> None:
    """And with them the start goes through: no right on the tables of the store is needed beyond those."""
    connection = await asyncpg.connect(ground.server)
    role = f"r{ground.namespace.replace('-', '')}"
    try:
        await connection.execute(f"CREATE ROLE {role}")
        for allowed in (False, True):
            async with connection.transaction():
                await connection.execute(f"SET LOCAL ROLE {role}")
                if allowed:
                    assert (await engine.start(ship, "o", id="o", connection=connection)).is_new
                else:
                    with pytest.raises(InvalidArgumentError, match="grant_to"):
                        await engine.start(ship, "o", id="o", connection=connection)
            await connection.execute(f"SELECT {SCHEMA}.grant_to('{role}')")
    finally:
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
        await connection.close()
    assert await engine.result("o", timeout=20)


# --- other circumstances -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["read_committed", "repeatable_read", "serializable"])
async def test_a_transaction_of_any_isolation_starts_runs(
    ground: Ground, engine: sf.Engine, level: Literal["read_committed", "repeatable_read", "serializable"]
) -> None:
    """The run is there when it is committed, and the same start is found there."""
    connection = await asyncpg.connect(ground.server)
    try:
        async with connection.transaction(isolation=level):
            assert (await engine.start(ship, "o", id="o", connection=connection)).is_new
        assert await engine.result("o", timeout=20)  # until then a strict transaction may be told to begin anew
        async with connection.transaction(isolation=level):
            assert not (await engine.start(ship, "o", id="o", connection=connection)).is_new
    finally:
        await connection.close()


async def test_a_savepoint_that_is_rolled_back_takes_its_run_along(ground: Ground, engine: sf.Engine) -> None:
    """What is around it is committed."""
    async with asyncpg_connection(ground) as guested:
        await engine.start(ship, "kept", id="kept", connection=guested.connection)
        with contextlib.suppress(RolledBackError):
            async with guested.connection.transaction():
                await engine.start(ship, "gone", id="gone", connection=guested.connection)
                raise RolledBackError

    assert await engine.result("kept", timeout=20)
    with pytest.raises(RunNotFoundError):
        await engine.get("gone")


async def test_it_works_through_a_pooler(ground: Ground, pgbouncer_url: str) -> None:
    """The user's transaction and the store's own come by pgbouncer, in transaction mode, and may share its sessions."""
    connection = await asyncpg.connect(pgbouncer_url, statement_cache_size=0)
    url = f"{pgbouncer_url}?schema={SCHEMA}"
    try:
        async with sf.Engine(url, namespace=ground.namespace, workflows=[ship]) as engine:
            async with connection.transaction():
                await connection.execute(ground.write("o"))
                run = await engine.start(ship, "o", connection=connection)
            assert await run.result(timeout=20)
            with pytest.raises(InvalidArgumentError, match="transaction"):
                await engine.start(ship, "o", connection=connection)
    finally:
        await connection.close()
    assert await ground.effects() == ["o"]


async def test_what_is_written_there_is_sealed_like_everything_else(ground: Ground) -> None:
    """With keys, the records of the run cannot be read in the user's transaction either; the engine can."""
    keyring = sf.admin.Keyring({"key": b"k" * 32})
    async with (
        sf.Engine(sf.open(ground.url, namespace=ground.namespace, encryption=keyring), workflows=[ship]) as engine,
        asyncpg_connection(ground) as guested,
    ):
        for is_new in (True, False):
            run = await engine.start(ship, "tell nobody", id="o", connection=guested.connection)
            assert run.is_new is is_new
        stored = await guested.connection.fetch(
            f"SELECT value FROM {SCHEMA}.records WHERE position($1 in key) = 1",  # noqa: S608 -- a name of our own
            bytes(RecordKey(ground.namespace)),
        )

    assert len(stored) >= 3
    assert not any(b"tell nobody" in row["value"] for row in stored)
