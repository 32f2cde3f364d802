"""A server that goes away under workers, again and again: no run is blamed for that."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import standfast as sf
from standfast.events import WorkerDied
from tests import services
from tests.integration.postgresql.ground import made
from tests.unit.workflows.engines import collects

if TYPE_CHECKING:
    from standfast.events import Event

pytestmark = [pytest.mark.services, pytest.mark.heavy]

LEASE = 1.0
OUTAGES = 4


async def test_a_run_is_not_quarantined_for_outages_of_its_store() -> None:
    """Its workers live, and say so when the server is back."""
    told: list[Event] = []
    limits = sf.admin.WorkerLimits(linger=60, quarantine_after=2)
    with services.private("postgresql") as server:
        url = f"{await made(server.url)}&timeout=500ms&connect_timeout=500ms"
        async with AsyncExitStack() as stack:
            engines = [
                await stack.enter_async_context(
                    sf.Engine(url, workflows=[collects], lease=LEASE, worker=limits, hooks=[told.append])
                )
                for _ in range(2)
            ]
            run = await engines[0].start(collects, 1)
            for _ in range(OUTAGES):
                claims = (await run.info()).claims
                server.kill()
                await asyncio.sleep(2 * LEASE)  # rule: the server has to be away for longer than a lease
                server.restart()
                async with asyncio.timeout(40):
                    while (await run.info()).claims == claims:  # noqa: ASYNC110 -- watches are lost as well
                        await asyncio.sleep(0.1)
            await run.signal("item")
            result = await run.result(timeout=40)
            info = await run.info()

    assert result == [None]
    assert info.claims > OUTAGES
    assert any(event.runs for event in told if isinstance(event, WorkerDied))
