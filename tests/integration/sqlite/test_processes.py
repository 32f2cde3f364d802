"""Several real processes on one file: nothing is lost between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import size

if TYPE_CHECKING:
    from tests.integration.sqlite.conftest import Look, Open, Start

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


@pytest.mark.heavy
def test_a_deleted_turn_costs_fairness_and_nothing_else(url: str, path: Path, start: Start, look: Look) -> None:
    """When the file of the turn is deleted and others make a new one, SQLite's own lock still keeps writers apart."""
    increments = size(full=5_000, quick=200)
    children = [start("count", url, n, increments, 2, COUNTERS) for n in range(2)]
    assert [child.hear() for child in children] == [["ready"]] * 2
    Path(f"{path}-turn").unlink()
    children += [start("count", url, n, increments, 2, COUNTERS) for n in range(2, 4)]
    assert [child.hear() for child in children[2:]] == [["ready"]] * 2
    for child in children:
        child.tell("go")

    acknowledged = sum(int(child.hear(seconds=600)[1]) for child in children)

    assert int(look()["records"]["test/folded"][1]) == acknowledged == 4 * increments
