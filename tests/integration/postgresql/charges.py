"""A workflow all of whose effects share a transaction with their records, and the points at which it can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Final

import asyncpg
import psycopg

import standfast as sf
from standfast.stores.postgresql.transactions import PostgresWorkRunner
from standfast.workflows import steps as recording

if TYPE_CHECKING:
    from standfast.events import Event
    from standfast.stores.postgresql import PostgresWork

POINTS: Final = (
    "order written", "order started", "order committed",
    "a begun", "a written", "a recorded", "a committed", "a returned", "a told",
    "b begun", "b written", "b recorded", "b committed", "b returned", "b told",
    "c written", "c about to be committed", "c committed",
)  # fmt: skip
"""Where a process can be killed: in a start, in an async step, in a plain one, and in a transaction."""

INSERT: Final = "INSERT INTO effects (space, what) VALUES ($1, $2)"

_target: list[str] = []


def strike(point: str) -> None:
    """Kill this process, if this is the point for it."""
    if point in _target:
        os.kill(os.getpid(), signal.SIGKILL)
    if f"stop at {point}" in _target:
        _target.clear()
        print("stopped", "=", os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


@sf.step(retry=sf.Retry(attempts=5, delay=0.05))
async def charge(server: str, space: str) -> str:
    """Have the effect ``a``, with asyncpg."""
    strike("a begun")
    connection = await asyncpg.connect(server)
    try:
        async with connection.transaction():
            await connection.execute(INSERT, space, "a")
            strike("a written")
            await sf.current_step().record_with(connection, "a")
            strike("a recorded")
        strike("a committed")
    finally:
        await connection.close()
    strike("a returned")
    return ""


@sf.step(retry=sf.Retry(attempts=5, delay=0.05))
def charge_plainly(server: str, space: str) -> str:
    """Have the effect ``b``, with psycopg."""
    strike("b begun")
    with psycopg.connect(server) as connection:
        connection.execute("INSERT INTO effects (space, what) VALUES (%s, %s)", (space, "b"))
        strike("b written")
        sf.current_step().record_with(connection, "b")
        strike("b recorded")
        connection.commit()
        strike("b committed")
    strike("b returned")
    return ""


async def book(sql: PostgresWork, space: str) -> str:
    """Have the effect ``c``, in a transaction of the store's."""
    await sql.execute(INSERT, space, "c")
    strike("c written")
    return "c"


@sf.workflow
async def fulfil(ctx: sf.Context, server: str, space: str) -> list[str]:
    """Have three effects, each of them once."""
    first = await ctx.step(charge, server, space)
    second = await ctx.step(charge_plainly, server, space)
    return [first, second, await ctx.transaction(book, space)]


def engine_of(url: str, space: str, *, lease: float = 1.5) -> sf.Engine:
    """Return an engine that drives such runs."""
    return sf.Engine(url, namespace=space, workflows=[fulfil], lease=lease, hooks=[_tell])


def _tell(event: Event) -> None:
    if type(event).__name__ == "StepRecorded":
        strike({"charge": "a told", "charge_plainly": "b told"}.get(str(getattr(event, "step", "")), ""))


async def live_and_die(url: str, server: str, space: str, point: str) -> None:
    """Place an order, and drive its run to its end; be killed at a point on the way."""
    _target.append(point)
    if point.startswith("stop at "):
        recording.IDLE = 1.0  # type: ignore[misc] # nobody has ten seconds here
    commit = PostgresWorkRunner._commit  # between the work and its commit

    async def striking(self: PostgresWorkRunner, session: object) -> None:
        strike("c about to be committed")
        await commit(self, session)  # type: ignore[arg-type] # a session, whatever it is
        strike("c committed")

    PostgresWorkRunner._commit = striking  # type: ignore[method-assign] # to be killed right before and right after
    async with engine_of(url, space) as engine, contextlib.AsyncExitStack() as stack:
        connection = await asyncpg.connect(server)
        stack.push_async_callback(connection.close)
        async with connection.transaction():
            await connection.execute(INSERT, space, "order")
            strike("order written")
            run = await engine.start(fulfil, server, space, id="order", connection=connection)
            strike("order started")
        strike("order committed")
        await run.result(timeout=60)
