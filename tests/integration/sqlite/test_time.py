"""Store time: shared by all handles, stepped by no one, never turned back; it follows the time of day slowly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from standfast.clock import MICROSECONDS, SYSTEM_CLOCK, Instant, later, seconds_between
from standfast.events import ClockStepped, Event
from standfast.stores import Commit, Conflict, Put
from standfast.stores.sqlite import backend as upkeep
from standfast.testing import VirtualClock
from tests import services
from tests.integration.sqlite.children import Child
from tests.integration.sqlite.programs.dialogue import key

if TYPE_CHECKING:
    from standfast.stores import Store
    from tests.integration.sqlite.conftest import Open, Start

HOUR = 3600.0


class AheadClock:
    """The machine's clock, with another time of day."""

    def __init__(self, ahead: float) -> None:
        self._ahead = round(ahead * MICROSECONDS)

    def wall(self) -> Instant:
        """Return another time of day."""
        return Instant(SYSTEM_CLOCK.wall() + self._ahead)

    def elapsed(self) -> Instant:
        """Return the time since boot."""
        return SYSTEM_CLOCK.elapsed()

    def boot(self) -> str:
        """Return which boot it is."""
        return SYSTEM_CLOCK.boot()


async def now(store: Store) -> Instant:
    """Return the store's time."""
    return (await store.read(key("any"))).at


@pytest.mark.parametrize("step", [-HOUR, HOUR])
async def test_a_stepped_wall_clock_moves_no_store_time(url: str, opened: Open, step: float) -> None:
    """Setting the time of day neither hastens nor delays anything, also for handles opened later."""
    clock = VirtualClock()
    store = await opened(url, clock=clock)
    before = await now(store)
    await store.commit(Put(key("lease"), b"", expires_at=later(before, 10.0)))

    clock.step_wall(step)
    clock.advance(5.0)

    assert await now(store) == await now(await opened(url, clock=clock)) == later(before, 5.0)
    assert (await store.read(key("lease"))).records
    clock.advance(5.0)
    assert not (await store.read(key("lease"))).records


async def follow(store: Store, told: list[Event], steps: int = 1) -> list[ClockStepped]:
    """Commit until so many steps of the clock were told."""
    async with asyncio.timeout(30):
        while len(found := [event for event in told if isinstance(event, ClockStepped)]) < steps:
            await store.commit(Put(key(f"busy-{uuid4()}"), b""))
    return found


