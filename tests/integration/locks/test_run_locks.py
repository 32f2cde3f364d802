"""Run locks between real processes: one drives, and the death of one lets the next go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from standfast.testing.conformance.ground import reach
from tests.integration.sqlite.children import Child
from tests.sizes import rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

CREW: Final = 3
PROGRAM: Final = "tests.integration.locks.programs.drive"


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store on disk."""
    return f"sqlite:///{tmp_path / 'store.db'}"


@pytest.fixture
async def space(url: str) -> AsyncIterator[sf.Space]:
    """The test's own process on it."""
    async with sf.open(url) as space:
        yield space


@pytest.fixture
def crew(url: str, space: sf.Space) -> Iterator[list[Child]]:
    """Processes that are ready, and ended after the test."""
    assert space.namespace  # it is open: the file is there
    children = [Child(PROGRAM, url) for _ in range(CREW)]
    for child in children:
        assert child.hear() == ["ready"]
    yield children
    for child in children:
        child.kill()


async def test_a_run_of_a_killed_process_is_free_at_once(space: sf.Space, crew: list[Child]) -> None:
    """Where a death can be seen, nobody waits for the lease of a block; the next fence is higher."""
    fence = int(crew[0].ask("hold", "run-1")[1])
    assert await space.run_locks.try_acquire("checkout", "run-1") is None
    crew[0].kill()

    assert await space.run_locks.get("checkout", "run-1") is None
    async with space.run_locks.hold("checkout", "run-1") as hold:
        assert hold.fence > fence


async def test_a_lease_outlives_its_process_until_its_end(space: sf.Space, crew: list[Child]) -> None:
    """A lease has an end of its own: a killed process keeps the run until then, and not longer."""
    assert crew[0].ask("lease", 2, "run-1")[0] == "leased"
    crew[0].kill()
    info = await space.run_locks.get("checkout", "run-1")
    assert info is not None
    assert crew[1].ask("lease", 30, "run-1") == ["refused"]
    await reach(space.store, info.expires_at, None, space.key("time"))

    leased, fence = crew[1].ask("lease", 30, "run-1")
    assert leased == "leased"
    assert int(fence) > info.fence


@pytest.mark.heavy
async def test_of_racing_processes_one_drives_a_run(space: sf.Space, crew: list[Child]) -> None:
    """However they are told, with a lease or a block, exactly one gets each run."""
    for number in rounds("races for a run", full=1_000, quick=20):
        for index, child in enumerate(crew):
            child.tell(*(("hold", f"run-{number}") if index % 2 else ("lease", 30, f"run-{number}")))
        answers = [child.hear()[0] for child in crew]

        assert sorted(answers)[1:] == ["refused"] * (CREW - 1), f"race {number}: {answers}"
        for child, answer in zip(crew, answers, strict=True):
            assert answer != "held" or child.ask("go") == ["left"]
    assert await space.run_locks.get("checkout", "nobody's") is None
