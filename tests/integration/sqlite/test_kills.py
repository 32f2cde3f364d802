"""Writers that are killed at any moment: what was acknowledged is there, what is there is whole."""

from __future__ import annotations

import contextlib
import random
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from standfast.clock import monotonic
from standfast.stores import Put
from tests.integration.sqlite.programs.dialogue import key
from tests.sizes import rounds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.sqlite.children import Child
    from tests.integration.sqlite.conftest import Look, Open, Start


def kill_at_any_moment(child: Child, chooser: random.Random) -> None:
    """Let the child work for a random while, then kill it."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.process.wait(chooser.expovariate(1 / 0.03))
    child.kill()


def check(found: dict[str, Any], ledgers: dict[str, Path]) -> None:
    """Compare what the database holds with what was acknowledged."""
    records = found["records"]
    acknowledged = 0
    for name, ledger in ledgers.items():
        noted = [line.split() for line in ledger.read_text().splitlines()]
        present = [records[place][1] for place in records if place.startswith(f"test/entry/{name}/")]
        assert present[: len(noted)] == [number for number, _ in noted]
        assert len(present) <= len(noted) + 1, "only the commit that was under way may be there unacknowledged"
        acknowledged += len(noted)
    entries = sum(place.startswith("test/entry/") for place in records)
    assert int(records["test/shared"][1]) == entries, "an entry and the counter are written both or neither"
    assert entries - len(ledgers) <= acknowledged <= entries


async def write_and_be_killed(url: str, ledgers: dict[str, Path], start: Start, chooser: random.Random) -> None:
    """Let one writer a ledger work, and kill them one after the other."""
    writers = [start("keep_ledger", url, name, ledger) for name, ledger in ledgers.items()]
    assert [writer.hear() for writer in writers] == [["ready"]] * len(writers)
    for writer in writers:
        kill_at_any_moment(writer, chooser)


@pytest.mark.heavy
@pytest.mark.parametrize("commits", ["auto", "thread"])
async def test_a_killed_writer_loses_no_acknowledged_commit(
    url: str, look: Look, tmp_path: Path, start: Start, commits: str
) -> None:
    """After SIGKILL of every writer at any moment the file is sound and has every acknowledged commit."""
    ledgers: dict[str, Path] = {}
    for seed in rounds(f"kills of writers ({commits})", full=200, quick=3):
        names = {f"{seed}-{n}": tmp_path / f"{seed}-{n}" for n in range(2)}
        await write_and_be_killed(f"{url}?commits={commits}", names, start, random.Random(seed))
        ledgers |= names
        check(look(), ledgers)


@pytest.mark.heavy
async def test_others_go_on_at_once_after_a_writer_was_killed(
    url: str, look: Look, tmp_path: Path, start: Start, opened: Open
) -> None:
    """A handle that was open all along commits soon after a writer beside it was killed."""
    store = await opened(url)
    ledgers: dict[str, Path] = {}
    for seed in rounds("kills beside a survivor", full=200, quick=3):
        names = {f"{seed}-{n}": tmp_path / f"{seed}-{n}" for n in range(2)}
        await write_and_be_killed(url, names, start, random.Random(seed))
        ledgers |= names
        began = monotonic()
        await store.commit(Put(key("survivor", seed), b"here"))
        assert monotonic() - began < 3
        check(look(), ledgers)


@pytest.mark.heavy
async def test_a_killed_worker_leaves_work_and_record_or_neither(url: str, look: Look, start: Start) -> None:
    """After SIGKILL at any moment each row of the user has its entry and its recorded answer, and no other is there."""
    for seed in rounds("kills of workers", full=200, quick=3):
        worker = start("work_for_ever", url, seed)
        assert worker.hear() == ["ready"]
        kill_at_any_moment(worker, random.Random(seed))

        found = look()
        records = found["records"]
        answers = sorted(int(records[place][1]) for place in records if place.startswith("test/answer/"))
        assert answers == sorted(row for (row,) in found["worked"])
        assert len(answers) == sum(place.startswith("test/entry/") for place in records)
