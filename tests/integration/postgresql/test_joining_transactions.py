"""``ctx.transaction`` on PostgreSQL: the user's SQL and the step's record are one transaction, whatever breaks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import asyncpg
import pytest

import standfast as sf
from standfast.errors import DeclarationError, RunFailedError
from tests.integration.postgresql.joined import Ground, asyncpg_connection, make_ground
from tests.integration.postgresql.lossy import LossyWire

if TYPE_CHECKING:
    from standfast.stores.postgresql import PostgresWork

INSERT = "INSERT INTO effects (space, what) VALUES ($1, $2) RETURNING id"


@pytest.fixture
async def ground(postgresql_url: str) -> Ground:
    """A place of its own."""
    return await make_ground(postgresql_url)


def engine_of(url: str, ground: Ground, *workflows: sf.Workflow[..., Any]) -> sf.Engine:
    """Return an engine."""
    return sf.Engine(url, namespace=ground.namespace, workflows=workflows)


async def book(sql: PostgresWork, space: str, order: str) -> int:
    """Have an effect."""
    return int(await sql.fetchval(INSERT, space, order))


@sf.workflow
async def order_of(ctx: sf.Context, space: str) -> list[int]:
    """Have two effects."""
    return [await ctx.transaction(book, space, name) for name in ("a", "b")]


async def test_a_coroutine_function_may_wait_for_its_sql(ground: Ground) -> None:
    """Its result is recorded with its effect; a second engine that asks gets the same."""
    async with engine_of(ground.url, ground, order_of) as engine:
        first, second = await (await engine.start(order_of, ground.namespace, id="o")).result(timeout=20)
    async with engine_of(ground.url, ground, order_of) as engine:
        assert await engine.result("o") == [first, second]

    assert first < second
    assert await ground.effects() == ["a", "b"]


async def test_what_it_raises_undoes_everything_and_is_recorded(ground: Ground) -> None:
    """It is tried once: that it raised is its outcome."""
    attempts: list[int] = []

    async def fail(sql: PostgresWork) -> None:
        attempts.append(1)
        await book(sql, ground.namespace, "undone")
        raise LookupError("no such order")

    @sf.workflow
    async def failing(ctx: sf.Context) -> None:
        await ctx.transaction(fail)

    async with engine_of(ground.url, ground, failing) as engine:
        with pytest.raises(RunFailedError, match="no such order"):
            await (await engine.start(failing)).result(timeout=20)

    assert attempts == [1]
    assert await ground.effects() == []


async def test_on_a_file_it_takes_a_plain_function() -> None:
    """Nothing may wait while the file is locked."""

    @sf.workflow(raises=[DeclarationError])
    async def waiting(ctx: sf.Context) -> None:
        await ctx.transaction(book, "", "")

    async with sf.Engine("memory://", workflows=[waiting]) as engine:
        with pytest.raises(RunFailedError):
            await (await engine.start(waiting)).result(timeout=20)


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_commit_whose_answer_is_lost_happens_once(ground: Ground, how: Literal["before", "after"]) -> None:
    """Whether or not the commit arrived, the run goes on with one effect and one record of it."""
    async with LossyWire(ground.server, b"COMMIT") as wire:
        wire.breaks = [how, how]
        async with engine_of(f"{wire.url}?schema=joining", ground, order_of) as engine:
            assert len(await (await engine.start(order_of, ground.namespace)).result(timeout=40)) == 2

    assert wire.broken == 2
    assert await ground.effects() == ["a", "b"]


@pytest.mark.parametrize("goes_on", [False, True], ids=["after the work", "within the work"])
async def test_a_session_that_is_ended_before_the_commit_is_made_good(ground: Ground, *, goes_on: bool) -> None:
    """The work is undone by the server, and done again, though it may have been told by the driver's own error."""
    attempts: list[int] = []

    async def interrupted(sql: PostgresWork) -> int:
        attempts.append(1)
        number = await book(sql, ground.namespace, f"{len(attempts)}")
        if len(attempts) == 1:
            await _terminate(ground, await sql.fetchval("SELECT pg_backend_pid()"))
            if goes_on:
                await book(sql, ground.namespace, "in vain")
        return number

    @sf.workflow
    async def booking(ctx: sf.Context) -> int:
        return await ctx.transaction(interrupted)

    async with engine_of(ground.url, ground, booking) as engine:
        assert await (await engine.start(booking)).result(timeout=40)

    assert await ground.effects() == ["2"]


async def _terminate(ground: Ground, pid: int) -> None:
    other = await asyncpg.connect(ground.server)
    try:
        await other.execute("SELECT pg_terminate_backend($1, 5000)", pid)
    finally:
        await other.close()


@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_record_whose_commit_gets_no_answer_is_there_or_not(
    ground: Ground, how: Literal["before", "after"]
) -> None:
    """A step that records itself over a wire that breaks at its own commit: one effect, and the record of it."""
    attempts: list[int] = []
    async with LossyWire(ground.server, b"COMMIT") as wire:
        wire.breaks = [how]
        through = Ground(wire.url, ground.namespace)

        @sf.step(retry=sf.Retry(attempts=3, delay=0.01))
        async def charge() -> int:
            attempts.append(1)
            async with asyncpg_connection(through) as guested:
                await guested.run(ground.write(f"{len(attempts)}"))
                await sf.current_step().record_with(guested.connection, len(attempts))
            return 0

        @sf.workflow
        async def pay(ctx: sf.Context) -> int:
            return await ctx.step(charge)

        async with engine_of(ground.url, ground, pay) as engine, asyncio.timeout(50):
            result = await (await engine.start(pay)).result()

    assert wire.broken == 1
    assert await ground.effects() == [str(result)]
