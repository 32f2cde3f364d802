"""Workers that are paused or killed, and those who take over: at once, and with nothing written by two."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import sys
from typing import TYPE_CHECKING, Final

import pytest

from standfast.clock import monotonic
from tests.integration.workflows.flows import in_a_row, waits_at_the_gate
from tests.integration.workflows.ledger import written
from tests.sizes import remark, rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import standfast as sf
    from tests.integration.workflows.ledger import Ledger
    from tests.integration.workflows.nursery import Nursery

pytestmark = pytest.mark.heavy  # many real processes: once, on the default interpreter

SHORT: Final = 1.0
"""Seconds of a lease that is soon over."""

AT_ONCE: Final = 1.0
"""Seconds within which a run is taken over, also on a busy machine; the lease is 30."""

PATIENCE: Final = 40.0


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that lets a parked step go on once it is there."""
    return tmp_path / "gate"


@pytest.fixture
async def stopped(nursery: Nursery) -> AsyncIterator[list[int]]:
    """Processes to be woken after the test, so that they can be ended."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if pid not in nursery.gone:
            os.kill(pid, signal.SIGCONT)


async def test_a_worker_that_slept_past_its_lease_writes_nothing(
    engine: sf.Engine, nursery: Nursery, ledger: Ledger, gate: Path, stopped: list[int]
) -> None:
    """Another one takes its run over; what the sleeper did is refused, it says so, and goes on with other runs."""
    (sleeper,) = await nursery.spawn_ready(lease=SHORT)
    run = await engine.start(waits_at_the_gate, str(gate))
    key = f"{run.id}:parked"
    await written(ledger, what="begin", key=key)
    os.kill(sleeper, signal.SIGSTOP)
    stopped.append(sleeper)
    (successor,) = await nursery.spawn_ready(lease=SHORT)
    begun = await written(ledger, what="begin", key=key, number=2)

    gate.touch()
    os.kill(sleeper, signal.SIGCONT)

    assert await run.result(timeout=PATIENCE) == "through"
    await written(ledger, what="event", key=run.id, name="RunDeposed")
    assert [entry.pid for entry in begun] == [sleeper, successor]
    assert begun[0].fence < begun[1].fence
    recorded = {entry.id: entry.value for entry in await run.history() if entry.kind == "step"}
    assert recorded["parked"] == begun[1].nonce
    nursery.kill(successor)
    assert await (await engine.start(in_a_row, 2)).result(timeout=PATIENCE) == 2


async def test_of_two_workers_one_drives_a_run(engine: sf.Engine, nursery: Nursery, ledger: Ledger) -> None:
    """Both hear of every run and of its signals at the same time, and no step of it is executed by two."""
    await nursery.spawn_ready(2)
    runs = [await engine.start(in_a_row, 3) for _ in range(50)]
    await asyncio.gather(*(run.result(timeout=PATIENCE) for run in runs))

    begun = [entry for entry in ledger.entries() if entry.what == "begin"]
    assert len(begun) == len({entry.key for entry in begun}) == 50 * 6
    drivers = {entry.key.partition(":")[0]: set[int]() for entry in begun}
    for entry in begun:
        drivers[entry.key.partition(":")[0]].add(entry.pid)
    assert [pids for pids in drivers.values() if len(pids) != 1] == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which process has a lock")
async def test_a_killed_workers_run_is_taken_over_at_once(
    engine: sf.Engine, nursery: Nursery, ledger: Ledger, tmp_path: Path
) -> None:
    """With eight workers waiting and a lease of 30 s, its step begins again within a fraction of a second."""
    took: list[float] = []
    await nursery.spawn_ready(8)
    for number in rounds("takeovers of runs", full=100, quick=3):
        gate = tmp_path / f"gate {number}"
        run = await engine.start(waits_at_the_gate, str(gate))
        (begun,) = await written(ledger, what="begin", key=f"{run.id}:parked")
        killed_at = monotonic()
        nursery.kill(begun.pid)
        again = (await written(ledger, what="begin", key=f"{run.id}:parked", number=2))[1]
        took.append(again.at - killed_at)
        gate.touch()
        await run.result(timeout=PATIENCE)
        await nursery.spawn_ready()
        remark("takeovers of runs", f"{statistics.median(took):.3f} s (p50), {max(took):.3f} s (max)")

    assert statistics.median(took) < AT_ONCE
