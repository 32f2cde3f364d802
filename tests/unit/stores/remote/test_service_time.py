"""The time of a service that tells only the second: never ahead, never back, and wrong by no more than it says."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from standfast.clock import MICROSECONDS, Instant
from standfast.stores.remote.service_time import DRIFT, FRESH, SHARP, SLACK, ServiceTime, instant_of, sharpen
from standfast.testing import VirtualClock

NOON = Instant(1_800_000_000 * MICROSECONDS)


class Service:
    """A service whose clock goes right, seen by a machine whose own clock may not."""

    def __init__(self, rate: float = 1.0) -> None:
        self.clock = VirtualClock()
        self.time = ServiceTime(self.clock)
        self.now = NOON
        self.rate = rate

    def pass_time(self, seconds: float) -> None:
        """Let time pass; the machine takes it for more or less than it is."""
        self.now = Instant(self.now + round(seconds * MICROSECONDS))
        self.clock.advance(seconds * self.rate)

    def answer(self, there: float = 0.0, back: float = 0.0, off: float = 0.0) -> None:
        """Answer a request, with the second of a clock that may be off."""
        sent = self.time.elapsed()
        self.pass_time(there)
        date = formatdate((self.now + round(off * MICROSECONDS)) // MICROSECONDS, usegmt=True)
        self.pass_time(back)
        self.time.learn(date, sent)


def test_nothing_is_known_before_the_first_answer() -> None:
    """Time is not guessed from this machine's clock."""
    assert Service().time.now() is None


def test_time_is_never_ahead_and_no_further_behind_than_it_says() -> None:
    """Whatever the round trips are, the service's time lies between what is read and that plus the error."""
    seed = random.randrange(2**32)
    dice, service = random.Random(seed), Service()
    for _ in range(200):
        service.pass_time(dice.uniform(0, 3))
        service.answer(dice.uniform(0, 0.3), dice.uniform(0, 0.3))
        read = service.time.now()
        assert read is not None, seed
        assert 0 <= service.now - read <= service.time.error * MICROSECONDS, seed


def test_one_answer_is_good_for_a_second() -> None:
    """At first the error is a second, the round trip and the slack."""
    service = Service()
    service.answer(0.1, 0.1)
    assert service.time.error == pytest.approx(1.2 + 2 * SLACK / MICROSECONDS)


def test_answers_around_the_turn_of_a_second_tell_the_time_well() -> None:
    """Many answers leave an error of about the slack."""
    service = Service()
    for _ in range(300):
        service.pass_time(0.0113)
        service.answer()
    assert service.time.error < 3 * SLACK / MICROSECONDS


def test_without_answers_time_is_not_known_for_long() -> None:
    """Then the service is asked before anything is decided by its time."""
    service = Service()
    service.answer()
    service.pass_time(FRESH / MICROSECONDS + 1)
    assert service.time.now() is None


def test_a_clock_that_drifts_does_not_get_ahead() -> None:
    """As much as clocks go wrong is allowed for, however long ago the last answer is."""
    service = Service(rate=1 + DRIFT / MICROSECONDS * 0.9)
    for _ in range(100):
        service.answer()
        service.pass_time(29)
        read = service.time.now()
        assert read is not None
        assert read <= service.now


def test_a_clock_that_runs_away_is_caught_by_the_answers() -> None:
    """A machine on which time passes twice as fast goes by the service all the same."""
    service = Service(rate=2.0)
    for _ in range(20):
        service.answer()
        service.answer()
        service.pass_time(1)
    service.answer()
    service.answer()
    read = service.time.now()
    assert read is None or read <= service.now + 3 * MICROSECONDS


def test_time_does_not_go_back() -> None:
    """When it turns out that time was read too far ahead, it stands still."""
    service = Service()
    for off in (0.9, 0.9, 0.0, 0.0, 0.0):
        before = service.time.now() or 0
        service.answer(off=off)
        assert (service.time.now() or before) >= before


def test_one_wrong_answer_is_not_believed() -> None:
    """An answer an hour ahead makes time unknown until the next one says that it was wrong."""
    service = Service()
    service.answer()
    service.answer(off=3_600)
    assert service.time.now() is None

    service.answer()
    read = service.time.now()
    assert read is not None
    assert read <= service.now


def test_two_answers_that_agree_are_believed() -> None:
    """A machine that was frozen for an hour hears the new time twice, and takes it."""
    service = Service()
    service.answer()
    service.now = Instant(service.now + 3_600 * MICROSECONDS)
    service.answer()
    service.answer()
    read = service.time.now()
    assert read is not None
    assert service.now - 2 * MICROSECONDS < read <= service.now


def test_time_that_was_far_ahead_is_given_up() -> None:
    """A service that is an hour wrong and is set right does not stop time for an hour."""
    service = Service()
    for off in (3_600, 3_600, 0, 0):
        service.answer(off=off)
        service.time.now()
    read = service.time.now()
    assert read is not None
    assert read <= service.now


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Foo 2026 00:00:00 GMT"])
def test_what_is_no_date_is_no_news(date: str) -> None:
    """An answer without a date leaves things as they are."""
    assert instant_of(date) is None
    service = Service()
    service.time.learn(date, service.time.elapsed())
    assert service.time.now() is None


@pytest.mark.parametrize(("lease", "error"), [(0.5, SHARP), (2.0, 0.5)])
async def test_for_short_leases_the_service_is_asked_until_its_time_is_known_well(lease: float, error: float) -> None:
    """The turn of a second tells it: a quarter of the lease, or as well as it can be known."""
    service = Service()
    service.answer()
    assert service.time.error > error

    async def probe() -> None:
        service.pass_time(0.05)
        service.answer()

    await sharpen(service.time, lease, probe)

    assert service.time.error <= error


async def test_for_long_leases_the_service_is_not_asked() -> None:
    """One answer is enough for them."""
    service = Service()
    service.answer()

    async def probe() -> None:
        pytest.fail("it was asked")

    await sharpen(service.time, 10, probe)
