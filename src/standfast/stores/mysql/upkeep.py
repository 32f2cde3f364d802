"""What is kept beside the records: attempts that are settled and forgotten, and rows that are swept away."""

# ruff: noqa: S608 -- names of tables are checked where they are read, and all else is a number or a hex literal

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from standfast.clock import Instant
from standfast.errors import StoreError
from standfast.stores.mysql.statements import NOW, handle_literal, is_dead, literals
from standfast.stores.remote.server import Landed

if TYPE_CHECKING:
    from standfast.stores.mysql.linking import Links
    from standfast.stores.mysql.options import Names

GRACE: Final = 5_000_000
"""For how many microseconds a dead row stays: longer than any transaction lies between its locks and its writes."""

ATTEMPTS_KEPT: Final = 7 * 24 * 3600 * 1_000_000
"""For how many microseconds the last attempt of a handle is kept that never said goodbye."""

MOST_ATTEMPTS: Final = 100


async def close_attempt(links: Links, names: Names, handle: str, number: int, name: str) -> Landed | None:
    """Make sure that an attempt can never be counted any more; if it was, say with which versions."""
    who, is_new = handle_literal(handle), f"number<{number}"
    close = (
        f"INSERT INTO {names.attempts} (handle,number,at,first,draws) VALUES ({who},{number},{NOW},NULL,0) "
        f"ON DUPLICATE KEY UPDATE at=IF({is_new},VALUES(at),at),first=IF({is_new},NULL,first),"
        f"draws=IF({is_new},0,draws),number=GREATEST(number,{number})"
    )
    look = f"SELECT number,at,first,draws FROM {names.attempts} WHERE handle={who}"
    statements = ["START TRANSACTION", close, look, "COMMIT"]
    _, _, [(last, at, first, draws)], _ = await links.ask(";".join(statements))
    if last > number:
        raise StoreError(name, f"attempt {handle}.{number} is not the last one of its handle any more")
    return None if first is None else Landed(Instant(at), tuple(range(first, first + draws)))


async def sweep(links: Links, names: Names, limit: int) -> int:
    """Delete rows that have been dead for a while, and attempts of handles that are long gone.

    The highest version that goes is remembered: what is created later, at the same key perhaps, gets a higher one.
    Rows are locked by their keys, in order, as everybody does.
    """
    old, dead = f"SET @sf_o={NOW}-{GRACE}", is_dead("@sf_o")
    _, rows = await links.ask(f"{old};SELECT k FROM {names.records} WHERE {dead} ORDER BY expires_at LIMIT {limit}")
    if rows:
        where = f"WHERE k IN ({literals(sorted(row[0] for row in rows))}) AND {dead}"
        statements = [
            old,
            "START TRANSACTION",
            f"SELECT COALESCE(MAX(version),0) INTO @sf_v FROM {names.records} FORCE INDEX (PRIMARY) {where} FOR UPDATE",
            f"UPDATE {names.facts} SET number=@sf_v WHERE name='floor' AND number<@sf_v",
            f"DELETE FROM {names.records} {where}",
            "COMMIT",
        ]
        await links.ask(";".join(statements))
    await _sweep_attempts(links, names)
    return len(rows)


async def _sweep_attempts(links: Links, names: Names) -> None:
    old = f"at<{NOW}-{ATTEMPTS_KEPT}"
    [rows] = await links.ask(f"SELECT handle FROM {names.attempts} WHERE {old} LIMIT {MOST_ATTEMPTS}")
    if rows:
        handles = literals(sorted(row[0] for row in rows))
        await links.ask(f"DELETE FROM {names.attempts} WHERE handle IN ({handles}) AND {old}")
