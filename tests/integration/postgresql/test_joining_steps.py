"""Steps that write their record in a transaction of their own: effect and record are there together, or neither is."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest

import standfast as sf
from standfast.errors import RunFailedError, StepNotRecordedError, UnsuitableStoreError
from standfast.stores.protocol import Put
from standfast.workflows.records import OWNERSHIPS, Ownership
from standfast.workflows.replay import CURRENT
from tests.integration.postgresql.joined import (
    AWAITED,
    BLOCKING,
    SCHEMA,
    Ground,
    RolledBackError,
    asyncpg_connection,
    blocking_psycopg,
    make_ground,
)


def roll_back() -> None:
    """Have a transaction rolled back."""
    raise RolledBackError


QUICKLY = sf.Retry(attempts=3, delay=0.01)


@pytest.fixture
async def ground(postgresql_url: str) -> Ground:
    """A place of its own."""
    return await make_ground(postgresql_url)


def engine_of(ground: Ground, *workflows: sf.Workflow[..., Any], **options: Any) -> sf.Engine:
    """Return an engine."""
    return sf.Engine(ground.url, namespace=ground.namespace, workflows=workflows, **options)


@pytest.mark.parametrize("kind", AWAITED)
async def test_an_async_step_records_itself(ground: Ground, kind: str) -> None:
    """Its result is what it has recorded; the run's history has it once, and replays it."""

    @sf.step
    async def charge(order: str) -> int:
        async with AWAITED[kind](ground) as guested:
            await guested.run(ground.write(order))
            await sf.current_step().record_with(guested.connection, 7)
        return 0

    @sf.workflow
    async def pay(ctx: sf.Context) -> list[int]:
        return [await ctx.step(charge, "a"), await ctx.step(charge, "b")]

    async with engine_of(ground, pay) as engine:
        run = await engine.start(pay, id="pay")

        assert await run.result(timeout=20) == [7, 7]
        assert [entry.kind for entry in await run.history()] == ["transaction", "went_on"] * 2
    assert await ground.effects() == ["a", "b"]


@pytest.mark.parametrize("kind", BLOCKING)
async def test_a_plain_step_records_itself(ground: Ground, kind: str) -> None:
    """It runs in a thread, with a connection that blocks."""

    @sf.step
    def charge(order: str) -> int:
        with BLOCKING[kind](ground) as guested:
            guested.run(ground.write(order))
            sf.current_step().record_with(guested.connection, 7)
        return 0

    @sf.workflow
    async def pay(ctx: sf.Context) -> int:
        return await ctx.step(charge, "a")

    async with engine_of(ground, pay) as engine:
        assert await (await engine.start(pay)).result(timeout=20) == 7
    assert await ground.effects() == ["a"]


@pytest.mark.parametrize("ending", ["raises after the commit", "rolls back", "swallows its rollback"])
async def test_what_counts_is_whether_the_transaction_was_committed(ground: Ground, ending: str) -> None:
    """A step that raised after its commit has happened; one that was rolled back has not, whatever it returns."""
    attempts: list[int] = []

    @sf.step(retry=QUICKLY)
    async def charge() -> int:
        attempts.append(1)
        try:
            async with asyncpg_connection(ground) as guested:
                await guested.run(ground.write(f"{len(attempts)}"))
                await sf.current_step().record_with(guested.connection, len(attempts))
                if ending != "raises after the commit" and len(attempts) == 1:
                    roll_back()
        except RolledBackError:
            if ending == "rolls back":
                raise
        if ending == "raises after the commit":
            raise ConnectionResetError
        return 0

    @sf.workflow
    async def pay(ctx: sf.Context) -> int:
        return await ctx.step(charge)

    async with engine_of(ground, pay) as engine:
        result = await (await engine.start(pay)).result(timeout=20)

    assert await ground.effects() == [str(result)]
    assert result == len(attempts) == (1 if ending == "raises after the commit" else 2)


async def test_a_step_that_does_not_commit_has_failed(ground: Ground) -> None:
    """The error says so; the transaction that was left open is ended by the server, and nothing of it is there."""
    left: list[psycopg.Connection] = []

    @sf.step(retry=sf.Retry(attempts=1))
    def charge() -> None:
        left.append(connection := psycopg.connect(ground.server))
        connection.execute(ground.write("forgotten"))
        sf.current_step().record_with(connection)

    @sf.workflow(raises=[StepNotRecordedError])
    async def pay(ctx: sf.Context) -> str:
        try:
            await ctx.step(charge)
        except StepNotRecordedError as problem:
            left.pop().close()
            return problem.problem
        return ""

    async with engine_of(ground, pay) as engine:
        assert "not committed" in await (await engine.start(pay)).result(timeout=20)
    assert await ground.effects() == []


