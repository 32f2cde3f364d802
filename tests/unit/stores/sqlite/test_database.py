"""How the store's time follows the time of day: a pure function of a plan and the time since boot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from standfast.clock import MICROSECONDS
from standfast.locks.heartbeat import MARGIN
from standfast.stores.sqlite.database import FASTER, LEAD, LOOK_EVERY, SLOWER, TOLERANCE, Slew, TimePlan

YEAR = 366 * 86_400 * MICROSECONDS
instants = st.integers(0, YEAR)
offsets = st.integers(-YEAR, YEAR)
slews = st.builds(Slew, instants, offsets, offsets)


@given(slews, instants, st.integers(0, YEAR))
def test_time_never_jumps_nor_goes_back(slew: Slew, elapsed: int, passed: int) -> None:
    """However far the time of day is off, and whenever one looks: at least half speed, at most 5 % faster."""
    went = passed + slew.offset_at(elapsed + passed) - slew.offset_at(elapsed)
    assert passed * (100 - SLOWER) // 100 - 1 <= went <= passed * (100 + FASTER) // 100 + 1


def test_a_holder_stops_before_its_lease_can_end() -> None:
    """By its own clock it relies on nine tenths of its lease; the store's time passes the rest at the earliest then."""
    assert (1 - MARGIN) * (100 + FASTER) / 100 < 1


@given(slews)
def test_the_target_is_reached_when_it_was_said_to_be_and_kept(slew: Slew) -> None:
    """From then on the store's time is the time of day."""
    there = slew.since + round(slew.settles_in() * MICROSECONDS) + 100
    assert slew.offset_at(there) == slew.offset_at(there + YEAR) == slew.target
    assert slew.offset_at(slew.since) == slew.offset


steps = st.lists(st.tuples(st.integers(1, 600 * MICROSECONDS), offsets), max_size=20)


@given(offsets, steps, st.data())
def test_handles_that_look_now_and_then_always_agree(
    offset: int, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    """A plan begins when everybody knows it: also one who has just looked before it was written."""
    elapsed, plan = 0, TimePlan.level(offset)
    for pause, ahead in changes:
        elapsed += pause
        if elapsed < plan.following.since:
            continue
        changed = plan.follow(elapsed, elapsed + ahead)
        if changed is None:
            assert abs(ahead - plan.slew_at(elapsed).target) <= TOLERANCE
            continue
        for _ in range(3):  # with the old plan and the new one, until the old one is too old to be used
            at = elapsed + data.draw(st.integers(0, LOOK_EVERY))
            assert plan.at(at) == changed.at(at)
        start = elapsed + LEAD
        assert abs(changed.at(start) - plan.at(start)) <= 1
        assert changed.at(start) >= changed.at(start - 1)
        plan = changed
        assert plan.slew_at(start).target == ahead


def test_plans_are_known_before_they_begin() -> None:
    """A handle looks more often than a plan is written ahead."""
    assert LOOK_EVERY < LEAD
