"""Several real processes on one file: nothing is lost between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.sqlite.programs.talking import key
from tests.sizes import size

if TYPE_CHECKING:
    from tests.integration.sqlite.conftest import Open, Start

COUNTERS = 16


@pytest.mark.heavy
@pytest.mark.parametrize("processes", [2, 8])
@pytest.mark.parametrize("tasks", [1, 10])
async def test_no_update_is_lost_between_processes(
    url: str, start: Start, opened: Open, seed: int, processes: int, tasks: int
) -> None:
    """Counters that several processes increment end at exactly the number of acknowledged increments."""
    increments = size(full=10_000, quick=800 // processes)
    children = [start("count", url, seed + n, increments, tasks, COUNTERS) for n in range(processes)]
    assert [child.hear() for child in children] == [["ready"]] * processes
    for child in children:
        child.tell("go")
    acknowledged = sum(int(child.hear(seconds=3600)[1]) for child in children)

    store = await opened(url)
    counted = (await store.scan(*key("guarded").within(), limit=COUNTERS)).records.values()
    folded = (await store.read(key("folded"))).records[key("folded")]

    assert acknowledged == increments * processes
    assert sum(int(record.value) for record in counted) == 2 * acknowledged
    assert int(folded.value) == acknowledged