async def test_a_step_that_does_not_await_its_record_has_failed(ground: Ground) -> None:
    """That is found out at once, and not when a worker dies."""

    @sf.step(retry=sf.Retry(attempts=1))
    async def charge() -> None:
        async with asyncpg_connection(ground) as guested:
            sf.current_step().record_with(guested.connection)

    @sf.workflow
    async def pay(ctx: sf.Context) -> None:
        await ctx.step(charge)

    async with engine_of(ground, pay) as engine:
        with pytest.raises(RunFailedError, match="await it"):
            await (await engine.start(pay)).result(timeout=20)


async def test_whoever_was_taken_over_cannot_record(ground: Ground) -> None:
    """The guard fails inside the user's transaction, which is rolled back: its effect is not there."""
    told: list[BaseException] = []

    @sf.step(retry=QUICKLY)
    async def charge() -> str:
        async with asyncpg_connection(ground) as guested:
            await guested.run(ground.write("mine"))
            if not told:
                await take_over(engine)
            try:
                await sf.current_step().record_with(guested.connection, "done")
            except StepNotRecordedError as problem:
                told.append(problem)
                raise
        return "done"

    @sf.workflow
    async def pay(ctx: sf.Context) -> str:
        return await ctx.step(charge)

    async def take_over(engine: sf.Engine) -> None:
        [activation] = engine.runtime.loaded.values()
        claim = activation.claim
        assert claim is not None
        grant = OWNERSHIPS.encode(Ownership("pay", activation.runtime.now()))
        await engine.space.commit(Put(claim.key, grant, claim.fence))
        engine.runtime.dropped.add("pay")

    async with engine_of(ground, pay) as engine:
        assert await (await engine.start(pay, id="pay")).result(timeout=30) == "done"
    assert [type(each) for each in told] == [StepNotRecordedError]
    assert await ground.effects() == ["mine"]


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_lock_that_is_lost_keeps_the_record_out(ground: Ground, *, is_known: bool) -> None:
    """The record is guarded by the locks that the run holds, also if another commit finds the loss first."""

    @sf.step(retry=sf.Retry(attempts=1))
    async def charge() -> None:
        async with asyncpg_connection(ground) as guested:
            await guested.run(ground.write("outside of the lock"))
            till = engine.space.mutex("till")
            [holder] = (await till.explain()).holders
            await till.force_release(holder.entry)
            branch = CURRENT.get()
            assert branch is not None
            while is_known and branch.lost is None:  # noqa: ASYNC110 -- nothing tells a step of it
                await asyncio.sleep(0.01)
            await sf.current_step().record_with(guested.connection)

    @sf.workflow
    async def pay(ctx: sf.Context) -> None:
        async with ctx.mutex("till"):
            await ctx.step(charge)

    async with engine_of(ground, pay) as engine:
        with pytest.raises(RunFailedError):
            await (await engine.start(pay)).result(timeout=20)
    assert await ground.effects() == []


async def test_branches_replay_in_the_order_in_which_they_went_on(ground: Ground) -> None:
    """Steps side by side that record themselves: each is there once, and a replay gives the same."""
    order: list[list[str]] = []
    waiting = asyncio.Event()

    @sf.step
    async def charge(name: str) -> str:
        async with asyncpg_connection(ground) as guested:
            await guested.run(ground.write(name))
            await sf.current_step().record_with(guested.connection, name)
        return name

    @sf.workflow
    async def pay(ctx: sf.Context) -> list[str]:
        seen: list[str] = []
        order.append(seen)

        async def one(name: str) -> str:
            for part in range(3):
                seen.append(await ctx.step(charge, f"{name}{part}"))
                await ctx.now()
            return name

        names = await ctx.gather(*(one(name) for name in "abcd"))
        waiting.set()
        await ctx.wait_signal("go")
        return [*names, *seen]

    async with engine_of(ground, pay) as engine:
        await engine.start(pay, id="pay")
        await asyncio.wait_for(waiting.wait(), 20)
    async with engine_of(ground, pay) as engine:
        await engine.signal("pay", "go")
        result = await engine.result("pay", timeout=20)

    assert sorted(await ground.effects()) == sorted(result[4:]) == sorted(f"{n}{p}" for n in "abcd" for p in range(3))
    assert len(order) >= 2
    assert order[0] == order[-1]


