"""Processes whose clocks are hours apart, jump, or run too fast: they share locks and runs as if all were right."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

import standfast as sf
from standfast.clock import monotonic
from tests.integration.fleet.clocks import Dial, at_rate, off_by
from tests.integration.fleet.places import place
from tests.integration.fleet.programs.share import PERMITS
from tests.integration.locks.conftest import spread
from tests.integration.locks.kills import kill_the_holder
from tests.integration.sqlite.children import Child
from tests.integration.workflows.checks import check, records_of
from tests.integration.workflows.flows import LEDGER, WORKFLOWS, in_a_row, sleeper
from tests.integration.workflows.ledger import Entry, Ledger
from tests.integration.workflows.nursery import Nursery
from tests.sizes import remark, rounds, size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.integration.fleet.conftest import Gathering

pytestmark = [pytest.mark.services, pytest.mark.heavy]

SERVERS: Final = ["postgresql", "redis", "mysql"][: size(full=3, quick=2)]
PROGRAM: Final = "tests.integration.fleet.programs.share"
LEASE: Final = 3.0
LONG: Final = 1.3 * LEASE
"""Seconds of a hold that lasts only because it is renewed."""

ROUNDS: Final = size(full=100, quick=8)
SLACK: Final = 3.0
"""Seconds that a busy machine may take on top of what a lease, or a sleep, should."""


@contextmanager
def sharers(url: str, ledger: Ledger, clocks: Sequence[Mapping[str, str]]) -> Iterator[list[Child]]:
    """Start a process for each clock."""
    children = [Child(PROGRAM, url, LEASE, ledger.path, environment=clock) for clock in clocks]
    try:
        for child in children:
            assert child.hear() == ["ready"]
        yield children
    finally:
        for child in children:
            child.kill()


def share(children: Sequence[Child], dial: Dial | None = None) -> float:
    """Let all share every kind of lock; of each kind one holds it for longer than a lease. Return the longest wait."""
    for number, child in enumerate(children):
        kinds = enumerate(PERMITS)
        child.tell(*(f"{kind} {ROUNDS} {LONG if number == place else 0}" for place, kind in kinds))
    longest = 0.0
    for child in children:
        for _ in PERMITS:
            if dial is not None:
                dial.turn(random.choice(["+7200s", "-7200s", "+0"]))
            kind, lost, waited = child.hear()
            assert lost == "0", f"{kind} was lost, though it was renewed"
            longest = max(longest, float(waited))
    return longest


def check_holds(ledger: Sequence[Entry]) -> None:
    """Check that nobody was inside who had no room, and that the fences of each slot have grown."""
    inside: Counter[str] = Counter()
    fences: dict[str, list[int]] = defaultdict(list)
    for entry in ledger:
        inside[entry.name] += 1 if entry.what == "in" else -1
        assert inside[entry.name] <= PERMITS[entry.name], f"{entry} is one too many"
        if entry.what == "in":
            fences[entry.key].append(int(entry.nonce))
    assert sum(map(len, fences.values())) == len(ledger) // 2
    for slot, grown in fences.items():
        assert all(one < two for one, two in pairwise(grown)), f"the fences of {slot} did not grow: {grown}"


@pytest.mark.parametrize("kind", SERVERS)
async def test_clocks_that_are_hours_apart_and_jump_do_no_harm_to_locks(kind: str, tmp_path: Path) -> None:
    """Never one too many inside, fences grow, no lease lapses early, and nobody waits longer than others hold."""
    ledger, dial = Ledger(tmp_path / "ledger"), Dial(tmp_path / "dial")
    clocks = [off_by("+3600s"), off_by("-3600s"), dial.environment]
    with sharers(place(kind), ledger, clocks) as children:
        longest = share(children, dial)

    check_holds(ledger.entries())
    assert longest < LONG + SLACK


@pytest.mark.parametrize("kind", SERVERS)
async def test_clocks_that_run_too_fast_or_too_slowly_do_no_harm_to_locks(kind: str, tmp_path: Path) -> None:
    """Not even the clock by which a process judges its own lease has to be better than a tenth."""
    ledger = Ledger(tmp_path / "ledger")
    with sharers(place(kind), ledger, [at_rate(1.1), at_rate(0.9), {}]) as children:
        longest = share(children)

    check_holds(ledger.entries())
    assert longest < (LONG + SLACK) * 1.1


@pytest.mark.parametrize("kind", SERVERS)
async def test_a_killed_holder_with_another_clock_is_taken_over_after_a_lease(kind: str, gathering: Gathering) -> None:
    """Whether it was an hour ahead or an hour behind of those who wait, they wait for its lease."""
    label, took = f"kills of holders with other clocks on {kind}", list[float]()
    for seed in rounds(label, full=20, quick=1):
        async with gathering(place(kind), lease=LEASE) as crew:
            for clock in ("+3600s", "-3600s"):
                crew.start(2, off_by(clock))
            took.append(await kill_the_holder(crew, random.Random(seed)))
            crew.fill_up(3)
            took.append(await kill_the_holder(crew, random.Random(seed)))
            remark(label, spread(took))

    assert max(took) < LEASE + SLACK


@pytest.mark.parametrize("kind", SERVERS)
async def test_sleeps_take_as_long_as_they_should_whatever_the_clocks_of_workers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers an hour ahead and an hour behind drive the same runs and the same schedule, and one of them is killed."""
    url, ledger, dial = place(kind), Ledger(tmp_path / "ledger"), Dial(tmp_path / "dial")
    monkeypatch.setenv(LEDGER, ledger.path)
    monkeypatch.setenv("STANDFAST_STORE", url)
    async with AsyncExitStack() as stack:
        engine = sf.Engine(url, workflows=WORKFLOWS.values(), drive=False, lease=LEASE)
        await stack.enter_async_context(engine)
        clocks = [off_by("+3600s"), off_by("-3600s"), dial.environment]
        nurseries = [await stack.enter_async_context(Nursery(ledger, clock)) for clock in clocks]
        workers = [(await nursery.spawn_ready(lease=LEASE))[0] for nursery in nurseries]
        await engine.schedules.create(sf.Schedule(in_a_row, 1, id="ticks", every="1 second", overlap="allow"))
        began_at = monotonic()
        runs = [await engine.start(sleeper, 4) for _ in range(6)]
        dial.turn("+7200s")
        nurseries[0].kill(workers[0])
        for run in runs:
            assert await run.result(timeout=20) == 4
        took = monotonic() - began_at
        await engine.schedules.pause("ticks")
        for run_info in (await engine.list(limit=1_000)).runs:
            await engine.run(run_info.id).result(timeout=20)
        ticks = (await engine.schedules.get("ticks")).started
        found = check(ledger.entries(), await records_of(engine))

    assert 1.04 < took < 1.04 + LEASE + SLACK
    assert 1 <= ticks <= took + 2
    assert found.problems == ()
