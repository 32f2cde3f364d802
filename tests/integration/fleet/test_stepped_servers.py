"""Servers whose clock is set forward or back by an hour: what holds, and what does not.

Leases, sleeps and schedules go by the server's clock. Set forward, it ends them early; set back, it ends sleeps late.
In either case nobody writes under a grant that is lost, and all goes on as usual within a lease.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from msgspec import Struct

import standfast as sf
from standfast.clock import monotonic
from standfast.errors import ResultTimeoutError
from tests import services
from tests.integration.fleet.clocks import Dial
from tests.integration.fleet.places import place_on
from tests.integration.workflows.flows import LEDGER, WORKFLOWS, naps, waits_at_the_gate
from tests.integration.workflows.ledger import Ledger, written
from tests.integration.workflows.nursery import Nursery
from tests.sizes import PROVE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.integration.fleet.conftest import Gathering
    from tests.integration.locks.crew import Crew, Member

pytestmark = [pytest.mark.services, pytest.mark.heavy]

HOUR: Final = 3600
LEASE: Final = 1.5
SLACK: Final = 2.5
"""Seconds on top of the lease that a busy machine may take to see that it has lapsed."""


class Stepped(Struct, frozen=True):
    """A server, and its clock."""

    kind: str
    server: str
    dial: Dial

    def place(self) -> str:
        """Return the URL of a fresh place on it."""
        return place_on(self.server, self.kind)


@pytest.fixture(scope="module", params=["postgresql", "redis", "mysql"] if PROVE else ["redis"])
def stepped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stepped]:
    """A server whose clock the tests set."""
    dial = Dial(tmp_path_factory.mktemp("clock") / "dial")
    with services.private(request.param, environment=dial.environment) as server:
        yield Stepped(request.param, server.url, dial)


async def in_line(crew: Crew, word: str) -> list[Member]:
    """Let one hold the mutex in some way, and the others wait to pass; return them in that order."""
    crew.start(3)
    holder, *others = crew.members
    holder.tell(word)
    holder.held()
    for member in others:
        member.tell("pass")
    return [holder, *await crew.lined_up(*others)]


def noticed(crew: Crew) -> float:
    """Let all pass until everybody does so undisturbed; return how long that took."""
    began_at, disturbed = monotonic(), True
    while disturbed:
        for member in crew.members:
            member.tell("pass")
        heard = [_how_it_ended(member) for member in crew.members]
        disturbed = set(heard) != {"left"}
    return monotonic() - began_at


def _how_it_ended(member: Member) -> str:
    words = [member.child.hear()[0]]
    while words[-1] not in ("left", "lost"):
        words.append(member.child.hear()[0])
    return "left" if words == ["held", "left"] else "lost"


async def test_a_clock_that_is_set_forward_ends_leases_and_lets_nobody_write_late(
    stepped: Stepped, gathering: Gathering
) -> None:
    """Whoever waits takes over at once; the former holder is refused by the ledger and by the store."""
    async with gathering(stepped.place(), lease=LEASE) as crew:
        holder, *others = await in_line(crew, "freeze")
        assert holder.child.hear() == ["frozen"]
        stepped.dial.step(HOUR)
        for member in others:
            _how_it_ended(member)
        holder.tell("go")

        assert [holder.child.hear() for _ in range(2)] == [["ledger", "refused"], ["store", "Conflict"]]
        assert _how_it_ended(holder) == "lost"
        assert noticed(crew) < LEASE + SLACK
        assert crew.check_ledger(crew.members)


async def test_a_clock_that_is_set_back_takes_nothing_from_those_who_live(
    stepped: Stepped, gathering: Gathering
) -> None:
    """Holders hold on past their lease, and hand over at once when they let go."""
    async with gathering(stepped.place(), lease=LEASE) as crew:
        holder, *others = await in_line(crew, "stay")
        stepped.dial.step(-HOUR)
        assert others[0].child.is_silent(1.2 * LEASE)

        holder.tell("go")
        left_at = holder.left()
        came = [(member.held(), member.left())[0].at for member in others]

        assert came == sorted(came)
        assert came[-1] - left_at < SLACK
        assert crew.check_ledger([]) == [holder.name, *(member.name for member in others)]


async def test_a_holder_that_dies_before_the_clock_is_set_back_is_waited_for_no_longer_than_a_lease(
    stepped: Stepped, gathering: Gathering
) -> None:
    """Its lease ends an hour ahead by the new clock: more than any lease can be, so it is brought back."""
    async with gathering(stepped.place(), lease=LEASE) as crew:
        holder, *others = await in_line(crew, "stay")
        holder.kill()
        stepped.dial.step(-HOUR)
        set_at = monotonic()

        assert others[0].held().at - set_at < LEASE + SLACK
        assert others[0].left()
        assert others[1].held().at - set_at < LEASE + SLACK


@pytest.fixture
async def engine(
    stepped: Stepped, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[sf.Engine, Nursery]]:
    """An engine that drives nothing, and workers to be."""
    url, ledger = stepped.place(), Ledger(tmp_path_factory.mktemp("ledger") / "ledger")
    monkeypatch.setenv(LEDGER, ledger.path)
    monkeypatch.setenv("STANDFAST_STORE", url)
    opened = sf.Engine(url, workflows=WORKFLOWS.values(), drive=False, lease=LEASE)
    async with opened as engine, Nursery(ledger) as nursery:
        yield engine, nursery


async def nap(engine: sf.Engine, seconds: float) -> float:
    """Return how long a sleep really takes."""
    began_at = monotonic()
    assert await (await engine.start(naps, seconds)).result(timeout=30) == seconds
    return monotonic() - began_at


async def asleep(engine: sf.Engine, seconds: float) -> sf.Run[float]:
    """Start a run that sleeps for long; return it when it does."""
    run = await engine.start(naps, seconds)
    async with engine.space.watch(engine.space.key("life", run.id)) as watch:
        while (await run.info()).status not in ("suspended", "completed"):
            await watch.wait(0.5)
    return run


async def test_a_clock_that_is_set_forward_ends_sleeps_early(
    stepped: Stepped, engine: tuple[sf.Engine, Nursery]
) -> None:
    """An hour has passed as far as anybody can tell; sleeps that begin after it take as long as they should."""
    client, nursery = engine
    await nursery.spawn_ready(2, lease=LEASE)
    run = await asleep(client, 1800)
    stepped.dial.step(HOUR)

    assert await run.result(timeout=LEASE + SLACK) == 1800
    assert 0.5 <= await nap(client, 0.5) < 0.5 + LEASE + SLACK


async def test_a_clock_that_is_set_back_ends_sleeps_late_and_no_later_ones(
    stepped: Stepped, engine: tuple[sf.Engine, Nursery]
) -> None:
    """A sleep ends at an instant of the server's: it comes when the clock gets there; new ones go by the new clock."""
    client, nursery = engine
    await nursery.spawn_ready(2, lease=LEASE)
    run = await asleep(client, 3)
    stepped.dial.step(-HOUR)

    assert 0.5 <= await nap(client, 0.5) < 0.5 + LEASE + SLACK
    with pytest.raises(ResultTimeoutError):
        await run.result(timeout=3)
    stepped.dial.step(HOUR)
    assert await run.result(timeout=LEASE + SLACK) == 3


async def test_runs_of_a_worker_that_dies_before_the_clock_is_set_back_go_on_after_a_lease(
    stepped: Stepped, engine: tuple[sf.Engine, Nursery], tmp_path: Path
) -> None:
    """Nobody takes it for alive for an hour."""
    client, nursery = engine
    [worker] = await nursery.spawn_ready(lease=LEASE)
    run = await client.start(waits_at_the_gate, str(tmp_path / "gate"))
    await written(Ledger(os.environ[LEDGER]), what="begin", key=f"{run.id}:parked")
    nursery.kill(worker)
    stepped.dial.step(-HOUR)
    (tmp_path / "gate").touch()
    await nursery.spawn_ready(lease=LEASE)

    assert await run.result(timeout=1 + LEASE + SLACK) == "through"
