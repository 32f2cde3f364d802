"""The same from code without an event loop: psycopg, SQLAlchemy and Django."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import standfast as sf
from standfast import blocking
from standfast.errors import InvalidArgumentError, RunNotFoundError
from tests.fork_server import forked_exec
from tests.integration.postgresql.joined import BLOCKING, Ground, RolledBackError, make_ground

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[3]


@sf.workflow
async def ship(ctx: sf.Context, order: str) -> str:
    """Say where an order is."""
    return f"{order} is on its way at {ctx.run_id}"


@pytest.fixture
def ground(postgresql_url: str) -> Ground:
    """A place of its own."""
    return asyncio.run(make_ground(postgresql_url))


@pytest.fixture
def engine(ground: Ground) -> Iterator[blocking.Engine]:
    """An engine that drives runs."""
    with blocking.Engine(ground.url, namespace=ground.namespace, workflows=[ship]) as engine:
        yield engine


@pytest.mark.parametrize("kind", BLOCKING)
def test_a_committed_transaction_has_started_its_run(ground: Ground, engine: blocking.Engine, kind: str) -> None:
    """The run and the effect are there together, and a worker drives the run."""
    with BLOCKING[kind](ground) as guested:
        guested.run(ground.write("order-1"))
        run = engine.start(ship, "order-1", id="order-1", connection=guested.connection)
        with pytest.raises(RunNotFoundError):
            engine.get("order-1")

    assert run.is_new
    assert run.result(timeout=20) == "order-1 is on its way at order-1"
    assert asyncio.run(ground.effects()) == ["order-1"]


@pytest.mark.parametrize("kind", BLOCKING)
def test_a_transaction_that_is_rolled_back_has_started_nothing(
    ground: Ground, engine: blocking.Engine, kind: str
) -> None:
    """Neither the run nor the effect is there."""
    with contextlib.suppress(RolledBackError), BLOCKING[kind](ground) as guested:
        guested.run(ground.write("order-1"))
        engine.start(ship, "order-1", id="order-1", connection=guested.connection)
        raise RolledBackError

    assert asyncio.run(ground.effects()) == []
    with pytest.raises(RunNotFoundError):
        engine.get("order-1")


def test_threads_start_runs_each_with_its_own_connection(ground: Ground, engine: blocking.Engine) -> None:
    """The connection is used in the thread that called, and nowhere else."""

    def start(number: int) -> str:
        with psycopg.connect(ground.server) as connection:
            run = engine.start(ship, f"{number}", id=f"run-{number}", connection=connection)
        return run.result(timeout=20)

    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(start, range(8)))

    assert results == [f"{number} is on its way at run-{number}" for number in range(8)]


def test_a_connection_for_an_event_loop_is_refused(ground: Ground, engine: blocking.Engine) -> None:
    """And so is one that commits by itself."""

    async def opened() -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(ground.server)

    with asyncio.Runner() as runner:
        waiting = runner.run(opened())
        with pytest.raises(InvalidArgumentError, match=r"standfast\.Engine"):
            engine.start(ship, "o", connection=waiting)
        runner.run(waiting.close())
    with psycopg.connect(ground.server, autocommit=True) as committing:
        with pytest.raises(InvalidArgumentError, match="transaction"):
            engine.start(ship, "o", connection=committing)
        with committing.transaction():
            assert engine.start(ship, "o", connection=committing).is_new


async def test_a_django_project_starts_runs_and_records_steps_in_its_own_transactions(ground: Ground) -> None:
    """``transaction.atomic`` decides: what is committed is started, what is undone is not, autocommit is refused."""
    program = await forked_exec(
        sys.executable, "-m", "tests.integration.postgresql.programs.shop", ground.server, ground.url, ground.namespace,
        stdout=asyncio.subprocess.PIPE, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    told, _ = await program.communicate()
    found = json.loads(told)

    assert found["committed"] == "order-1 is charged"
    assert found["rolled back"]
    assert "transaction" in found["autocommit"]
    assert await ground.effects() == ["placed order-1", "charged order-1"]