@pytest.fixture
def upkeep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let upkeep be done after each commit."""
    monkeypatch.setattr(upkeep, "EVERY", 0.0)


@pytest.mark.usefixtures("upkeep_at_once")
@pytest.mark.parametrize("step", [HOUR, 1.0, -1.0, -HOUR])
async def test_the_time_of_day_is_followed_slowly(url: str, opened: Open, step: float) -> None:
    """Every handle has the same time meanwhile; it never jumps nor goes back, and in the end it is the time of day."""
    clock, told = VirtualClock(), list[Event]()
    store, other = [await opened(url, clock=clock, hooks=[told.append]) for _ in range(2)]
    await store.commit(Put(key("first"), b""))
    clock.step_wall(step)

    [stepped] = await follow(store, told)

    assert stepped.seconds == pytest.approx(step, abs=0.2)
    before, ticks = await now(store), 200
    for _ in range(ticks):
        clock.advance(stepped.settles_in / ticks)
        at = await now(store)
        assert at == await now(other)
        assert 0.49 <= seconds_between(before, at) / (stepped.settles_in / ticks) <= 1.06
        before = at
    assert abs(seconds_between(await now(store), clock.wall())) < 0.1


@pytest.mark.usefixtures("upkeep_at_once")
@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_a_lease_neither_ends_early_nor_lasts_for_ever(url: str, opened: Open, step: float) -> None:
    """What is left of it when nine tenths have passed is there; when twice its length has passed, nothing is."""
    clock, told = VirtualClock(), list[Event]()
    store = await opened(url, clock=clock, hooks=[told.append])
    await store.commit(Put(key("first"), b""))
    clock.step_wall(step)
    await follow(store, told)
    clock.advance(10.0)  # the plan has begun

    await store.commit(Put(key("lease"), b"", expires_at=later(await now(store), 100.0)))
    clock.advance(90.0)
    assert (await store.read(key("lease"))).records
    clock.advance(110.5)
    assert not (await store.read(key("lease"))).records


@pytest.mark.parametrize("step", [24 * HOUR, 60.0])
async def test_a_file_that_nobody_has_open_takes_the_time_of_day_at_once(url: str, opened: Open, step: float) -> None:
    """As after a reboot: a clock that was wrong is wrong no longer than until all have closed the file."""
    clock, told = VirtualClock(), list[Event]()
    store = await opened(url, clock=clock)
    await store.commit(Put(key("first"), b""))
    clock.step_wall(step)
    beside = await opened(url, clock=clock, hooks=[told.append])
    assert seconds_between(await now(beside), clock.wall()) == pytest.approx(step), "another handle relies on it"
    assert told == []
    await store.aclose()
    await beside.aclose()

    alone = await opened(url, clock=clock, hooks=[told.append])

    assert await now(alone) == clock.wall()
    [event] = told
    assert isinstance(event, ClockStepped)
    assert (event.seconds, event.settles_in) == (step, 0.0)


async def test_a_file_that_was_ahead_goes_on_from_its_last_commit(url: str, opened: Open) -> None:
    """Then its time runs at half speed until the time of day has caught up."""
    clock, told = VirtualClock(), list[Event]()
    store = await opened(url, clock=clock)
    last = await store.commit(Put(key("first"), b""))
    await store.aclose()
    clock.step_wall(-100)

    store = await opened(url, clock=clock, hooks=[told.append])

    assert await now(store) == last.at
    clock.advance(100)
    assert await now(store) == later(last.at, 50)
    clock.advance(100)
    assert await now(store) == clock.wall() == later(last.at, 100)


async def test_another_process_is_never_taken_for_nobody(url: str, start: Start, opened: Open) -> None:
    """A process that has the file open relies on its time: the next to open it does not step it."""
    other = start("tell_time", url)
    assert other.hear() == ["ready"]
    clock = AheadClock(HOUR)

    store = await opened(url, clock=clock)

    assert abs(seconds_between(await now(store), Instant(int((await asyncio.to_thread(other.ask, "time"))[0])))) < 1
    await asyncio.to_thread(other.end)
    await store.aclose()
    store = await opened(url, clock=clock)
    assert abs(seconds_between(await now(store), clock.wall())) < 1


@pytest.mark.usefixtures("upkeep_at_once")
async def test_processes_with_different_clocks_share_one_time(url: str, opened: Open) -> None:
    """Their times of day are an hour apart; what the store says is the same for both, and never goes back."""
    told: list[Event] = []
    store = await opened(url, hooks=[told.append])
    child = Child("tell_time", url, environment=services.faketime("+3600s"))
    try:
        assert child.hear() == ["ready"]
        times: list[int] = []
        for _ in range(50):
            await store.commit(Put(key("busy"), b"", (await store.read(key("busy"))).version(key("busy"))))
            times += [await now(store), int((await asyncio.to_thread(child.ask, "time"))[0])]
    finally:
        child.kill()
    assert times == sorted(times)
    assert seconds_between(Instant(times[0]), Instant(times[-1])) < 60


@pytest.mark.usefixtures("upkeep_at_once")
async def test_a_first_opener_with_a_wrong_clock_is_corrected(url: str, opened: Open) -> None:
    """The next process whose clock is right lets the store's time follow that, and the first one does not fight."""
    told: list[Event] = []
    wrong = Child("tell_time", url, environment=services.faketime("+3600s"))
    try:
        assert wrong.hear()
        store = await opened(url, hooks=[told.append])
        [stepped] = await follow(store, told)
        assert stepped.seconds == pytest.approx(-HOUR, abs=60)
        assert stepped.settles_in == pytest.approx(2 * HOUR, abs=120)
    finally:
        wrong.kill()


@pytest.mark.parametrize("step", [-24 * HOUR, -1.0, 0.0, HOUR])
async def test_a_reboot_never_turns_time_back(url: str, opened: Open, step: float) -> None:
    """After a reboot time goes on from the wall clock, or from the last commit if the wall clock is behind it."""
    clock = VirtualClock()
    clock.advance(1000.0)
    store = await opened(url, clock=clock)
    clock.advance(50.0)
    verdict = await store.commit(Put(key("last"), b""))
    await store.aclose()

    clock.step_wall(step)
    clock.reboot()
    store = await opened(url, clock=clock)

    assert await now(store) == max(verdict.at, clock.wall())
    clock.advance(3.0)
    assert await now(store) >= later(verdict.at, 1.5), "no slower than at half speed"


async def test_two_handles_agree_after_a_reboot(url: str, opened: Open) -> None:
    """Whoever comes first after a reboot anchors the time for all others."""
    clock = VirtualClock()
    await (await opened(url, clock=clock)).aclose()
    clock.reboot()

    first = await opened(url, clock=clock)
    clock.step_wall(HOUR)
    second = await opened(url, clock=clock)

    assert await now(first) == await now(second)


async def test_a_window_is_judged_by_the_time_of_the_commit(url: str, opened: Open) -> None:
    """A commit that comes too early or too late by the store's own clock is refused, whatever the wall says."""
    clock = VirtualClock()
    store = await opened(url, clock=clock)
    start = await now(store)
    clock.step_wall(-HOUR)
    clock.advance(10.0)

    late = await store.commit(Put(key("late"), b""), before=later(start, 10.0))
    early = await store.commit(Put(key("early"), b""), after=later(start, 10.1))
    timely = await store.commit(Put(key("timely"), b""), after=later(start, 10.0), before=later(start, 10.1))

    assert isinstance(late, Conflict)
    assert isinstance(early, Conflict)
    assert isinstance(timely, Commit)


async def test_processes_share_one_time(url: str, start: Start, opened: Open) -> None:
    """Times told by two processes in turn never go backwards."""
    store = await opened(url)
    other = start("tell_time", url)
    assert other.hear() == ["ready"]
    times: list[int] = []
    for _ in range(100):
        times += [await now(store), int((await asyncio.to_thread(other.ask, "time"))[0])]

    assert times == sorted(times)