async def test_a_time_limit_does_not_make_an_effect_happen_twice(ground: Ground) -> None:
    """A plain step goes on in its thread when its time is over: either its transaction counts, or the next one."""
    waits: list[str] = []

    @sf.step(retry=QUICKLY, timeout=0.3)
    def charge() -> str:
        with blocking_psycopg(ground) as guested:
            guested.run(ground.write(f"{len(waits)}"))
            waits.append("")
            guested.run("SELECT pg_sleep(0.6)" if len(waits) == 1 else "SELECT 1")
            sf.current_step().record_with(guested.connection, "done")
        return "done"

    @sf.workflow
    async def pay(ctx: sf.Context) -> str:
        return await ctx.step(charge)

    async with engine_of(ground, pay) as engine:
        assert await (await engine.start(pay)).result(timeout=20) == "done"
    assert await ground.effects() == ["1"]


async def test_a_session_that_is_ended_before_its_commit_has_done_nothing(ground: Ground) -> None:
    """The server ends it after the record was written: the step is tried again, and happens once."""
    attempts: list[int] = []

    @sf.step(retry=QUICKLY)
    async def charge() -> int:
        attempts.append(1)
        async with asyncpg_connection(ground) as guested:
            await guested.run(ground.write(f"{len(attempts)}"))
            await sf.current_step().record_with(guested.connection, len(attempts))
            if len(attempts) == 1:
                await terminate(ground, guested.connection)
        return 0

    @sf.workflow
    async def pay(ctx: sf.Context) -> int:
        return await ctx.step(charge)

    async with engine_of(ground, pay) as engine:
        assert await (await engine.start(pay)).result(timeout=20) == 2
    assert await ground.effects() == ["2"]


async def terminate(ground: Ground, connection: asyncpg.Connection) -> None:
    """End the session of a connection, from the server."""
    other = await asyncpg.connect(ground.server)
    try:
        await other.execute("SELECT pg_terminate_backend($1, 5000)", connection.get_server_pid())
    finally:
        await other.close()


async def test_on_other_stores_it_says_what_to_use(ground: Ground) -> None:
    """``ctx.transaction`` is for those that have SQL."""

    @sf.step(retry=sf.Retry(attempts=1), raises=[UnsuitableStoreError])
    async def charge() -> None:
        async with asyncpg_connection(ground) as guested:
            await sf.current_step().record_with(guested.connection)

    @sf.workflow
    async def pay(ctx: sf.Context) -> None:
        await ctx.step(charge)

    async with sf.Engine("memory://", workflows=[pay]) as engine:
        with pytest.raises(RunFailedError, match=r"ctx\.transaction"):
            await (await engine.start(pay)).result(timeout=20)


async def test_a_step_records_itself_through_a_pooler(ground: Ground, pgbouncer_url: str) -> None:
    """Its own transaction and the store's come by pgbouncer, in transaction mode."""

    @sf.step
    async def charge() -> int:
        connection = await asyncpg.connect(pgbouncer_url, statement_cache_size=0)
        try:
            async with connection.transaction():
                await connection.execute(ground.write("a"))
                await sf.current_step().record_with(connection, 7)
        finally:
            await connection.close()
        return 0

    @sf.workflow
    async def pay(ctx: sf.Context) -> int:
        return await ctx.step(charge)

    async with sf.Engine(f"{pgbouncer_url}?schema={SCHEMA}", namespace=ground.namespace, workflows=[pay]) as engine:
        assert await (await engine.start(pay)).result(timeout=20) == 7
    assert await ground.effects() == ["a"]


async def test_the_limit_on_idling_ends_with_the_transaction(ground: Ground) -> None:
    """A session of the user's has it for as long as a record lies in it; a stricter one of its own stays."""
    shown: list[str] = []
    show = "SELECT current_setting('idle_in_transaction_session_timeout')"

    @sf.step
    async def charge(own: str) -> None:
        connection = await asyncpg.connect(ground.server)
        try:
            await connection.execute(f"SET idle_in_transaction_session_timeout = '{own}'")
            async with connection.transaction():
                await sf.current_step().record_with(connection)
                shown.append(await connection.fetchval(show))
            shown.append(await connection.fetchval(show))
        finally:
            await connection.close()

    @sf.workflow
    async def pay(ctx: sf.Context) -> None:
        for own in ("0", "2s", "1h"):
            await ctx.step(charge, own)

    async with engine_of(ground, pay) as engine:
        await (await engine.start(pay)).result(timeout=20)
    assert shown == ["10s", "0", "2s", "2s", "10s", "1h"]
