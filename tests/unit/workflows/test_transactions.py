"""Transactions of workflows: SQL of one's own and its record, exactly once."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import pytest

import standfast as sf
from standfast.errors import DeclarationError, RunFailedError, UnsuitableStoreError, WorkTimeoutError
from standfast.stores import Put
from standfast.testing.workflows import WorkflowEnvironment, crash_everywhere

if TYPE_CHECKING:
    from pathlib import Path

TABLE = "CREATE TABLE IF NOT EXISTS orders(name TEXT UNIQUE)"


def book(sql: Any, name: str) -> int:
    """Write a row, and return how many there are."""
    sql.execute(TABLE)
    sql.execute("INSERT INTO orders VALUES (?)", (name,))
    (count,) = sql.execute("SELECT count(*) FROM orders")[0]
    return int(count)


def refuse(sql: Any, name: str) -> None:
    """Write a row, and think better of it."""
    book(sql, name)
    raise LookupError(name)


def leave(sql: Any) -> None:
    """Write a row, and try to end the program."""
    book(sql, "left")
    sys.exit(3)


def unstorable(sql: Any) -> object:
    """Return what cannot be recorded."""
    book(sql, "unstorable")
    return object()


def endless(sql: Any) -> int:
    """Take too long."""
    rows = sql.execute("WITH RECURSIVE n(i) AS (VALUES(0) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
    return int(rows[0][0])


async def waits(_sql: object) -> None:
    """Be what a transaction cannot be."""


@sf.workflow
async def order(ctx: sf.Context, name: str) -> list[int]:
    """Book twice, and sleep in between."""
    first = await ctx.transaction(book, name)
    await ctx.sleep("1 hour")
    return [first, await ctx.transaction(book, f"{name} again", id="again")]


@sf.workflow
async def failing(ctx: sf.Context) -> list[str]:
    """Let transactions fail in every way, and go on."""
    seen: list[str] = []
    for function, args in ((refuse, ("x",)), (unstorable, ()), (endless, ()), (leave, ())):
        try:
            await ctx.transaction(function, *args, timeout=0.2)
        except Exception as problem:  # noqa: BLE001 -- what is tested
            seen.append(type(problem).__name__)
    await ctx.sleep("1 hour")
    await ctx.transaction(book, "x")
    return seen


@sf.workflow
async def asynchronous(ctx: sf.Context) -> None:
    """Hand in a coroutine function."""
    await ctx.transaction(waits)


WORKFLOWS: list[Any] = [order, failing, asynchronous]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store of its own, with SQL."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


def opened(url: str) -> WorkflowEnvironment:
    """All workflows of this module, on a store."""
    return WorkflowEnvironment(WORKFLOWS, store=url, linger=0)


async def names(env: WorkflowEnvironment) -> list[str]:
    """Return what was booked."""
    space = env.client.space
    changes = Put(space.key("looked"), b"")
    found = await space.commit_with(lambda sql: sql.execute("SELECT name FROM orders ORDER BY name"), changes)
    return [name for (name,) in found.answer]  # type: ignore[union-attr] # it is no conflict


async def test_what_a_transaction_writes_and_returns_is_recorded_once(url: str) -> None:
    """A replayed run returns what was recorded, and writes nothing again."""
    async with opened(url) as env:
        run = await env.start(order, "tea")
        await env.settle()
        await env.crash()
        await env.restart()
        assert await env.result(run) == [1, 2]
        assert await names(env) == ["tea", "tea again"]
        assert [entry.kind for entry in await run.history()].count("transaction") == 2


async def test_whenever_the_process_dies_every_row_is_written_once(tmp_path: Path) -> None:
    """It dies before and after each of its commits in turn: the unique rows are there, and nothing was tried twice."""
    files = itertools.count()
    await crash_everywhere(order, "tea", store=lambda: f"sqlite:///{tmp_path / str(next(files))}.db")


async def test_a_transaction_that_fails_writes_nothing_and_the_failure_is_recorded(url: str) -> None:
    """Raising, returning what cannot be stored and taking too long undo everything, live as in replay."""
    async with opened(url) as env:
        assert await env.result(await env.start(failing)) == [
            "LookupError",
            "EncodeError",
            WorkTimeoutError.__name__,
            "RuntimeError",
        ]
        assert await names(env) == ["x"]


async def test_a_store_without_sql_refuses() -> None:
    """Nothing is half kept: the run fails and is told what to use."""
    async with opened("memory://") as env:
        with pytest.raises(RunFailedError) as failed:
            await env.result(await env.start(order, "tea"))
    assert isinstance(failed.value.__cause__, UnsuitableStoreError)


async def test_a_coroutine_function_is_no_transaction(url: str) -> None:
    """Nothing may wait inside a transaction."""
    async with opened(url) as env:
        with pytest.raises(RunFailedError) as failed:
            await env.result(await env.start(asynchronous))
    assert isinstance(failed.value.__cause__, DeclarationError)
