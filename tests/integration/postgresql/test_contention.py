"""Many who change the same records at once, in any order: nobody waits in a circle, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from tests import services
from tests.integration.postgresql.ground import made, run_program, run_sql
from tests.sizes import rounds


@pytest.mark.services
@pytest.mark.heavy
async def test_commits_that_overlap_never_deadlock_and_lose_nothing() -> None:
    """Two processes with four handles each create, change, compare and delete what the others do."""
    with services.private("postgresql", arguments=["-c", "deadlock_timeout=50ms"]) as server:
        for seed in rounds("overlapping commits on PostgreSQL", full=30, quick=1):
            url = await made(server.url)
            ends = await asyncio.gather(
                *(run_program("count_up", url, "4", "40", "12", f"{2 * seed + number}") for number in range(2))
            )
            assert [code for code, _ in ends] == [0, 0], f"seed {seed}: {ends}"
            [[total]] = await run_sql(url, "SELECT coalesce(sum(convert_from(value, 'UTF8')::int), 0) FROM @.records")
            assert total == sum(int(told) for _, told in ends), f"seed {seed}"
        [[deadlocks]] = await run_sql(
            server.url, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        )
    assert deadlocks == 0
